"""Tiles that skip zeros, beside those of the kernel in float64."""

import numpy as np
import pytest

from dask_odm.kernels import loops
from dask_odm.kernels import sparse_tiles as skipping
from dask_odm.kernels.named import RBF, Laplacian, Polynomial
from dask_odm.kernels.sparse_tiles import SkippingTiles, tiles_of
from dask_odm.linalg.jit import Loop

KERNEL = RBF(0.5, gamma=0.3)


def rows(n: int, d: int, dtype: type = np.float64, share: float = 0.2) -> np.ndarray:
    rng = np.random.default_rng(n + d)
    return (rng.standard_normal((n, d)) * (rng.random((n, d)) < share)).astype(dtype)


def tile(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    tiles = SkippingTiles(KERNEL)
    return tiles.tile_packed(tiles.pack_left(X), tiles.pack_right(Z))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 64), (5, 65), (130, 63), (3, 200)])
@pytest.mark.parametrize("d", [1, 40, 130])
def test_values_are_those_of_the_kernel(n, m, d):
    X, Z = rows(n, d), rows(m, d)
    wanted = np.exp(-0.3 * ((X[:, None] - Z) ** 2).sum(axis=2)) + 0.5
    np.testing.assert_allclose(tile(X, Z), wanted, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(tile(X.astype(np.float32), Z.astype(np.float32)), wanted, rtol=0, atol=3e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_skipped_changes_no_bit(dtype):
    X, Z = rows(23, 90, dtype), rows(70, 90, dtype)
    alone = np.vstack([tile(row[None], Z) for row in X])  # each row skips its own zeros
    np.testing.assert_array_equal(tile(X, Z), alone)
    full = np.vstack([tile(np.vstack([row, np.ones((3, 90), dtype)]), Z)[:1] for row in X])  # none is skipped
    np.testing.assert_array_equal(full, alone)


@pytest.mark.slow
def test_narrow_registers_give_the_same_bits(monkeypatch):
    X, Z = rows(9, 50, np.float32), rows(80, 50, np.float32)
    wanted = tile(X, Z)
    monkeypatch.setattr(loops, "_registers", lambda context: (32, 2))
    narrow = Loop(loops.fill_tile.__wrapped__, nogil=True)  # not as kept
    monkeypatch.setattr(skipping, "fill_tile", narrow)
    np.testing.assert_array_equal(tile(X, Z), wanted)
    assert "fmul contract <16 x float>" not in "".join(narrow.made().inspect_llvm().values())


def test_rows_of_mostly_zeros_are_told_by_a_sample():
    sparse, dense = rows(3000, 40), rows(3000, 40, share=0.8)
    assert isinstance(tiles_of(KERNEL, sparse), SkippingTiles)
    assert tiles_of(KERNEL, dense) is KERNEL
    assert tiles_of(KERNEL, rows(3000, 8)) is KERNEL
    assert all(tiles_of(kernel, sparse) is kernel for kernel in (Laplacian(), Polynomial()))
