"""Kernels of the dot product: linear and polynomial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dask_odm.kernels.base import Kernel, Packed
from dask_odm.typing import Array


@dataclass(frozen=True)
class Linear(Kernel):
    """κ(x, z) = x·z + bias."""

    name: ClassVar[str] = "linear"

    def diagonal(self, X: Array) -> Array:
        return np.einsum("ij,ij->i", X, X, dtype=np.float64) + self.bias


@dataclass(frozen=True)
class Polynomial(Kernel):
    """κ(x, z) = (gamma x·z + coef0)^degree + bias; positive semi-definite for coef0 ≥ 0."""

    gamma: float = 1.0
    coef0: float = 1.0
    degree: int = 3
    name: ClassVar[str] = "poly"

    def pack_left(self, X: Array, out: Packed | None = None) -> Packed:
        packed = self._room_for(X, out)
        np.multiply(X, X.dtype.type(self.gamma), out=packed.matrix)
        return packed

    def finish(self, tile: Array) -> None:
        tile += tile.dtype.type(self.coef0)
        base = tile.copy()
        for _ in range(self.degree - 1):
            tile *= base
        super().finish(tile)

    def diagonal(self, X: Array) -> Array:
        norms = np.einsum("ij,ij->i", X, X, dtype=np.float64)
        return (self.gamma * norms + self.coef0) ** self.degree + self.bias
