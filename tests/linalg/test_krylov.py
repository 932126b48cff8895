"""Conjugate gradients and triangles against a direct solve, and every rule that ends them; the largest eigenvalue."""

import numpy as np
import pytest

from dask_odm.linalg.systems import Triangle, conjugate_gradients, largest_eigenvalue


def system(n: int = 30) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    root = rng.normal(size=(n, n))
    return root @ root.T + np.eye(n), rng.normal(size=n)


@pytest.mark.parametrize("exact", [False, True])
def test_solves_the_system_with_the_exact_inverse_in_one_step(exact):
    A, b = system()
    rule, inverse = {"forcing": 1e-24}, lambda r: r / A.diagonal()
    if exact:
        rule, inverse = {"least": 1e-16}, lambda r: np.linalg.solve(A, r)
    x, left, products = conjugate_gradients(lambda p: A @ p, b, inverse, most=200, **rule)
    np.testing.assert_allclose(x, np.linalg.solve(A, b), atol=1e-9)
    np.testing.assert_allclose(left, b - A @ x, atol=1e-8)
    assert products == 1 if exact else 10 < products < 200


def test_each_rule_is_kept():
    A, b = system()

    def solve(**rules) -> tuple[np.ndarray, np.ndarray, int]:
        return conjugate_gradients(lambda p: A @ p, b, lambda r: r, **({"most": 500} | rules))

    def left(x: np.ndarray) -> float:
        return float(np.sum((b - A @ x) ** 2))

    assert solve(most=3)[2] == 3
    least, _, products = solve(least=1e-6)
    assert left(least) <= 1.01e-6 < left(solve(most=products - 1)[0])
    forced, _, products = solve(forcing=1e-4)
    assert left(forced) <= 1.01e-4 * b @ b < left(solve(most=products - 1)[0])


def test_whenever_it_stops_what_it_has_is_better_than_nothing():
    A, b = np.diag(np.geomspace(1e-6, 1e6, 50)), np.random.default_rng(3).normal(size=50)
    x, _, products = conjugate_gradients(lambda p: A @ p, b, lambda r: r, most=60)
    assert products >= 1
    assert 0.5 * x @ A @ x - b @ x < 0


def test_no_residual_no_step():
    x, _, products = conjugate_gradients(lambda p: p, np.zeros(4), lambda r: r, most=5)
    assert products == 0
    np.testing.assert_array_equal(x, np.zeros(4))


def test_the_largest_eigenvalue_is_that_of_the_matrix():
    root = np.random.default_rng(0).standard_normal((40, 60))
    A, start = root @ root.T, np.ones(40)
    best = np.linalg.eigvalsh(A)[-1]
    assert largest_eigenvalue(A.__matmul__, start, 100) == pytest.approx(best, rel=1e-12)
    assert 0.95 * best < largest_eigenvalue(A.__matmul__, start, 8) < best
    flat = np.diag([3.0, 3.0, 0.0])  # whose directions end after two
    assert largest_eigenvalue(flat.__matmul__, np.ones(3), 3) == pytest.approx(3.0, rel=1e-12)
    assert largest_eigenvalue(np.zeros((3, 3)).__matmul__, np.ones(3), 3) == 0
    indefinite = A - 0.9 * best * np.eye(40)
    found = largest_eigenvalue(indefinite.__matmul__, start, 200, tol=1e-10)
    assert found == pytest.approx(np.abs(np.linalg.eigvalsh(indefinite)).max(), rel=1e-9)


@pytest.mark.parametrize("n", [1, 100, 128, 300])
def test_a_triangle_solves_for_rows(n):
    rng = np.random.default_rng(3)
    lower = np.tril(rng.normal(size=(n, n)), -1) / n + np.diag(rng.uniform(1, 2, n))
    rows = rng.normal(size=(3, n))
    triangle = Triangle.of(lower + np.triu(np.full((n, n), np.nan), 1))  # only the lower half is read
    solved, transposed = rows.copy(), rows.copy()
    triangle.solve(solved)
    triangle.solve_transposed(transposed)
    np.testing.assert_allclose(solved @ lower.T, rows, atol=1e-12)
    np.testing.assert_allclose(transposed @ lower, rows, atol=1e-12)
