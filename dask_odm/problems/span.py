"""Functions in the span of landmarks, ``f = Σ_j α_j κ(z_j, ·)``: what is minimised and summed over rows for them.

In coefficients α of r landmarks, with G their Gram matrix, K the rows' kernel values (n, r), u minus the derivatives of
the rows' losses and c their second derivatives::

    P(α) = ½ αᵀGα + Σ_i loss_i((Kα)_i),   ∇P = Gα − Kᵀu,   ∇²P = G + Kᵀ diag(c) K

P is exact for the kernel itself, since f lies in its space. The gap of the problem restricted to the span is
``½ ∇Pᵀ G⁻¹ ∇P``: its stopping rule, not a certificate for the kernel.

A `SpanQuery` has the sums over rows; the `SpanProblem` asks it of all of them, by any `Passes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import chain, pairwise
from operator import add
from typing import Any

import numpy as np
from scipy.linalg import blas

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.threads import run_threads
from dask_odm.problems.features import Affine
from dask_odm.problems.losses import Loss, as_fused
from dask_odm.problems.row_passes import PassBytes, Passes, RowBlock, ThreadPasses
from dask_odm.problems.sample import PrioritySample
from dask_odm.problems.span_loops import span_product, span_scores
from dask_odm.typing import Array

TILE_BYTES = 512 << 10  # bytes of kernel values that are computed at a time: they stay in the second-level cache
ACTIVE_ROWS = 512  # rows with a curvature that are multiplied at once
GROUPS = 16  # of rows in memory, whose sums are added in order
UNSUPPORTED = 1e-3  # share of its stiffness that a row without a dual variable is drawn by


@dataclass(frozen=True, eq=False)
class SpanSums:
    """Sums over rows at one α.

    Attributes
    ----------
    loss : float
    dual_image : float64 ndarray of shape (r,)
        ``Kᵀu``, minus the gradient of the loss.
    curvatures : tuple
        Of groups of rows in order, the second derivatives of their losses, block by block as products take them.
    sample : PrioritySample or None
        Rows drawn by their curvature.
    """

    loss: float
    dual_image: Array
    curvatures: tuple[Any, ...]
    sample: PrioritySample | None

    def __add__(self, other: SpanSums) -> SpanSums:
        sample = None if self.sample is None or other.sample is None else self.sample + other.sample
        curvatures = self.curvatures + other.curvatures
        return SpanSums(self.loss + other.loss, self.dual_image + other.dual_image, curvatures, sample)


@dataclass(frozen=True)
class Draw:
    """How many rows to sample, and by which seed."""

    size: int
    seed: int


@dataclass(frozen=True)
class RowRange:
    """Rows ``first`` and on of others, as the kernel sees them: the X of a block in memory."""

    rows: Any
    first: int

    def read(self, start: int, stop: int) -> Array:
        """Rows ``start:stop`` of these."""
        found: Array = self.rows[self.first + start : self.first + stop]
        return found


@dataclass(frozen=True, eq=False)
class SpanQuery:
    """What is asked of rows about the span of landmarks; tasks carry it.

    Parameters
    ----------
    kernel : Kernel
    landmarks : ndarray of shape (r, d)
        In the dtype to compute kernel values in.
    loss : Loss
    scaling : Affine, optional
        From raw rows, where blocks have an array of these, to those that the kernel sees.
    streamed : bool
        Rows are gone after a pass, and sums may travel: rows of a sample are read at once, curvatures packed, and
        products taken of active rows alone. See `Passes`.
    """

    kernel: Kernel
    landmarks: Array
    loss: Loss
    scaling: Affine | None = None
    streamed: bool = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_right"}

    @property
    def r(self) -> int:
        """Landmarks."""
        return len(self.landmarks)

    @cached_property
    def _right(self) -> Any:
        return self.kernel.pack_right(self.landmarks)

    @property
    def tile_rows(self) -> int:
        """Rows whose kernel values are computed at a time."""
        return tile_rows(self.r, self.landmarks.itemsize)

    def sums(self, blocks: Iterable[RowBlock], a: Array, draw: Draw | None) -> SpanSums:
        """Loss, dual image, curvatures and a sample, if one is to be drawn, at ``a``."""
        loss, dual_image, curvatures = 0.0, np.zeros(self.r), []
        sample: PrioritySample | None = None
        for block in blocks:
            curvature = np.empty(len(block.y))
            for rows, K in self._tiles(block, whole=True):
                loss = self._add_sums(K, block.y[rows], block.weight[rows], a, dual_image, curvature[rows], loss)
            curvatures.append(self.loss.pack(curvature, block.y, block.weight) if self.streamed else curvature)
            if draw is not None:
                drawn = self._draw(block, curvature, draw)
                sample = drawn if sample is None else sample + drawn
        return SpanSums(loss, dual_image, (curvatures,), sample)

    def product(self, blocks: Iterable[RowBlock], p: Array, curvatures: Sequence[Array]) -> Array:
        """``Kᵀ (c ∘ K p)`` over the blocks, with what `sums` had of their curvatures."""
        out = np.zeros(self.r)
        for block, curvature in zip(blocks, curvatures, strict=True):
            if self.streamed:
                self._add_active(block, self.loss.unpack(curvature, block.y, block.weight), p, out)
            elif block.values is not None:
                span_product(block.values, curvature, p, out)
            else:
                self._add_tiles(block, curvature, p, out)
        return out

    def slopes(self, blocks: Iterable[RowBlock], a: Array, direction: Array, steps: Array) -> Array:
        """Derivatives by step of the loss at ``a + step · direction``, for every one of ``steps``."""
        total = np.zeros(len(steps))
        for block in blocks:
            for rows, K in self._tiles(block):
                scores, change = np.empty(len(K)), np.empty(len(K))
                span_scores(K, a, scores)
                span_scores(K, direction, change)
                total += self.loss.slopes(scores, change, block.y[rows], block.weight[rows], steps)
        return total

    def support(self, blocks: Iterable[RowBlock], a: Array, draw: Draw) -> PrioritySample:
        """Rows drawn by their `chances` at ``a``."""
        return reduce(add, (self._draw(block, self._chances(block, a), draw) for block in blocks))

    def chances(self, blocks: Iterable[RowBlock], a: Array) -> tuple[Array, ...]:
        """Every row's dual variable |u| at ``a``, and next to nothing for those without one, block by block."""
        return tuple(self._chances(block, a) for block in blocks)

    def hessian(self, blocks: Iterable[RowBlock], a: Array) -> Array:
        """``Kᵀ diag(c) K`` with the curvatures c at ``a``, float64 (r, r)."""
        total = np.zeros((self.r, self.r))
        for block in blocks:
            for _, K, c in self._active(block, a, np.empty(len(block.y))):
                scaled = np.sqrt(c[:, None]) * K  # float64, as the sum is
                total += scaled.T @ scaled
        return total

    def leverages(self, blocks: Iterable[RowBlock], a: Array, inverse: Array) -> list[Array]:
        """Scores of the rows at ``a`` and, of those with a curvature, ``‖inverse · k‖²``: a list of (2, n) arrays.

        ``inverse`` (r, r) is lower triangular.
        """
        found, multiply = [], blas.strmm if inverse.dtype == np.float32 else blas.dtrmm
        for block in blocks:
            pair = np.zeros((2, len(block.y)))
            for active, K, _ in self._active(block, a, pair[0]):
                # K · inverseᵀ, of which half is zero
                white = multiply(1.0, inverse.T, K.astype(inverse.dtype, copy=False).T, trans_a=1, overwrite_b=1).T
                pair[1, active] = np.einsum("ij,ij->i", white, white)
            found.append(pair)
        return found

    def _active(self, block: RowBlock, a: Array, scores: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Places, kernel values and second derivatives of the rows that have one; sets ``scores`` (n,) of all at ``a``.

        Many rows at a time, since products of few are slow.
        """
        held, count = list[tuple[Array, Array, Array]](), 0
        for rows, K in self._tiles(block):
            span_scores(K, a, scores[rows])
            curvature = self.loss.evaluate(scores[rows], block.y[rows], block.weight[rows])[2]
            active = np.flatnonzero(curvature)
            held.append((rows.start + active, K[active], curvature[active]))
            count += len(active)
            if count >= ACTIVE_ROWS or rows.stop == len(block.y):
                places, values, curvatures = (np.concatenate(each) for each in zip(*held, strict=True))
                yield places, values, curvatures
                held, count = [], 0

    def fill(self, block: RowBlock) -> None:
        """Compute the values that ``block`` is to keep."""
        assert block.values is not None
        for start in range(0, len(block.y), self.tile_rows):
            rows = slice(start, min(len(block.y), start + self.tile_rows))
            self._tile(self._read(block, rows), block.values[rows])

    def _add_sums(
        self, K: Array, y: Array, weight: Array, a: Array, dual_image: Array, curvature: Array, total: float
    ) -> float:
        """``total`` and the loss of rows of kernel values ``K``; adds to ``dual_image``, sets ``curvature``."""
        fused = as_fused(self.loss)
        if fused is not None:
            return fused.span_sums(K, y, weight, a, dual_image, curvature, total)
        scores = np.empty(len(K))
        span_scores(K, a, scores)
        loss, dual, curvature[:] = self.loss.evaluate(scores, y, weight)
        dual_image += K.T @ dual
        return total + loss

    def _add_active(self, block: RowBlock, curvature: Array, p: Array, out: Array) -> None:
        """To a product, its active rows."""
        active, buffer, step = np.flatnonzero(curvature), self._buffer(), self.tile_rows
        for i in range(0, len(active), step):
            rows = active[i : i + step]
            span_product(self._tile(self._read(block, rows), buffer), curvature[rows], p, out)

    def _add_tiles(self, block: RowBlock, curvature: Array, p: Array, out: Array) -> None:
        """To a product, the tiles that would be kept, if there were memory: BLAS rounds a row by its place in one."""
        buffer, step = self._buffer(), self.tile_rows
        for start in range(0, len(block.y), step):
            rows = slice(start, min(len(block.y), start + step))
            if curvature[rows].any():
                span_product(self._tile(self._read(block, rows), buffer), curvature[rows], p, out)

    def _chances(self, block: RowBlock, a: Array) -> Array:
        """`chances` of one block."""
        chances = np.empty(len(block.y))
        for rows, K in self._tiles(block):
            y, weight, scores = block.y[rows], block.weight[rows], np.empty(len(K))
            span_scores(K, a, scores)
            _, dual, _ = self.loss.evaluate(scores, y, weight)
            chances[rows] = np.abs(dual) + UNSUPPORTED * self.loss.row_stiffness(y, weight)
        return chances

    def _draw(self, block: RowBlock, weight: Array, draw: Draw) -> PrioritySample:
        """Of the rows of a block, by their ``weight``."""
        return PrioritySample.draw(weight, block.y, block.first, partial(self._read, block), draw.size, draw.seed)

    def _read(self, block: RowBlock, rows: slice | Array) -> Array:
        """Some rows of a block as the kernel sees them."""
        if isinstance(block.X, RowRange):
            assert isinstance(rows, slice)
            return block.X.read(rows.start, rows.stop)
        X: Array = block.X[rows].astype(self.landmarks.dtype, copy=False)
        return X if self.scaling is None else self.scaling(X)

    def _buffer(self) -> Array:
        """Where a tile is computed."""
        return np.empty((self.tile_rows, self.r), self.landmarks.dtype)

    def _tile(self, X: Array, out: Array) -> Array:
        """Kernel values of rows ``X`` (n, d) as the kernel sees them, in the front of ``out``."""
        return self.kernel.tile_packed(self.kernel.pack_left(X), self._right, out[: len(X)])

    def _tiles(self, block: RowBlock, *, whole: bool = False) -> Iterator[tuple[slice, Array]]:
        """Kernel values of a block, some rows at a time, in the same memory; where they are kept, all if ``whole``."""
        n, kept = len(block.y), block.values
        if whole and kept is not None:
            yield slice(0, n), kept
            return
        buffer = self._buffer() if kept is None else kept
        for start in range(0, n, self.tile_rows):
            rows = slice(start, min(n, start + self.tile_rows))
            yield rows, self._tile(self._read(block, rows), buffer) if kept is None else kept[rows]


def tile_rows(r: int, itemsize: int) -> int:
    """Rows whose values at ``r`` landmarks are computed at a time."""
    return max(16, TILE_BYTES // (r * itemsize) // 4 * 4)


def active_bytes(r: int) -> int:
    """Bytes of the rows with a curvature that a thread multiplies at once: gathered, joined, scaled."""
    return 4 * 8 * ACTIVE_ROWS * r


def tile_bytes(r: int, d: int, n: int, itemsize: int) -> int:
    """Bytes a thread computes in, of ``n`` rows of ``d`` features in memory: rows read and packed, values."""
    return min(tile_rows(r, itemsize), n // GROUPS + 1) * (2 * (d + 10) + r) * itemsize


@dataclass(frozen=True, eq=False)
class SpanProblem:
    """What Newton asks of rows it never sees, about a span of landmarks; every method is one pass over all of them.

    Parameters
    ----------
    query : SpanQuery
    passes : Passes
        Over blocks as the query takes them.
    rows : ndarray of shape (n, d), optional
        All of them as the kernel sees them, where they are in memory, or sparse ones of which a slice or an index gives
        such an array. A sample is drawn of these at once, which takes less time than to draw one of every group and
        merge them, and gives the same.
    y : ndarray of shape (n,), optional
        Their targets.
    """

    query: SpanQuery
    passes: Passes
    rows: Any = None
    y: Array | None = None

    @classmethod
    def over_rows(
        cls, query: SpanQuery, rows: Any, y: Array, weight: Array, budget: int, threads: int = 1
    ) -> SpanProblem:
        """Over `rows` in memory: their values are kept where they fit ``budget`` bytes.

        Else they are recomputed in every pass. Values are in the rows' dtype, sums in float64. Neither budget nor
        threads change a bit.
        """
        query = replace(query, scaling=None, streamed=False)
        n, dtype = len(rows), rows.dtype
        kept = n * query.r * dtype.itemsize <= budget
        values = np.empty((n, query.r), dtype) if kept else None
        blocks = [
            RowBlock(RowRange(rows, a), y[a:b], weight[a:b], a, None if values is None else values[a:b])
            for a, b in pairwise(n * g // GROUPS for g in range(GROUPS + 1))
        ]
        if kept:
            run_threads(query.fill, blocks, threads, "kernel values")
        return cls(query, ThreadPasses([[block] for block in blocks], threads), rows, y)

    @classmethod
    def over_passes(cls, query: SpanQuery, passes: Passes) -> SpanProblem:
        """Over arrays of raw rows, whoever has them; the query has their scaling."""
        return cls(replace(query, streamed=passes.streamed), passes)

    def pass_bytes(self, draw_size: int) -> PassBytes:
        """What a task of a pass that draws so many rows holds, where they are streamed."""
        row, r = self._row_bytes, self.query.r
        work = 3 * self.query.landmarks.nbytes + 2 * TILE_BYTES + 3 * row * self.query.tile_rows
        return PassBytes(8 * r + 2 * draw_size * row, 40, work)

    @property
    def _row_bytes(self) -> int:
        """Of a row that is drawn."""
        return self.query.landmarks.itemsize * self.query.landmarks.shape[1] + 24

    def sums(self, a: Array, draw: Draw | None = None) -> SpanSums:
        """Loss, dual image, curvatures and a sample, if one is to be drawn, at ``a``."""
        if draw is None or self.rows is None:
            nbytes = 0 if draw is None else draw.size * self._row_bytes
            streamed: SpanSums = self.passes.run(self.query, SpanQuery.sums, a, draw, nbytes=nbytes)
            return streamed
        total: SpanSums = self.passes.run(self.query, SpanQuery.sums, a, None)
        return replace(total, sample=self._draw(list(chain.from_iterable(total.curvatures)), draw))

    def product(self, at: SpanSums, p: Array) -> Array:
        """``Kᵀ (c ∘ K p)`` with the curvatures c of ``at``, float64 (r,)."""
        total: Array = self.passes.run(self.query, SpanQuery.product, p, of_groups=at.curvatures)
        return total

    def slopes(self, a: Array, direction: Array, steps: Array) -> Array:
        """Derivatives by step of the loss at ``a + step · direction``, for every one of ``steps``."""
        total: Array = self.passes.run(self.query, SpanQuery.slopes, a, direction, steps)
        return total

    def hessian(self, a: Array) -> Array:
        """``Kᵀ diag(c) K`` with the curvatures c at ``a``, float64 (r, r)."""
        total: Array = self.passes.run(self.query, SpanQuery.hessian, a, nbytes=8 * self.query.r**2)
        return total

    def leverages(self, a: Array, inverse: Array) -> Array:
        """Of all rows in order, scores at ``a`` and, of those with a curvature, ``‖inverse · k‖²``: float64 (2, n)."""
        return np.concatenate(self.passes.run(self.query, SpanQuery.leverages, a, inverse), axis=1)

    def support(self, a: Array, draw: Draw) -> PrioritySample:
        """Rows drawn in proportion to their dual variables |u| at ``a``; those without one after them."""
        if self.rows is not None:
            return self._draw(self.passes.run(self.query, SpanQuery.chances, a), draw)
        nbytes = draw.size * self._row_bytes
        drawn: PrioritySample = self.passes.run(self.query, SpanQuery.support, a, draw, nbytes=nbytes)
        return drawn

    def _draw(self, weights: Sequence[Array], draw: Draw) -> PrioritySample:
        """Of rows in memory, by the ``weights`` of all, part by part in their order."""
        rows, y = self.rows, self.y
        assert y is not None
        return PrioritySample.draw(np.concatenate(weights), y, 0, lambda index: rows[index], draw.size, draw.seed)
