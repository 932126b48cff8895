"""Descent over the rows of two classes: against the papers' dual, and a gap that bears kernel values that are off."""

from dataclasses import replace

import numpy as np
import pytest

from dask_odm.kernels.named import RBF, Linear
from dask_odm.learning.problem.losses import ODMSettings, RowLosses
from dask_odm.learning.solution import SolverSettings
from dask_odm.methods.pairs.descent import PairValues, descend_pair
from dask_odm.methods.pairs.recipe import solve_pair
from small_problems import SETTINGS, SmallProblem, small_problem


def sorted_problem(setting: tuple[float, float, float]) -> SmallProblem:
    """Weighted rows, the negative ones first."""
    p = small_problem(70, setting, weighted=True)
    order = np.argsort(p.y, kind="stable")
    return replace(p, X=p.X[order], y=p.y[order], weight=p.weight[order])


def with_constant(p: SmallProblem) -> SmallProblem:
    """The linear kernel of the same rows and a feature that is 1."""
    return replace(p, kernel=Linear(), X=np.column_stack([p.X, np.ones(len(p.X))]))


def values_of(p: SmallProblem, K: np.ndarray, dtype: type = np.float64, error: float = 0.0) -> PairValues:
    n, bias = int((p.y < 0).sum()), 1.0 if isinstance(p.kernel, Linear) else 0.0
    K = (K - bias).astype(dtype)
    return PairValues(K[:n, :n].copy(), K[n:, n:].copy(), K[:n, n:].copy(), K[n:, :n].copy(), bias, error)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_descent_and_newton_after_it_reach_the_optimum(setting, biased):
    p = sorted_problem(setting)
    p = with_constant(p) if biased else p
    values = values_of(p, p.K)
    np.testing.assert_allclose(values.matrix(), p.K, rtol=1e-12, atol=1e-14)
    found = descend_pair(p.losses, values, 1e-2, 0)
    assert found.converged or p.lam >= 1e3  # then Newton has more to do
    s = p.y * found.coefficients
    assert found.point.primal == pytest.approx(p.primal(s))
    assert found.point.gap == pytest.approx(p.gap(s), rel=1e-6, abs=1e-12)
    ended = solve_pair(p.losses, p.K, SolverSettings(1e-10, 50, 0), found)
    assert ended.point.gap <= 1e-10
    assert ended.point.primal == pytest.approx(p.optimum()[1], rel=1e-5)
    assert [record["iteration"] for record in ended.history] == list(range(len(ended.history)))


def test_the_gap_is_that_of_the_worst_kernel_within_the_error():
    p = sorted_problem(SETTINGS[0])
    error = 1e-3
    off = np.random.default_rng(0).uniform(-error, error, p.K.shape)
    found = descend_pair(p.losses, values_of(p, p.K + np.triu(off) + np.triu(off, 1).T, np.float32, error), 5e-2, 0)
    s = p.y * found.coefficients
    assert (p.primal(s) - p.dual(s)) / p.primal(s) <= 1.01 * found.point.gap <= 5.1e-2
    assert not descend_pair(p.losses, values_of(p, p.K, np.float32, 0.1), 1e-2, 0).converged


def test_equal_rows_of_both_classes_are_solved_where_a_loss_weighs_much():
    n, m = 40, 15
    losses = RowLosses(ODMSettings(1e8, 0.0, 0.0), np.repeat([-1.0, 1.0], [n, m]), np.ones(n + m))
    K = np.ones((n + m, n + m))
    values = PairValues(K[:n, :n].copy(), K[n:, n:].copy(), K[:n, n:].copy(), K[n:, :n].copy(), 1.0)
    found = solve_pair(losses, K + 1.0, SolverSettings(1e-10, 50, 0), descend_pair(losses, values, 1e-10, 0))
    assert found.point.gap <= 1e-10
    assert len(found.history) < 10


def test_descent_leaves_newton_little_where_a_loss_weighs_much():
    """Rows of a large λ respond to each other, so that more of them change at every threshold."""
    n = 150
    y = np.repeat([-1.0, 1.0], n)
    X = np.random.default_rng(0).standard_normal((2 * n, 4)) + 0.4 * y[:, None]
    K = RBF(0.0, 1.0).tile(X, X).astype(np.float32)
    losses = RowLosses(ODMSettings(1e5, 0.2, 0.1), y, np.ones(2 * n))
    values = PairValues(K[:n, :n].copy(), K[n:, n:].copy(), K[:n, n:].copy(), K[n:, :n].copy(), 1.0)
    found = descend_pair(losses, values, 1e-3, 0)
    ended = solve_pair(losses, K + np.float64(1.0), SolverSettings(1e-3, 50, 0), found)
    assert len(ended.history) <= 3
    # where kernel values are off, descent ends with the same digits, since no sweep finds more
    rough = descend_pair(losses, replace(values, error=1e-3), 1e-3, 0)
    assert not rough.converged
    assert rough.history[0]["passes"] <= found.history[0]["passes"]
