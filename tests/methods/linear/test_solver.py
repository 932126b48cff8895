"""Newton in the weights of the features: against active sets, the papers' dual and the solvers that know the rows."""

import numpy as np
import pytest
from scipy.sparse import csr_array

import reference
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.methods.linear.solver import solve_newton
from dask_odm.papers.sodm.partition_solver import solve_features
from small_problems import SETTINGS, SmallProblem, linear_problem, wide

EVERY_SETTING = pytest.mark.parametrize("setting", SETTINGS, ids=str)
BOTH_WAYS = pytest.mark.parametrize("exact", [True, False], ids=["cholesky", "conjugate gradients"])
EVERY_FORM = pytest.mark.parametrize("form", [np.asarray, csr_array], ids=["dense", "csr"])
WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])


def problem_of(p: SmallProblem, form=np.asarray, scaling=None) -> PrimalProblem:
    features = FeatureMap(p.X.shape[1], p.kernel.bias, scaling)
    loss = BandLoss(p.losses.settings, p.losses.total_weight)
    return PrimalProblem.over_rows(features, loss, form(p.X), (p.y > 0).astype(np.int8), p.weight, 2)


def solve(p: SmallProblem, w=None, *, form=np.asarray, tol=1e-12, max_iter=100, exact=None) -> PrimalSolution:
    problem = problem_of(p, form)
    return solve_newton(problem, np.zeros(problem.k) if w is None else w, tol=tol, max_iter=max_iter, exact=exact)


def values(p: SmallProblem, w: np.ndarray) -> tuple[float, float]:
    """P(w), and P − D of the s that the margins of w give: from the formulas, in long double since they cancel."""
    phi, y, w = wide(p).astype(np.longdouble), p.y.astype(np.longdouble), w.astype(np.longdouble)
    low, high = 1 - np.longdouble(p.theta), 1 + np.longdouble(p.theta)
    stiffness = p.weight * np.longdouble(p.lam) / (p.weight.sum() * low**2)
    margins = y * (phi @ w)
    below, above = np.maximum(low - margins, 0), np.maximum(margins - high, 0)
    losses = stiffness * (below**2 + p.upsilon * above**2) / 2
    up, down = stiffness * below, stiffness * p.upsilon * above
    v = phi.T @ (y * (up - down))
    conjugates = up**2 / (2 * stiffness) - low * up + high * down
    if p.upsilon:
        conjugates += down**2 / (2 * stiffness * p.upsilon)
    primal = w @ w / 2 + losses.sum()
    return float(primal), float(primal + v @ v / 2 + conjugates.sum())


def assert_honest(p: SmallProblem, solution: PrimalSolution, rounding: float = 1e-13) -> None:
    """What is reported is what the formulas give."""
    primal, gap = values(p, solution.x)
    assert solution.primal == pytest.approx(primal, rel=1e-9)
    assert solution.gap == pytest.approx(gap / primal, rel=1e-4, abs=rounding)
    assert solution.history[-1]["gap"] == solution.gap
    assert solution.history[-1]["objective"] == solution.primal


@EVERY_SETTING
@WEIGHTED
@BOTH_WAYS
@EVERY_FORM
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_is_what_active_sets_find(setting, weighted, exact, form, bias):
    p = linear_problem(90, setting, weighted=weighted, bias=bias, d=4)
    expected, value = reference.solve_primal_linear(wide(p), p.y, *p.parameters)
    solution = solve(p, exact=exact, form=form)
    np.testing.assert_allclose(solution.x, expected, atol=1e-5)
    assert solution.primal == pytest.approx(value, rel=1e-9)
    assert solution.converged
    assert solution.gap <= 1e-12
    assert_honest(p, solution)


@EVERY_SETTING
@BOTH_WAYS
@EVERY_FORM
@pytest.mark.parametrize("tol", [1e-8, 1e-11])
def test_narrow_rows_go_on_in_float64(setting, exact, form, tol):
    """The optimum is that of the rows as they are, rounded once, not of sums in float32."""
    p = linear_problem(400, setting, dtype="float32", weighted=True, d=6)
    solution = solve(p, exact=exact, form=form, tol=tol)
    assert solution.converged
    primal, gap = values(p, solution.x)
    assert gap / primal <= tol * 1.01
    _, w, _ = solve_features(p.losses, p.rows, 1.0, np.zeros(7))
    assert 0.5 * np.sum((solution.x - w) ** 2) <= 1.01 * tol * primal


@pytest.mark.parametrize("lam", [1e-8, 1e-4, 1.0, 1e4, 1e8])
@pytest.mark.parametrize(("upsilon", "theta"), [(0.0, 0.0), (0.0, 0.3), (0.5, 0.0), (1.0, 0.9)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@BOTH_WAYS
def test_both_ends_of_lam(lam, upsilon, theta, dtype, exact):
    p = linear_problem(300, (lam, upsilon, theta), dtype=dtype)
    solution = solve(p, tol=1e-8, exact=exact)
    assert solution.converged
    primal, gap = values(p, solution.x)
    assert gap / primal <= 1.01e-8


def with_rows(p: SmallProblem, X: np.ndarray, y: np.ndarray | None = None) -> SmallProblem:
    y = p.y if y is None else y
    return SmallProblem(p.kernel, X, y, np.ones(len(y)), p.lam, p.upsilon, p.theta)


DEGENERATE = {
    "constant": lambda X: np.column_stack([X, np.full(len(X), 3.0), np.zeros(len(X))]),
    "duplicate": lambda X: np.column_stack([X, X, X]),
    "zero rows": lambda X: np.where(np.arange(len(X))[:, None] % 3 == 0, 0.0, X),
    "only zeros": np.zeros_like,
    "uneven": lambda X: X * [1e-4, 1.0, 1e4],
    "more features than rows": lambda X: np.random.default_rng(0).normal(size=(len(X), len(X) + 10)),
}


@pytest.mark.parametrize("kind", DEGENERATE)
@BOTH_WAYS
@EVERY_FORM
@pytest.mark.parametrize("setting", [SETTINGS[0], (1e4, 0.3, 0.1)], ids=str)
def test_rows_that_leave_the_hessian_singular(kind, exact, form, setting):
    p = linear_problem(40, setting)
    p = with_rows(p, DEGENERATE[kind](p.X))
    solution = solve(p, exact=exact, form=form, tol=1e-8)
    assert solution.converged
    assert_honest(p, solution, 1e-6 if kind == "uneven" else 1e-12)
    if kind == "duplicate":
        np.testing.assert_allclose(solution.x[:3], solution.x[3:6], atol=1e-3 * np.abs(solution.x).max())
    if kind == "only zeros":
        np.testing.assert_array_equal(solution.x[:3], 0.0)


@pytest.mark.parametrize("exact", [True, False])
def test_is_the_same_from_anywhere(exact):
    p = linear_problem(200, SETTINGS[1], d=5)
    expected = solve(p, exact=exact).x
    for scale in (1e-3, 1.0, 1e5):
        start = scale * np.random.default_rng(1).normal(size=6)
        np.testing.assert_allclose(solve(p, start, exact=exact).x, expected, atol=1e-6 * np.abs(expected).max())
    again = solve(p, expected, exact=exact)
    assert again.converged
    assert len(again.history) == 1


def assert_falls(solution: PrimalSolution, tolerance: float) -> None:
    """No step raises P but for rounding; a full step that would have is followed by a shorter one, which does not."""
    objective = [step["objective"] for step in solution.history]
    lowest, tried = objective[0], False
    for value in objective[1:]:
        rises = value > lowest * (1 + tolerance)
        assert not (rises and tried), "a shortened step is no better than the start"
        tried, lowest = rises, min(lowest, value)
    assert not tried


def test_a_full_step_that_overshoots_is_shortened():
    """With few rows for its features Newton's full steps do not all lower P."""
    searched = []
    for seed in range(10):
        p = linear_problem(30, (1e6, 0.0, 0.3), d=10, seed=seed)
        problem = problem_of(p)
        slopes = problem.slopes

        def watched(*arguments, slopes=slopes, **options):
            searched.append(arguments[2])
            return slopes(*arguments, **options)

        problem.slopes = watched
        solution = solve_newton(problem, np.zeros(11), tol=1e-12, max_iter=100)
        assert solution.converged
        assert_falls(solution, 1e-10)
        assert_honest(p, solution, 1e-12)
    assert searched, "the line search is not tried by this test"


@BOTH_WAYS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_running_out_of_steps_says_so(exact, dtype):
    p = linear_problem(400, SETTINGS[1], dtype=dtype, d=8)
    solution = solve(p, max_iter=1, exact=exact)
    assert not solution.converged
    assert solution.gap > 1e-12
    assert len(solution.history) <= 3
    assert_honest(p, solution)
    assert solution.primal < values(p, np.zeros(9))[0]
    best = solve(p, exact=exact).primal
    assert (solution.primal - best) / solution.primal <= solution.gap


@BOTH_WAYS
def test_passes_are_counted(exact):
    p = linear_problem(300, d=6)
    problem, count = problem_of(p), 0

    def counted(method):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            return method(*arguments, **options)

        return call

    for name in ("sums", "product", "slopes"):
        setattr(problem, name, counted(getattr(problem, name)))
    solution = solve_newton(problem, np.zeros(7), tol=1e-10, max_iter=50, exact=exact)
    assert solution.history[-1]["passes"] == count


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("size", [1e18, 1e37])
@BOTH_WAYS
def test_rows_too_large_make_no_solution_of_nan(size, exact):
    """Either there is a solution, or something that cannot be taken for one: who asked for it looks."""
    p = linear_problem(90, dtype="float32")
    p = with_rows(p, (p.X.astype(np.float64) * size).astype(np.float32))
    try:
        solution = solve(p, tol=1e-8, max_iter=20, exact=exact)
    except ValueError:  # of a Hessian that overflows
        return
    assert not solution.converged or np.isfinite(solution.x).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_that_rounding_swallows_are_not_repeated(dtype):
    p = linear_problem(dtype=dtype)
    X = p.X.copy()
    X[0] *= X.dtype.type(1e24)  # no weight is small enough for this row, or large enough for the others
    solution = solve(with_rows(p, X), tol=1e-6, max_iter=60, exact=False)
    assert not solution.converged
    assert solution.steps < 10


class Sampled(PrimalProblem):
    """Rows of which one in eight is taken for the Hessian, though they are few."""

    hessian_stride = 8


@pytest.mark.parametrize("active", [0.5, 0.002])
def test_a_sampled_hessian_ends_at_the_same_weights(active):
    """Also where it is no good, since few rows are active: then all rows are taken from there on."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(30_000, 6))
    scores = X @ rng.normal(size=6)
    codes = (scores + rng.normal(size=30_000) * (1.0 if active > 0.1 else 0.01) > 0).astype(np.int8)
    features, loss = FeatureMap(6, 1.0), BandLoss(ODMSettings(1e4, 0.0, 0.2), 30_000.0)
    whole = solve_newton(
        PrimalProblem.over_rows(features, loss, X, codes, np.zeros(0)), np.zeros(7), tol=1e-12, max_iter=50
    )
    few = solve_newton(Sampled.over_rows(features, loss, X, codes, np.zeros(0)), np.zeros(7), tol=1e-12, max_iter=50)
    assert few.converged
    np.testing.assert_allclose(few.x, whole.x, rtol=0, atol=1e-4 * np.abs(whole.x).max())
