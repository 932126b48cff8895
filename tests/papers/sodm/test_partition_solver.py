"""The solver of one partition against the papers' dual: all three ways it takes, certified gaps, warm starts."""

from functools import partial

import numpy as np
import pytest

from dask_odm.kernels import RBF, Linear, Polynomial, blocks
from dask_odm.learning.solution import Solution, SolverSettings
from dask_odm.linalg.rows import ArrayRows
from dask_odm.methods.exact.systems import NODE_LIMITS, ExactLimits
from dask_odm.papers.sodm.partition_solver import solve_features, solve_partition
from small_problems import SETTINGS, SmallProblem, small_problem

EVERY_SETTING = pytest.mark.parametrize("setting", SETTINGS, ids=str)
WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
PLENTY = 1 << 30  # bytes


TILED = ExactLimits(whole_rows=0, dense_rows=0, rounding_rows=100)  # most sizes take the way of large ones


def solve(p: SmallProblem, start=None, *, memory=PLENTY, threads=1, certify=True, limits=NODE_LIMITS, **settings):
    start = np.zeros(len(p.y)) if start is None else start
    options = {"memory": memory, "threads": threads, "certify": certify, "limits": limits}
    return solve_partition(p.kernel, p.rows, p.losses, start, SolverSettings(**settings), **options)


solve_tiled = partial(solve, limits=TILED)


def assert_describes(solution: Solution, p: SmallProblem) -> None:
    """Shapes and figures of a solution are those of its dual variables, worked out plainly."""
    s = solution.dual[0]
    assert solution.dual.shape == (1, len(p.y))
    assert solution.dual.dtype == np.float64
    assert solution.rows == len(p.y)
    assert solution.weight == pytest.approx(p.weight.sum())
    assert solution.point.primal == pytest.approx(p.primal(s), rel=1e-6)
    assert solution.point.gap == pytest.approx(1.0 - solution.point.dual / solution.point.primal, abs=1e-9)
    assert solution.seconds > 0


@EVERY_SETTING
@WEIGHTED
@pytest.mark.parametrize("kernel", [RBF(1.0, 0.5), Linear(1.0), Polynomial(1.0, 0.2)], ids=lambda k: k.name)
def test_dense_way(setting, weighted, kernel):
    p = small_problem(70, setting, weighted=weighted, kernel=kernel)
    solution = solve(p)
    best, objective = p.optimum()
    assert solution.point.dual == pytest.approx(objective, rel=1e-8)
    assert solution.point.gap < 1e-9
    assert solution.converged
    expected = p.decision(best)
    np.testing.assert_allclose(p.decision(solution.dual[0]), expected, atol=1e-8 * max(1, np.abs(expected).max()))
    assert_describes(solution, p)


@EVERY_SETTING
@WEIGHTED
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_linear_way(setting, weighted, dtype):
    p = small_problem(200, setting, weighted=weighted, kernel=Linear(1.0), dtype=dtype)
    solution = solve_tiled(p)
    _, objective = p.optimum()
    assert solution.point.dual == pytest.approx(objective, rel=1e-7)
    assert solution.point.gap < 1e-8
    assert_describes(solution, p)


@pytest.mark.parametrize(("dtype", "certify"), [("float32", True), ("float64", True), ("float64", False)])
def test_running_out_of_steps_says_so(dtype, certify):
    p = small_problem(300, (1e7, 0.3, 0.1), dtype=dtype)
    solution = solve_tiled(p, tol=1e-12, max_iter=2, certify=certify)
    assert not solution.converged
    assert solution.sweeps == 2
    assert solution.point.gap > 1e-12
    assert_describes(solution, p)


def test_a_converged_start_passes_through_unsolved():
    p = small_problem(300, SETTINGS[0], dtype="float32")
    first = solve_tiled(p)
    again = solve_tiled(p, first.dual[0])
    np.testing.assert_array_equal(again.dual, first.dual)
    assert again.sweeps == 0
    assert again.start == again.point


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiny_partitions(n):
    p = SmallProblem(RBF(1.0, 1.0), np.arange(2.0 * n).reshape(n, 2), np.ones(n), np.ones(n), *SETTINGS[1])
    assert solve(p).point.gap < 1e-12


def test_rows_from_elsewhere_are_only_read():
    p = small_problem(1100)

    class ReadOnly(ArrayRows):
        def read(self, start, stop):
            view = super().read(start, stop)
            view.flags.writeable = False
            return view

    solution = solve_partition(p.kernel, ReadOnly(p.X), p.losses, np.zeros(1100), SolverSettings(), memory=PLENTY)
    assert solution.converged


def test_features_read_the_rows_block_by_block(monkeypatch):
    monkeypatch.setattr(blocks, "PANEL_BYTES", 1)
    p = small_problem(300, SETTINGS[0], kernel=Linear(1.0))
    largest = 0

    class Watched(ArrayRows):
        def read(self, start, stop):
            nonlocal largest
            largest = max(largest, stop - start)
            return super().read(start, stop)

    _, w, _ = solve_features(p.losses, Watched(p.X), 1.0, np.zeros(4))
    _, whole, _ = solve_features(p.losses, p.rows, 1.0, np.zeros(4))
    assert largest <= 64
    np.testing.assert_allclose(w, whole, rtol=1e-12)
