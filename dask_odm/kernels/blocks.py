"""The Gram matrix of one partition as an operator: tiles kept in memory, or recomputed where they do not fit.

The matrix is symmetric, so only tiles on and above the diagonal are ever computed; each serves its mirror
image as its transpose. Whether a tile is kept or recomputed changes no bit of any result, and neither does
the number of threads: sums run over fixed groups of tiles and are added in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Rows ``start:stop``, shape (stop - start, d), C-contiguous, perhaps in ``out``; not to be written to."""
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

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
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
        """Bytes that passes need besides kept tiles: buffers of every thread, partial sums."""
        panel = self.size * (self.d + 2) * self.itemsize
        return threads * (3 * panel + self.size**2 * self.itemsize) + GROUPS * self.padded * 8

    def span(self, block: int) -> tuple[int, int]:
        return block * self.size, min(self.n, (block + 1) * self.size)


class Scratch:
    """Buffers of one thread for packing and for a tile that is not kept: allocated once, since fresh pages are slow."""

    def __init__(self, kernel: Kernel, tiling: Tiling, dtype: np.dtype[Any]) -> None:
        width = kernel.width(tiling.d)
        self._kernel, self._tiling = kernel, tiling
        self.panel = np.empty((tiling.size, tiling.d), dtype)
        self._left = np.empty((tiling.size, width), dtype)
        self._right = np.empty((tiling.size, width), dtype)
        self.tile = np.empty((tiling.size, tiling.size), dtype)

    def left(self, rows: Rows, block: int) -> Array:
        """Rows of ``block`` packed for the left, padded by the first; valid until the next call."""
        return self._pack(rows, block, self._left, self._kernel.pack_left)

    def right(self, rows: Rows, block: int) -> Array:
        """Rows of ``block`` packed for the right."""
        return self._pack(rows, block, self._right, self._kernel.pack_right)

    def _pack(self, rows: Rows, block: int, out: Array, pack: Any) -> Array:
        start, stop = self._tiling.span(block)
        pack(rows.read(start, stop, self.panel), out[: stop - start])
        out[stop - start :] = out[0]  # rows like any other: zeros may be none to a kernel
        return out


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
    _free: list[Scratch] = field(init=False, default_factory=list)

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

    @contextmanager
    def _scratch(self) -> Iterator[Scratch]:
        """Buffers that no other thread uses meanwhile."""
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = Scratch(self.kernel, self.tiling, self.dtype)
        try:
            yield scratch
        finally:
            self._free.append(scratch)

    def _fill(self, i: int) -> None:
        assert self._tiles is not None
        with self._scratch() as scratch:
            left = scratch.left(self.rows, i)
            for j in range(i, self.tiling.count):
                self.kernel.tile_packed(left, scratch.right(self.rows, j), self._tiles[self._index(i, j)])

    def _row_tiles(self, i: int, columns: Iterable[int]) -> Iterator[tuple[int, Array]]:
        """Tiles (i, j) on or above the diagonal; a recomputed one is overwritten by the next."""
        if self._tiles is not None:
            for j in columns:
                yield j, self._tiles[self._index(i, j)]
            return
        with self._scratch() as scratch:
            left = scratch.left(self.rows, i)
            for j in columns:
                yield j, self.kernel.tile_packed(left, scratch.right(self.rows, j), scratch.tile)

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
            return tile[: stop - start, : stop - start].copy()
        raise AssertionError

    def add_columns(self, b: int, v: Array, y: Array) -> None:
        """``y += K[:, block b] @ v`` for float64 ``y`` (n,), in place."""
        w = np.zeros(self.tiling.size, self.dtype)
        w[: len(v)] = v

        def update(group: int) -> None:
            for i, tile in self._tiles_beside(b, range(group, self.tiling.count, GROUPS)):
                part = np.zeros(self.tiling.size)
                if i < b:
                    _forward(tile, w, part)
                else:
                    _backward(tile, w, part)
                start, stop = self.tiling.span(i)
                y[start:stop] += part[: stop - start]

        # kept tiles are read faster than threads start
        run_threads(update, range(GROUPS), self.threads if self._tiles is None else 1)

    def _tiles_beside(self, b: int, blocks: Iterable[int]) -> Iterator[tuple[int, Array]]:
        """For each of ``blocks`` its tile with block ``b``, the one on or above the diagonal."""
        if self._tiles is not None:
            for i in blocks:
                yield i, self._tiles[self._index(min(i, b), max(i, b))]
            return
        with self._scratch() as scratch:
            for i in blocks:  # block b is packed anew on the side it is needed: little beside a tile
                left, right = scratch.left(self.rows, min(i, b)), scratch.right(self.rows, max(i, b))
                yield i, self.kernel.tile_packed(left, right, scratch.tile)

    def columns(self, index: Array) -> Array:
        """``K[index, :]`` of ascending ``index``, shape (len(index), n), in the dtype of the rows."""
        out = np.empty((len(index), self.n), self.dtype)
        with self._scratch() as scratch:
            chosen = self.kernel.pack_left(self._take(index, scratch))
            for b in range(self.tiling.count):
                start, stop = self.tiling.span(b)
                right = scratch.right(self.rows, b)[: stop - start]
                out[:, start:stop] = self.kernel.tile_packed(chosen, right)
        return out

    def _take(self, index: Array, scratch: Scratch) -> Array:
        """Rows at ascending ``index``, (len(index), d), read block by block."""
        out = np.empty((len(index), self.rows.d), self.dtype)
        for b in range(self.tiling.count):
            start, stop = self.tiling.span(b)
            at = np.flatnonzero((index >= start) & (index < stop))
            if len(at):
                out[at] = self.rows.read(start, stop, scratch.panel)[index[at] - start]
        return out

    def dense(self) -> Array:
        """The whole matrix, (n, n), exactly symmetric."""
        size, padded = self.tiling.size, self.tiling.padded
        K = np.empty((padded, padded), self.dtype)
        for i in range(self.tiling.count):
            rows = slice(i * size, (i + 1) * size)
            for j, tile in self._row_tiles(i, range(i, self.tiling.count)):
                columns = slice(j * size, (j + 1) * size)
                K[columns, rows] = tile.T
                K[rows, columns] = tile if i < j else np.triu(tile) + np.triu(tile, 1).T
        return K[: self.n, : self.n]

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

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        X = self.rows.read(start, stop)
        if out is None:
            return X.astype(np.float64)
        np.copyto(out[: stop - start], X)
        return out[: stop - start]


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


def is_low_rank(kernel: Kernel, d: int) -> bool:
    """Whether the Gram matrix is better never formed: linear, with fewer features than a tile has rows."""
    return kernel.name == "linear" and d <= TILE_ROWS
