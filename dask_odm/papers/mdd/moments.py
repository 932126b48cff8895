"""Second moments of rows and targets, shard by shard, in one pass: all that least squares needs of any number of rows.

With ``z = (φ(x) − origin, y − origin, 1)`` for a row x, a shard's moments are ``Σ c z zᵀ``: its sum of weights, means,
scatter and covariances in one symmetric matrix. The origin is a point near the rows, so that little cancels when
`centred` moves the moments to their mean. φ is the row itself, or its Nyström features.

The moments of a block of rows are a leaf of a binary tree over all rows, and `MomentSums` holds the largest subtrees
that are complete. So they add up to the same bits however the rows are divided among tasks, and more rows continue the
sum of those before them as if all had come at once.

`LeaveOutQuery` sums the leave-one-out errors of ridge regression for many λ, in one more pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_array, issparse, vstack

from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.nystrom_features import KernelFeatures, span_bytes
from dask_odm.linalg.jit import compiled, frozen
from dask_odm.linalg.row_passes import PassBytes, RowBlock
from dask_odm.linalg.transpose import turn_rows
from dask_odm.typing import Array

PIECE_BYTES = 1 << 19  # bytes of the z that are multiplied at a time, which stay in a core's cache
TILE = 4  # columns whose products are summed at a time, so that sixteen sums stay in registers
ORIGIN_ROWS = 256  # first rows whose mean is the origin; no piece has fewer, unless its block has
TURNED_ROWS = 256  # rows that are transposed at a time, and summed over in the rows' type


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
        """Return the bytes that a task holds to embed so many rows at a time, including the embedding."""
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
class Tail:
    """The rows behind the last whole block: moments of their whole pieces, and of all of them, with the other rows.

    ``place`` is the number of their block. ``rows`` may be followed by others in their piece.
    """

    place: int
    begun: Array
    sums: Array
    rows: RowBlock


@dataclass(frozen=True, eq=False)
class MomentSums:
    """Moments of some blocks of rows, (shards, k, k) each. They add up to the same bits in any order.

    ``nodes`` has the sum of the 2**level blocks from ``place * 2**level`` on for keys ``(level, place)``, none of which
    is part of a larger one.
    """

    nodes: dict[tuple[int, int], Array]
    tail: Tail | None = None

    def __add__(self, other: MomentSums) -> MomentSums:
        nodes = dict(self.nodes)
        for key, sums in other.nodes.items():
            join(nodes, key, sums)
        return MomentSums(nodes, self.tail or other.tail)

    def total(self, k: int) -> Array:
        """Return the moments of all rows, (shards, k, k). Where blocks are missing at the end, they count as zero."""
        parts = [self.nodes[key] for key in self.order()]
        if self.tail is not None:
            parts.append(self.tail.sums)
        total = parts.pop()
        for sums in reversed(parts):
            total = sums + total
        lower = np.tril(total[:, :k, :k])
        return lower + np.tril(lower, -1).transpose(0, 2, 1)

    def order(self) -> list[tuple[int, int]]:
        """Return the keys of the nodes in the order of their rows."""
        return sorted(self.nodes, key=lambda key: key[1] << key[0])


def join(nodes: dict[tuple[int, int], Array], key: tuple[int, int], sums: Array) -> None:
    """Put ``sums`` among the nodes, together with its sibling if that is there, and so on upwards."""
    level, place = key
    while (sibling := nodes.pop((level, place ^ 1), None)) is not None:
        sums = sums + sibling
        level += 1
        place //= 2
    nodes[level, place] = sums


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
        """Return the memory that a task of a pass over so many rows takes."""
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
        """Yield every shard that has rows in a piece, and their places in it; no places stand for all rows."""
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
    """Return a copy of some rows with weights, since those of a store are gone with the next ones."""
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
    """Return the moments about the mean of all rows, or about ``zero`` (d,) and a target of 0 if that is given.

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


@dataclass(frozen=True, eq=False)
class LeaveOutQuery:
    """The query for the leave-one-out squared errors of ridge regression, for many λ; tasks carry it.

    Let U and s be the eigenvectors and eigenvalues of the scatter of all rows, ``q = Uᵀx`` and n the sum of weights.
    The fit's value is ``f = Σ_k q_k β_k/(s_k + nλ)``, and the row's leverage ``h = c (1/n + Σ_k q_k²/(s_k + nλ))``; 1/n
    is there with an intercept only. A fit without the row has the residual ``(y − f)/(1 − h)`` there, exactly. For a
    row of weight above 1 one copy is left out, so that its c in h is 1.
    """

    embedding: Embedding
    mean: Array  # the mean of all rows' φ, less the embedding's origin, (width,)
    rotation: Array  # U, for the embedding's unscaled features, (width, r)
    y_mean: Array  # (t,)
    inverse: Array  # 1/(s + nλ) for every λ, (r, l)
    coefficients: Array  # β, (r, t)
    share: float  # 1/n, or 0 without an intercept
    penalties: Array  # nλ, (l,)

    @classmethod
    def of(cls, moments: ShardMoments, embedding: Embedding, lams: Array, *, intercept: bool) -> LeaveOutQuery:
        """Build the query for all rows of ``moments`` and the values ``lams`` (l,) of λ."""
        n = float(moments.weight.sum())
        values, vectors = eigh(moments.scatter.sum(axis=0), check_finite=False)
        penalties = n * lams
        inverse = 1.0 / (np.maximum(values, 0.0)[:, None] + penalties)
        rotation = moments.factor[:, None] * vectors
        shift = moments.mean - embedding.origin
        beta = vectors.T @ moments.covariance.sum(axis=0)
        share = 1.0 / n if intercept else 0.0
        return cls(embedding, shift, rotation, moments.y_mean, inverse, beta, share, penalties)

    def pass_bytes(self) -> PassBytes:
        """Return the memory that a task of a pass takes."""
        (d, r), lams, t = self.rotation.shape, self.inverse.shape[1], len(self.y_mean)
        own = 8 * (d * r + r * (lams + t)) + self.embedding.work_bytes(self.piece_rows)
        return PassBytes(8 * lams * t, 24, own + 8 * self.piece_rows * (d + 3 * r + 3 * lams * (1 + t)))

    @property
    def piece_rows(self) -> int:
        """Number of rows whose errors are computed at a time."""
        return max(64, PIECE_BYTES // (8 * (len(self.rotation) + self.inverse.shape[1])))

    def sums(self, blocks: Iterable[RowBlock]) -> Array:
        """Sum ``c e²`` over the rows, e being a row's error in the fit without it, (λ, t).

        The sum is not finite if nothing is left to fit without a row.
        """
        total = np.zeros((self.inverse.shape[1], len(self.y_mean)))
        for piece in pieces(blocks, self.piece_rows):
            weight = piece.weight if piece.weight.size else np.ones(len(piece.y))
            phi = np.empty((len(piece.y), self.embedding.width))
            self.embedding(piece.X, phi)
            q = (phi - self.mean) @ self.rotation
            stays = 1.0 - np.minimum(weight, 1.0)[:, None] * (self.share + (q * q) @ self.inverse)
            y = piece.y - self.y_mean
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                for j in range(total.shape[1]):
                    errors = (y[:, [j]] - q @ (self.inverse * self.coefficients[:, [j]])) / stays
                    total[:, j] += weight @ (errors * errors)
        return total


# Compiled loops for few features: rows are transposed in pieces, and multiplied in 4 × 4 blocks. Products and sums over
# up to `TURNED_ROWS` rows are in the rows' type, the rest is float64.


@compiled
def add_moments(
    X: Array, y: Array, root: Array, rows: Array, origin: Array, y_origin: Array, some: Array, total: Array
) -> None:
    """Add the lower blocks of ``Σ z zᵀ`` over some rows to ``total``, with ``z = √c (x − origin, y − y_origin, 1)``.

    ``X`` (n, d) is C-contiguous, of the type of ``origin`` and ``some``; ``root`` (n,) is √c, and ``rows`` are the
    numbers of the rows to add, int64. Empty ones stand for weights of 1, and for all rows. Rows are transposed into
    ``some``, whose unused rows stay 0. ``total`` (k, k) is float64, and k a multiple of `TILE`.
    """
    m = rows.size if rows.size else y.shape[0]
    for start in range(0, m, TURNED_ROWS):
        n = min(m - start, TURNED_ROWS)
        _turn(X, y, root, rows, start, n, origin, y_origin, some)
        _add_products(some, n, total)


@compiled
def _turn(
    X: Array, y: Array, root: Array, rows: Array, start: int, n: int, origin: Array, y_origin: Array, out: Array
) -> None:
    """Write z of ``n`` rows from ``start`` on to the first columns of ``out``, which stays in the fastest cache."""
    d = origin.size
    t = y_origin.size
    turn_rows(X, rows, start, n, origin, out)
    for j in range(t):
        for i in range(n):
            out[d + j, i] = y[rows[start + i] if rows.size else start + i, j] - y_origin[j]
    for i in range(n):
        out[d + t, i] = 1.0
    if root.size:
        for j in range(d + t + 1):
            for i in range(n):
                out[j, i] *= root[rows[start + i] if rows.size else start + i]


@compiled
def _add_products(some: Array, n: int, total: Array) -> None:
    """Add ``some[:, :n] some[:, :n]ᵀ`` to the lower blocks of ``total``."""
    zero = np.zeros(1, some.dtype)[0]
    for a in range(0, some.shape[0], TILE):
        a0 = some[a]
        a1 = some[a + 1]
        a2 = some[a + 2]
        a3 = some[a + 3]
        for b in range(0, a + 1, TILE):
            b0 = some[b]
            b1 = some[b + 1]
            b2 = some[b + 2]
            b3 = some[b + 3]
            s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = zero
            s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = zero
            for i in range(n):
                p = b0[i]
                q = b1[i]
                r = b2[i]
                s = b3[i]
                x = a0[i]
                s00 += x * p
                s01 += x * q
                s02 += x * r
                s03 += x * s
                x = a1[i]
                s10 += x * p
                s11 += x * q
                s12 += x * r
                s13 += x * s
                x = a2[i]
                s20 += x * p
                s21 += x * q
                s22 += x * r
                s23 += x * s
                x = a3[i]
                s30 += x * p
                s31 += x * q
                s32 += x * r
                s33 += x * s
            sums = ((s00, s01, s02, s03), (s10, s11, s12, s13), (s20, s21, s22, s23), (s30, s31, s32, s33))
            for k, row in enumerate(sums):
                for c in range(TILE):
                    total[a + k, b + c] += row[c]
