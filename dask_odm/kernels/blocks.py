"""The Gram matrix of one partition as an operator, whose tiles are kept in memory or recomputed if they do not fit.

The matrix is symmetric, so only one tile of every pair of blocks is computed, and its transpose serves as the other.
Row i of tiles begins at the diagonal and goes right over half of all blocks, wrapping round, so every row is the same
amount of work. Rows of tiles are cut into groups, whose sums are added pair by pair. So the bits of a product do not
depend on whether tiles are kept or recomputed, on the number of threads, or on how many `Gram` objects share the
groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dask_odm.kernels.base import BLOCK, Kernel, Sides
from dask_odm.linalg.row_passes import summed_by_threads
from dask_odm.linalg.rows import Rows
from dask_odm.linalg.threads import run_threads
from dask_odm.typing import Array

TILE_ROWS = BLOCK  # the most rows of a block
PANEL_BYTES = 16 << 20  # the most bytes of a block, except that 64 rows are always allowed
TILE_GROUPS = 32  # the most groups of rows of tiles


@dataclass(frozen=True)
class Tiling:
    """The cut of ``n`` rows into equal blocks, and of blocks into groups.

    It depends only on ``n``, the number of features ``d`` and the ``itemsize`` of their dtype.
    """

    n: int
    d: int
    itemsize: int

    @cached_property
    def count(self) -> int:
        """Number of blocks."""
        panel = max(64, PANEL_BYTES // max(1, self.d * self.itemsize))
        return max(1, math.ceil(self.n / min(TILE_ROWS, panel)))

    @cached_property
    def size(self) -> int:
        """Rows of a block; the last may have fewer."""
        return math.ceil(self.n / self.count)

    @cached_property
    def groups(self) -> int:
        """Number of groups of rows of tiles, a power of two; some may be empty."""
        return min(TILE_GROUPS, 1 << (self.count - 1).bit_length())

    @cached_property
    def run(self) -> int:
        """Number of rows of tiles that are recomputed together."""
        # a mebibyte of packed blocks is multiplied with another block while that is read once
        most = (1 << 20) // max(1, self.size * self.d * self.itemsize)
        return max(1, min(4, most, -(-self.count // self.groups)))

    def span(self, block: int) -> tuple[int, int]:
        """Return the first row of a block, and the row after its last."""
        return block * self.size, min(self.n, (block + 1) * self.size)

    def rows(self, part: tuple[int, int]) -> range:
        """Return the rows of tiles of part (i, of), an aligned run of groups; one group if ``of`` counts them all."""
        i, of = part
        return range(self.count * i // of, self.count * (i + 1) // of)

    def row(self, i: int) -> list[int]:
        """Return the blocks j for which row ``i`` has a tile (i, j), the diagonal one first."""
        return [(i + k) % self.count for k in range(self._before(i + 1) - self._before(i))]

    def _before(self, i: int) -> int:
        """Return the number of tiles in the rows before ``i``."""
        return i * (self.count // 2) + (i if self.count % 2 else min(i, self.count // 2))

    def index(self, i: int, j: int) -> int:
        """Return the number of tile (i, j) among all tiles."""
        return self._before(i) + (j - i) % self.count

    def owns(self, i: int, j: int) -> bool:
        """Return whether the pair of blocks has the tile (i, j), instead of (j, i)."""
        return (j - i) % self.count < self._before(i + 1) - self._before(i)

    def tiles(self, part: tuple[int, int] = (0, 1)) -> int:
        """Return the number of tiles of a part."""
        rows = self.rows(part)
        return self._before(rows.stop) - self._before(rows.start)

    def kept_bytes(self, part: tuple[int, int] = (0, 1)) -> int:
        """Return the bytes of all tiles of a part."""
        return self.tiles(part) * self.size**2 * self.itemsize

    def scratch_bytes(self, threads: int, kernel: Kernel) -> int:
        """Return the bytes that passes need besides kept tiles: each thread's buffers and the sums of groups."""
        # packed for the right, and for the left those of a run; while some are packed, as they are read and converted
        packed = kernel.packed_bytes(self.size, self.d, self.itemsize)
        rows = (self.run + 2) * self.size * (self.d + 10) * self.itemsize
        sums = 3 * threads + self.groups.bit_length() + 2
        return threads * (packed + rows + self.size**2 * self.itemsize) + sums * self.n * 8


class Room:
    """Memory for kept tiles that successive Gram matrices reuse, since fresh pages are slow."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def take(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """Return uninitialised memory for an array; more is allocated only if there is too little."""
        nbytes = shape[0] * shape[1] * dtype.itemsize
        if len(self._bytes) < nbytes:
            self._bytes = np.empty(0, np.uint8)  # free the old memory before the new is allocated
            self._bytes = np.empty(nbytes, np.uint8)
        return self._bytes[:nbytes].view(dtype).reshape(shape)


@dataclass(eq=False)
class Gram:
    """The matrix ``K[i, j] = κ(x_i, x_j)`` over n rows of one partition, as an operator in their dtype.

    ``budget`` bounds the bytes of kept tiles, in ``room`` if that is given. If not all tiles fit, none is kept and
    every pass recomputes them. BLAS should be limited to one thread around the calls. ``part`` (i, of) stands for the
    tiles of the i-th of ``of`` aligned runs of groups; ``of`` is a power of two, at most `Tiling.groups`. (0, 1) is the
    whole matrix. Products are reported as progress of the ``phase``.
    """

    kernel: Kernel
    rows: Rows
    budget: int
    threads: int = 1
    part: tuple[int, int] = (0, 1)
    room: Room | None = None
    phase: str = "kernel product"
    tiling: Tiling = field(init=False)
    _tiles: Array | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.tiling = Tiling(self.rows.n, self.rows.d, self.rows.dtype.itemsize)
        if self.keeps:
            shape = self.tiling.tiles(self.part), self.tiling.size**2
            self._tiles = np.empty(shape, self.dtype) if self.room is None else self.room.take(shape, self.dtype)
            run_threads(self._fill, self.tiling.rows(self.part), self.threads, "kernel values")

    @property
    def n(self) -> int:
        return self.rows.n

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    @property
    def keeps(self) -> bool:
        """Whether the tiles are kept in memory."""
        return self.tiling.kept_bytes(self.part) <= self.budget

    def _rows_of(self, block: int) -> Array:
        return self.rows.read(*self.tiling.span(block))

    def _kept(self, i: int, j: int) -> Array:
        assert self._tiles is not None
        (a, b), (c, d) = self.tiling.span(i), self.tiling.span(j)
        first = self.tiling.index(self.tiling.rows(self.part).start, self.tiling.rows(self.part).start)
        flat: Array = self._tiles[self.tiling.index(i, j) - first]
        return flat[: (b - a) * (d - c)].reshape(b - a, d - c)

    def _fill(self, i: int) -> None:
        left = self.kernel.pack_left(self._rows_of(i))
        for j in self.tiling.row(i):
            self.kernel.tile_packed(left, self.kernel.pack_right(self._rows_of(j)), self._kept(i, j))

    def matvec(self, v: Array) -> Array:
        """Return ``K @ v``, or this part's share of it, float64 (n,); the `tree_sum` of all shares has the same bits.

        Products and short sums are in the dtype of the rows, the rest in float64.
        """
        (i, of), w = self.part, v.astype(self.dtype)
        each = self.tiling.groups // of
        return summed_by_threads(lambda g: self._group(i * each + g, w), each, self.threads, self.phase)

    def _group(self, g: int, v: Array) -> Array:
        y = np.zeros(self.n)
        rows = self.tiling.rows((g, self.tiling.groups))
        step = self.tiling.run
        for start in range(0, len(rows), step):
            self._add_rows(rows[start : start + step], v, y)
        return y

    def _add_rows(self, run: range, v: Array, y: Array) -> None:
        """Add to ``y`` the products of the rows of tiles in ``run``, one column of tiles after the other."""
        columns = dict.fromkeys(j for i in run for j in self.tiling.row(i))
        if self._tiles is not None:
            for j in columns:
                for i in run:
                    if self.tiling.owns(i, j):
                        self.kernel.multiply(self._kept(i, j), self._sides(i, j, v, y))
            return
        lefts = [self.kernel.pack_left(self._rows_of(i)) for i in run]
        for j in columns:
            right = self.kernel.pack_right(self._rows_of(j))
            for i, left in zip(run, lefts, strict=True):
                if self.tiling.owns(i, j):
                    self.kernel.products(left, right, self._sides(i, j, v, y))
            del right  # before the next is packed: panels of many features are large

    def _sides(self, i: int, j: int, v: Array, y: Array) -> Sides:
        """Return the vectors that tile (i, j) multiplies and adds to: two of each, or one on the diagonal."""
        sides = Sides(v, y) if i == j else Sides(v, y, v, y)
        return sides.within(slice(*self.tiling.span(i)), slice(*self.tiling.span(j)))
