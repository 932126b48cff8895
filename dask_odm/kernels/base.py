"""The interface of a kernel: values on blocks of rows, the diagonal, a name and parameters.

A kernel first packs its rows into the layout in which it computes tiles. Rows on the left of a tile may have another
layout than rows on the right. In the base class BLAS does most of the work: a tile is a matrix product of packed rows,
and ``finish`` turns it into kernel values in place. Kernels know nothing of labels or Dask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_odm.kernels.loops import BACKWARD, FORWARD, STORED, tile_loop
from dask_odm.linalg.threads import lent
from dask_odm.typing import Array

BLOCK = 512  # rows and columns of a tile that is not kept


@dataclass(frozen=True, eq=False)
class Packed:
    """``n`` rows of ``d`` features in a kernel's layout, at the front of a flat buffer that may be larger.

    ``width`` is the number of columns of a packed row. Rows packed for the left lie one after the other.
    """

    values: Array
    n: int
    d: int
    width: int

    def __len__(self) -> int:
        return self.n

    @property
    def matrix(self) -> Array:
        """The rows as a matrix (n, width), if they were packed for the left or for BLAS."""
        return self.values[: self.n * self.width].reshape(self.n, self.width)

    def __getitem__(self, chosen: slice | Array) -> Packed:
        """Return some rows of `matrix`; a slice gives a view."""
        rows = self.matrix[chosen]
        return Packed(rows.reshape(-1), len(rows), self.d, self.width)


class Sides(NamedTuple):
    """Vectors that a tile K (n, m) is multiplied with, and sums in float64 that the products are added to.

    ``by_row += K v`` and ``by_column += K.T u``; either may be left out, with its vector.
    """

    u: Array | None = None  # (n,)
    v: Array | None = None  # (m,)
    by_row: Array | None = None  # (n,)
    by_column: Array | None = None  # (m,)

    def within(self, rows: slice, columns: slice) -> Sides:
        """Return views of the parts that belong to some ``rows`` and ``columns`` of the tile."""
        places = (rows, columns, rows, columns)
        return Sides(*(None if x is None else x[where] for x, where in zip(self, places, strict=True)))


@dataclass(frozen=True)
class Kernel(ABC):
    """A positive semi-definite function of two rows, plus a constant ``bias``.

    A bias of 1.0 is the regularised intercept, that is a constant feature.
    """

    bias: float = 0.0
    name: ClassVar[str]

    def width(self, d: int) -> int:
        """Return the number of columns of a packed row of ``d`` features."""
        return d

    def packed_size(self, n: int, d: int) -> int:
        """Return the number of elements of ``n`` packed rows of ``d`` features, on the side that needs more."""
        return n * self.width(d)

    def room(self, n: int, d: int, dtype: Any) -> Packed:
        """Return a buffer for up to ``n`` rows of ``d`` features, to be passed as ``out`` to the packing methods."""
        return Packed(np.empty(self.packed_size(n, d), dtype), n, d, self.width(d))

    def _room_for(self, X: Array, out: Packed | None) -> Packed:
        n, d = X.shape
        return self.room(n, d, X.dtype) if out is None else Packed(out.values, n, d, self.width(d))

    def pack_left(self, X: Array, out: Packed | None = None) -> Packed:
        """Pack the rows ``X`` (n, d) for the left of a tile, into the buffer of ``out`` if it is given.

        Unless a kernel does otherwise, packed rows are copies.
        """
        packed = self._room_for(X, out)
        np.copyto(packed.matrix, X)
        return packed

    def pack_right(self, X: Array, out: Packed | None = None) -> Packed:
        """Pack the rows ``X`` (n, d) for the right of a tile, as `pack_left` does for the left."""
        return Kernel.pack_left(self, X, out)

    def finish(self, tile: Array) -> None:
        """Turn a C-contiguous product (n, m) into kernel values, in place; by default by adding the bias."""
        if self.bias:
            tile += tile.dtype.type(self.bias)

    @abstractmethod
    def diagonal(self, X: Array) -> Array:
        """Return κ(x, x) of every row, float64 (n,)."""

    def tile(self, X: Array, Z: Array, out: Array | None = None) -> Array:
        """Return κ(X, Z), of shape (len(X), len(Z)), in the dtype of ``X``; ``out`` must be C-contiguous."""
        return self.tile_packed(self.pack_left(X), self.pack_right(Z), out)

    def tile_packed(self, left: Packed, right: Packed, out: Array | None = None) -> Array:
        """Return the `tile` of rows that are already packed."""
        out = np.matmul(left.matrix, right.matrix.T, out=out)
        self.finish(out)
        return out

    def forward(self, left: Packed, right: Packed, v: Array, out: Array) -> None:
        """Compute ``out += K v`` for ``v`` (m,) and float64 ``out`` (n,), without keeping K.

        Products, and their sums over up to 512 columns, are in the dtype of the rows; the rest is float64.
        """
        self.products(left, right, Sides(v=v, by_row=out))

    def products(self, left: Packed, right: Packed, sides: Sides) -> None:
        """Multiply the tile of packed rows with ``sides`` in one pass, without keeping it.

        For at most BLOCK rows and columns, the result has the same bits as `multiply` with the tile.
        """
        dtype = left.values.dtype
        for i in range(0, len(left), BLOCK):
            rows = slice(i, min(i + BLOCK, len(left)))
            if sides.v is None and sides.u is not None and not sides.u[rows].any():
                continue
            for j in range(0, len(right), BLOCK):
                columns = slice(j, min(j + BLOCK, len(right)))
                with lent(_free_buffers[dtype.name], lambda: np.empty(BLOCK * BLOCK, dtype)) as buffer:
                    shape = rows.stop - i, columns.stop - j
                    tile = buffer[: shape[0] * shape[1]].reshape(shape)
                    self.tile_packed(left[rows], right[columns], tile)
                    self.multiply(tile, sides.within(rows, columns))

    def multiply(self, tile: Array, sides: Sides) -> None:
        """Compute what `products` does from a stored C-contiguous ``tile`` (n, m)."""
        none = _NONE[tile.itemsize]
        run_loop(STORED, 0, none, none, tile.shape, 0.0, tile.reshape(-1), sides)

    def parameters(self) -> dict[str, Any]:
        """Return name and parameters as plain values; `dask_odm.kernels.from_parameters` reverses it."""
        return {"name": self.name, **asdict(self)}


def run_loop(
    mode: int,
    address: int,
    left: Array,
    right: Array,
    shape: tuple[int, int],
    bias: float,
    tile: Array | None,
    sides: Sides,
) -> None:
    """Call the `tile_loop` for the arguments that are not None, all cast to the dtype that it is compiled for."""
    dtype, (n, m) = left.dtype, shape
    mode |= (FORWARD if sides.v is not None else 0) | (BACKWARD if sides.u is not None else 0)
    none = _NONE[dtype.itemsize]
    vectors = [none if x is None else np.array(x, dtype) for x in (sides.u, sides.v)]  # contiguous and writable
    sums = [_NONE[8] if x is None else x for x in (sides.by_row, sides.by_column)]
    loop = tile_loop(dtype == np.float32)
    loop(mode, address, left, right, n, m, dtype.type(bias), none if tile is None else tile, *vectors, *sums)


_NONE: dict[int, Array] = {4: np.empty(0, np.float32), 8: np.empty(0, np.float64)}
_free_buffers: dict[str, list[Array]] = {"float32": [], "float64": []}  # of BLOCK × BLOCK entries
