"""Newton over the span of landmarks: with every row a landmark it is the whole problem, with few never below it."""

from typing import Any

import numpy as np
import pytest
from scipy.linalg import solve_triangular

import reference
from dask_odm.kernels import RBF, Laplacian, Polynomial
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.landmark.problem import SpanProblem
from dask_odm.methods.landmark.query import SpanQuery
from dask_odm.methods.landmark.sketch import PrioritySample, SketchedHessian
from dask_odm.methods.landmark.solver import carried_over, rough_solution, solve_landmark, with_support
from small_problems import SETTINGS, SmallProblem, matrix, small_problem


def span_of(p: SmallProblem, landmarks: Landmarks) -> SpanProblem:
    query = SpanQuery(p.kernel, landmarks.rows, BandLoss(p.losses.settings, p.losses.total_weight))
    return SpanProblem.over_rows(query, p.X, (p.y > 0).astype(np.int8), p.losses.weight, 1 << 30)


def solve(p: SmallProblem, chosen: np.ndarray, tol: float = 1e-9, **options: Any) -> tuple[PrimalSolution, Landmarks]:
    landmarks = Landmarks.of(p.kernel, p.X[chosen])
    settings = {"max_iter": 60, "seed": 0} | options
    start = np.zeros(len(landmarks))
    with single_threaded_blas:
        return solve_landmark(span_of(p, landmarks), landmarks, start, tol=tol, **settings), landmarks


def scores(p: SmallProblem, landmarks: Landmarks, a: np.ndarray) -> np.ndarray:
    """K a, from NumPy's kernel values."""
    return p.kernel.tile(p.X.astype(float), landmarks.rows.astype(float)) @ a


def primal(p: SmallProblem, landmarks: Landmarks, a: np.ndarray) -> float:
    """P by its formula."""
    return 0.5 * a @ landmarks.gram @ a + p.losses.losses(p.y * scores(p, landmarks, a)).sum()


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_few_landmarks_are_never_below_the_optimum_and_the_gap_bounds_what_is_left(setting):
    p = small_problem(300, setting)
    chosen = np.arange(0, 300, 12)
    rough, exact = solve(p, chosen, tol=1e-2)[0], solve(p, chosen, tol=1e-12)[0]
    coefficients = p.coefficients
    assert exact.primal >= p.primal(p.y * coefficients) * (1 - 1e-9)
    assert rough.primal >= exact.primal * (1 - 1e-12)
    assert (rough.primal - exact.primal) / rough.primal <= rough.gap * (1 + 1e-6) + 1e-12


def test_more_rows_make_the_preconditioner_where_passes_are_long():
    """By three rows a landmark it took 44 to 50 passes."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 2))
    p = SmallProblem(RBF(1.0, 5.0), X, np.where(np.sin(2 * X[:, 0]) > X[:, 1], 1.0, -1.0), np.ones(4000), 1e4, 0.2, 0.2)
    for seed in range(2):
        solution, _ = solve(p, np.arange(0, 4000, 200), tol=1e-6, seed=seed)
        assert solution.converged
        assert solution.history[-1]["passes"] < 36


@pytest.mark.parametrize(("gamma", "whitened"), [(5.0, False), (0.05, True)])
def test_a_preconditioner_of_a_sample_is_what_its_rows_add_up_to(gamma, whitened):
    """Of more rows than are summed at a time; of landmarks that are nearly dependent in coordinates of a basis."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 2))
    landmarks = Landmarks.of(RBF(1.0, gamma), X[:40])
    sample = PrioritySample.draw(np.full(500, 1e4), np.ones(500), 0, X.__getitem__, 400, 0)
    sketch = SketchedHessian(landmarks, 2)
    sketch.make(sample)
    rows, _, weights = sample.weighted()
    values = sketch.values(rows)
    factor, gram = landmarks.factor, landmarks.gram
    if whitened:
        values, gram = solve_triangular(factor, values.T, lower=True).T, np.eye(len(landmarks))
    assert sketch.whitened == whitened
    assert len(rows) == 400
    whole = gram + (values.T * weights) @ values
    np.testing.assert_allclose(whole @ sketch.solve(values[0]), values[0], rtol=0, atol=1e-5)


# Where it starts from ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [50, 5000])
def test_a_rough_solution_is_near_the_best(size):
    """Of a sample, and of all rows where a sample would be most of them."""
    p = small_problem(2000, (1e4, 0.2, 0.2))
    landmarks = Landmarks.of(p.kernel, p.X[::100])
    a = rough_solution(span_of(p, landmarks), landmarks, 2000, size * 10, 0, 1 << 30)
    best, nothing = solve(p, np.arange(0, 2000, 100))[0].primal, primal(p, landmarks, np.zeros(20))
    assert best <= primal(p, landmarks, a) < 0.5 * (best + nothing)


def test_a_function_is_carried_over_to_more_landmarks():
    p = small_problem(400, SETTINGS[1])
    few, rng = Landmarks.of(p.kernel, p.X[:30], np.arange(30)), np.random.default_rng(0)
    a = rng.normal(size=len(few))
    more = Landmarks.of(p.kernel, p.X[:90], np.arange(90))
    np.testing.assert_allclose(scores(p, more, carried_over(few, a, more)), scores(p, few, a), atol=1e-6)
    # onto fewer it is the projection: what is left is orthogonal to all of them in the kernel's space
    fewest = Landmarks.of(p.kernel, p.X[20:30])
    left = scores(p, few, a) - scores(p, fewest, carried_over(few, a, fewest))
    np.testing.assert_allclose(left[20:30], 0.0, atol=1e-6)


def test_support_is_added_to_landmarks_and_learns_more():
    """Over seeds, since either choice is drawn; the problem's margin is wide, so that few rows have a dual variable."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(4000, 2)).astype(np.float32)
    y = np.where(np.sin(5 * X[:, 0]) > X[:, 1], 1.0, -1.0)
    p = SmallProblem(RBF(1.0, 20.0), X, y, np.ones(4000), 1e6, 0.05, 0.3)
    gains = []
    for seed in range(4):
        drawn = np.sort(np.random.default_rng(seed).permutation(4000)[:60])
        few = Landmarks.of(p.kernel, X[drawn[::4]], drawn[::4])
        a = rough_solution(span_of(p, few), few, 4000, 500, seed, 1 << 30)
        landmarks = with_support(span_of(p, few), few, a, 60, seed)
        np.testing.assert_array_equal(landmarks.rows, X[landmarks.index])
        assert len(np.unique(landmarks.index)) == len(landmarks) <= 60
        assert np.isin(few.index, landmarks.index).all()
        gains.append(solve(p, landmarks.index, 1e-6)[0].primal / solve(p, drawn, 1e-6)[0].primal)
    assert np.mean(gains) < 0.9


# Where digits are few ---------------------------------------------------------------------------------------------


def best_over(p: SmallProblem, chosen: np.ndarray) -> float:
    """The least P over the span, by the papers' dual in explicit coordinates of an orthonormal basis."""
    K = matrix(p.kernel, p.X, p.X[chosen])
    values, vectors = np.linalg.eigh(matrix(p.kernel, p.X[chosen]))
    features = K @ (vectors / np.sqrt(values))
    return reference.solve_two_variable_dual(features @ features.T, p.y, *p.parameters)[1]


def test_one_positive_row_among_few_landmarks():
    """Full steps fail here, and what the preconditioner was made of is of no use after them."""
    X = np.random.default_rng(5).normal(size=(87, 30))
    y = np.where(np.arange(87) == 0, 1.0, -1.0)
    p = SmallProblem(Polynomial(1.0, 1.9, 1.0, 2), X, y, np.ones(87), 1e3, 0.2, 0.9)
    for seed in range(2):
        chosen = np.sort(np.random.default_rng(seed).permutation(87)[:50])
        solution, _ = solve(p, chosen, tol=1e-6, max_iter=100)
        assert solution.converged
        assert solution.primal == pytest.approx(best_over(p, chosen), rel=2e-6)
        assert solution.history[-1]["passes"] < 500


@pytest.mark.parametrize("lam", [1e6, 1e9])
@pytest.mark.parametrize("kernel", [RBF(1.0, 0.5), RBF(1.0, 10.0), Laplacian(1.0, 1.0)], ids=str)
def test_nearly_dependent_landmarks_keep_their_digits(kernel, lam):
    """Every row is a landmark; the eigenvalues of what a step solves are up to 1e24 apart in their coefficients."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = np.where(np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=200) > X[:, 1], 1.0, -1.0)
    p = SmallProblem(kernel, X, y, np.ones(200), lam, 0.2, 0.2)
    solution, landmarks = solve(p, np.arange(200), tol=1e-4, max_iter=100)
    best = p.primal(p.y * p.coefficients)
    assert len(landmarks) == 200
    assert solution.converged
    assert solution.primal == pytest.approx(best, rel=1.1e-4)


def test_a_run_in_whitened_coordinates_goes_on_to_the_same_bits():
    p, states = small_problem(300, (1e8, 0.2, 0.2)), []
    whole, _ = solve(p, np.arange(300), tol=1e-6, on_state=states.append)
    rest, _ = solve(p, np.arange(300), tol=1e-6, resume=states[3])
    np.testing.assert_array_equal(rest.x, whole.x)
    assert [r["passes"] for r in rest.history] == [r["passes"] for r in whole.history]


def least_in(F: np.ndarray, p: SmallProblem) -> float:
    """The least P over functions ``F w``, by plain Newton steps that are halved until P falls."""

    def value(w: np.ndarray) -> float:
        return 0.5 * float(w @ w) + float(p.losses.losses(p.y * (F @ w)).sum())

    unit, upsilon = 1.0 / reference.penalties(len(p.y), p.lam, 1.0, p.theta, p.weight)[0], p.upsilon
    w = np.zeros(F.shape[1])
    for _ in range(60):
        margins = p.y * (F @ w)
        below, above = np.maximum(1 - p.theta - margins, 0), np.maximum(margins - 1 - p.theta, 0)
        curvature = unit * ((below > 0) + upsilon * (above > 0))
        gradient = w + F.T @ (p.y * unit * (upsilon * above - below))
        step = np.linalg.solve(np.eye(len(w)) + F.T @ (curvature[:, None] * F), gradient)
        lengths = 0.5 ** np.arange(20)
        values = [value(w - length * step) for length in lengths]
        w = w - lengths[int(np.argmin(values))] * step
    return value(w)


@pytest.mark.parametrize("tol", [1e-3, 1e-5])
@pytest.mark.parametrize("lam", [1e3, 1e5, 1e7])
@pytest.mark.parametrize("kernel", [RBF(1.0, 0.1), RBF(1.0, 1.0), Laplacian(1.0, 0.01), Polynomial(1.0, 0.3, 1.0, 3)],
                         ids=str)  # fmt: skip
def test_gaps_of_float32_rows_hold_in_float64(kernel, lam, tol):
    """Landmarks that are nearly equal and coefficients that are large make much of how float32 rounds."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(6, 2))[rng.integers(0, 6, 120)] + 0.05 * rng.normal(size=(120, 2))
    y = np.where(np.sin(2 * X[:, 0] + X[:, 1]) + 0.5 * rng.normal(size=120) > 0, 1.0, -1.0)
    p = SmallProblem(kernel, (X - X.mean(axis=0)).astype(np.float32), y, np.ones(120), lam, 0.2, 0.2)
    solution, landmarks = solve(p, np.arange(0, 120, 2), tol=tol, max_iter=100)
    K, G = matrix(kernel, p.X, landmarks.rows), matrix(kernel, landmarks.rows)
    values, vectors = np.linalg.eigh(G)
    kept = values > 1e-14 * values[-1]
    best = least_in(K @ (vectors[:, kept] / np.sqrt(values[kept])), p)
    found = 0.5 * solution.x @ G @ solution.x + p.losses.losses(p.y * (K @ solution.x)).sum()
    assert solution.converged
    assert (found - best) / found <= solution.gap * 1.01 + 1e-9
    assert solution.primal == pytest.approx(found, rel=max(tol, 1e-9))
    assert solution.history[-1]["gap"] == solution.gap <= tol
