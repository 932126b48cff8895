"""Newton over the span of landmarks: with every row a landmark it is the whole problem, with few never below it."""

from __future__ import annotations

import numpy as np
import pytest

from dask_odm.kernels import RBF, Laplacian
from dask_odm.kernels.blocks import ArrayRows
from dask_odm.problems.span import RowSpan
from dask_odm.solvers.landmark import Basis, LandmarkSolution, solve_landmark
from dask_odm.solvers.newton import solve_dense
from small_problems import SETTINGS, SmallProblem, small_problem


def solve(p: SmallProblem, landmarks: np.ndarray, tol: float = 1e-9, **options: int) -> tuple[LandmarkSolution, Basis]:
    basis = Basis.of(p.kernel, p.X[landmarks])
    span = RowSpan(p.kernel, ArrayRows(p.X), basis.rows, 1 << 30)
    settings = {"max_iter": 60, "seed": 0} | options
    return solve_landmark(p.losses, span, basis, np.zeros(span.r), tol=tol, **settings), basis


def primal(p: SmallProblem, basis: Basis, a: np.ndarray) -> float:
    """P by its formula, from NumPy's kernel values."""
    margins = p.y * (p.kernel.tile(p.X.astype(float), basis.rows.astype(float)) @ a)
    return 0.5 * a @ basis.gram @ a + p.losses.losses(margins).sum()


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("kernel", [RBF(1.0, 0.5), Laplacian(0.0, 0.5)], ids=lambda k: k.name)
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
def test_all_rows_as_landmarks_are_the_whole_problem(setting, kernel, weighted):
    p = small_problem(150, setting, kernel=kernel, weighted=weighted)
    solution, basis = solve(p, np.arange(150))
    coefficients, _ = solve_dense(p.losses, p.K, np.zeros(150))
    best = p.primal(p.y * coefficients)
    assert solution.converged
    assert solution.primal == pytest.approx(best, rel=1e-7)
    assert solution.primal == pytest.approx(primal(p, basis, solution.coefficients), rel=1e-9)
    np.testing.assert_allclose(solution.scores, p.K @ coefficients, rtol=0, atol=1e-3)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_few_landmarks_are_never_below_the_optimum_and_the_gap_bounds_what_is_left(setting):
    p = small_problem(300, setting)
    chosen = np.arange(0, 300, 12)
    rough, exact = solve(p, chosen, tol=1e-2)[0], solve(p, chosen, tol=1e-12)[0]
    coefficients, _ = solve_dense(p.losses, p.K, np.zeros(300))
    assert exact.primal >= p.primal(p.y * coefficients) * (1 - 1e-9)
    assert rough.primal >= exact.primal * (1 - 1e-12)
    assert (rough.primal - exact.primal) / rough.primal <= rough.gap * (1 + 1e-6) + 1e-12


def test_duplicates_add_no_landmark():
    p = small_problem(100, SETTINGS[1])
    twice = np.concatenate([np.arange(30), np.arange(30)])
    basis = Basis.of(p.kernel, p.X[twice])
    assert len(basis.rows) == len(np.unique(p.X[:30], axis=0))
    np.testing.assert_allclose(basis.factor @ basis.factor.T, basis.gram, atol=1e-8)


@pytest.mark.parametrize("lam", [1e2, 1e4, 1e6])
def test_float32_rows_reach_the_tolerance(lam):
    p = small_problem(4000, (lam, 0.2, 0.2), dtype="float32")
    solution, _ = solve(p, np.arange(0, 4000, 20), tol=1e-4)
    assert solution.converged
    assert len(solution.history) < 30


def test_steps_are_told_and_limited():
    p = small_problem(500, SETTINGS[1])
    solution, _ = solve(p, np.arange(0, 500, 10), max_iter=1)
    assert [record["iteration"] for record in solution.history] == [0, 1]
    assert not solution.converged
