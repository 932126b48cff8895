"""Positive definite systems against NumPy's solve, and mended where they are not quite definite."""

import numpy as np
import pytest

from dask_odm.linalg.lapack import symmetric_product
from dask_odm.linalg.systems import factored, mended, solve_positive, times_transpose


def test_is_the_solution():
    rng = np.random.default_rng(0)
    root, b = rng.normal(size=(20, 20)), rng.normal(size=20)
    A = root @ root.T + np.eye(20)
    np.testing.assert_allclose(solve_positive(A, b, 1e-12), np.linalg.solve(A, b), rtol=1e-9)


def test_a_little_on_the_diagonal_mends_what_rounding_broke():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(20, 3))
    A = root @ root.T - 1e-9 * np.eye(20)
    b = root @ rng.normal(size=3)
    x = solve_positive(A, b, 1e-12 * float(np.trace(A)))
    np.testing.assert_allclose(A @ x, b, atol=1e-4)


def test_ridges_grow_and_end():
    tried: list[float] = []

    def never(ridge: float) -> None:
        tried.append(ridge)

    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        mended(never, lambda: 1e-10)
    assert tried[:3] == pytest.approx([0.0, 1e-10, 1e-8])
    assert np.isfinite(tried).all()
    with pytest.raises(np.linalg.LinAlgError):
        mended(never, lambda: 0.0)  # of a matrix of zeros no ridge follows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 37, 1161])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_lower_half_is_factored_where_it_lies_whatever_the_threads(n, dtype, order):
    B = np.random.default_rng(n).normal(size=(n, n))
    A = np.array(B @ B.T / n + 0.1 * np.eye(n), dtype, order=order)
    found, again = (np.array(np.tril(A), order=order) for _ in range(2))
    assert factored(found)
    np.testing.assert_allclose(np.tril(found), np.linalg.cholesky(A), atol=1e-4 if dtype == np.float32 else 1e-12)
    assert factored(again, 3)
    np.testing.assert_array_equal(np.tril(again), np.tril(found))
    for wrong in (-1.0, np.inf):
        A[-1, -1] = wrong
        assert not factored(A.copy(order))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_symmetric_product_reads_the_upper_half_alone(dtype):
    rng = np.random.default_rng(0)
    A, x = rng.normal(size=(70, 70)), rng.normal(size=70)
    half = np.where(np.tri(70, k=-1, dtype=bool), np.nan, A).astype(dtype)
    found = symmetric_product(half, x)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, (np.triu(A) + np.triu(A, 1).T) @ x, rtol=0, atol=50 * np.finfo(dtype).eps)


@pytest.mark.parametrize("n", [1, 127, 128, 129, 300])
def test_products_of_a_triangle_are_those_of_the_whole_matrix(n):
    rng = np.random.default_rng(n)
    A, lower = rng.normal(size=(5, n)), np.tril(rng.normal(size=(n, n)))
    np.testing.assert_allclose(times_transpose(A, lower), A @ lower.T, atol=1e-12)
