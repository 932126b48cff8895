"""Products with a Gram matrix over changing sets of active rows, for the exact solver and for certificates.

Products *among* the active rows are those with their symmetric matrix; a *cross* product goes from some rows to
others. Neither forms the whole matrix. Memory and threads change the time that they take, never the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from dask_odm.kernels.base import BLOCK, Kernel, Sides
from dask_odm.kernels.blocks import Gram, Room, Tiling
from dask_odm.kernels.shape import Shape
from dask_odm.linalg.csr_rows import CSRRows, row_width
from dask_odm.linalg.rows import Rows, read_scattered
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

Multiply = Callable[[Array], Array]  # returns the product of a matrix with a vector
CHUNK_BYTES = 8 << 20  # most bytes of rows that are read or packed at a time, if they are more than 64


class Products(Protocol):
    """The Gram matrix K of n rows, as the exact solver uses it. Indices ascend; results are float64."""

    @property
    def kernel(self) -> Kernel: ...
    @property
    def n(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def rows(self, index: Array) -> Any:
        """Return the rows at ``index`` as the kernel sees them: an array or `CSRRows`, not to be written to."""
        ...

    def among(self, index: Array, *, double_precision: bool | None = False) -> Multiply:
        """Return what multiplies with ``K[index, index]``, in float32 or ``double_precision``; None: the rows' dtype.

        It is valid until the next one is asked for, which may keep its tiles in the same memory.
        """
        ...

    def cross(self, targets: Array, sources: Array, v: Array, *, double_precision: bool = False) -> Array:
        """Return ``K[targets, sources] @ v``."""
        ...


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """The rows at ``index`` of an array in memory, of one mapped from a file, or of rows gathered on reading."""

    source: Any
    index: Array
    double_precision: bool | None = False

    @property
    def n(self) -> int:
        return len(self.index)

    @property
    def d(self) -> int:
        return row_width(self.source)

    @property
    def dtype(self) -> np.dtype[Any]:
        if self.double_precision is None:
            return np.dtype(self.source.dtype)
        return np.dtype(np.float64 if self.double_precision else np.float32)

    def read(self, start: int, stop: int) -> Any:
        return _rows_at(self.source, self.index[start:stop]).astype(self.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class RangedRows:
    """Rows that are read by range, indexed like an array by ascending numbers, as `ChosenRows` needs them."""

    rows: Rows

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.n, self.rows.d

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    def __getitem__(self, index: Array | slice) -> Any:
        if isinstance(index, slice):
            return self.rows.read(index.start, index.stop)
        return read_scattered(self.rows, index)


def _rows_at(source: Any, index: Array) -> Any:
    """Return rows of ``source``, a view if the ascending numbers ``index`` follow each other."""
    if len(index) and index[-1] - index[0] == len(index) - 1:
        found = source[int(index[0]) : int(index[-1]) + 1]
    else:
        found = source[index]
    return found if isinstance(found, CSRRows) else np.asarray(found)


def cross_blocks(n: int) -> int:
    """Return the number of blocks of ``n`` targets. A task of a cross product takes a run of blocks."""
    return -(-n // _cross_rows(n))


def _cross_rows(n: int) -> int:
    """Return the rows of a block of ``n`` targets, of which even few are two blocks, for two threads."""
    return max(128, min(BLOCK, -(-n // 2)))


def cross_part(kernel: Kernel, targets: ChosenRows, sources: ChosenRows, v: Array, blocks: Sequence[int]) -> Array:
    """Return ``κ(targets, sources) @ v`` for the targets of ``blocks``: products in their dtype, sums in float64."""
    weights = v.astype(sources.dtype)
    parts = []
    step = _packed_rows(sources.d, sources.dtype.itemsize)
    rows = _cross_rows(targets.n)
    starts = [start for b in blocks for start in range(b * rows, min(targets.n, (b + 1) * rows), step)]
    for start in starts:
        stop = min(targets.n, start + step, (start // rows + 1) * rows)
        left = kernel.pack_left(targets.read(start, stop))
        total = np.zeros(stop - start)
        for first in range(0, sources.n, step):
            right = kernel.pack_right(sources.read(first, min(sources.n, first + step)))
            kernel.products(left, right, Sides(v=weights[first : first + step], by_row=total))
            del right  # before the next is packed
        parts.append(total)
    return np.concatenate(parts) if parts else np.empty(0)


def _packed_rows(d: int, itemsize: int) -> int:
    """Return the most rows of ``d`` features that are packed at a time for a cross product."""
    return max(64, min(BLOCK, CHUNK_BYTES // (itemsize * (d + 2))))


def products_bytes(shape: Shape, of_value: int) -> int:
    """Return the bytes that products among all rows and across them take, without rows and kept tiles.

    ``of_value`` is the size of kernel values, 8 if they are computed in float64.
    """
    rows = min(shape.n, _packed_rows(shape.d, of_value))
    # packed on both sides, and as they are read and converted
    packed = 2 * shape.packed(rows, of_value) + 2 * rows * shape.d * of_value
    cross = shape.threads * (packed + rows**2 * of_value)
    return max(Tiling(shape.n, shape.d, of_value).scratch_bytes(shape.threads, shape.kernel), cross)


@dataclass(frozen=True, eq=False)
class Purpose:
    """The purpose of kernel products, and what these and their user take.

    ``what`` is a few words for messages. ``nbytes`` returns the bytes that products and their user take in
    this process for a shape, without rows and kept tiles. ``advice`` says what to do if memory does not suffice.
    """

    what: str
    nbytes: Callable[[Shape], int]
    advice: str

    @classmethod
    def of_products(cls, what: str, of_row: int, advice: str) -> Purpose:
        """Return a purpose whose user takes ``of_row`` bytes for each row besides products, some of them in float64."""
        return cls(what, lambda shape: of_row * shape.n + products_bytes(shape, 8), advice)

    def with_reserved(self, nbytes: int) -> Purpose:
        """Return the purpose with ``nbytes`` more that its user holds in this process."""
        return replace(self, nbytes=lambda shape: self.nbytes(shape) + nbytes) if nbytes else self


@dataclass(eq=False)
class RowProducts:
    """`Products` of ``source`` (n, d), an array, `CSRRows` or `SparseRows`, by threads of this process.

    Kept tiles of the active rows take up to ``budget`` bytes; tiles beyond are recomputed in every product.
    """

    kernel: Kernel
    source: Any
    budget: int
    threads: int = 1
    room: Room = field(default_factory=Room)

    @property
    def n(self) -> int:
        return int(self.source.shape[0])

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.source.dtype)

    def rows(self, index: Array) -> Any:
        return _rows_at(self.source, index)

    def among(self, index: Array, *, double_precision: bool | None = False) -> Multiply:
        rows = ChosenRows(self.source, index, double_precision)
        if double_precision:
            return Gram(self.kernel, rows, 0, self.threads, phase="certificate").matvec
        return Gram(self.kernel, rows, self.budget, self.threads, room=self.room).matvec

    def cross(self, targets: Array, sources: Array, v: Array, *, double_precision: bool = False) -> Array:
        there, here = (ChosenRows(self.source, index, double_precision) for index in (targets, sources))
        with single_threaded_blas:
            blocks = ([b] for b in range(cross_blocks(len(targets))))
            parts = run_threads(
                lambda b: cross_part(self.kernel, there, here, v, b), blocks, self.threads, "kernel product"
            )
        return np.concatenate(parts) if parts else np.empty(0)


@dataclass(frozen=True, eq=False)
class SourcedProducts:
    """Base of `Products` whose kernel and rows are those of other products, their ``source``."""

    source: Products

    @property
    def kernel(self) -> Kernel:
        return self.source.kernel

    @property
    def n(self) -> int:
        return self.source.n

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    def rows(self, index: Array) -> Any:
        return self.source.rows(index)


@dataclass(frozen=True, eq=False)
class Subset(SourcedProducts):
    """`Products` of the rows at ``index`` of other products."""

    index: Array

    @property
    def n(self) -> int:
        return len(self.index)

    def rows(self, index: Array) -> Any:
        return self.source.rows(self.index[index])

    def among(self, index: Array, *, double_precision: bool | None = False) -> Multiply:
        return self.source.among(self.index[index], double_precision=double_precision)

    def cross(self, targets: Array, sources: Array, v: Array, *, double_precision: bool = False) -> Array:
        return self.source.cross(self.index[targets], self.index[sources], v, double_precision=double_precision)


def scores_of(products: Products, a: Array, *, double_precision: bool = False) -> Array:
    """Return ``K a`` on all rows (n,): from the rows with a coefficient to themselves, and to the rest."""
    scores = np.zeros(products.n)
    support = np.flatnonzero(a)
    rest = np.flatnonzero(a == 0)
    if len(support):
        scores[support] = products.among(support, double_precision=double_precision)(a[support])
        scores[rest] = products.cross(rest, support, a[support], double_precision=double_precision)
    return scores


def quadratic(products: Products, index: Array, v: Array) -> float:
    """Return ``vᵀ K[index, index] v`` with entries in float64: |index|²/2 of them, none kept."""
    return float(v @ products.among(index, double_precision=True)(v)) if len(index) else 0.0
