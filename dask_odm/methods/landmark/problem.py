"""Functions in the span of landmarks, ``f = Σ_j α_j κ(z_j, ·)``: what is minimised and summed over rows for them.

In coefficients α of r landmarks, with G their Gram matrix, K the rows' kernel values (n, r), u minus the derivatives of
the rows' losses and c their second derivatives::

    P(α) = ½ αᵀGα + Σ_i loss_i((Kα)_i),   ∇P = Gα − Kᵀu,   ∇²P = G + Kᵀ diag(c) K

P is exact for the kernel itself, since f lies in its space. The gap of the problem restricted to the span is
``½ ∇Pᵀ G⁻¹ ∇P``: its stopping rule, not a certificate for the kernel.

A `dask_odm.methods.landmark.query.SpanQuery` has the sums over rows; the `SpanProblem` asks it of all of them, by any
`Passes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from dask_odm.linalg.row_passes import PassBytes, Passes, RowBlock, ThreadPasses
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.landmark.priority_sampling import PrioritySample
from dask_odm.methods.landmark.query import (
    GROUPS,
    Draw,
    RowRange,
    SpanQuery,
    SpanRounding,
    SpanSums,
    drawn_bytes,
    span_pass_bytes,
)
from dask_odm.typing import Array


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
    weight : ndarray of shape (n,), or empty: all 1
        Their weights.
    budget : int
        Bytes that kernel values of rows in memory may be kept in.
    threads : int
    """

    query: SpanQuery
    passes: Passes
    rows: Any = None
    y: Array | None = None
    weight: Array = field(default_factory=lambda: np.empty(0))
    budget: int = 0
    threads: int = 1

    @classmethod
    def over_rows(
        cls, query: SpanQuery, rows: Any, y: Array, weight: Array, budget: int, threads: int = 1
    ) -> SpanProblem:
        """Over `rows` in memory: their values are kept where they fit ``budget`` bytes.

        Else they are recomputed in every pass. Values are in the query's dtype, sums in float64. Neither budget nor
        threads change a bit.
        """
        query = replace(query, scaling=None, streamed=False)
        n = len(rows)
        kept = _values_bytes(n, query) <= budget
        values = np.empty((n, query.r), query.dtype) if kept else None
        blocks = [
            RowBlock(RowRange(rows, a), y[a:b], weight[a:b], a, None if values is None else values[a:b])
            for a, b in pairwise(n * g // GROUPS for g in range(GROUPS + 1))
        ]
        if kept:
            run_threads(query.fill, blocks, threads, "kernel values")
        passes = ThreadPasses([[block] for block in blocks], threads)
        return cls(query, passes, rows, y, weight, budget, threads)

    @classmethod
    def over_passes(cls, query: SpanQuery, passes: Passes) -> SpanProblem:
        """Over arrays of raw rows, whoever has them; the query has their scaling."""
        return cls(replace(query, streamed=passes.streamed), passes)

    def in_float64(self) -> SpanProblem:
        """The same problem with kernel values that are computed in float64, from the same rows."""
        query = self.query.in_float64
        if self.rows is None:
            return replace(self, query=query)
        assert self.y is not None
        n = len(self.rows)
        held = _values_bytes(n, self.query)
        budget = self.budget - held if held <= self.budget else self.budget
        return SpanProblem.over_rows(query, self.rows, self.y, self.weight, budget, self.threads)

    def pass_bytes(self, draw_size: int) -> PassBytes:
        """What a task of a pass that draws so many rows holds, where they are streamed."""
        return span_pass_bytes(self.query.r, self.query.landmarks.shape[1], self.query.landmarks.itemsize, draw_size)

    @property
    def _row_bytes(self) -> int:
        """Of a row that is drawn."""
        return drawn_bytes(self.query.landmarks.shape[1], self.query.landmarks.itemsize)

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

    def rounding(self, a: Array) -> SpanRounding:
        """How far sums at ``a`` of rows drawn by their curvature are from those of kernel values in float64."""
        total: SpanRounding = self.passes.run(self.query, SpanQuery.rounding, a)
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
        rows = self.rows
        y = self.y
        assert y is not None
        return PrioritySample.draw(np.concatenate(weights), y, 0, lambda index: rows[index], draw.size, draw.seed)


def _values_bytes(n: int, query: SpanQuery) -> int:
    """Bytes of the kernel values of ``n`` rows at the landmarks."""
    return n * query.r * query.dtype.itemsize
