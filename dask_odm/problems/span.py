"""The ODM over the span of landmarks: functions ``f = Σ_j α_j κ(z_j, ·)`` and what is asked of all rows about them.

In coefficients α of r landmarks, with G their Gram matrix and K the rows' kernel values (n, r)::

    P(α) = ½ αᵀGα + Σ_i loss_i(y_i (Kα)_i),   ∇P = Gα − Kᵀ(y s),   ∇²P = G + Kᵀ diag(c) K

P is exact for the kernel itself, since f lies in its space. The gap of the problem restricted to the span is
``½ ∇Pᵀ G⁻¹ ∇P``: its stopping rule, not a certificate for the kernel.

`SpanQuery` has the sums over rows; `RowSpan` asks it of rows in memory, and a Dask pass of the chunks of a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from operator import add
from typing import Any, Protocol

import numpy as np

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import Rows
from dask_odm.kernels.threads import run_threads
from dask_odm.problems.primal import LinearLoss
from dask_odm.problems.primal_loops import line_slopes, row_losses
from dask_odm.problems.sample import PrioritySample
from dask_odm.problems.span_loops import span_product, span_scores, span_sums
from dask_odm.typing import Array

TILE_BYTES = 512 << 10  # of kernel values that are computed at a time: they stay in the second-level cache
GROUPS = 16
UNSUPPORTED = 1e-3  # of the stiffness: what a row without a dual variable is drawn by


@dataclass(frozen=True, eq=False)
class SpanSums:
    """Sums over rows at one α.

    Attributes
    ----------
    loss : float
    pull : float64 ndarray of shape (r,)
        ``Kᵀ(y s)`` with s the dual variables that the optimality conditions give.
    curvatures : tuple
        Of groups of rows in order, the second derivatives of their losses, as the span keeps them for products.
    sample : PrioritySample or None
        Rows drawn by their curvature.
    """

    loss: float
    pull: Array
    curvatures: tuple[Any, ...]
    sample: PrioritySample | None

    def __add__(self, other: SpanSums) -> SpanSums:
        sample = None if self.sample is None or other.sample is None else self.sample + other.sample
        curvatures = self.curvatures + other.curvatures
        return SpanSums(self.loss + other.loss, self.pull + other.pull, curvatures, sample)


@dataclass(frozen=True)
class Draw:
    """How many rows to sample, and by which seed."""

    size: int
    seed: int


class Span(Protocol):
    """What a solver asks of all rows; every method is one pass over them."""

    @property
    def query(self) -> SpanQuery: ...
    def sums(self, a: Array, draw: Draw | None = None) -> SpanSums: ...
    def product(self, at: SpanSums, p: Array) -> Array:
        """``Kᵀ (c ∘ K p)`` with the curvatures c of ``at``, float64 (r,)."""
        ...

    def slopes(self, a: Array, direction: Array, steps: Array) -> Array:
        """Derivatives by step of the loss at ``a + step · direction``, for every one of ``steps``."""
        ...

    def support(self, a: Array, draw: Draw) -> PrioritySample:
        """Rows drawn in proportion to the dual variables |s| that the optimality conditions give at ``a``; the others
        after them.
        """
        ...


@dataclass(frozen=True, eq=False)
class SpanQuery:
    """Sums over blocks of rows, given their kernel values; tasks carry it.

    Parameters
    ----------
    kernel : Kernel
    landmarks : ndarray of shape (r, d)
        In the dtype to compute kernel values in.
    loss : LinearLoss
        Of label codes and weights.
    """

    kernel: Kernel
    landmarks: Array
    loss: LinearLoss

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("kernel", "landmarks", "loss")}

    @property
    def r(self) -> int:
        return len(self.landmarks)

    @cached_property
    def _right(self) -> Any:
        return self.kernel.pack_right(self.landmarks)

    @property
    def tile_rows(self) -> int:
        """Rows whose kernel values are computed at a time."""
        return tile_rows(self.r, self.landmarks.itemsize)

    def buffer(self) -> Array:
        """Where `tiles` computes a tile."""
        return np.empty((self.tile_rows, self.r), self.landmarks.dtype)

    def tile(self, X: Array, out: Array) -> Array:
        """Kernel values of scaled rows ``X`` (n, d) in the front of ``out``."""
        return self.kernel.tile_packed(self.kernel.pack_left(X), self._right, out[: len(X)])

    def tiles(self, X: Array, buffer: Array) -> Iterator[tuple[slice, Array]]:
        """Kernel values of scaled rows ``X``, some rows at a time; each tile overwrites the last."""
        for start in range(0, len(X), self.tile_rows):
            rows = slice(start, min(len(X), start + self.tile_rows))
            yield rows, self.tile(X[rows], buffer)

    def add_sums(
        self, K: Array, codes: Array, weight: Array, a: Array, pull: Array, curvature: Array, total: float
    ) -> float:
        """``total`` and the loss of rows with kernel values ``K``; adds to ``pull`` (r,), sets ``curvature`` (n,)."""
        loss = self.loss
        return span_sums(K, codes, weight, a, loss.positive, loss.stiffness, loss.band, pull, curvature, total)

    def slopes(self, K: Array, codes: Array, weight: Array, a: Array, direction: Array, steps: Array) -> Array:
        """Derivatives of the rows' losses along ``direction``, (len(steps),)."""
        scores, change, loss = np.empty(len(K)), np.empty(len(K)), self.loss
        span_scores(K, a, scores)
        span_scores(K, direction, change)
        return line_slopes(scores, change, codes, weight, loss.positive, loss.stiffness, loss.band, steps)

    def chances(self, K: Array, codes: Array, weight: Array, a: Array) -> Array:
        """What rows are drawn by as support: |s| at ``a``, and next to nothing for those within the band; (n,)."""
        loss = self.loss
        scores, pull, second = np.empty((3, len(K)))
        span_scores(K, a, scores)
        row_losses(scores, codes, weight, loss.positive, loss.stiffness, loss.band, pull, second)
        return np.abs(pull) + UNSUPPORTED * loss.row_stiffness(codes, weight)


def tile_rows(r: int, itemsize: int) -> int:
    """Rows whose values at ``r`` landmarks are computed at a time."""
    return max(16, TILE_BYTES // (r * itemsize) // 4 * 4)


def tile_bytes(r: int, d: int, n: int, itemsize: int) -> int:
    """Bytes that a thread of a `RowSpan` of ``n`` rows of ``d`` features computes in: rows read and packed, values."""
    return min(tile_rows(r, itemsize), n // GROUPS + 1) * (2 * (d + 10) + r) * itemsize


class RowSpan:
    """A `Span` over rows in memory: kernel values kept where they fit ``budget`` bytes, else recomputed.

    Values are in the rows' dtype, sums in float64. Neither budget nor threads change a bit.

    Parameters
    ----------
    query : SpanQuery
    rows : Rows
        n scaled rows.
    codes : integer ndarray of shape (n,)
    weight : ndarray of shape (n,), or empty: all 1
    budget, threads : int
    """

    def __init__(
        self, query: SpanQuery, rows: Rows, codes: Array, weight: Array, budget: int, threads: int = 1
    ) -> None:
        self.query, self._rows, self._threads = query, rows, threads
        self._codes, self._weight = codes, weight
        self._groups = list(pairwise(rows.n * g // GROUPS for g in range(GROUPS + 1)))
        self._kept: Array | None = None
        if rows.n * query.r * rows.dtype.itemsize <= budget:
            self._kept = np.empty((rows.n, query.r), rows.dtype)
            run_threads(self._fill, self._groups, threads)

    @property
    def keeps(self) -> bool:
        """Whether the values are kept in memory."""
        return self._kept is not None

    def _fill(self, group: tuple[int, int]) -> None:
        assert self._kept is not None
        for start, stop in self._blocks(group):
            self.query.tile(self._rows.read(start, stop), self._kept[start:stop])

    def _blocks(self, group: tuple[int, int]) -> Iterator[tuple[int, int]]:
        step = self.query.tile_rows
        for start in range(*group, step):
            yield start, min(group[1], start + step)

    def _tiles(self, group: tuple[int, int], *, whole: bool = True) -> Iterator[tuple[slice, Array]]:
        """Kernel values of the rows of a group, some at a time; where they are kept, all at once if ``whole``."""
        if self._kept is not None and whole:
            yield slice(*group), self._kept[slice(*group)]
            return
        buffer = self.query.buffer()
        for start, stop in self._blocks(group):
            kept = None if self._kept is None else self._kept[start:stop]
            yield slice(start, stop), self.query.tile(self._rows.read(start, stop), buffer) if kept is None else kept

    def sums(self, a: Array, draw: Draw | None = None) -> SpanSums:
        curvature = np.empty(self._rows.n)

        def run(group: tuple[int, int]) -> SpanSums:
            loss, pull = 0.0, np.zeros(self.query.r)
            for rows, K in self._tiles(group):
                weight = self._weight[rows]
                loss = self.query.add_sums(K, self._codes[rows], weight, a, pull, curvature[rows], loss)
            return SpanSums(loss, pull, (), None)

        total = reduce(add, run_threads(run, self._groups, self._threads))
        sample = None
        if draw is not None:
            sample = PrioritySample.draw(curvature, self._codes, 0, self._take, draw.size, draw.seed)
        return SpanSums(total.loss, total.pull, (curvature,), sample)

    def product(self, at: SpanSums, p: Array) -> Array:
        (curvature,) = at.curvatures

        def run(group: tuple[int, int]) -> Array:
            out = np.zeros(self.query.r)
            if self._kept is not None:
                span_product(self._kept[slice(*group)], curvature[slice(*group)], p, out)
                return out
            buffer = self.query.buffer()
            for start, stop in self._blocks(group):
                # the blocks that are kept elsewhere: BLAS rounds a row by where in a tile it stands
                if curvature[start:stop].any():
                    K = self.query.tile(self._rows.read(start, stop), buffer)
                    span_product(K, curvature[start:stop], p, out)
            return out

        return reduce(add, run_threads(run, self._groups, self._threads))

    def slopes(self, a: Array, direction: Array, steps: Array) -> Array:
        def run(group: tuple[int, int]) -> Array:
            parts = [
                self.query.slopes(K, self._codes[rows], self._weight[rows], a, direction, steps)
                for rows, K in self._tiles(group, whole=False)
            ]
            return reduce(add, parts) if parts else np.zeros(len(steps))

        return reduce(add, run_threads(run, self._groups, self._threads))

    def support(self, a: Array, draw: Draw) -> PrioritySample:
        chances = np.empty(self._rows.n)

        def run(group: tuple[int, int]) -> None:
            for rows, K in self._tiles(group, whole=False):
                chances[rows] = self.query.chances(K, self._codes[rows], self._weight[rows], a)

        run_threads(run, self._groups, self._threads)
        return PrioritySample.draw(chances, self._codes, 0, self._take, draw.size, draw.seed)

    def _take(self, index: Array) -> Array:
        """Rows at ascending ``index``."""
        if not len(index):
            return np.empty((0, self._rows.d), self._rows.dtype)
        runs = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
        return np.concatenate([self._rows.read(int(run[0]), int(run[-1]) + 1) for run in runs])
