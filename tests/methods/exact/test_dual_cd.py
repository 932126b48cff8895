"""Coordinate descent: one row's closed form, and visits in order."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from dask_odm.methods.exact.dual_cd import descend
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
