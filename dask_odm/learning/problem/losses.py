"""Losses: functions of a row's score and its target, weighed row by row. A fit minimises their sum plus ``½‖w‖²``.

A loss is convex. A problem needs its value, minus its derivative (the row's signed dual variable at the optimum), its
second derivative, and its slopes along a change of the scores. Since the problem sums over rows, a new loss needs no
new pass. For `BandLoss` alone, compiled loops compute scores, losses and sums in one go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from scipy.sparse import issparse

from dask_odm.learning.problem.linear_loops import line_slopes, row_losses
from dask_odm.learning.problem.odm import ODMSettings
from dask_odm.linalg.jit import frozen
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.typing import Array

if TYPE_CHECKING:
    from dask_odm.models.base import Model

L = TypeVar("L", bound="Loss")


class Loss(Protocol):
    """Protocol of a loss. ``weight`` has one weight per row, or is empty for 1.

    A loss that inherits from it need not define `slopes`, `pack` and `unpack`.
    """

    def with_lam(self: L, lam: float) -> L:
        """Return the same loss, weighed by another λ."""
        ...

    def of_stiff_rows(self: L) -> L:
        """Return the same loss for rows whose weights already are their `row_stiffness`."""
        ...

    def evaluate(self, scores: Array, y: Array, weight: Array) -> tuple[float, Array, Array]:
        """Return the summed losses at ``scores`` (n,), and minus the first and the second derivative of each, (n,)."""
        ...

    def slopes(self, scores: Array, change: Array, y: Array, weight: Array, steps: Array) -> Array:
        """Return the derivatives by the step of the summed losses at ``scores + step · change``, for all ``steps``."""
        here = scores.astype(np.float64)
        ahead = change.astype(np.float64)
        return np.array([-float(self.evaluate(here + step * ahead, y, weight)[1] @ ahead) for step in steps])

    def row_stiffness(self, y: Array, weight: Array) -> Array:
        """Return the largest second derivative of every row's loss, float64 (n,)."""
        ...

    def pack(self, curvature: Array, y: Array, weight: Array) -> Array:
        """Return the second derivatives (n,) in a form that is small to send if they take few values."""
        return curvature

    def unpack(self, packed: Array, y: Array, weight: Array) -> Array:
        """Return the argument of `pack`, to the bit."""
        return packed


@dataclass(frozen=True)
class BandLoss(Loss):
    """ODM's loss of a row: half the squared distance of its margin ``y · score`` to the band [1 − θ, 1 + θ].

    Distances above the band weigh υ times as much, and the whole is weighed by λ/(M(1−θ)²) and the row's weight. Code 1
    is the positive class's, another from 0 on the other's; a row with a negative code is dropped.
    """

    settings: ODMSettings
    total_weight: float  # M, the sum of all rows' weights
    negative_weight: float = 1.0  # class weights, which multiply the rows' own weights
    positive_weight: float = 1.0

    def with_lam(self, lam: float) -> BandLoss:
        return replace(self, settings=replace(self.settings, lam=lam))

    def of_stiff_rows(self) -> BandLoss:
        return BandLoss(self.settings, self.settings.lam / self.settings.low**2)

    @cached_property
    def stiffness(self) -> Array:
        """λ/(M(1−θ)²) times the class weight, of the negative and the positive class, (2,)."""
        unit = self.settings.lam / (self.total_weight * self.settings.low**2)
        return np.array([unit * self.negative_weight, unit * self.positive_weight])

    @cached_property
    def band(self) -> Array:
        """1 − θ, 1 + θ and υ, (3,)."""
        return np.array([self.settings.low, self.settings.high, self.settings.upsilon])

    @cached_property
    def terms(self) -> Array:
        """Stiffness of either class, and the band, (5,), as compiled loops take them."""
        return np.concatenate([self.stiffness, self.band])

    def row_stiffness(self, y: Array, weight: Array) -> Array:
        negative, positive = self.stiffness
        unit = np.where(y == 1, positive, np.where(y < 0, 0.0, negative))
        return unit * weight if weight.size else unit

    def evaluate(self, scores: Array, y: Array, weight: Array) -> tuple[float, Array, Array]:
        dual = np.empty_like(scores)
        curvature = np.empty_like(scores)
        total = row_losses(scores, y, frozen(weight), self.terms, dual, curvature)
        return total, dual, curvature

    def slopes(self, scores: Array, change: Array, y: Array, weight: Array, steps: Array) -> Array:
        return np.asarray(line_slopes(scores, change, y, frozen(weight), self.terms, steps))

    def pack(self, curvature: Array, y: Array, weight: Array) -> Array:
        """Return two bits per row: whether it is outside the band, and whether it has the full stiffness."""
        full = curvature == self.row_stiffness(y, weight)
        return np.stack([np.packbits(curvature > 0), np.packbits(full)])

    def unpack(self, packed: Array, y: Array, weight: Array) -> Array:
        outside, full = np.unpackbits(packed, axis=1, count=len(y)).astype(bool)
        stiffness = self.row_stiffness(y, weight)
        return np.where(outside, np.where(full, stiffness, self.settings.upsilon * stiffness), 0.0)


@dataclass(frozen=True, eq=False)
class PredictedLoss:
    """Losses of rows at the values that ``model``, of one output, predicts: a query for a pass over all rows."""

    model: Model
    loss: Loss

    def total(self, blocks: Iterable[RowBlock]) -> float:
        """Return the sum of the losses of the blocks."""
        total = 0.0
        for block in blocks:
            X = block.X if issparse(block.X) else np.ascontiguousarray(block.X)
            scores = self.model.values(X)[:, 0].astype(np.float64)
            total += self.loss.evaluate(scores, block.y, block.weight)[0]
        return total
