"""Sums of the Nyström problem over blocks of rows.

`dask_odm.methods.landmark.problem` says what the sums are for. Kernel values are computed in tiles that stay in a
core's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np

from dask_odm.kernels.base import BLOCK, Kernel
from dask_odm.learning.problem.features import Affine
from dask_odm.learning.problem.linear import MOST_GROUPS
from dask_odm.learning.problem.losses import BandLoss, Loss
from dask_odm.learning.problem.nystrom_features import span_products, span_scores, span_sums
from dask_odm.linalg.jit import frozen
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.linalg.systems import times_transpose
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.landmark.sketch import PrioritySample
from dask_odm.typing import Array

TILE_BYTES = 512 << 10  # bytes of kernel values computed at a time; they stay in the second-level cache
UNSUPPORTED = 1e-3  # share of its stiffness by which a row without a dual variable is drawn


@dataclass(frozen=True, eq=False)
class SpanSums:
    """Sums over rows at one α: the loss, ``Kᵀu`` (r,), which is minus its gradient, and the curvatures.

    ``curvatures`` are second derivatives of the losses, block by block; those of passes are in groups of blocks.
    ``sample`` are rows drawn by their curvature, or None.
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
    """The number of rows to sample, and the seed."""

    size: int
    seed: int


@dataclass(frozen=True)
class RowRange:
    """The X of a block in memory: rows from ``first`` on of ``rows``, as the kernel sees them."""

    rows: Any
    first: int

    def __getitem__(self, rows: slice | Array) -> Any:
        if isinstance(rows, slice):
            return self.rows[self.first + rows.start : self.first + rows.stop]
        return self.rows[self.first + rows]


@dataclass(frozen=True, eq=False)
class SpanQuery:
    """Sums of the Nyström problem over blocks of rows. Tasks carry it.

    ``landmarks`` (r, d) are in the rows' dtype. ``scaling`` takes raw rows to those that the kernel sees, if blocks
    hold raw rows. ``double`` computes kernel values in float64 from the same rows. With ``streamed``, rows are gone
    after a pass and sums may travel: rows of a sample are read at once, curvatures are packed, and products are taken
    of active rows alone. See `Passes`.
    """

    kernel: Kernel
    landmarks: Any  # (r, d), an array or `CSRRows`
    loss: Loss
    scaling: Affine | None = None
    streamed: bool = False
    double: bool = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_right"}

    @property
    def r(self) -> int:
        """Number of landmarks."""
        return len(self.landmarks)

    @cached_property
    def _right(self) -> Any:
        return self.kernel.pack_right_in(self.landmarks, self.dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the kernel values."""
        return np.dtype(np.float64) if self.double else self.landmarks.dtype

    @property
    def value_bytes(self) -> int:
        """Bytes of the kernel values of one row."""
        return self.r * self.dtype.itemsize

    @property
    def tile_rows(self) -> int:
        """Number of rows whose kernel values are computed at a time."""
        return tile_rows(self.r, self.dtype.itemsize)

    def sums(self, blocks: Iterable[RowBlock], a: Array, draw: Draw | None) -> SpanSums:
        """Return loss, dual image and curvatures at ``a``, and a sample if ``draw`` asks for one."""
        total = reduce(add, (self._sums(block, a, draw) for block in blocks))
        return replace(total, curvatures=(total.curvatures,))

    def _sums(self, block: RowBlock, a: Array, draw: Draw | None) -> SpanSums:
        loss = 0.0
        image = np.zeros(self.r)
        curvature = np.empty(len(block))
        for rows, K in self.feature_rows(block, whole=True):
            loss = self._add_sums(K, block.y[rows], block.weight[rows], a, image, curvature[rows], loss)
        sample = None if draw is None else self._draw(block, curvature, draw)
        kept = self.loss.pack(curvature, block.y, block.weight) if self.streamed else curvature
        return SpanSums(loss, image, (kept,), sample)

    def over(self, blocks: Iterable[RowBlock], method: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``method(self, block, *arguments)`` over the blocks."""
        return reduce(add, (method(self, block, *arguments) for block in blocks))

    def product(self, blocks: Iterable[RowBlock], p: Array, curvatures: Sequence[Array]) -> Array:
        """Return ``Kᵀ (c ∘ K p)`` over the blocks, with the curvatures that `sums` returned for them."""
        return reduce(add, map(partial(self._product, p), blocks, curvatures))

    def _product(self, p: Array, block: RowBlock, curvature: Array) -> Array:
        out = np.zeros(self.r)
        if not self.streamed:
            for rows, K in self.feature_rows(block, whole=True, wanted=curvature):
                span_products(K, curvature[rows, None], p[None], out[None])
            return out
        curvature = self.loss.unpack(curvature, block.y, block.weight)
        active = np.flatnonzero(curvature)
        step = self.tile_rows
        buffer = np.empty((step, self.r), self.dtype)
        for i in range(0, len(active), step):
            some = active[i : i + step]
            span_products(self.tile(self.read(block, some), buffer), curvature[some, None], p[None], out[None])
        return out

    def slopes(self, block: RowBlock, a: Array, direction: Array, steps: Array) -> Array:
        """Return the derivatives of the loss by the step, at ``a + step · direction`` for each of ``steps``."""
        total = np.zeros(len(steps))
        for rows, K in self.feature_rows(block):
            scores = np.empty(len(K))
            change = np.empty(len(K))
            span_scores(K, a, scores)
            span_scores(K, direction, change)
            total += self.loss.slopes(scores, change, block.y[rows], block.weight[rows], steps)
        return total

    def support(self, block: RowBlock, a: Array, draw: Draw) -> PrioritySample:
        """Return rows drawn by their `chances` at ``a``."""
        return self._draw(block, self.chances(block, a)[0], draw)

    def chances(self, block: RowBlock, a: Array) -> tuple[Array, ...]:
        """Return every row's dual variable |u| at ``a``, or a tiny value for rows without one, in a tuple."""
        chances = np.empty(len(block))
        for rows, K in self.feature_rows(block):
            y = block.y[rows]
            weight = block.weight[rows]
            scores = np.empty(len(K))
            span_scores(K, a, scores)
            _, dual, _ = self.loss.evaluate(scores, y, weight)
            chances[rows] = np.abs(dual) + UNSUPPORTED * self.loss.row_stiffness(y, weight)
        return (chances,)

    def hessian(self, block: RowBlock, a: Array) -> Array:
        """Return ``Kᵀ diag(c) K`` with the curvatures c at ``a``, float64 (r, r)."""
        total = np.zeros((self.r, self.r))
        for _, K, c in self._active(block, a, np.empty(len(block))):
            scaled = np.sqrt(c[:, None]) * K  # float64, like the sum
            total += scaled.T @ scaled
        return total

    def leverages(self, block: RowBlock, a: Array, inverse: Array) -> list[Array]:
        """Return scores of the rows at ``a``, and ``‖inverse · k‖²`` of active ones: an array (2, n) in a list.

        ``inverse`` (r, r) is lower triangular.
        """
        pair = np.zeros((2, len(block)))
        for active, K, _ in self._active(block, a, pair[0]):
            white = times_transpose(K.astype(inverse.dtype, copy=False), inverse)
            pair[1, active] = np.einsum("ij,ij->i", white, white)
        return [pair]

    def _active(self, block: RowBlock, a: Array, scores: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Yield places, kernel values and second derivatives of active rows; set ``scores`` (n,) of all rows at ``a``.

        Many rows are yielded at a time, since products of few are slow.
        """
        held = list[tuple[Array, Array, Array]]()
        count = 0
        for rows, K in self.feature_rows(block):
            span_scores(K, a, scores[rows])
            curvature = self.loss.evaluate(scores[rows], block.y[rows], block.weight[rows])[2]
            active = np.flatnonzero(curvature)
            held.append((rows.start + active, K[active], curvature[active]))
            count += len(active)
            if count >= BLOCK or rows.stop == len(block):
                places, values, curvatures = (np.concatenate(each) for each in zip(*held, strict=True))
                yield places, values, curvatures
                held = []
                count = 0

    def kept(self, blocks: list[RowBlock], step: int, threads: int) -> list[RowBlock]:
        """Return blocks of rows in memory that keep their kernel values, computed ``step`` rows at a time."""
        values = np.empty((sum(map(len, blocks)), self.r), self.dtype)

        def fill(block: RowBlock) -> RowBlock:
            own = values[block.first : block.first + len(block)]
            for start in range(0, len(block), step):
                rows = slice(start, min(len(block), start + step))
                self.tile(self.read(block, rows), own[rows])
            return replace(block, values=own)

        return run_threads(fill, blocks, threads, "kernel values")

    def _add_sums(
        self, K: Array, y: Array, weight: Array, a: Array, dual_image: Array, curvature: Array, total: float
    ) -> float:
        """Return ``total`` plus the loss of rows with kernel values ``K``; add to ``dual_image``, set ``curvature``."""
        if type(self.loss) is BandLoss:
            return float(span_sums(K, y, frozen(weight), a, self.loss.terms, dual_image, curvature, total))
        scores = np.empty(len(K))
        span_scores(K, a, scores)
        loss, dual, curvature[:] = self.loss.evaluate(scores, y, weight)
        dual_image += K.T @ dual
        return total + loss

    def _draw(self, block: RowBlock, weight: Array, draw: Draw) -> PrioritySample:
        return PrioritySample.draw(weight, block.y, block.first, partial(self.read, block), draw.size, draw.seed)

    def read(self, block: RowBlock, rows: slice | Array) -> Any:
        """Return some rows of a block as the kernel sees them."""
        X: Any = block.X[rows].astype(self.landmarks.dtype, copy=False)
        return X if self.scaling is None else self.scaling(X)

    def tile(self, X: Any, out: Array | None = None) -> Array:
        """Return kernel values of rows ``X`` (n, d), which are scaled, at the landmarks; in the front of ``out``."""
        left = self.kernel.pack_left(X.astype(self.dtype, copy=False))
        return self.kernel.tile_packed(left, self._right, None if out is None else out[: len(X)])

    def feature_rows(
        self, block: RowBlock, *, whole: bool = False, wanted: Array | None = None
    ) -> Iterator[tuple[slice, Array]]:
        """Yield kernel values (m, r) of a bounded number of rows, in the same memory; kept ones at once if ``whole``.

        With them come the rows' places in the block. Values are computed in the tiles that could be kept, since BLAS
        rounds by place in a tile. A tile is left out if ``wanted`` (n,) is zero in all of its rows.
        """
        n = len(block)
        kept = block.values
        if whole and kept is not None:
            yield slice(0, n), kept
            return
        buffer = np.empty((self.tile_rows, self.r), self.dtype) if kept is None else kept
        for start in range(0, n, self.tile_rows):
            rows = slice(start, min(n, start + self.tile_rows))
            if wanted is None or wanted[rows].any():
                yield rows, self.tile(self.read(block, rows), buffer) if kept is None else kept[rows]


def tile_rows(r: int, itemsize: int) -> int:
    """Return the number of rows whose values at ``r`` landmarks are computed at a time."""
    return max(16, TILE_BYTES // (r * itemsize) // 4 * 4)


def drawn_bytes(d: int, itemsize: int) -> int:
    """Return the bytes of a drawn row of ``d`` features."""
    return itemsize * d + 24


def row_blocks(rows: Any, y: Array, weight: Array) -> list[RowBlock]:
    """Return a block for each group that rows in memory are summed in."""
    n = len(rows)
    groups = group_count(n)
    bounds = pairwise(n * g // groups for g in range(groups + 1))
    return [RowBlock(RowRange(rows, a), y[a:b], weight[a:b], a) for a, b in bounds]


def group_count(n: int) -> int:
    """Return the number of groups that ``n`` rows in memory are summed in, a power of two."""
    # of fewer rows than two blocks, a call takes longer than their sum
    return min(MOST_GROUPS, 1 << max(n // (2 * BLOCK), 1).bit_length() - 1)
