"""Sparse tiles: RBF tiles for dense rows that are mostly zeros, such as images and one-hot features.

Rows on the left are taken four at a time, with a list of the features in which any of the four is not zero. Only these
are multiplied. The others would add zeros, so entries have the bits of sums over all features in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.kernels.base import Kernel, Panels
from dask_odm.kernels.loops import COLUMNS, ROWS, fill_tile
from dask_odm.kernels.named import RBF
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.linalg.jit import compiled
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class ListedRows:
    """``n`` rows packed for the left, four by four.

    ``starts`` (⌈n / 4⌉ + 1,) are where the list of every four rows starts, and the last ends. ``features`` are the
    numbers of the listed features. ``values`` has four numbers per listed feature, one of each row; the last row stands
    in for rows that are not there.
    """

    n: int
    starts: Array
    features: Array
    values: Array

    def __len__(self) -> int:
        return self.n


@dataclass(frozen=True)
class SkippingTiles:
    """Tiles of ``kernel``, as by `Kernel.tile_packed`, that are computed without the zeros of the rows on the left."""

    kernel: RBF

    def pack_left(self, X: Array) -> Any:
        """Pack the rows ``X`` (n, d) for the left of a tile, as `ListedRows`."""
        n, d = X.shape
        fours = -(-n // 4)
        features = np.empty(fours * (d + 2), np.int32)
        values = np.empty(fours * (d + 2) * 4, X.dtype)
        starts = np.empty(fours + 1, np.int64)
        _list_rows(X, X.dtype.type(self.kernel.scale), self.kernel.norms(X).astype(X.dtype), starts, features, values)
        return ListedRows(n, starts, features, values)

    def pack_right(self, X: Array) -> Panels:
        """Pack the rows ``X`` (n, d) for the right."""
        return Panels.of(self.kernel.with_norms(X))

    def tile_packed(self, left: Any, right: Panels, out: Array | None = None) -> Array:
        """Return κ of packed rows, (n, m); ``out`` must be C-contiguous."""
        dtype = left.values.dtype
        out = np.empty((len(left), len(right)), dtype) if out is None else out
        memory = np.empty(ROWS * COLUMNS, dtype)
        bias = dtype.type(self.kernel.bias)
        flat = (right.values.reshape(-1), len(left), len(right), None, bias, memory, out.reshape(-1))
        fill_tile(left.values, left.starts, left.features, *flat)
        return out


Tiles = Kernel | SkippingTiles


def tiles_of(kernel: Kernel, rows: Any) -> Tiles:
    """Choose the faster way to compute tiles with ``rows`` (n, d) on either side: the kernel, or `SkippingTiles`.

    The choice depends on the rows alone, and so do the bits.
    """
    if isinstance(rows, CSRRows):  # whose tiles have no zeros already
        return kernel
    # some 512 rows tell whether most values are zeros
    some = rows[:: max(1, len(rows) // 512)]
    mostly_zeros = 2 * np.count_nonzero(some) < some.size
    # with fewer than 32 features, lists cost more than they save
    return SkippingTiles(kernel) if mostly_zeros and rows.shape[1] >= 32 and isinstance(kernel, RBF) else kernel


@compiled
def _list_rows(X: Array, scale: float, norms: Array, starts: Array, features: Array, values: Array) -> None:
    """Fill in the lists of rows: features times ``scale``, then the norm, and 1 for the other side's norm."""
    (n, d), at = X.shape, 0
    for four in range(starts.size - 1):
        starts[four], r0 = at, 4 * four
        r1 = min(r0 + 1, n - 1)
        r2 = min(r0 + 2, n - 1)
        r3 = min(r0 + 3, n - 1)
        for k in range(d):
            x0 = X[r0, k]
            x1 = X[r1, k]
            x2 = X[r2, k]
            x3 = X[r3, k]
            features[at], to = k, 4 * at
            values[to], values[to + 1], values[to + 2], values[to + 3] = x0 * scale, x1 * scale, x2 * scale, x3 * scale
            at += (x0 != 0) | (x1 != 0) | (x2 != 0) | (x3 != 0)  # no branch: the next feature overwrites zeros
        features[at], features[at + 1], to = d, d + 1, 4 * at
        values[to], values[to + 1], values[to + 2], values[to + 3] = norms[r0], norms[r1], norms[r2], norms[r3]
        values[to + 4], values[to + 5], values[to + 6], values[to + 7] = 1.0, 1.0, 1.0, 1.0
        at += 2
    starts[starts.size - 1] = at
