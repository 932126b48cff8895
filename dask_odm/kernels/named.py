"""The kernels that have a name: linear, polynomial, Gaussian radial basis function (RBF) and Laplacian.

`loops.store_loop` computes tiles of the two that depend on the distance between rows, and `loops.tile_loop` multiplies
with them; there, a distance stays in the cache until it has become a kernel value. For many features `RBF` uses BLAS,
which is faster then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dask_odm.kernels.base import Kernel, Packed, Sides, run_loop
from dask_odm.kernels.loops import (
    COLUMNS,
    COMPUTED,
    LOG2,
    entry_loop,
    exp2_float32,
    exp2_float64,
    padded,
    step_of,
    store_loop,
)
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


WIDE = 128  # the fewest features for which BLAS computes RBF tiles faster than the loop


@dataclass(frozen=True)
class _Radial(Kernel):
    """Base of both kernels: packing for the loop, and the loop itself.

    Packed rows are padded with zeros to a whole number of the loop's steps. Rows for the right are stored in panels of
    COLUMNS rows, feature by feature.
    """

    gamma: float = 1.0
    _manhattan: ClassVar[bool]
    _constants: ClassVar[int]  # columns of a packed row besides its features

    def _by_loop(self, d: int) -> bool:
        """Return whether tiles come from the loop. It depends on ``d`` alone, and so do the bits."""
        return True

    def width(self, d: int) -> int:
        width = d + self._constants
        return padded(width) if self._by_loop(d) else width

    def packed_size(self, n: int, d: int) -> int:
        return (-(-n // COLUMNS) * COLUMNS if self._by_loop(d) else n) * self.width(d)

    def _panels(self, X: Array, out: Packed | None) -> tuple[Packed, Array]:
        """Return room for ``X`` on the right, with its features filled in, and its panels (panels, width, COLUMNS)."""
        packed, (n, d) = self._room_for(X, out), X.shape
        size = packed.width * COLUMNS
        panels = packed.values[: -(-n // COLUMNS) * size].reshape(-1, packed.width, COLUMNS)
        panels[-1:] = 0.0
        panels[:, d:] = 0.0
        for panel, start in zip(panels, range(0, n, COLUMNS), strict=True):
            rows = X[start : start + COLUMNS]
            panel[:d, : len(rows)] = rows.T
        return packed, panels

    def _address(self, width: int, dtype: Any) -> int:
        """Return the address of the compiled loop that fills a tile with kernel values."""
        return entry_loop(step_of(width), self._manhattan, dtype == np.float32).address

    def tile_packed(self, left: Packed, right: Packed, out: Array | None = None) -> Array:
        if not self._by_loop(left.d):
            return super().tile_packed(left, right, out)
        out = np.empty((len(left), len(right)), left.values.dtype) if out is None else out
        dtype = left.values.dtype
        address = self._address(left.width, dtype)
        packed = left.matrix.reshape(-1), right.values, len(left), len(right)
        store_loop(dtype == np.float32)(address, *packed, dtype.type(self.bias), out.reshape(-1))
        return out

    def products(self, left: Packed, right: Packed, sides: Sides) -> None:
        if not self._by_loop(left.d):
            super().products(left, right, sides)
            return
        address = self._address(left.width, left.values.dtype)
        shape = (len(left), len(right))
        run_loop(COMPUTED, address, left.matrix.reshape(-1), right.values, shape, self.bias, None, sides)

    def finish(self, tile: Array) -> None:
        exp2 = exp2_float32 if tile.dtype == np.float32 else exp2_float64
        exp2(tile.reshape(-1), tile.dtype.type(self.bias))

    def diagonal(self, X: Array) -> Array:
        return np.full(len(X), 1.0 + self.bias)


@dataclass(frozen=True)
class RBF(_Radial):
    """κ(x, z) = exp(−gamma ‖x − z‖²) + bias.

    Rows should be centred first, which does not change the kernel. The squared distance is expanded into norms and a
    dot product, and their difference loses digits if rows are far from zero.
    """

    name: ClassVar[str] = "rbf"
    _manhattan: ClassVar[bool] = False
    _constants: ClassVar[int] = 2

    @property
    def scale(self) -> float:
        """Factor of the dot products of two rows, such that kernel values are powers of two."""
        return 2.0 * self.gamma / LOG2

    def norms(self, X: Array) -> Array:
        """Return the term of each row (n, d) in its log2 kernel values, ``−scale/2 ‖x‖²``, (n,)."""
        return -0.5 * self.scale * np.einsum("ij,ij->i", X, X)

    def _by_loop(self, d: int) -> bool:
        return d < WIDE

    def pack_left(self, X: Array, out: Packed | None = None) -> Packed:
        packed = self._room_for(X, out)
        d = X.shape[1]
        rows = packed.matrix
        np.multiply(X, X.dtype.type(self.scale), out=rows[:, :d])
        rows[:, d] = self.norms(X)
        rows[:, d + 1] = 1.0
        rows[:, d + 2 :] = 0.0
        return packed

    def pack_right(self, X: Array, out: Packed | None = None) -> Packed:
        (n, d), norms = X.shape, self.norms(X)
        if not self._by_loop(d):
            packed = self._room_for(X, out)
            rows = packed.matrix
            rows[:, :d], rows[:, d], rows[:, d + 1] = X, 1.0, norms
            return packed
        packed, panels = self._panels(X, out)
        for panel, start in zip(panels, range(0, n, COLUMNS), strict=True):
            some = norms[start : start + COLUMNS]
            panel[d, : len(some)] = 1.0
            panel[d + 1, : len(some)] = some
        return packed


@dataclass(frozen=True)
class Laplacian(_Radial):
    """κ(x, z) = exp(−gamma ‖x − z‖₁) + bias."""

    name: ClassVar[str] = "laplacian"
    _manhattan: ClassVar[bool] = True
    _constants: ClassVar[int] = 0

    def pack_left(self, X: Array, out: Packed | None = None) -> Packed:
        packed = self._room_for(X, out)
        d = X.shape[1]
        rows = packed.matrix
        np.multiply(X, X.dtype.type(self.gamma / LOG2), out=rows[:, :d])
        rows[:, d:] = 0.0
        return packed

    def pack_right(self, X: Array, out: Packed | None = None) -> Packed:
        return self._panels(X * X.dtype.type(self.gamma / LOG2), out)[0]
