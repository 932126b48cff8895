"""Rows in parts: none of two parts are near, and products are those of the whole matrix."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

from dask_odm.kernels import RBF, Laplacian
from dask_odm.learning.problem.products import RowProducts, Subset
from dask_odm.learning.solution import SolverSettings
from dask_odm.methods.exact.kernel_components import SEARCH_BYTES, ComponentProducts, in_components, parts_of
from dask_odm.methods.exact.memory import ExactMemory
from dask_odm.methods.exact.preconditioners import landmark_count
from dask_odm.methods.exact.solver import solve_exact
from dask_odm.methods.exact.systems import ExactLimits
from small_problems import matrix, small_problem


def rows_in_parts(n: int = 300, parts: int = 4) -> np.ndarray:
    """One feature for each part that is 1 there, else 0, and two features more."""
    rng = np.random.default_rng(0)
    return np.hstack([np.eye(parts)[rng.integers(0, parts, n)], rng.random((n, 2))]).astype(np.float32)


def test_parts_are_those_of_a_feature_that_tells_them():
    X = rows_in_parts()
    label, group = parts_of(X, 1.4), np.argmax(X[:, :4], axis=1)
    assert len(set(zip(label, group, strict=True))) == len(set(label)) == 4


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_two_parts_are_never_near(seed):
    rng = np.random.default_rng(seed)
    X = (rng.integers(0, 6, (400, 3)) + 0.2 * rng.random((400, 3))).astype(np.float32)
    X = X[rng.random(400) < np.where(X[:, 0] > 3, 0.1, 0.9)]
    label = parts_of(X, 1.5)
    assert (cdist(X, X)[label[:, None] != label] >= 1.5).all()


def test_products_are_those_of_the_whole_matrix():
    X, kernel, rng = rows_in_parts().astype(float), RBF(0.5, 9.0), np.random.default_rng(1)
    apart, K = in_components(RowProducts(kernel, X, 1 << 20, 2)), matrix(kernel, X)
    assert isinstance(apart, ComponentProducts)
    active, rest = np.flatnonzero(rng.random(300) < 0.6), np.arange(0, 300, 3)
    v = rng.normal(size=len(active))
    for exactly, atol in ((False, 1e-4), (True, 1e-12)):
        found = apart.among(active, double_precision=exactly)(v)
        np.testing.assert_allclose(found, K[np.ix_(active, active)] @ v, atol=atol)
        found = apart.cross(rest, active, v, double_precision=exactly)
        np.testing.assert_allclose(found, K[np.ix_(rest, active)] @ v, atol=atol)
    for rows, alone in apart.alone():
        found = alone.among(np.arange(len(rows)), double_precision=True)(np.ones(len(rows)))
        np.testing.assert_allclose(found, K[np.ix_(rows, rows)].sum(axis=1) - 0.5 * len(rows), atol=1e-12)


@pytest.mark.parametrize(("gamma", "expected"), [(4.0, 1), (32.0, 20)])
def test_components_of_54_features_are_those_of_the_thresholded_kernel_matrix(gamma, expected):
    """Rows like covtype's: 10 numbers, 4 features of which one is 1, and 40 more, of which one in the first five is."""
    rng = np.random.default_rng(0)
    kinds = [np.eye(count)[rng.integers(0, used, 2000)] for count, used in ((4, 4), (40, 5))]
    X = np.hstack([0.4 * rng.random((2000, 10)), *kinds]).astype(np.float32)
    count, label = connected_components(np.exp(-gamma * cdist(X, X, "sqeuclidean")) > np.finfo(np.float32).eps)
    assert count == expected
    products = in_components(RowProducts(RBF(1.0, gamma), X, 0))
    if count == 1:
        assert not isinstance(products, ComponentProducts)
    else:
        assert isinstance(products, ComponentProducts)
        assert len(set(zip(products.label.tolist(), label.tolist(), strict=True))) == products.label.max() + 1 == count


def rows_that_leave_one_by_one(lonely: int) -> np.ndarray:
    """400 rows of two features, and one more for each of the last rows, which is far from all others by it."""
    X = np.hstack([np.random.default_rng(0).random((400, 2)), np.zeros((400, lonely))])
    X[np.arange(400 - lonely, 400), np.arange(2, 2 + lonely)] = 2.0
    return X.astype(np.float32)


def test_a_search_that_costs_too_much_gives_up_and_moves_no_bit():
    assert len(set(parts_of(rows_that_leave_one_by_one(5), 1.4).tolist())) == 6
    p = small_problem(400, (1e4, 0.3, 0.1), kernel=RBF(1.0, 9.0), dtype="float32")
    p = replace(p, X=rows_that_leave_one_by_one(200))
    assert connected_components(np.finfo(np.float32).eps < p.K - 1.0)[0] == 201
    products = RowProducts(p.kernel, p.X, 0)
    assert in_components(products) is products
    searched, not_searched = (
        solve_exact(p.losses, each, SolverSettings(1e-6), limits=ExactLimits(whole_rows=0, dense_rows=0))
        for each in (products, Subset(products, np.arange(400)))  # rows of a subset are not searched
    )
    np.testing.assert_array_equal(searched.coefficients, not_searched.coefficients)


def test_the_search_takes_no_more_memory_than_the_blocks_of_a_solve():
    n, d = 4000, SEARCH_BYTES // 8
    X = np.random.default_rng(0).random((n, d), np.float32)
    X[::2, 0] += 9.0
    products = RowProducts(RBF(1.0, 16.0), X, 0)
    tracemalloc.start()
    assert isinstance(in_components(products), ComponentProducts)
    blocks = ExactMemory(RBF(), n, d, 4, 1).blocks(landmark_count(n))[0]
    assert tracemalloc.get_traced_memory()[1] < 1.1 * blocks
    tracemalloc.stop()
    wider = RowProducts(RBF(1.0, 16.0), np.hstack([X, X[:, 1:2]]), 0)
    assert in_components(wider) is wider


def test_rows_that_are_near_or_have_another_kernel_are_left_as_they_are():
    X = rows_in_parts()
    for kernel in (RBF(0.5, 1.0), Laplacian(0.5, 9.0)):
        products = RowProducts(kernel, X, 0)
        assert in_components(products) is products
    lonely = RowProducts(RBF(0.5, 9.0), np.vstack([X[:, 4:], [[9.0, 9.0]]]), 0)
    assert in_components(lonely) is lonely


def test_rows_too_far_from_zero_for_float32_are_left_as_they_are():
    X = np.add.outer(np.repeat([0.0, 100.0], 150), [1e6, 0.0])
    X[:, 0] += np.linspace(0.0, 1.0, 300)  # float32 has steps of 1/16 there
    assert len(set(parts_of(X.astype(np.float32), 0.04))) > 2, "rows 1/300 apart would be in other parts"
    products = RowProducts(RBF(0.5, 1e4), X, 0)
    assert in_components(products) is products
