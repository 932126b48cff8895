"""Coordinate descent: one row's closed form, a whole sweep done slowly, and a dual that never falls."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from dask_odm.kernels import RBF, Linear
from dask_odm.kernels.blocks import TILE_ROWS
from dask_odm.solvers import dual_cd
from dask_odm.solvers.dual_cd import descend, sweep
from small_problems import SETTINGS, SmallProblem, any_dual, small_problem

EVERY_SETTING = pytest.mark.parametrize("setting", SETTINGS, ids=str)


def descended(p: SmallProblem, s: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`descend` on one block from ``s``; returns the new s and the scores it kept."""
    losses, a, f = p.losses, p.y * s, p.decision(s)
    descend(p.K, a, f, p.y, losses.stiffness_low, losses.stiffness_high, 1 - p.theta, 1 + p.theta, order)
    return p.y * a, f


def slow_update(p: SmallProblem, s: np.ndarray, i: int) -> float:
    """Formula (4) of the specification as it is printed."""
    Q = np.outer(p.y, p.y) * p.K
    rho_zeta = p.weight.sum() * (1 - p.theta) ** 2 / p.lam / p.weight[i]
    g = Q[i] @ s - Q[i, i] * s[i]
    if g < 1 - p.theta:
        return (1 - p.theta - g) / (Q[i, i] + rho_zeta)
    if g > 1 + p.theta and p.upsilon > 0:
        return (1 + p.theta - g) / (Q[i, i] + rho_zeta / p.upsilon)
    return 0.0


@EVERY_SETTING
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0])
def test_one_row_moves_to_its_maximum(setting, scale):
    p = small_problem(12, setting, weighted=True)
    start = any_dual(p, 1, scale)
    for i in range(12):
        s, f = descended(p, start, np.array([[i]]))
        assert s[i] == pytest.approx(slow_update(p, start, i), rel=1e-10, abs=1e-12)
        assert np.delete(s, i).tolist() == np.delete(start, i).tolist()
        np.testing.assert_allclose(f, p.decision(s), atol=1e-10 * (1 + np.abs(f).max()))


@pytest.mark.parametrize("setting", SETTINGS[:3], ids=str)
def test_one_row_against_a_search_on_the_dual(setting):
    """Independent of formula (4): nothing on the line through s_i is higher."""
    p = small_problem(12, setting)
    start = any_dual(p, 2, 0.1)
    for i in range(0, 12, 3):
        s, _ = descended(p, start, np.array([[i]]))

        def below(value: float, i: int = i) -> float:
            moved = start.copy()
            moved[i] = value
            return -p.dual(moved)

        found = minimize_scalar(below, (s[i] - 1.0, s[i] + 1.3), tol=1e-12)
        assert p.dual(s) >= -found.fun - 1e-10 * abs(found.fun)


@EVERY_SETTING
def test_visits_in_order_are_updates_one_after_the_other(setting):
    p = small_problem(15, setting, weighted=True)
    order = np.stack([np.random.default_rng(visit).permutation(15) for visit in range(3)])
    expected = any_dual(p, 3, 0.05)
    s, _ = descended(p, expected, order)
    expected = expected.copy()
    for i in order.ravel():
        expected[i] = slow_update(p, expected, i)
    np.testing.assert_allclose(s, expected, rtol=1e-9, atol=1e-11)


@EVERY_SETTING
@pytest.mark.parametrize("kernel", [RBF(1.0, 0.5), Linear(1.0)], ids=lambda k: k.name)
@pytest.mark.parametrize("budget", [0, 1 << 30], ids=["recomputed", "kept"])
def test_a_sweep_never_lowers_the_dual(setting, kernel, budget):
    n = 2 * TILE_ROWS + 100
    p = small_problem(n, setting, kernel=kernel, weighted=True)
    problem = p.problem(budget)
    for start in (np.zeros(n), any_dual(p, 4, 1e-3), any_dual(p, 5, 10.0)):
        u, rng = problem.function(p.y * start), np.random.default_rng(0)
        value = problem.evaluate(u).dual
        for _ in range(4):
            sweep(problem, u, rng)
            new = problem.evaluate(u).dual
            assert new >= value - 1e-10 * abs(value)
            value = new
        fresh = problem.function(u[0])
        np.testing.assert_allclose(u[1], fresh[1], atol=1e-9 * (1 + np.abs(fresh[1]).max()))


def test_sweeps_reach_the_optimum(monkeypatch):
    monkeypatch.setattr(dual_cd, "VISITS", 1)
    p = small_problem(100, SETTINGS[0], weighted=True)
    problem, rng = p.problem(), np.random.default_rng(1)
    u = np.zeros((2, 100))
    for _ in range(2000):
        sweep(problem, u, rng)
    s, objective = p.optimum()
    assert p.dual(p.y * u[0]) == pytest.approx(objective, rel=1e-9)
    np.testing.assert_allclose(p.decision(p.y * u[0]), p.decision(s), atol=1e-5)


def test_order_is_the_generators():
    p = small_problem(TILE_ROWS + 50)
    problem = p.problem()
    one, same, other = np.zeros((3, 2, len(p.y)))
    sweep(problem, one, np.random.default_rng(1))
    sweep(problem, same, np.random.default_rng(1))
    sweep(problem, other, np.random.default_rng(2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
