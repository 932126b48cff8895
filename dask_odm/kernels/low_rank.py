"""Products with the Gram matrix of the linear kernel by its factors, for fewer features than a tile has rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import TILE_ROWS, Float64Rows, Gram, Tiling
from dask_odm.typing import Array


@dataclass(eq=False)
class LowRankGram(Gram):
    """The Gram matrix of the linear kernel if there are fewer features than rows in a tile: ``X Xᵀ`` is never formed.

    A pass costs O(n d) instead of O(n²).
    """

    def __post_init__(self) -> None:
        self.tiling = Tiling(self.rows.n, self.rows.d, self.rows.dtype.itemsize)

    def in_float64(self) -> LowRankGram:
        return LowRankGram(self.kernel, Float64Rows(self.rows), budget=0, threads=self.threads)

    def weights(self, v: Array) -> Array:
        """Return ``Xᵀ v`` and, last, the weight of the constant feature √bias: float64 (d + 1,)."""
        total = np.zeros(self.rows.d + 1)
        for b in range(self.tiling.count):
            start, stop = self.tiling.span(b)
            total[:-1] += v[start:stop].astype(self.dtype) @ self.rows.read(start, stop)
        total[-1] = np.sqrt(self.kernel.bias) * v.sum()
        return total

    def _add_scores(self, weights: Array, y: Array) -> None:
        w = weights[:-1].astype(self.dtype)
        constant = weights[-1] * np.sqrt(self.kernel.bias)
        for b in range(self.tiling.count):
            start, stop = self.tiling.span(b)
            y[start:stop] += self.rows.read(start, stop) @ w + constant

    def matvec(self, v: Array) -> Array:
        y = np.zeros(self.n)
        self._add_scores(self.weights(v), y)
        return y


def is_low_rank(kernel: Kernel, d: int) -> bool:
    """Return whether the Gram matrix is never formed: for the linear kernel with no more features than `TILE_ROWS`."""
    return kernel.name == "linear" and d <= TILE_ROWS
