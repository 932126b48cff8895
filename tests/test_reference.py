"""The slow implementations agree with each other."""

import numpy as np
import pytest

import reference as slow
from small_problems import blobs

SETTINGS = [(100.0, 0.5, 0.2), (1e4, 0.3, 0.1), (32.0, 1.0, 0.0), (1e3, 0.0, 0.4)]


@pytest.mark.parametrize(("lam", "upsilon", "theta"), SETTINGS)
@pytest.mark.parametrize("weighted", [False, True])
def test_two_variable_dual_closes_the_gap(lam, upsilon, theta, weighted) -> None:
    X, y = blobs(40, 2, seed=1)
    K = slow.rbf(X, X, 0.5)
    weight = np.random.default_rng(2).integers(0, 4, len(y)) if weighted else None
    s, objective = slow.solve_two_variable_dual(K, y, lam, upsilon, theta, weight)
    problem = (lam, upsilon, theta, weight)
    assert slow.dual_value(K, y, s, *problem) == pytest.approx(objective, rel=1e-10)
    assert abs(slow.relative_gap(K, y, s, *problem)) < 1e-10


@pytest.mark.parametrize(("lam", "upsilon", "theta"), SETTINGS)
@pytest.mark.parametrize("weighted", [False, True])
def test_linear_primal_and_dual_meet(lam, upsilon, theta, weighted) -> None:
    X, y = blobs(50, 3, seed=4)
    weight = np.random.default_rng(5).integers(1, 4, len(y)) if weighted else None
    w, value = slow.solve_primal_linear(X, y, lam, upsilon, theta, weight)
    s, objective = slow.solve_two_variable_dual(X @ X.T, y, lam, upsilon, theta, weight)
    assert value == pytest.approx(objective, rel=1e-9)
    np.testing.assert_allclose(X.T @ (y * s), w, atol=1e-6)
