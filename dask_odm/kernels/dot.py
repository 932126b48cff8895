"""Kernels of the dot product: linear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dask_odm.kernels.base import Array, Kernel


@dataclass(frozen=True)
class Linear(Kernel):
    """κ(x, z) = x·z + bias."""

    name: ClassVar[str] = "linear"

    def pack_left(self, X: Array) -> Array:
        return np.ascontiguousarray(X)

    pack_right = pack_left

    def finish(self, tile: Array) -> None:
        if self.bias:
            tile += tile.dtype.type(self.bias)

    def diagonal(self, X: Array) -> Array:
        return np.einsum("ij,ij->i", X, X, dtype=np.float64) + self.bias
