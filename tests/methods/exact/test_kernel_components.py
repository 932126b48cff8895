"""Rows in parts: none of two parts are near, and products are those of the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from dask_odm.kernels import RBF, Laplacian
from dask_odm.learning.problem.products import RowProducts
from dask_odm.methods.exact.kernel_components import ComponentProducts, in_components, parts_of
from small_problems import matrix


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
