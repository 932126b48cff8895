"""The slow implementations agree with each other, and with scipy where it has the same thing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.spatial.distance import cdist

from reference import (
    dual_value,
    linear,
    penalties,
    pivoted_cholesky_greedy,
    primal_value,
    rbf,
    relative_gap,
    solve_primal_linear,
    solve_two_variable_dual,
)

SETTINGS = [(100.0, 0.5, 0.2), (1e4, 0.3, 0.1), (32.0, 1.0, 0.0), (1e3, 0.0, 0.4)]


@pytest.mark.parametrize(("lam", "upsilon", "theta"), SETTINGS)
@pytest.mark.parametrize("weighted", [False, True])
def test_two_variable_dual_closes_the_gap(make_blobs, lam, upsilon, theta, weighted) -> None:
    X, y = make_blobs(40, 2, seed=1)
    K = rbf(X, X, 0.5)
    weight = np.random.default_rng(2).integers(0, 4, len(y)) if weighted else None
    s, objective = solve_two_variable_dual(K, y, lam, upsilon, theta, weight)
    problem = (lam, upsilon, theta, weight)
    assert dual_value(K, y, s, *problem) == pytest.approx(objective, rel=1e-10)
    assert abs(relative_gap(K, y, s, *problem)) < 1e-10


@pytest.mark.parametrize(("lam", "upsilon", "theta"), SETTINGS)
def test_optimum_satisfies_its_conditions(make_blobs, lam, upsilon, theta) -> None:
    X, y = make_blobs(40, 2, seed=3)
    K = rbf(X, X, 1.0) + linear(X, X)
    s, _ = solve_two_variable_dual(K, y, lam, upsilon, theta)
    m = y * (K @ (y * s))
    rho_zeta, rho_beta = penalties(len(y), lam, upsilon, theta)
    expected = np.maximum(1 - theta - m, 0) / rho_zeta - np.maximum(m - 1 - theta, 0) / rho_beta
    np.testing.assert_allclose(s, expected, atol=1e-8 * np.abs(s).max())


def test_both_sides_of_the_band_are_active(make_blobs) -> None:
    X, y = make_blobs(40, 2, seed=3)
    K = rbf(X, X, 1.0) + linear(X, X)
    s, _ = solve_two_variable_dual(K, y, 1e3, 0.5, 0.2)
    assert (s > 0).any()
    assert (s < 0).any()
    assert (s == 0).any()
    s, _ = solve_two_variable_dual(K, y, 1e3, 0.0, 0.2)
    assert s.min() == 0.0


@pytest.mark.parametrize(("lam", "upsilon", "theta"), SETTINGS)
@pytest.mark.parametrize("weighted", [False, True])
def test_linear_primal_and_dual_meet(make_blobs, lam, upsilon, theta, weighted) -> None:
    X, y = make_blobs(50, 3, seed=4)
    weight = np.random.default_rng(5).integers(0, 3, len(y)) if weighted else None
    w, value = solve_primal_linear(X, y, lam, upsilon, theta, weight)
    s, objective = solve_two_variable_dual(linear(X, X), y, lam, upsilon, theta, weight)
    assert value == pytest.approx(objective, rel=1e-9)
    np.testing.assert_allclose(X.T @ (y * s), w, atol=1e-6)


@pytest.mark.parametrize("upsilon", [0.0, 0.4])
def test_primal_is_above_dual_anywhere(make_blobs, upsilon) -> None:
    X, y = make_blobs(30, 2, seed=6)
    K = rbf(X, X, 0.7)
    problem = (50.0, upsilon, 0.3)
    best, objective = solve_two_variable_dual(K, y, *problem)
    rng = np.random.default_rng(7)
    for scale in (0.0, 1e-3, 1.0, 100.0):
        s = best + scale * rng.standard_normal(len(y))
        s = s if upsilon else np.maximum(s, 0.0)
        assert dual_value(K, y, s, *problem) <= objective * (1 + 1e-12)
        assert primal_value(K, y, s, *problem) >= objective * (1 - 1e-12)


def test_without_an_upper_side_negative_s_is_infeasible(make_blobs) -> None:
    X, y = make_blobs(10, 2)
    assert dual_value(linear(X, X), y, np.full(10, -1.0), 10.0, 0.0, 0.1) == -np.inf


@pytest.mark.parametrize("upsilon", [0.0, 0.5])
def test_weight_equals_repeated_rows(make_blobs, upsilon) -> None:
    X, y = make_blobs(20, 2, seed=8)
    weight = np.random.default_rng(9).integers(0, 4, len(y))
    once, repeated = rbf(X, X, 1.0), np.repeat(np.arange(len(y)), weight)
    K = once[np.ix_(repeated, repeated)]
    s, objective = solve_two_variable_dual(once, y, 200.0, upsilon, 0.2, weight)
    s_repeated, objective_repeated = solve_two_variable_dual(K, y[repeated], 200.0, upsilon, 0.2)
    assert objective == pytest.approx(objective_repeated, rel=1e-10)
    np.testing.assert_allclose(np.bincount(repeated, s_repeated, len(y)), s, atol=1e-9 * np.abs(s).max())
    any_s = np.maximum(np.random.default_rng(10).standard_normal(len(y)), 0.0) * (weight > 0)
    spread = (any_s / np.maximum(weight, 1))[repeated]
    for value in (primal_value, dual_value):
        expected = value(K, y[repeated], spread, 200.0, upsilon, 0.2)
        assert value(once, y, any_s, 200.0, upsilon, 0.2, weight) == pytest.approx(expected, rel=1e-12)


def test_dual_slope_at_the_optimum_is_zero_inside(make_blobs) -> None:
    X, y = make_blobs(15, 2, seed=11)
    K = rbf(X, X, 1.0)
    problem = (30.0, 0.5, 0.1)
    s, _ = solve_two_variable_dual(K, y, *problem)
    inside = np.flatnonzero(s)
    still = np.zeros(len(inside))

    def value(free):
        moved = s.copy()
        moved[inside] = free
        return dual_value(K, y, moved, *problem)

    assert check_grad(value, lambda _: still, s[inside]) < 1e-5


def test_kernels_agree_with_scipy() -> None:
    rng = np.random.default_rng(12)
    X, Z = rng.standard_normal((7, 3)), rng.standard_normal((5, 3))
    np.testing.assert_allclose(rbf(X, Z, 0.3), np.exp(-0.3 * cdist(X, Z, "sqeuclidean")), rtol=1e-13)
    np.testing.assert_allclose(linear(X, Z), X @ Z.T, rtol=1e-12, atol=1e-14)


def test_pivoted_cholesky_restores_the_matrix(make_blobs) -> None:
    X, _ = make_blobs(25, 3, seed=13)
    K = rbf(X, X, 0.8)
    pivots, L = pivoted_cholesky_greedy(K, 25)
    np.testing.assert_allclose(L @ L.T, K, atol=1e-10)
    for r in (1, 4, 9):
        chosen = pivots[:r]
        schur = K - K[:, chosen] @ np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen])
        np.testing.assert_allclose(K - L[:, :r] @ L[:, :r].T, schur, atol=1e-10)
        assert pivots[r] == np.argmax(schur.diagonal())


def test_pivoted_cholesky_ends_at_the_rank(make_blobs) -> None:
    X, _ = make_blobs(25, 3, seed=14)
    pivots, L = pivoted_cholesky_greedy(linear(X, X), 25)
    assert L.shape == (25, 3)
    assert pivots[0] == np.argmax(np.sum(X**2, axis=1))
