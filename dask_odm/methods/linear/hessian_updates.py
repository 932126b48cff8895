"""A linear problem whose Hessian is updated from point to point instead of summed anew, for rows in memory.

The curvature of a row's loss is piecewise constant. From one point to the next most rows keep theirs, and a new weight
of all losses only scales it. So the Hessian at a point is the last one times that factor, plus the products of the rows
that crossed an end of the band: a few in a hundred from step to step, and from setting to setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem, PrimalSums, Query
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.linalg.row_passes import Passes, RowBlock, ThreadPasses
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Changes:
    """Sums over rows whose curvature holds only the change from known curvatures, and the new ones, group by group."""

    sums: PrimalSums
    curvatures: list[list[Array]]

    def __add__(self, other: Changes) -> Changes:
        return Changes(self.sums + other.sums, self.curvatures + other.curvatures)


class ChangesQuery(Query):
    """A `Query` over blocks that are taken whole."""

    def changes(self, blocks: Iterable[RowBlock], known: Sequence[Array] = ()) -> Changes:
        """Sum over the blocks, with only the change of the Hessian if the curvatures of their rows are ``known``."""
        sums = []
        curvatures = []
        for i, block in enumerate(blocks):
            X = self.features.block(block.X)
            value, dual, c = self.loss.evaluate(self.features.scores(X, self.w), block.y, block.weight)
            if known:
                more = c - known[i]
                more[np.abs(more) <= 1e-5 * c] = 0.0  # a smaller change of a row's curvature is rounding
                second = self._second(X, np.maximum(more, 0.0)) - self._second(X, np.maximum(-more, 0.0))
            else:
                second = self._second(X, c)
            sums.append(PrimalSums(value, self.features.weighted_sum(X, dual), second))
            curvatures.append(c)
        return Changes(reduce(add, sums), [curvatures])


class UpdatedProblem(PrimalProblem):
    """A `PrimalProblem` with an updated Hessian, always in the rows' own type: for gaps that are not small."""

    def __init__(self, features: FeatureMap, loss: BandLoss, passes: Passes) -> None:
        super().__init__(features, loss, passes)
        self._band = loss
        self._at: Array | None = None  # weights at which the sums are known
        self._last: PrimalSums | None = None
        self._known: list[list[Array]] = []  # curvatures of the rows in the last sums

    @classmethod
    def of_rows(
        cls, features: FeatureMap, loss: BandLoss, X: Any, y: Array, weight: Array, threads: int = 1
    ) -> UpdatedProblem:
        """Build the problem like `over_rows`, in fewer and larger blocks."""
        most = 4  # groups of at least 1,000 rows: each has a Hessian to be added
        step = max(1000, -(-X.shape[0] // most))
        return cls(features, loss, ThreadPasses.cut(X, y, weight, step, most, threads))

    def weigh(self, loss: BandLoss) -> None:
        """Replace the loss by another one."""
        factor = float(loss.stiffness.sum() / self._band.stiffness.sum())
        self._loss = self._band = loss
        self._at = None
        if self._last is not None:
            self._last = self._last.times(factor)
            self._known = [[c * c.dtype.type(factor) for c in group] for group in self._known]

    def sums(self, w: Array, curvature: str, *, double_precision: bool = False, hessian_stride: int = 1) -> PrimalSums:
        """Return `Query.sums` of all rows."""
        if curvature != "full":
            return super().sums(w, curvature, double_precision=double_precision, hessian_stride=hessian_stride)
        if self._last is None or w is not self._at:
            query = ChangesQuery(self._features, self._loss, w)
            found: Changes = self._passes.run(query, ChangesQuery.changes, of_groups=self._known)
            sums = found.sums
            if self._last is not None:
                sums = replace(sums, curvature=self._last.curvature + sums.curvature)
            self._at, self._last, self._known = w, sums, found.curvatures
        return self._last
