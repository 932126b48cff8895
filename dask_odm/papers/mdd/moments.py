"""Second moments of rows and targets, shard by shard, in one pass: all that least squares needs of any number of rows.

With ``z = (φ(x) − origin, y − origin, 1)`` for a row x, a shard's moments are ``Σ c z zᵀ``: its sum of weights, means,
scatter and covariances in one symmetric matrix. The origin is a point near the rows, so that little cancels when
`centred` moves the moments to their mean. φ is the row itself, or its Nyström features.

"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.nystrom_features import KernelFeatures, span_bytes
from dask_odm.linalg.jit import frozen
from dask_odm.linalg.row_passes import PassBytes, RowBlock
from dask_odm.papers.mdd.moment_loops import TILE, TURNED_ROWS, add_moments
from dask_odm.papers.mdd.sum_tree import MomentSums, Tail, join
from dask_odm.typing import Array

PIECE_BYTES = 1 << 19  # bytes of the z that are multiplied at a time, which stay in a core's cache
ORIGIN_ROWS = 256  # first rows whose mean is the origin; no piece has fewer, unless its block has


@dataclass(frozen=True, eq=False)
class Embedding:
    """Map from raw rows to the features φ that are regressed on, less an ``origin`` (width,) near them; tasks carry it.

    φ are the rows themselves, whose origin has values that the rows' type represents, or their Nyström features.
    """

    features: FeatureMap
    origin: Array

    @property
    def width(self) -> int:
        return self.features.d

    def work_bytes(self, rows: int) -> int:
        """Return the bytes that a task holds to embed ``rows`` rows at a time, including the embedding."""
        if not isinstance(self.features, KernelFeatures) or self.features.landmarks is None:
            return 8 * self.width
        r, d = self.features.landmarks.rows.shape
        return span_bytes(r, d) + 8 * rows * (2 * r + 3 * d)

    def __call__(self, X: Any, out: Array) -> None:
        """Write φ − origin of raw rows ``X`` (n, d) to float64 ``out`` (n, width), a view of any layout."""
        np.subtract(self.features.dense(self.features.block(X)), self.origin, out=out)


def pieces(blocks: Iterable[RowBlock], step: int) -> Iterator[RowBlock]:
    """Yield ``step`` rows at a time, or what is left of a block, with y (n, t)."""
    for block in blocks:
        for start in range(0, len(block.y), step):
            rows = slice(start, min(len(block.y), start + step))
            y = block.y[rows].reshape(rows.stop - start, -1)
            yield RowBlock(block.X[rows], y, block.weight[rows], block.first + start)


@dataclass(frozen=True, eq=False)
class MomentQuery:
    """The query for the moments of all rows; tasks carry it.

    ``y_origin`` (t,) is near the targets. A block has ``block_rows`` rows, unless it is the last.
    ``shard_of`` maps row numbers (n,) to shards; None stands for a single shard.
    ``numbers`` has the number of the row at each place, if they differ: rows in memory of which some were left out.
    """

    embedding: Embedding
    y_origin: Array
    block_rows: int
    n_shards: int = 1
    shard_of: Callable[[Array], Array] | None = None
    numbers: Array | None = None

    @property
    def k(self) -> int:
        """Number of entries of z."""
        return self.embedding.width + len(self.y_origin) + 1

    @property
    def piece_rows(self) -> int:
        """Number of rows that are multiplied at a time."""
        least = 32 * self.n_shards  # so that adding the products up is cheap beside making them
        return max(PIECE_BYTES // (8 * self.k), self.k, least)

    @property
    def is_turned(self) -> bool:
        """Whether compiled loops multiply dense rows: up to 64 entries of z they are faster than BLAS."""
        return not isinstance(self.embedding.features, KernelFeatures) and self.k <= 64

    @property
    def side(self) -> int:
        """Entries of a column of sums: k, or more if loops sum whole tiles. Only lower triangles of k entries count."""
        return -(-self.k // TILE) * TILE if self.is_turned else self.k

    def pass_bytes(self, rows: int) -> PassBytes:
        """Return the memory that a task of a pass over ``rows`` rows takes."""
        sums = 8 * self.n_shards * self.side**2
        nodes = (rows // self.block_rows).bit_length() * sums  # one a level is held until its sibling is there
        work = 8 * self.piece_rows * (3 * self.k + 8) + self.embedding.work_bytes(self.piece_rows)
        return PassBytes(sums, 24, work + nodes)

    def sums(self, blocks: Iterable[RowBlock], begun: Array | None = None) -> MomentSums:
        """Sum ``c z zᵀ`` over the rows of every shard, block by block; ``begun`` has the block's pieces before them."""
        nodes: dict[tuple[int, int], Array] = {}
        tail = None
        total = begun
        buffer = None
        for piece in pieces(blocks, self.piece_rows):
            place, at = divmod(piece.first, self.block_rows)
            stop = at + len(piece)
            if total is None:
                total = np.zeros((self.n_shards, self.side, self.side))
            left = piece if stop < self.block_rows and len(piece) < self.piece_rows else None
            before = total if left is None else total.copy()
            if self.is_turned and not issparse(piece.X):
                if buffer is None:
                    dtype = np.float32 if piece.X.dtype == np.float32 else np.float64
                    # wider than needed, since columns a power of two apart would share lines of the cache
                    buffer = np.zeros((self.side, TURNED_ROWS + 8), dtype)
                self._add_turned(piece, total, buffer)
            else:
                self._add(piece, total[:, : self.k, : self.k])
            if stop == self.block_rows:
                join(nodes, (0, place), total)
                total = None
            rows = left or RowBlock(piece.X[:0], piece.y[:0], piece.weight[:0], piece.first + len(piece))
            tail = None if total is None else Tail(place, before, total, _copied(rows))
        return MomentSums(nodes, tail)

    def cut(self, blocks: Iterable[RowBlock], first: int) -> Iterator[RowBlock]:
        """Cut blocks of any size, the first of whose rows is number ``first``, where pieces of a pass end."""
        held = None
        for block in blocks:
            rows = block if held is None else joined(held, block)
            at = 0
            while at + (size := min(self.piece_rows, self.block_rows - first % self.block_rows)) <= len(rows):
                yield RowBlock(rows.X[at : at + size], rows.y[at : at + size], rows.weight[at : at + size], first)
                at += size
                first += size
            held = RowBlock(rows.X[at:], rows.y[at:], rows.weight[at:], first)
        if held is not None and len(held):
            yield held

    def _add_turned(self, piece: RowBlock, total: Array, buffer: Array) -> None:
        """Add the lower blocks of the moments of some rows, by compiled loops."""
        # the difference from an origin of the rows' own type is exact except for its last digit
        near = self.embedding.origin.astype(buffer.dtype, copy=False)
        X = frozen(np.ascontiguousarray(piece.X, buffer.dtype))
        root = np.sqrt(piece.weight)
        for i, rows in self._by_shard(piece):
            add_moments(X, piece.y, root, rows, near, self.y_origin, buffer, total[i])

    def _add(self, piece: RowBlock, total: Array) -> None:
        """Add the moments of some rows, by BLAS in float64."""
        d = self.embedding.width
        z = np.empty((len(piece.y), self.k))
        self.embedding(piece.X, z[:, :d])
        z[:, d:-1] = piece.y - self.y_origin
        z[:, -1] = 1.0
        if piece.weight.size:
            z *= np.sqrt(piece.weight)[:, None]
        for i, rows in self._by_shard(piece):
            some = z[rows] if rows.size else z
            total[i] += some.T @ some  # for the same array twice, BLAS computes one half only

    def _by_shard(self, piece: RowBlock) -> Iterator[tuple[int, Array]]:
        """Yield every shard that has rows in a piece, with their places in it; none of these stand for all rows."""
        if self.shard_of is None:
            yield 0, np.empty(0, np.int64)
            return
        at = np.arange(piece.first, piece.first + len(piece.y))
        shards = self.shard_of(at if self.numbers is None else self.numbers[at])
        order = np.argsort(shards, kind="stable")
        bounds = np.searchsorted(shards[order], np.arange(self.n_shards + 1))
        for i, (start, stop) in enumerate(pairwise(bounds)):
            if start < stop:
                yield i, order[start:stop]


def _copied(rows: RowBlock) -> RowBlock:
    """Return a copy of some rows and weights, since the next rows of a store take their place."""
    return RowBlock(
        rows.X.copy(), rows.y.copy(), rows.weight.copy() if rows.weight.size else np.ones(len(rows)), rows.first
    )


@dataclass(frozen=True, eq=False)
class ShardMoments:
    """Moments of shards about a common point, for scaled features."""

    weight: Array  # n_i, the sum of every shard's weights, (m,)
    scatter: Array  # Σ c x xᵀ, (m, d, d)
    covariance: Array  # Σ c x yᵀ, (m, d, t)
    square: Array  # Σ c y², (m, t)
    mean: Array  # the point, in raw features, (d,); with an intercept it is their mean
    y_mean: Array  # the mean of the targets with an intercept, else 0, (t,)
    factor: Array  # the factor of the feature scaling, (d,)
    spread: Array  # Σ c (y − mean)² over all rows, (t,); 0 if a target is constant up to rounding


def centred(sums: Array, query: MomentQuery, factor: Array, zero: Array | None) -> ShardMoments:
    """Return the moments about the mean of all rows or, if ``zero`` (d,) is given, about it and a target of 0.

    ``sums`` (m, k, k) come from `MomentQuery.sums`. Features are multiplied by ``factor`` (d,). A model without an
    intercept is 0 at ``zero``; None means that it has an intercept.
    """
    d = len(factor)
    first = sums[:, -1, :-1]
    weight = sums[:, -1, -1]
    origin = np.concatenate([query.embedding.origin, query.y_origin])
    if zero is None:
        where = first.sum(axis=0) / weight.sum()
    else:
        where = np.concatenate([zero, np.zeros(len(query.y_origin))]) - origin
    about = sums[:, :-1, :-1] - first[:, :, None] * where - where[:, None] * first[:, None, :]
    about += weight[:, None, None] * np.outer(where, where)
    mean = origin + where
    rows = weight.sum()
    sum_y = first.sum(axis=0)[d:]
    square_y = np.einsum("ikk->k", sums)[d:-1]
    spread = np.maximum(square_y - sum_y**2 / rows, 0.0)
    spread[spread <= rows * (1e-14 * np.abs(query.y_origin)) ** 2] = 0.0  # only rounding is left
    return ShardMoments(
        weight,
        about[:, :d, :d] * np.outer(factor, factor),
        about[:, :d, d:] * factor[:, None],
        np.einsum("ikk->ik", about)[:, d:],
        mean[:d],
        mean[d:],
        factor,
        spread,
    )


def point_near(X: Any, y: Array, weight: Array) -> tuple[Array, Array]:
    """Return a point near rows ``X`` (n, d) of positive weight, float64 with values of their type, and the mean of y.

    A feature that is constant has its value. The point of sparse rows is 0, so that their entries stay few.
    """
    seen = np.flatnonzero(weight > 0)
    if issparse(X) or not len(seen):
        near = np.zeros(X.shape[1])
    else:
        rows = np.ascontiguousarray(X[seen])
        near = np.clip(rows.mean(axis=0, dtype=np.float64), rows.min(axis=0), rows.max(axis=0)).astype(rows.dtype)
    return near.astype(np.float64), y[seen].mean(axis=0) if len(seen) else np.zeros(y.shape[1])


def joined(block: RowBlock, other: RowBlock) -> RowBlock:
    """Return the rows of two blocks, one after the other."""
    if issparse(block.X):
        X = csr_array(vstack([block.X, other.X], format="csr"))
    else:
        X = np.concatenate([block.X, other.X])
    y = np.concatenate([block.y, other.y])
    return RowBlock(X, y, np.concatenate([block.weight, other.weight]), block.first)
