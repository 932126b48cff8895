"""Prepared rows of clients: features in another order and coordinates, and what they take."""

import numpy as np
import pytest
from scipy.linalg import hadamard as hadamard_matrix
from scipy.sparse import csr_array

from dask_odm.linalg.row_passes import RowBlock
from dask_odm.papers.saddle.client_rows import Preparation, hadamard, look_along
from dask_odm.papers.saddle.weighted_quantile import Look
from hull_problems import hulls
from small_problems import blobs
from traced import traced


@pytest.mark.parametrize("block_size", [None, 1, 3])
def test_rows_are_rotated_and_back(block_size):
    X, y = blobs(50, 5, seed=0)
    preparation = Preparation.of(hulls(X, y, 0.8), block_size, seed=1)
    rows = preparation([RowBlock(X, (y > 0).astype(np.int8), np.empty(0))])
    order = np.concatenate([np.flatnonzero(y > 0), np.flatnonzero(y <= 0)])
    assert rows.positive == (y > 0).sum()
    np.testing.assert_allclose(rows.S.T @ rows.S, X[order] @ X[order].T, atol=1e-12)
    np.testing.assert_allclose(preparation.back(rows.S.T), X[order], atol=1e-13)
    w = np.random.default_rng(0).standard_normal(len(rows.S))
    inside = preparation.within(w)
    np.testing.assert_allclose(inside @ rows.S, w @ rows.S, atol=1e-12)
    assert np.linalg.norm(inside) <= np.linalg.norm(w) * (1 + 1e-12)
    assert len(rows.S) % (block_size or 1) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("block_size", "form"), [(None, np.asarray), (5, np.asarray), (None, csr_array)])
def test_the_memory_of_a_client_is_projected(block_size, form):
    X, y = blobs(20_000, 40, seed=0)
    X = form(np.where(np.abs(X) < 1.0, np.float32(0.0), X.astype(np.float32)))
    preparation, codes = Preparation.of(hulls(X, y, 0.8), block_size, seed=1), (y > 0).astype(np.int8)
    look = Look.first(np.ones(preparation.size), 1.0, 16, np.empty(0))
    look_along(preparation([RowBlock(X[:9], codes[:9], np.empty(0))]), None, np.ones(preparation.size), look)
    _, peak = traced(
        lambda: look_along(preparation([RowBlock(X, codes, np.empty(0))]), None, np.ones(preparation.size), look)
    )
    projected = preparation.nbytes(X, 20_000)
    assert 0.3 * projected < peak < projected


def test_the_transform_is_that_of_hadamard_and_a_rotation():
    columns = np.random.default_rng(0).standard_normal((8, 5))
    signs = np.array([1.0, -1, -1, 1, 1, 1, -1, 1])
    found = columns.copy()
    hadamard(found, signs)
    np.testing.assert_allclose(found, hadamard_matrix(8) @ (signs[:, None] * columns) / np.sqrt(8), atol=1e-14)
    np.testing.assert_allclose(found.T @ found, columns.T @ columns, atol=1e-13)
