"""Newton over all rows: against Cholesky on the whole matrix, at both ends of λ, and a gap that bounds what is left."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from dask_odm.kernels import RBF, Laplacian
from dask_odm.learning.problem.losses import ODMSettings, RowLosses
from dask_odm.learning.problem.products import RangedRows, RowProducts
from dask_odm.learning.solution import SolverSettings
from dask_odm.linalg.rows import ArrayRows
from dask_odm.methods.exact.gram import ActiveFactor
from dask_odm.methods.exact.preconditioners import BlockPreconditioner, Woodbury, blocks_of
from dask_odm.methods.exact.solver import ExactSolution, ExactState, solve_exact, solve_gram
from dask_odm.methods.exact.systems import ExactLimits, ProductSystem
from small_problems import SETTINGS, SmallProblem, any_dual, small_problem

N = 300


# small problems go the way of large ones, whose rough start is solved by Cholesky
FEW = ExactLimits(whole_rows=0, dense_rows=0, rounding_rows=100)
BOTH_WAYS = pytest.mark.parametrize("limits", [FEW, ExactLimits()], ids=["products", "matrix"])


def solve(p: SmallProblem, tol: float = 1e-6, **options) -> ExactSolution:
    settings = SolverSettings(tol, options.pop("max_iter", 100), options.pop("seed", 0))
    options = {"limits": FEW} | options
    return solve_exact(p.losses, RowProducts(p.kernel, p.X, options.pop("budget", 0)), settings, **options)


def best(p: SmallProblem) -> float:
    """P of the optimum, to rounding."""
    return p.primal(p.y * p.coefficients)


def assert_solved(p: SmallProblem, solution: ExactSolution, tol: float = 1e-6) -> None:
    least = best(p)
    assert solution.converged
    assert solution.point.gap <= tol
    found = p.primal(p.y * solution.coefficients)
    assert found == pytest.approx(solution.point.primal, rel=1e-9)
    assert least * (1 - 1e-9) <= found <= least * (1 + 2 * tol)
    assert solution.point.dual <= least * (1 + 1e-9)
    np.testing.assert_allclose(solution.scores, p.K @ solution.coefficients, atol=1e-6 * np.abs(p.K).max())


@pytest.mark.parametrize("lam", [1e-4, 1e2, 1e5, 1e7])
@pytest.mark.parametrize(("upsilon", "dtype"), [(0.0, "float64"), (0.3, "float32")])
def test_at_both_ends_of_lam(lam, upsilon, dtype):
    p = small_problem(300, (lam, upsilon, 0.2), dtype=dtype)
    p = replace(p, kernel=RBF(1.0, 0.2))
    solution = solve(p, 1e-4)
    assert_solved(p, solution, 1e-4)
    assert len(solution.history) < 60


def test_float32_rows_reach_a_gap_that_float32_sums_do_not():
    p = small_problem(1000, (1e6, 0.2, 0.2), dtype="float32")
    solution = solve(p, 1e-9)
    assert solution.converged
    assert p.gap(p.y * solution.coefficients) <= 1e-8


def test_primal_never_rises():
    p = small_problem(600, (1e6, 0.3, 0.1))
    values = [record["objective"] for record in solve(p, 1e-8).history]
    assert len(values) > 3
    assert (np.diff(values) <= 3e-5 * values[0]).all()  # it is known to float32 until it is certified


@pytest.mark.parametrize("upsilon", [0.0, 0.3])
def test_equal_and_contradicting_rows(upsilon):
    p = small_problem(60, SETTINGS[1])
    X, y = np.vstack([p.X] * 3), np.concatenate([p.y, p.y, -p.y])
    p = SmallProblem(p.kernel, X, y, np.ones(180), 1e5, upsilon, 0.1)
    assert_solved(p, solve(p, 1e-5), 1e-5)


@BOTH_WAYS
@pytest.mark.parametrize("positive", [0, 1, 5])
def test_few_rows_of_a_class(positive, limits):
    """A rough start may not see the class at all."""
    p = small_problem(N, SETTINGS[1])
    y = np.where(np.arange(N) < positive, 1.0, -1.0)
    p = SmallProblem(p.kernel, p.X, y, p.weight, *SETTINGS[1])
    assert_solved(p, solve(p, limits=limits))


@BOTH_WAYS
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1e3])
def test_from_any_start(scale, limits):
    p = small_problem(2 * N, SETTINGS[1])
    assert_solved(p, solve(p, start=p.y * any_dual(p, 1, scale), limits=limits))


@BOTH_WAYS
def test_threads_and_memory_change_no_bit(limits):
    p = small_problem(1500, (1e5, 0.3, 0.1), dtype="float32")
    found = {
        solve(p, 1e-4, budget=budget, threads=threads, limits=limits).coefficients.tobytes()
        for budget, threads in ((0, 1), (1 << 30, 1), (1 << 30, 3))
    }
    assert len(found) == 1


def test_kernel_values_are_freed_with_the_solve():
    p = small_problem(N, SETTINGS[1])
    products = RowProducts(p.kernel, p.X, 1 << 30)
    kept = weakref.ref(products)  # with the tiles that it keeps, gigabytes of many rows
    gc.disable()  # which may take its time
    try:
        solve_exact(p.losses, products, SolverSettings(1e-6), limits=FEW)
        del products
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [(RBF(1.0, 1.0), "float32"), (Laplacian(1.0, 1.0), "float64")],
    ids=lambda each: getattr(each, "name", None),
)
def test_systems_that_landmarks_do_not_precondition_are_solved_by_cholesky(monkeypatch, kernel, dtype):
    p = small_problem(320, (1e7, 0.3, 0.2), kernel=kernel, dtype=dtype)
    asked: list[int] = []
    factor = ProductSystem._factor
    monkeypatch.setattr(ProductSystem, "_factor", lambda *a: asked.append(len(a[1])) or factor(*a))
    states: list[ExactState] = []
    solution = solve(p, 1e-3, on_state=states.append)
    assert asked
    assert_solved(p, solution, 1e-3)
    again = solve(p, 1e-3, resume=states[len(states) // 2])
    np.testing.assert_array_equal(again.coefficients, solution.coefficients)
    slow = solve(p, 1e-3, limits=replace(FEW, direct_rows=0), on_state=states.append)
    assert states[-1].slow, "cells were called in"
    assert_solved(p, slow, 1e-3)


def test_float32_that_gets_no_further_is_left_for_float64():
    """Cholesky solves for float64 entries, products are of float32 ones: at such λ steps gain little that way."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 2)).astype(np.float32)
    y = np.where((X**2).sum(axis=1) + 0.5 * rng.normal(size=800) > 1.6, 1.0, -1.0)
    p = SmallProblem(RBF(1.0, 1.0), X, y, np.ones(800), 1e9, 0.0, 0.0)
    solution = solve(p, 1e-3)
    assert solution.converged
    assert len(solution.history) < 100
    assert solution.point.primal == pytest.approx(best(p), rel=2e-3)


def test_what_is_no_kernel_is_solved_with_more_on_the_diagonal():
    swap = np.array([[0.0, 5.0], [5.0, 0.0]])
    factor, b = ActiveFactor.of(swap.copy), np.array([1.0, -1.0])
    assert factor.ridge > 0
    x = factor.solve(b)
    np.testing.assert_allclose(b - (1.0 + factor.ridge) * x, swap @ x)


def test_ends_where_the_gap_does_not_shrink():
    p = small_problem(N, SETTINGS[1], dtype="float32")
    solution = solve(p, 1e-9, limits=replace(FEW, patience=3, products=0, direct_rows=0))
    assert not solution.converged
    assert len(solution.history) < 30
    found = p.primal(p.y * solution.coefficients)
    assert (found - best(p)) / found <= solution.point.gap


def test_landmarks_that_miss_thin_places_are_followed_by_better_ones():
    """Of rows spread unevenly, blocks took 30 passes. A state of either landmarks leads to the same bits."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 2)) * np.where(rng.random((1500, 1)) < 0.1, 3.0, 0.3)
    y = np.where(np.sin(3 * X[:, 0]) + 0.5 * rng.normal(size=1500) > 0, 1.0, -1.0)
    p = SmallProblem(RBF(1.0, 1.0), X.astype(np.float32), y, np.ones(1500), 1.5e5, 0.1, 0.2)
    limits = replace(FEW, direct_rows=0)
    states: list[ExactState] = []
    found = solve(p, 1e-3, limits=limits, on_state=states.append)
    assert found.converged
    assert states[-1].slow
    assert found.history[-1]["passes"] < 25
    for state in (states[0], states[1]):
        again = solve(p, 1e-3, resume=state, limits=limits)
        np.testing.assert_array_equal(again.coefficients, found.coefficients)


def test_woodbury_follows_to_the_same_inverse():
    rng = np.random.default_rng(0)
    L = rng.normal(size=(80, 7)).astype(np.float32)
    followed = Woodbury(L, 2)
    for _ in range(6):
        stiffness = rng.uniform(0, 1e7, 80) * (rng.random(80) < 0.7)
        followed.on(np.flatnonzero(stiffness), stiffness)
        some = stiffness.copy()
        some[:5] = 1.0
        active = np.flatnonzero(some)
        solved = followed.on(active, some)
    B = np.sqrt(some[active])[:, None] * L[active].astype(np.float64)
    v = rng.normal(size=len(active))
    x = solved(v)
    np.testing.assert_allclose(x + B @ (B.T @ x), v, atol=1e-6 * np.abs(v).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_narrow_kernel_and_a_large_lam_from_any_step(dtype):
    limits = replace(FEW, direct_rows=0)
    p = small_problem(400, (1e8, 0.3, 0.2), kernel=Laplacian(1.0, 0.5), dtype=dtype)
    states: list[ExactState] = []
    whole = solve(p, 1e-3, on_state=states.append, limits=limits)
    assert_solved(p, whole, 1e-3)
    for state in (states[2], states[3]):
        again = solve(p, 1e-3, resume=state, limits=limits)
        np.testing.assert_array_equal(again.coefficients, whole.coefficients)


def test_cells_are_all_rows_once_and_closer_than_rows_at_random():
    X = np.random.default_rng(0).normal(size=(3000, 40)).astype(np.float32)
    X[:, 3:] *= 0.01
    cells = blocks_of(RowProducts(RBF(1.0, 1.0), X, 0), np.random.default_rng(1))
    assert sorted(np.concatenate(cells)) == list(range(3000))
    assert max(map(len, cells)) <= 512
    assert all((np.diff(cell) > 0).all() for cell in cells)
    assert np.mean([X[cell].var(axis=0).sum() for cell in cells]) < 0.6 * X.var(axis=0).sum()


@pytest.mark.parametrize("threads", [1, 3])
def test_cell_blocks_are_the_inverse_of_landmarks_and_what_these_leave_within_cells(threads):
    rng = np.random.default_rng(0)
    p = small_problem(90, kernel=RBF(1.0, 4.0))
    L = (0.1 * rng.normal(size=(90, 6))).astype(np.float32)
    cells = [np.arange(0, 90, 2), np.arange(1, 60, 2), np.arange(61, 90, 2)]
    stiffness = rng.uniform(1.0, 50.0, 90) * (rng.random(90) < 0.7)
    stiffness[cells[2]] = 0.0
    active = np.flatnonzero(stiffness)
    nystrom = L.astype(float) @ L.T.astype(float)
    within = np.zeros((90, 90))
    for cell in cells:
        within[np.ix_(cell, cell)] = (p.K - nystrom)[np.ix_(cell, cell)]
    root = np.sqrt(stiffness[active])
    system = np.eye(len(active)) + root[:, None] * (nystrom + within)[np.ix_(active, active)] * root
    v = rng.normal(size=len(active))
    blocks = BlockPreconditioner(RowProducts(p.kernel, p.X, 0), L, cells, threads)
    np.testing.assert_allclose(system @ blocks.on(active, stiffness)(v), v, atol=1e-9 * np.abs(v).max())


def problem_in_parts() -> SmallProblem:
    p = small_problem(400, (1e4, 0.3, 0.1), kernel=RBF(1.0, 9.0), dtype="float32")
    apart = 2.0 * np.eye(3)[np.arange(400) % 3]
    return replace(p, X=np.hstack([apart, p.X / np.ptp(p.X, axis=0)]).astype(np.float32))


def test_rows_in_parts_are_solved_whatever_is_between_them():
    p, states = problem_in_parts(), []
    found = solve(p, on_state=states.append)
    assert_solved(p, found)
    for state in states[:2]:
        np.testing.assert_array_equal(solve(p, resume=state).coefficients, found.coefficients)


def test_rows_on_disk_are_gathered_once_for_all_cells():
    read: list[int] = []

    class CountedRows(ArrayRows):
        def read(self, start, stop):
            read.append(stop - start)
            return super().read(start, stop)

    X = np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32)
    products = RowProducts(RBF(1.0, 4.0), RangedRows(CountedRows(X)), 0)
    cells = [np.arange(i, 4000, 20) for i in range(20)]
    blocks = BlockPreconditioner(products, np.zeros((4000, 1), np.float32), cells, 1)
    blocks.on(np.arange(0, 4000, 2), np.where(np.arange(4000) % 2, 0.0, 1.0))
    assert sum(read) <= 4001


@pytest.mark.parametrize("seed", [637, 1310, 3122])
def test_a_step_that_is_cut_short_is_not_taken_for_rounding(seed):
    """Just above the tolerance it lowers P by next to nothing, and the next step ends at the optimum."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(20, 60)), int(rng.integers(2, 10))
    y = np.where(np.arange(n) < n // 2, -1.0, 1.0)
    X = rng.normal(size=(n, d)) + 0.3 * y[:, None]
    K = np.exp(-rng.uniform(0.02, 2) * ((X[:, None] - X[None]) ** 2).sum(2)) + 1
    losses = RowLosses(ODMSettings(10 ** rng.uniform(2, 6), 0.2, 0.1), y, np.ones(n))
    start = y * np.maximum(rng.normal(size=n) * 10 ** rng.uniform(-1, 2), 0) * (rng.random(n) < 0.6)
    assert solve_gram(losses, K, SolverSettings(0.01, 200, 0), start=start).point.gap <= 0.01
