"""The interface of a kernel: values on blocks of rows, the diagonal, a name and parameters.

A kernel first packs its rows into the layout in which it computes tiles. Rows on the left of a tile may have another
layout than rows on the right. In the base class BLAS does most of the work: a tile is a matrix product of packed rows,
and ``finish`` turns it into kernel values in place. Products of `CSRRows` come from `csr_tiles` instead. Kernels know
nothing of labels or Dask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_odm.kernels.csr_tiles import CSRLeft, CSRPanels, dot_products
from dask_odm.kernels.loops import BLOCK as BLOCK
from dask_odm.kernels.loops import COLUMNS, multiply_tile
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Panels:
    """``n`` rows packed for the right of a compiled loop, feature by feature: ``values`` (panels, width, `COLUMNS`).

    A column is a row; zeros fill up the last panel.
    """

    values: Array
    n: int

    @classmethod
    def of(cls, rows: Array) -> Panels:
        """Lay out ``rows`` (n, width) in panels."""
        n, width = rows.shape
        panels = np.zeros((-(-n // COLUMNS), width, COLUMNS), rows.dtype)
        for panel, start in zip(panels, range(0, n, COLUMNS), strict=True):
            some = rows[start : start + COLUMNS]
            panel[:, : len(some)] = some.T
        return cls(panels, n)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, rows: slice) -> Panels:
        """Return a run of whole panels."""
        first, last, _ = rows.indices(self.n)
        return Panels(self.values[first // COLUMNS : -(-last // COLUMNS)], last - first)


class Sides(NamedTuple):
    """Vectors that a tile K (n, m) is multiplied with, and sums in float64 that the products are added to.

    ``by_row += K v`` and ``by_column += K.T u``; the latter may be left out.
    """

    v: Array  # (m,)
    by_row: Array  # (n,)
    u: Array | None = None  # (n,)
    by_column: Array | None = None  # (m,)

    def within(self, rows: slice, columns: slice) -> Sides:
        """Return views of the parts that belong to some ``rows`` and ``columns`` of the tile."""
        v, by_row, u, by_column = self
        back = (None if u is None else u[rows], None if by_column is None else by_column[columns])
        return Sides(v[columns], by_row[rows], *back)


@dataclass(frozen=True)
class Kernel(ABC):
    """A positive semi-definite function of two rows, plus a constant ``bias``.

    A bias of 1.0 is the regularised intercept, that is a constant feature.
    """

    bias: float = 0.0
    name: ClassVar[str]
    takes_csr: ClassVar[bool] = False  # whether rows may be `CSRRows`, on both sides of a tile
    of_distances: ClassVar[bool] = False  # whether only the difference of two rows matters, so that any may be 0

    def makes_panels(self, d: int) -> bool:
        """Return whether rows of ``d`` features are packed in `Panels` for the right, instead of in a matrix."""
        return False

    def packed_bytes(self, n: int, d: int, itemsize: int) -> int:
        """Return the bytes of ``n`` rows of ``d`` features that are packed for the right of a tile, or a few more.

        Rows for the left take no more.
        """
        rows = -(-n // COLUMNS) * COLUMNS if self.makes_panels(d) else n
        return rows * (d + 2) * itemsize

    @property
    def product_factor(self) -> float:
        """Factor of the products of `CSRRows`."""
        return 1.0

    def product_terms(self, X: CSRRows) -> Array:
        """Return the terms (n,) of rows x, such that ``factor · x·z`` and the terms of x and z are what is finished.

        By default the sum is ``factor · (x − shift)·(z − shift)``.
        """
        if X.shift is None:
            return np.zeros(len(X))
        return self.product_factor * (0.5 * float(X.shift @ X.shift) - X.dots(X.shift))

    def pack_left(self, X: Any) -> Any:
        """Pack the rows ``X`` (n, d) for the left of a tile: copy them to a matrix (n, width)."""
        if isinstance(X, CSRRows):
            return CSRLeft.of(X, self.product_factor, self.product_terms(X))
        return np.array(X, order="C")

    def pack_right(self, X: Any) -> Any:
        """Pack the rows ``X`` (n, d) for the right of a tile: copy them to a matrix (n, width), or to `Panels`."""
        if isinstance(X, CSRRows):
            return CSRPanels.of(X, self.product_terms(X))
        return np.array(X, order="C")

    def pack_right_in(self, X: Any, dtype: Any) -> Any:
        """Return `pack_right` of the rows ``X`` (n, d) cast to ``dtype``, without a cast copy of them all."""
        if isinstance(X, CSRRows) or X.dtype == dtype:
            return self.pack_right(X.astype(dtype, copy=False))
        n, d = X.shape
        panels = self.makes_panels(d)
        bounds = [*range(0, n, COLUMNS), n]
        if not panels and n % COLUMNS == 1 < n:
            del bounds[-2]  # the square norm of a row alone is summed in another order
        packed: Any = None
        for start, stop in pairwise(bounds):
            block = self.pack_right(X[start:stop].astype(dtype))
            values = block.values if panels else block
            if packed is None:
                packed = np.empty((-(-n // COLUMNS) if panels else n, *values.shape[1:]), dtype)
            first = start // COLUMNS if panels else start
            packed[first : first + len(values)] = values
        return Panels(packed, n) if panels else packed

    def finish(self, tile: Array) -> None:
        """Turn a C-contiguous product (n, m) into kernel values, in place; by default by adding the bias."""
        if self.bias:
            tile += tile.dtype.type(self.bias)

    @abstractmethod
    def diagonal(self, X: Any) -> Array:
        """Return κ(x, x) of every row, float64 (n,)."""

    def float32_errors(self, X: Array) -> Array:
        """Return e(x) for every float64 row x of ``X`` (n, d), by which errors are bounded if it is rounded to float32.

        ``Σ_j a_j κ(x, z_j)`` in float32, summed over at most BLOCK rows z, is within ``Σ_j |a_j| (e(x) + e(z_j))`` of
        the exact sum. It is infinite for a kernel without such a bound.
        """
        return np.full(len(X), np.inf)

    def float64_errors(self, far: Array) -> tuple[float, float]:
        """Return the units of rounding by which a float64 value may be off, and the largest κ(x, x).

        Features of rows are at most ``far`` (d,) from 0. If the latter is infinite, predictions judge the gap.
        """
        return 0.0, np.inf

    def tile(self, X: Any, Z: Any) -> Array:
        """Return κ(X, Z), of shape (len(X), len(Z)), in the dtype of ``X``."""
        return self.tile_packed(self.pack_left(X), self.pack_right(Z))

    def tile_packed(self, left: Any, right: Any, out: Array | None = None) -> Array:
        """Return the `tile` of rows that are already packed, in ``out`` if it is given, which must be C-contiguous."""
        if isinstance(right, CSRPanels):
            out = np.empty((len(left), len(right)), left.dtype) if out is None else out
            dot_products(left, right, out)
        else:
            out = np.matmul(left, right.T, out=out)
        self.finish(out)
        return out

    def products(self, left: Any, right: Any, sides: Sides) -> None:
        """Multiply the tile of packed rows with ``sides``, BLOCK rows and columns at a time, without keeping it.

        Products, and their sums over up to BLOCK columns, are in the dtype of the rows; the rest is float64. For at
        most BLOCK rows and columns, the result has the same bits as `multiply` with the tile.
        """
        for i in range(0, len(left), BLOCK):
            rows = slice(i, min(i + BLOCK, len(left)))
            for j in range(0, len(right), BLOCK):
                columns = slice(j, min(j + BLOCK, len(right)))
                self.multiply(self.tile_packed(left[rows], right[columns]), sides.within(rows, columns))

    def multiply(self, tile: Array, sides: Sides) -> None:
        """Compute what `products` does from a stored C-contiguous ``tile`` (n, m)."""
        u, v = (np.array([] if x is None else x, tile.dtype) for x in (sides.u, sides.v))  # contiguous and writable
        by_column = np.empty(0) if sides.by_column is None else sides.by_column
        multiply_tile(tile, u, v, np.zeros(len(by_column), tile.dtype), sides.by_row, by_column)

    def parameters(self) -> dict[str, Any]:
        """Return name and parameters as plain values; `dask_odm.kernels.from_parameters` reverses it."""
        return {"name": self.name, **asdict(self)}
