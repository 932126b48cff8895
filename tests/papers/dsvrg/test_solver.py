"""SVRG and CSVRG against plain loops, active sets and Newton: steps, optimum, divergence, the coreset's fixed point."""

import numpy as np
import pytest

import reference
from dask_odm.errors import InputError
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.learning.solution import SolverSettings
from dask_odm.methods.linear.solver import solve_newton
from dask_odm.papers.dsvrg import solver as svrg
from dask_odm.papers.dsvrg.solver import SVRG, ArraySteps, draw_coreset, walk_rows
from small_problems import SETTINGS, SmallProblem, linear_problem, wide

WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
# without the setting whose condition takes tens of thousands of epochs over so few rows
EVERY_SETTING = pytest.mark.parametrize("setting", [SETTINGS[0], *SETTINGS[2:]], ids=str)


def parts_of(p: SmallProblem) -> tuple:
    features = FeatureMap(p.X.shape[1], p.kernel.bias)
    return features, BandLoss(p.losses.settings, p.losses.total_weight), p.X, (p.y > 0).astype(np.int8), p.weight


def steps_of(p: SmallProblem, seed: int = 0) -> ArraySteps:
    return ArraySteps(*parts_of(p), seed)


def coreset_of(p: SmallProblem, chosen: np.ndarray, factor: np.ndarray, seed: int = 0) -> ArraySteps:
    return ArraySteps(*parts_of(p), seed, 1, (chosen, factor))


def solver_of(problem, *, tol=1e-6, max_iter=5000, step_size="auto", **options) -> SVRG:
    return SVRG("svrg", problem, SolverSettings(tol, max_iter), step_size, **options)


def duals(p: SmallProblem, w: np.ndarray) -> np.ndarray:
    return p.losses.dual_candidate(p.y * (wide(p) @ w))


def pull(p: SmallProblem, w: np.ndarray) -> np.ndarray:
    return wide(p).T @ (p.y * duals(p, w))


def assert_honest(p: SmallProblem, solution) -> None:
    w = solution.x
    primal = 0.5 * float(w @ w) + float(p.losses.losses(p.y * (wide(p) @ w)).sum())
    assert solution.primal == pytest.approx(primal, rel=1e-9)
    assert solution.gap == pytest.approx((primal - p.dual(duals(p, w))) / primal, rel=1e-4, abs=1e-12)


@EVERY_SETTING
@WEIGHTED
@pytest.mark.parametrize("bias", [0.0, 2.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_are_those_of_the_formula(setting, weighted, bias, dtype):
    """``w − η (∇p_i(w) − ∇p_i(w̃) + ∇P(w̃))``, gradients of one row written out."""
    p = linear_problem(40, setting, weighted=weighted, bias=bias, dtype=dtype)
    rng = np.random.default_rng(3)
    features, loss, X, codes, weight = parts_of(p)
    w, snapshot, order = rng.normal(size=features.k), rng.normal(size=features.k), rng.permutation(40)
    step, drift = 1e-3, pull(p, snapshot)

    def gradient(i: int, w: np.ndarray) -> np.ndarray:
        return w - 40 * p.y[i] * duals(p, w)[i] * wide(p)[i]

    expected = w.copy()
    for i in order:
        expected -= step * (gradient(i, expected) - gradient(i, snapshot) + snapshot - drift)
    w = walk_rows(features, loss, 40, [((X, codes, weight), order)], snapshot, drift, step, start=w)
    np.testing.assert_allclose(w, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("step_size", ["bb", 1e-4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_steps_end_there_too(step_size, dtype):
    p = linear_problem(300, (1e3, 0.3, 0.2), dtype=dtype, weighted=True)
    solution = solver_of(steps_of(p), step_size=step_size, tol=1e-9).run()
    assert solution.converged
    assert_honest(p, solution)
    best = solve_newton(PrimalProblem.over_rows(*parts_of(p)), np.zeros(4), tol=1e-12, max_iter=100)
    np.testing.assert_allclose(solution.x, best.x, atol=1e-4 * np.abs(best.x).max())


class Recorder:
    """A problem that remembers what it was asked."""

    def __init__(self, problem) -> None:
        self.problem, self.steps, self.points, self.asked = problem, [], [], 0

    def __getattr__(self, name):
        return getattr(self.problem, name)

    def sums(self, w):
        self.asked += 1
        return self.problem.sums(w)

    def stiffest(self):
        self.asked += 1
        return self.problem.stiffest()

    def walk(self, w, pull, step, epoch):
        self.steps.append(step)
        self.points.append((w, w - pull))
        self.asked += 1
        return self.problem.walk(w, pull, step, epoch)


@WEIGHTED
def test_automatic_step_is_a_quarter_of_the_inverse_smoothness(weighted):
    p = linear_problem(100, (50.0, 0.3, 0.2), weighted=weighted)
    problem = Recorder(steps_of(p))
    solver_of(problem, max_iter=2).run()
    mean_one = p.weight / p.weight.mean()
    smoothness = 1.0 + 50.0 * (mean_one * (wide(p) ** 2).sum(axis=1)).max() / 0.8**2
    np.testing.assert_allclose(problem.steps, 0.25 / smoothness, rtol=1e-12)


def test_barzilai_borwein_steps():
    p = linear_problem(400, (20.0, 0.3, 0.2))
    problem = Recorder(steps_of(p))
    solver_of(problem, step_size="bb", tol=1e-12, max_iter=12).run()
    longest = 4 * problem.steps[0]
    shorter = 0
    for before, here, step in zip(problem.points, problem.points[1:], problem.steps[1:], strict=False):
        moved, turned = here[0] - before[0], here[1] - before[1]
        expected = moved @ moved / (400 * moved @ turned)
        shorter += expected < longest
        assert step == pytest.approx(min(expected, longest), rel=1e-9)
    assert shorter


def test_seed_decides():
    p = linear_problem(150)
    runs = [solver_of(steps_of(p, seed), max_iter=3, tol=1e-15).run().x for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).any()


@pytest.mark.parametrize("step_size", [0.1, 1.0, 1e6])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_that_diverge_are_named(step_size, dtype):
    p = linear_problem(200, (1e3, 0.5, 0.2), dtype=dtype)
    smoothness = 1.0 + 1e3 * (wide(p) ** 2).sum(axis=1).max() / 0.64
    with pytest.raises(InputError, match=r"solver='svrg' diverged in epoch \d+: step_size=") as caught:
        solver_of(steps_of(p), step_size=step_size).run()
    assert f"step_size={step_size:g} took the objective from" in str(caught.value)
    assert f"Use step_size='auto', which is {0.25 / smoothness:.2g} here" in str(caught.value)


# CSVRG -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("step_size", ["auto", "bb"])
@WEIGHTED
def test_a_coreset_of_all_rows_is_svrg(dtype, step_size, weighted):
    p = linear_problem(250, dtype=dtype, weighted=weighted)
    chosen, factor = draw_coreset(np.arange(250) % 7, 250, seed=1)
    np.testing.assert_array_equal(chosen, np.arange(250))
    options = {"step_size": step_size, "tol": 1e-12, "max_iter": 20}
    expected = solver_of(steps_of(p), **options).run()
    found = solver_of(coreset_of(p, chosen, factor), **options).run()
    np.testing.assert_array_equal(found.x, expected.x)
    # by sums of BLAS, which on some processors depend on where rows lie in memory
    np.testing.assert_allclose([r["gap"] for r in found.history], [r["gap"] for r in expected.history], rtol=1e-9)


@pytest.mark.parametrize("size", [3, 40, 100, 1000])
def test_a_coreset_stands_for_every_stratum(size):
    strata = np.random.default_rng(0).choice([0, 1, 2, 4], 400, p=[0.6, 0.3, 0.09, 0.01])
    chosen, factor = draw_coreset(strata, size, seed=2)
    assert (np.diff(chosen) > 0).all()
    for s in (0, 1, 2, 4):
        assert factor[strata[chosen] == s].sum() == pytest.approx((strata == s).sum())
    assert abs(len(chosen) - min(size, 400)) <= 4
    again, _ = draw_coreset(strata, size, seed=3)
    assert size > 400 or chosen.tolist() != again.tolist()


@WEIGHTED
def test_a_coreset_ends_at_its_own_optimum(weighted, monkeypatch):
    monkeypatch.setattr(svrg, "STALL_EPOCHS", 1000)
    p = linear_problem(400, (50.0, 0.3, 0.2), weighted=weighted)
    chosen, factor = draw_coreset(np.arange(400) % 5, 100, seed=0)
    solution = solver_of(coreset_of(p, chosen, factor), tol=1e-9, max_iter=60, biased=True).run()
    weight = factor * p.weight[chosen]
    lam = p.lam * weight.sum() / p.weight.sum()  # the set's weights do not add up to the rows' own
    own, _ = reference.solve_primal_linear(wide(p)[chosen], p.y[chosen], lam, 0.3, 0.2, weight)
    best, _ = reference.solve_primal_linear(wide(p), p.y, *p.parameters)
    np.testing.assert_allclose(solution.x, own, atol=1e-5)
    assert np.abs(own - best).max() > 1e-2
    assert not solution.converged


def test_a_gap_that_stalls_ends_it():
    p = linear_problem(400, (50.0, 0.3, 0.2))
    coreset = draw_coreset(np.zeros(400, int), 40, seed=0)
    solution = solver_of(coreset_of(p, *coreset), max_iter=500, biased=True).run()
    assert not solution.converged
    assert 5 < len(solution.history) < 50
    assert_honest(p, solution)
    assert solution.history[-1]["passes"] == pytest.approx(1 + 1 + (len(solution.history) - 1) * 2.1)
    larger = draw_coreset(np.zeros(400, int), 300, seed=0)
    assert solver_of(coreset_of(p, *larger), max_iter=500, biased=True).run().gap < solution.gap
