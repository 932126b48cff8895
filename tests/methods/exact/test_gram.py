"""Newton with a matrix held whole: against active sets in float64, at both ends of λ, and certified."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import LinAlgError

from dask_odm.kernels import RBF, Laplacian, Polynomial
from dask_odm.kernels.shape import Shape
from dask_odm.kernels.user_kernels import CallableKernel, Precomputed
from dask_odm.learning.problem.products import RowProducts
from dask_odm.learning.solution import SolverSettings
from dask_odm.methods.exact import systems
from dask_odm.methods.exact.gram import GramLandmarks, HeldProducts, gram_of
from dask_odm.methods.exact.memory import ExactMemory, solve_bytes
from dask_odm.methods.exact.solver import ExactSolution, ExactState, solve_exact, solve_gram
from dask_odm.methods.exact.systems import ExactLimits, GramSystem
from small_problems import SETTINGS, SmallProblem, matrix, small_problem

KERNELS = [RBF(1.0, 0.5), Laplacian(1.0, 0.5), Polynomial(1.0, 0.2, 1.0, 3)]
N = 600  # rows that have a start from some of them


def solve(p: SmallProblem, tol: float = 1e-3, threads: int = 1, start: np.ndarray | None = None) -> ExactSolution:
    products = RowProducts(p.kernel, p.X, 0, threads)
    return solve_exact(p.losses, products, SolverSettings(tol, 100, 0), start=start, threads=threads)


def assert_certified(p: SmallProblem, found: ExactSolution, tol: float) -> None:
    """The gap that is told holds in float64, of the kernel by its formula, and P is as near to the least."""
    least, primal = p.primal(p.y * p.coefficients), p.primal(p.y * found.coefficients)
    assert found.converged
    assert found.point.gap <= tol
    assert primal == pytest.approx(found.point.primal, rel=1e-9)
    assert found.point.dual <= least * (1 + 1e-9)
    assert least * (1 - 1e-9) <= primal <= least * (1 + 2 * tol)
    np.testing.assert_allclose(found.scores, p.K @ found.coefficients, atol=1e-9 * np.abs(p.K).max())


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize(("weighted", "dtype"), [(False, "float32"), (True, "float64")])
def test_is_certified_for_the_kernel_in_float64(setting, kernel, weighted, dtype):
    p = small_problem(N, setting, kernel=kernel, weighted=weighted, dtype=dtype)
    assert_certified(p, solve(p), 1e-3)


@pytest.mark.parametrize("upsilon", [0.0, 0.3])
@pytest.mark.parametrize("lam", [1e-4, 1e2, 1e5, 1e6])
def test_refines_beyond_the_digits_of_the_matrix(lam, upsilon):
    p = replace(small_problem(N, (lam, upsilon, 0.2)), kernel=RBF(1.0, 2.0))
    assert_certified(p, solve(p, 1e-9), 1e-9)


def test_what_has_too_few_digits_says_so():
    """Of equal rows with either label the matrix is singular, and λ asks for more digits than float32 has."""
    p = small_problem(60, SETTINGS[1])
    X, y = np.vstack([p.X] * 3), np.concatenate([p.y, p.y, -p.y])
    p = SmallProblem(p.kernel, X, y, np.ones(180), 1e12, 0.3, 0.1)
    found = solve_gram(p.losses, p.K.astype(np.float32).astype(float), SolverSettings(1e-12), start=np.zeros(180))
    assert not found.converged
    assert np.isfinite(found.coefficients).all()


@pytest.mark.parametrize("seed", range(3))
def test_equal_rows_have_equal_scores(seed):
    """To the bit: their coefficients are large and cancel if their labels differ."""
    p = small_problem(10, (1e9, 0.1, 0.1), kernel=RBF(0.0, 0.5), seed=seed)
    p = replace(p, X=np.vstack([p.X] * 2), y=np.concatenate([p.y, -p.y]), weight=np.ones(20))
    found = solve(p)
    assert found.converged
    np.testing.assert_array_equal(found.scores[:10], found.scores[10:])


def test_a_factor_that_fails_is_not_taken_for_the_one_before():
    p = small_problem(40)
    active, c, b = np.arange(40), np.linspace(1.0, 9.0, 40), np.ones(40)
    system = GramSystem(HeldProducts(RowProducts(p.kernel, p.X, 0), p.K, 1), None, np.empty(1600))

    def solved(stiffness: np.ndarray) -> np.ndarray:
        return system.solve(active, stiffness, b, 0.0, slow=False, double=True).x

    expected = solved(c)
    with pytest.raises(LinAlgError):
        solved(np.where(active == 20, np.inf, 2.0 * c))
    np.testing.assert_array_equal(solved(c), expected)


def test_goes_on_in_float64_from_a_state_that_was_reached_with_a_matrix_in_float32():
    """Such a state holds nothing of the preconditioner that its next step makes, and later ones hold what it made.

    Whether float32 suffices depends on the processor, so the state is declared exhausted as the solver does it.
    """
    p = small_problem(300, (1e5, 0.0, 0.1), kernel=RBF(1.0, 0.02), dtype="float32")
    limits = ExactLimits(dense_rows=0, rounding_rows=100, landmark_rows=200)

    def states(resume: ExactState | None) -> tuple[ExactSolution, list[ExactState]]:
        found = list[ExactState]()
        products = RowProducts(p.kernel, p.X, 0)
        whole = solve_exact(
            p.losses, products, SolverSettings(1e-7), limits=limits, resume=resume, on_state=found.append
        )
        return whole, found

    reached = next(state for state in states(None)[1] if len(state.history) > 1)
    assert not reached.double
    assert not reached.slow, "its next step asks landmarks"
    whole, later = states(replace(reached, double_since=len(reached.history), certified_gap=4.0))
    assert_certified(p, whole, 1e-7)
    assert all(state.double for state in later)
    for state in later[:3]:
        np.testing.assert_array_equal(states(state)[0].coefficients, whole.coefficients)


@pytest.mark.parametrize("kernel", [RBF(1.0, 1e-4), Laplacian(1.0, 1e-4), Polynomial(1.0, 1e-4, 1.0, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_rows_are_packed_block_by_block(kernel, dtype):
    X = np.random.default_rng(0).standard_normal((300, 6000), dtype=np.float32)
    found = gram_of(kernel, X, np.dtype(dtype), 2)
    np.testing.assert_allclose(found, found.T, rtol=1e-6)
    np.testing.assert_allclose(found, kernel.tile(X.astype(np.float64), X.astype(np.float64)), rtol=1e-4)
    tracemalloc.start()
    try:
        gram_of(kernel, X, np.dtype(dtype), 2, found)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    told = ExactMemory(kernel, *X.shape, 4, 2).gram(found.itemsize)
    assert peak <= told <= 2 * peak


def test_rows_that_follow_each_other_are_not_copied():
    X = np.arange(12.0).reshape(6, 2)
    products = RowProducts(RBF(), X, 0)
    assert np.shares_memory(products.rows(np.arange(1, 5)), X)
    np.testing.assert_array_equal(products.rows(np.array([1, 2, 4])), X[[1, 2, 4]])


def test_a_solve_that_ends_in_float64_takes_the_memory_that_is_told():
    p = small_problem(600, (1e8, 0.3, 0.1), kernel=RBF(1.0, 5.0), dtype="float32")
    doubles: list[bool] = []
    solve(p, 1e-5)  # what is compiled and cached takes no part
    tracemalloc.start()
    try:
        products = RowProducts(p.kernel, p.X, 0)
        solve_exact(p.losses, products, SolverSettings(1e-5), on_state=lambda state: doubles.append(state.double))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert doubles[-1] > doubles[0]
    assert peak <= solve_bytes(Shape(p.kernel, 600, 3, 4, 1))


def test_kernels_of_the_user_are_asked_in_the_rows_dtype():
    rng, dtypes = np.random.default_rng(0), set()
    X = rng.normal(size=(30, 3))

    def function(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        dtypes.add(left.dtype)
        return (left @ right.T + 1.0) ** 2

    K, a = (X @ X.T + 1.0) ** 2, rng.normal(size=30)
    for kernel, rows in (
        (CallableKernel(0.5, function), X),
        (Precomputed(0.5, K), np.arange(30.0)[:, None]),
        (Polynomial(0.5, 1.0, 1.0, 2), X),
    ):
        held = gram_of(kernel, rows, np.dtype(np.float32))
        np.testing.assert_allclose(held, K + 0.5, rtol=1e-5)
        products = HeldProducts(RowProducts(kernel, rows, 0), held, 1)
        found = products.among(np.arange(30), double_precision=True)(a)
        np.testing.assert_allclose(found, (K + 0.5) @ a, rtol=1e-12)
    assert dtypes == {np.dtype(np.float64)}
    in_float64 = gram_of(RBF(1.0, 0.3), X, np.dtype(np.float64), 2)
    np.testing.assert_allclose(in_float64, matrix(RBF(1.0, 0.3), X), atol=1e-12)


@pytest.mark.parametrize("lam", [1e1, 1e4])
def test_many_rows_are_solved_by_conjugate_gradients(lam, monkeypatch):
    """To the same optimum as by Cholesky, which is not asked."""
    p = small_problem(1000, (lam, 0.3, 0.1), dtype="float32")
    by_cholesky = solve(p, 1e-6)
    monkeypatch.setattr(systems, "ActiveFactor", None)
    assert_certified(p, solve(p), 1e-3)
    assert by_cholesky.converged
    assert solve(p).point.primal == pytest.approx(by_cholesky.point.primal, rel=1e-3)


def test_landmarks_precondition_and_start():
    """All rows as landmarks: the preconditioner is the inverse but for the ridge, and the start nearly optimal."""
    p = small_problem(120, SETTINGS[1])
    landmarks, c, active = GramLandmarks(p.K, np.arange(120)), np.linspace(0.0, 3.0, 120), np.arange(5, 120)
    system = (np.eye(120) + np.sqrt(c)[:, None] * p.K * np.sqrt(c))[5:, 5:]
    found = landmarks.on(active, c)(np.ones(115))
    np.testing.assert_allclose(system @ found, np.ones(115), atol=1e-2)
    assert p.primal(p.y * landmarks.start(p.losses)) <= 1.05 * p.primal(p.y * p.coefficients)
