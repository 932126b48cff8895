"""Whether reduced hulls overlap, against linear programming; and the smooth problem, against differences."""

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array
from scipy.special import expit

from dask_odm.papers.saddle.feasibility import STEPS, Tilt, judge
from dask_odm.papers.saddle.problem import HullProblem
from hull_problems import hulls


def feasible(X, y, caps):
    """Whether the hulls have a point in common: a linear programme."""
    S = np.where(y > 0, 1.0, -1.0)[:, None] * X
    equal = np.vstack([S.T, y > 0, y <= 0])
    right = np.append(np.zeros(X.shape[1]), [1.0, 1.0])
    return linprog(np.zeros(len(y)), A_eq=equal, b_eq=right, bounds=[(0, cap) for cap in caps]).status == 0


def classes(seed, n=120, d=4):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.where(np.arange(n) < n // 3, 1.0, -1.0))
    X = rng.standard_normal((n, d)) * [1.0, 1e-3, 1e2, 1.0][:d] + rng.uniform(0, 1.2) * y[:, None]
    return X, y, rng.integers(1, 4, n).astype(float)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("alpha", [None, 0.1, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_what_linear_programming_says(seed, alpha, weighted):
    X, y, weight = classes(seed)
    weight = weight if weighted else np.ones(len(y))
    problem = hulls(X, y, alpha, weight)
    caps = np.full(len(y), 1.0) if alpha is None else weight / problem.mass
    verdict = judge(problem)
    assert verdict.overlap is feasible(X, y, caps)
    if not verdict.overlap:
        assert verdict.direction @ problem.vertex(verdict.direction).difference > 0


def test_features_that_depend_on_each_other_and_rows_without_a_share_are_no_trouble():
    """Indicators of categories: their sum is one, and one of them is there in the positive class only."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 5, 400)
    y = np.where((kind == 4) | (rng.random(400) < 0.4), 1.0, -1.0)
    X = np.eye(5)[kind]
    for alpha, expected in ((None, True), (0.5, True), (0.95, False)):
        problem = hulls(csr_array(X), y, alpha, step=50)
        caps = np.full(400, 1.0 / problem.mass if problem.mass else 1.0)
        assert feasible(X, y, caps) is expected
        assert judge(problem).overlap is expected


def test_classes_of_equal_rows_overlap_and_nothing_is_said_of_too_many_features():
    X, y = np.repeat(np.random.default_rng(0).standard_normal((20, 3)), 2, axis=0), np.where(np.arange(40) % 2, 1.0, -1)
    assert judge(hulls(X, y, 0.9)).overlap
    assert judge(hulls(np.zeros((40, 3)), y, 0.9)).overlap
    assert judge(hulls(X, y, 0.9), most_features=2).overlap is None


def test_the_problem_is_as_it_was():
    X, y, _ = classes(3)
    problem: HullProblem = hulls(X, y, 0.1, streamed=True)
    problem.vertex(np.array([1.0, 0.0, 0.0, 0.0]))
    memory, passes = problem.memory, problem.passes_made
    judge(problem)
    np.testing.assert_array_equal(problem.memory, memory)
    assert problem.passes_made <= passes + 30


# The smooth problem --------------------------------------------------------------------------------------------------


@pytest.fixture
def tilt():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 3)), np.where(rng.random(50) < 0.4, 1.0, -1.0)
    weight = rng.integers(0, 4, 50).astype(float)
    return Tilt(hulls(X, y, 0.6, weight)), X, y, weight / (0.6 * min(weight[y > 0].sum(), weight[y < 0].sum()))


def test_derivatives_are_those_of_the_value(tilt):
    of, at, h = tilt[0], np.array([0.3, -0.2, 0.5, -1.0, 0.4]), 1e-5
    _, gradient, hessian = of.sums(at)
    for k, move in enumerate(h * np.eye(5)):
        up, down = of.sums(at + move), of.sums(at - move)
        assert (up[0] - down[0]) / (2 * h) == pytest.approx(gradient[k], abs=1e-8)
        np.testing.assert_allclose((up[1] - down[1]) / (2 * h), hessian[k], atol=1e-7)


def test_a_step_tells_its_values_and_what_it_breaks(tilt):
    of, X, y, caps = tilt
    at, step = np.array([0.3, -0.2, 0.5, -1.0, 0.4]), np.array([1.0, 3.0, -2.0, 0.5, 0.2])
    broken, values = of.reach(at, step)
    np.testing.assert_allclose(values, [of.sums(at + share * step)[0] for share in STEPS])
    of_row, more = (y * (X @ part[:3]) + np.where(y > 0, part[3], part[4]) for part in (at, step))
    e = caps * expit(of_row) * (1 + expit(-of_row) * more)
    assert broken == pytest.approx(np.abs(e - np.clip(e, 0, caps)).sum())
