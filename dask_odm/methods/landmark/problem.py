"""The Nyström problem: functions ``f = Σ_j α_j κ(z_j, ·)`` of landmarks z_j, and their sums over rows.

Let α be the coefficients of r landmarks, G their Gram matrix, K the rows' kernel values (n, r), u minus the derivatives
of the rows' losses and c their second derivatives::

    P(α) = ½ αᵀGα + Σ_i loss_i((Kα)_i),   ∇P = Gα − Kᵀu,   ∇²P = G + Kᵀ diag(c) K

P is exact for the kernel itself, since f lies in its space. The gap of the problem restricted to the landmarks is
``½ ∇Pᵀ G⁻¹ ∇P``. It is the stopping rule, not a certificate for the kernel.

A `dask_odm.methods.landmark.query.SpanQuery` sums over blocks of rows; the `SpanProblem` runs it over all rows, by any
`Passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from dask_odm.learning.problem.group_sums import GroupQuery, leave_groups_out
from dask_odm.linalg.row_passes import Passes, ThreadPasses
from dask_odm.methods.landmark.query import Draw, SpanQuery, SpanSums, drawn_bytes, row_blocks
from dask_odm.methods.landmark.sketch import PrioritySample
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class SpanProblem:
    """A Nyström problem over all rows, for Newton's method; every method takes one pass.

    ``passes`` are over blocks in the form that the query takes. If all rows are in memory, ``rows`` (n, d) are these as
    the kernel sees them, or sparse rows that return such an array when indexed; ``y`` and ``weight`` (n,) go with them,
    and an empty ``weight`` means 1. A sample is drawn from these at once, which is faster than drawing one per group
    and merging them, and gives the same sample. ``budget`` bounds the bytes of kernel values that are kept for them.
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
        """Build the problem over `rows` in memory; their kernel values are kept if they fit ``budget`` bytes.

        Otherwise values are recomputed in every pass. They are in the query's dtype, sums in float64. Budget and
        threads never change the result.
        """
        query = replace(query, scaling=None, streamed=False)
        blocks = row_blocks(rows, y, weight)
        if len(rows) * query.value_bytes <= budget:
            blocks = query.kept(blocks, query.tile_rows, threads)
        passes = ThreadPasses([[block] for block in blocks], threads)
        return cls(query, passes, rows, y, weight, budget, threads)

    @classmethod
    def over_passes(cls, query: SpanQuery, passes: Passes) -> SpanProblem:
        """Build the problem over passes of raw rows; the query has their scaling."""
        return cls(replace(query, streamed=passes.streamed), passes)

    def in_float64(self) -> SpanProblem:
        """Return the same problem with kernel values in float64, which are kept if they are few."""
        query = replace(self.query, double=True)
        if self.rows is None:
            return replace(self, query=query)
        assert self.y is not None
        held = len(self.rows) * self.query.value_bytes
        left = self.budget - held if held <= self.budget else self.budget
        return SpanProblem.over_rows(query, self.rows, self.y, self.weight, min(left, 16 << 20), self.threads)

    def sums(self, a: Array, draw: Draw | None = None) -> SpanSums:
        """Return loss, dual image and curvatures at ``a``, and a sample if ``draw`` asks for one."""
        if draw is None or self.rows is None:
            nbytes = 0 if draw is None else self._drawn_bytes(draw)
            return self.passes.run(self.query, SpanQuery.sums, a, draw, nbytes=nbytes, kept="curvatures")
        total: SpanSums = self.passes.run(self.query, SpanQuery.sums, a, None)
        return replace(total, sample=self._draw(list(chain.from_iterable(total.curvatures)), draw))

    def product(self, at: SpanSums, p: Array) -> Array:
        """Return ``Kᵀ (c ∘ K p)`` with the curvatures c of ``at``, float64 (r,)."""
        return self.passes.run(self.query, SpanQuery.product, p, of_groups=at.curvatures)

    def slopes(self, a: Array, direction: Array, steps: Array) -> Array:
        """Return the derivatives of the loss by the step, at ``a + step · direction`` for each of ``steps``."""
        return self._over(SpanQuery.slopes, a, direction, steps)

    def hessian(self, a: Array) -> Array:
        """Return ``Kᵀ diag(c) K`` with the curvatures c at ``a``, float64 (r, r)."""
        return self._over(SpanQuery.hessian, a, nbytes=8 * self.query.r**2)

    def leverages(self, a: Array, inverse: Array) -> Array:
        """Return scores of all rows at ``a``, and ``‖inverse · k‖²`` of active ones, in order: float64 (2, n)."""
        return np.concatenate(self._over(SpanQuery.leverages, a, inverse, nbytes=None), axis=1)

    def without_groups(self, a: Array, hessian: Array, inverse: Array, groups: Array, count: int) -> Array:
        """Return the value (n,) of every row by the model without its group; see `leave_groups_out`."""
        return leave_groups_out(GroupQuery(self.query, a, groups, count), self.passes, hessian, inverse)

    def support(self, a: Array, draw: Draw) -> PrioritySample:
        """Return rows drawn in proportion to their dual variables |u| at ``a``; rows without one come last."""
        if self.rows is not None:
            return self._draw(self._over(SpanQuery.chances, a), draw)
        return self._over(SpanQuery.support, a, draw, nbytes=self._drawn_bytes(draw))

    def _over(self, method: Callable[..., Any], *arguments: Any, nbytes: int | None = 0) -> Any:
        return self.passes.run(self.query, SpanQuery.over, method, *arguments, nbytes=nbytes)

    def _drawn_bytes(self, draw: Draw) -> int:
        return draw.size * drawn_bytes(self.query.landmarks.shape[1], self.query.landmarks.itemsize)

    def _draw(self, weights: Sequence[Array], draw: Draw) -> PrioritySample:
        """Draw rows in memory by the ``weights`` of all rows, which are given part by part."""
        assert self.y is not None
        read = self.rows.__getitem__
        return PrioritySample.draw(np.concatenate(weights), self.y, 0, read, draw.size, draw.seed)
