"""The Laplacian kernel against scikit-learn's: rows with padding and without, tiles of odd sizes, any gamma.

A loop is compiled for every number of features of a step: every such number is for `test_radial` to try.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics.pairwise import laplacian_kernel

from dask_odm.kernels import Laplacian
from dask_odm.kernels.loops import BLOCK, FEATURES

TOLERANCE = {"float32": 3e-6, "float64": 1e-14}


def rows(n: int, d: int, seed: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (n, d)).astype(dtype)


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [1, 3, 5, 8, 9, 22, 123])
def test_tile_is_that_of_scikit_learn(d, dtype, bias):
    X, Z = rows(31, d, 1, dtype), rows(29, d, 2, dtype)
    tile = Laplacian(bias, 1.5 / d).tile(X, Z)
    expected = laplacian_kernel(X.astype(np.float64), Z.astype(np.float64), 1.5 / d) + bias
    assert tile.dtype == dtype
    np.testing.assert_allclose(tile, expected, rtol=0, atol=TOLERANCE[dtype] * (1 + bias))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("m", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_tiles_of_any_size(n, m):
    """Rows go four at a time, columns in blocks; what is left over must be neither forgotten nor overwritten."""
    X, Z = rows(n, FEATURES + 1, 3), rows(m, FEATURES + 1, 4)
    around = np.full((n + 2, m), 7.0)
    kernel = Laplacian(gamma=0.3)
    tile = kernel.tile_packed(kernel.pack_left(X), kernel.pack_right(Z), around[1:-1])
    np.testing.assert_allclose(tile, laplacian_kernel(X, Z, 0.3), rtol=0, atol=1e-14)
    assert (around[[0, -1]] == 7.0).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_is_symmetric_to_the_bit(dtype):
    X = rows(40, 9, 7, dtype)
    tile = Laplacian(gamma=0.2).tile(X, X)
    np.testing.assert_array_equal(tile, tile.T)
