"""The Gram matrix of one partition as an operator: tiles kept in memory, or recomputed where they do not fit.

The matrix is symmetric, so only tiles on and above the diagonal are ever computed; each serves its mirror
image as its transpose. Whether a tile is kept or recomputed changes no bit of any result, and neither does
the number of threads: sums run over fixed groups of tiles and are added in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dask_odm.kernels.base import Array, Kernel
from dask_odm.kernels.jit import compiled
from dask_odm.kernels.threads import run_threads

TILE_ROWS = 512
PANEL_BYTES = 16 << 20
GROUPS = 8


class Rows(Protocol):
    """Rows of one partition as a kernel sees them (scaled, centred), from memory or from disk."""

    @property
    def n(self) -> int: ...
    @property
    def d(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def read(self, start: int, stop: int) -> Array:
        """Rows ``start:stop``, shape (stop - start, d), C-contiguous; not to be written to."""
        ...


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Rows that are in memory."""

    X: Array

    @property
    def n(self) -> int:
        return len(self.X)

    @property
    def d(self) -> int:
        return int(self.X.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.X.dtype

    def read(self, start: int, stop: int) -> Array:
        return self.X[start:stop]


@compiled
def _symmetric(tile: Array, vi: Array, vj: Array, yi: Array, yj: Array) -> None:
    """``yi += tile @ vj`` and ``yj += tile.T @ vi`` in one pass; sums in the tile's dtype, then float64."""
    rows, columns = tile.shape
    back = np.zeros(columns, tile.dtype)
    for i in range(rows):
        row = tile[i]
        total = vj[0] * 0
        v = vi[i]
        for j in range(columns):
            total += row[j] * vj[j]
            back[j] += v * row[j]
        yi[i] += total
    for j in range(columns):
        yj[j] += back[j]


@compiled
def _forward(tile: Array, vj: Array, yi: Array) -> None:
    """``yi += tile @ vj``."""
    rows, columns = tile.shape
    for i in range(rows):
        row = tile[i]
        total = vj[0] * 0
        for j in range(columns):
            total += row[j] * vj[j]
        yi[i] += total


@compiled
def _backward(tile: Array, vi: Array, yj: Array) -> None:
    """``yj += tile.T @ vi``, skipping the zeros of ``vi``."""
    rows, columns = tile.shape
    back = np.zeros(columns, tile.dtype)
    for i in range(rows):
        v = vi[i]
        if v != 0:
            row = tile[i]
            for j in range(columns):
                back[j] += v * row[j]
    for j in range(columns):
        yj[j] += back[j]


@dataclass(frozen=True)
class Tiling:
    """How ``n`` rows of ``d`` features are cut into equal blocks; depends on nothing else."""

    n: int
    d: int
    itemsize: int

    @property
    def count(self) -> int:
        panel = max(64, PANEL_BYTES // max(1, self.d * self.itemsize))
        return max(1, math.ceil(self.n / min(TILE_ROWS, panel)))

    @property
    def size(self) -> int:
        return math.ceil(self.n / self.count)

    @property
    def padded(self) -> int:
        return self.size * self.count

    @property
    def kept_bytes(self) -> int:
        """Bytes of all tiles on and above the diagonal."""
        return self.count * (self.count + 1) // 2 * self.size**2 * self.itemsize

    def scratch_bytes(self, threads: int) -> int:
        """Bytes one matrix-vector product needs besides kept tiles: panels, a tile, partial sums."""
        panel = self.size * (self.d + 2) * self.itemsize
        return threads * (5 * panel + self.size**2 * self.itemsize) + GROUPS * self.padded * 8

    def span(self, block: int) -> tuple[int, int]:
        return block * self.size, min(self.n, (block + 1) * self.size)


@dataclass(eq=False)
class Gram:
    """``K[i, j] = κ(x_i, x_j)`` over the rows of one partition.

    Parameters
    ----------
    kernel : Kernel
    rows : Rows
        n rows; the values are computed in their dtype.
    budget : int
        Bytes the tiles may take. They are kept if all of them fit, else recomputed on every pass.
    threads : int
        Threads for every pass. BLAS should be limited to one thread around the calls.
    """

    kernel: Kernel
    rows: Rows
    budget: int
    threads: int = 1
    tiling: Tiling = field(init=False)
    _tiles: Array | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.tiling = Tiling(self.rows.n, self.rows.d, self.rows.dtype.itemsize)
        if self.keeps:
            blocks, size = self.tiling.count, self.tiling.size
            self._tiles = np.empty((blocks * (blocks + 1) // 2, size, size), self.dtype)
            run_threads(self._fill, range(blocks), self.threads)

    @property
    def n(self) -> int:
        return self.rows.n

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    @property
    def keeps(self) -> bool:
        """Whether the tiles are kept in memory."""
        return self.tiling.kept_bytes <= self.budget

    def diagonal(self) -> Array:
        """κ(x_i, x_i), float64 (n,)."""
        spans = (self.tiling.span(b) for b in range(self.tiling.count))
        return np.concatenate([self.kernel.diagonal(self.rows.read(*span)) for span in spans])

    def _index(self, i: int, j: int) -> int:
        return i * self.tiling.count - i * (i - 1) // 2 + j - i

    def _padded_rows(self, block: int) -> Array:
        X = self.rows.read(*self.tiling.span(block))
        short = self.tiling.size - len(X)
        return np.concatenate([X, np.zeros((short, self.rows.d), X.dtype)]) if short else X

    def _fill(self, i: int) -> None:
        assert self._tiles is not None
        left = self.kernel.pack_left(self._padded_rows(i))
        for j in range(i, self.tiling.count):
            right = self.kernel.pack_right(self._padded_rows(j))
            self.kernel.tile_packed(left, right, self._tiles[self._index(i, j)])

    def _row_tiles(self, i: int, columns: Iterable[int]) -> Iterable[tuple[int, Array]]:
        """Tiles (i, j) on or above the diagonal; a recomputed one is overwritten by the next."""
        if self._tiles is not None:
            for j in columns:
                yield j, self._tiles[self._index(i, j)]
            return
        left = self.kernel.pack_left(self._padded_rows(i))
        scratch = np.empty((self.tiling.size, self.tiling.size), self.dtype)
        for j in columns:
            yield j, self.kernel.tile_packed(left, self.kernel.pack_right(self._padded_rows(j)), scratch)

    def _blocks(self, v: Array) -> Array:
        padded = np.zeros(self.tiling.padded, self.dtype)
        padded[: self.n] = v
        return padded.reshape(self.tiling.count, self.tiling.size)

    def matvec(self, v: Array) -> Array:
        """``K @ v``, float64 (n,); products in the dtype of the rows, sums in float64."""
        blocks = self._blocks(v)
        shape = (self.tiling.count, self.tiling.size)

        def group(g: int) -> Array:
            y = np.zeros(shape)
            for i in range(g, shape[0], GROUPS):
                for j, tile in self._row_tiles(i, range(i, shape[0])):
                    if i == j:
                        _forward(tile, blocks[j], y[i])
                    else:
                        _symmetric(tile, blocks[i], blocks[j], y[i], y[j])
            return y

        # zeros are touched by the kernel only where a group has work
        parts = run_threads(group, range(min(GROUPS, shape[0])), self.threads)
        total = parts[0]
        for part in parts[1:]:
            total += part
        return total.reshape(-1)[: self.n]

    def block(self, b: int) -> Array:
        """The diagonal tile of block ``b`` without its padding, as a copy."""
        start, stop = self.tiling.span(b)
        for _, tile in self._row_tiles(b, [b]):
            return np.ascontiguousarray(tile[: stop - start, : stop - start])
        raise AssertionError

    def add_columns(self, b: int, v: Array, y: Array) -> None:
        """``y += K[:, block b] @ v`` for float64 ``y`` (n,), in place."""
        w = np.zeros(self.tiling.size, self.dtype)
        w[: len(v)] = v
        packed = None
        if self._tiles is None:
            X = self._padded_rows(b)
            packed = self.kernel.pack_left(X), self.kernel.pack_right(X)

        def update(group: int) -> None:
            scratch = np.empty((self.tiling.size,) * 2, self.dtype) if packed else None
            for i in range(group, self.tiling.count, GROUPS):
                tile = self._tile_beside(i, b, packed, scratch)
                part = np.zeros(self.tiling.size)
                if i < b:
                    _forward(tile, w, part)
                else:
                    _backward(tile, w, part)
                start, stop = self.tiling.span(i)
                y[start:stop] += part[: stop - start]

        # kept tiles are read faster than threads start
        run_threads(update, range(GROUPS), self.threads if packed else 1)

    def _tile_beside(self, i: int, b: int, packed: tuple[Array, Array] | None, scratch: Array | None) -> Array:
        """The tile of blocks i and b that lies on or above the diagonal; ``packed`` is block b both ways."""
        if packed is None:
            assert self._tiles is not None
            return self._tiles[self._index(min(i, b), max(i, b))]
        other = self._padded_rows(i)
        if i < b:
            return self.kernel.tile_packed(self.kernel.pack_left(other), packed[1], scratch)
        return self.kernel.tile_packed(packed[0], self.kernel.pack_right(other), scratch)

    def columns(self, index: Array) -> Array:
        """``K[index, :]``, shape (len(index), n), in the dtype of the rows."""
        chosen = self.kernel.pack_left(take_rows(self.rows, index))
        out = np.empty((len(index), self.n), self.dtype)
        for b in range(self.tiling.count):
            start, stop = self.tiling.span(b)
            out[:, start:stop] = self.kernel.tile_packed(chosen, self.kernel.pack_right(self.rows.read(start, stop)))
        return out

    def in_float64(self) -> Gram:
        """The same operator with float64 entries, recomputed on every pass: what certifies a gap."""
        return Gram(self.kernel, _Float64Rows(self.rows), budget=0, threads=self.threads)


@dataclass(frozen=True, eq=False)
class _Float64Rows:
    rows: Rows

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)

    @property
    def n(self) -> int:
        return self.rows.n

    @property
    def d(self) -> int:
        return self.rows.d

    def read(self, start: int, stop: int) -> Array:
        return self.rows.read(start, stop).astype(np.float64)


def take_rows(rows: Rows, index: Array) -> Array:
    """Rows at ascending ``index``, shape (len(index), d), read block by block."""
    tiling = Tiling(rows.n, rows.d, rows.dtype.itemsize)
    out = np.empty((len(index), rows.d), rows.dtype)
    at = 0
    for b in range(tiling.count):
        start, stop = tiling.span(b)
        chosen = index[(index >= start) & (index < stop)]
        if len(chosen):
            out[at : at + len(chosen)] = rows.read(start, stop)[chosen - start]
            at += len(chosen)
    return out


@dataclass(eq=False)
class LowRankGram(Gram):
    """The Gram matrix of the linear kernel with fewer features than rows in a tile: ``X Xᵀ`` is never formed.

    A pass costs O(n d) instead of O(n²).
    """

    def __post_init__(self) -> None:
        self.tiling = Tiling(self.rows.n, self.rows.d, self.rows.dtype.itemsize)

    def in_float64(self) -> LowRankGram:
        return LowRankGram(self.kernel, _Float64Rows(self.rows), budget=0, threads=self.threads)

    def weights(self, v: Array) -> Array:
        """``Xᵀ v`` and, last, the weight of the constant feature √bias: float64 (d + 1,)."""
        total = np.zeros(self.rows.d + 1)
        for b in range(self.tiling.count):
            start, stop = self.tiling.span(b)
            total[:-1] += v[start:stop].astype(self.dtype) @ self.rows.read(start, stop)
        total[-1] = np.sqrt(self.kernel.bias) * v.sum()
        return total

    def _add_scores(self, weights: Array, y: Array) -> None:
        w, constant = weights[:-1].astype(self.dtype), weights[-1] * np.sqrt(self.kernel.bias)
        for b in range(self.tiling.count):
            start, stop = self.tiling.span(b)
            y[start:stop] += self.rows.read(start, stop) @ w + constant

    def matvec(self, v: Array) -> Array:
        y = np.zeros(self.n)
        self._add_scores(self.weights(v), y)
        return y


def is_low_rank(kernel: Kernel, rows: Rows) -> bool:
    """Whether the Gram matrix is better never formed: linear, with fewer features than a tile has rows."""
    return kernel.name == "linear" and rows.d <= TILE_ROWS
