"""The slow implementations agree with each other, and with scipy where it has the same thing."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

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
def test_optimum_satisfies_its_conditions(lam, upsilon, theta) -> None:
    X, y = blobs(40, 2, seed=3)
    K = slow.rbf(X, X, 1.0) + slow.linear(X, X)
    s, _ = slow.solve_two_variable_dual(K, y, lam, upsilon, theta)
    m = y * (K @ (y * s))
    rho_zeta, rho_beta = slow.penalties(len(y), lam, upsilon, theta)
    expected = np.maximum(1 - theta - m, 0) / rho_zeta - np.maximum(m - 1 - theta, 0) / rho_beta
    np.testing.assert_allclose(s, expected, atol=1e-8 * np.abs(s).max())


@pytest.mark.parametrize(("lam", "upsilon", "theta"), SETTINGS)
@pytest.mark.parametrize("weighted", [False, True])
def test_linear_primal_and_dual_meet(lam, upsilon, theta, weighted) -> None:
    X, y = blobs(50, 3, seed=4)
    weight = np.random.default_rng(5).integers(0, 3, len(y)) if weighted else None
    w, value = slow.solve_primal_linear(X, y, lam, upsilon, theta, weight)
    s, objective = slow.solve_two_variable_dual(slow.linear(X, X), y, lam, upsilon, theta, weight)
    assert value == pytest.approx(objective, rel=1e-9)
    np.testing.assert_allclose(X.T @ (y * s), w, atol=1e-6)


def test_kernels_agree_with_scipy() -> None:
    rng = np.random.default_rng(12)
    X, Z = rng.standard_normal((7, 3)), rng.standard_normal((5, 3))
    np.testing.assert_allclose(slow.rbf(X, Z, 0.3), np.exp(-0.3 * cdist(X, Z, "sqeuclidean")), rtol=1e-13)
    np.testing.assert_allclose(slow.linear(X, Z), X @ Z.T, rtol=1e-12, atol=1e-14)


def test_pivoted_cholesky_restores_the_matrix() -> None:
    X, _ = blobs(25, 3, seed=13)
    K = slow.rbf(X, X, 0.8)
    pivots, L = slow.pivoted_cholesky_greedy(K, 25)
    np.testing.assert_allclose(L @ L.T, K, atol=1e-10)
    for r in (1, 4, 9):
        chosen = pivots[:r]
        schur = K - K[:, chosen] @ np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen])
        np.testing.assert_allclose(K - L[:, :r] @ L[:, :r].T, schur, atol=1e-10)
        assert pivots[r] == np.argmax(schur.diagonal())


def test_pivoted_cholesky_ends_at_the_rank() -> None:
    X, _ = blobs(25, 3, seed=14)
    pivots, L = slow.pivoted_cholesky_greedy(slow.linear(X, X), 25)
    assert L.shape == (25, 3)
    assert pivots[0] == np.argmax(np.sum(X**2, axis=1))
