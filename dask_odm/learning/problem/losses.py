"""Losses: functions of a row's score and its target, weighed row by row. A fit minimises their sum plus ``½‖w‖²``.

A loss is convex. A problem needs its value, minus its derivative (the row's signed dual variable at the optimum), its
second derivative, and its slopes along a change of the scores. Since the problem sums over rows, a new loss needs no
new pass. A loss may also have compiled loops that compute scores, losses and sums in one go, as `BandLoss` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeVar, cast

import numpy as np

from dask_odm.learning.problem.linear_loops import double_sums, line_slopes, row_losses, small_sums
from dask_odm.learning.problem.nystrom_loops import span_sums
from dask_odm.learning.problem.odm import ODMSettings
from dask_odm.learning.problem.sparse_loops import band_slope
from dask_odm.learning.problem.sparse_loops import segment_gaps as band_gaps
from dask_odm.linalg.jit import frozen
from dask_odm.typing import Array

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


def as_fused(loss: Loss) -> BandLoss | None:
    """Return the loss if it has the compiled loops of `BandLoss`, `linear_sums` and `span_sums`, else None."""
    return cast(BandLoss, loss) if hasattr(loss, "span_sums") else None


@dataclass(frozen=True)
class BandLoss(Loss):
    """ODM's loss of a row: half the squared distance of its margin ``y · score`` to the band [1 − θ, 1 + θ].

    Distances above the band weigh υ times as much, and the whole is weighed by λ/(M(1−θ)²) and the row's weight.

    """

    settings: ODMSettings
    total_weight: float  # M, the sum of all rows' weights
    positive: int = 1  # label code of the positive class; others are negative, those below 0 (unknown) are dropped
    negative_weight: float = 1.0  # class weights, which multiply the rows' own weights
    positive_weight: float = 1.0

    def with_lam(self, lam: float) -> BandLoss:
        return replace(self, settings=replace(self.settings, lam=lam))

    def of_stiff_rows(self) -> BandLoss:
        return BandLoss(self.settings, self.settings.lam / self.settings.low**2, self.positive)

    @cached_property
    def stiffness(self) -> Array:
        """λ/(M(1−θ)²) times the class weight, of the negative and the positive class, (2,)."""
        unit = self.settings.lam / (self.total_weight * self.settings.low**2)
        return np.array([unit * self.negative_weight, unit * self.positive_weight])

    @cached_property
    def band(self) -> Array:
        """1 − θ, 1 + θ and υ, (3,)."""
        return np.array([self.settings.low, self.settings.high, self.settings.upsilon])

    def row_stiffness(self, y: Array, weight: Array) -> Array:
        negative, positive = self.stiffness
        unit = np.where(y == self.positive, positive, np.where(y < 0, 0.0, negative))
        return unit * weight if weight.size else unit

    def evaluate(self, scores: Array, y: Array, weight: Array) -> tuple[float, Array, Array]:
        dual = np.empty_like(scores)
        curvature = np.empty_like(scores)
        total = row_losses(scores, y, frozen(weight), self.positive, self.stiffness, self.band, dual, curvature)
        return total, dual, curvature

    def slopes(self, scores: Array, change: Array, y: Array, weight: Array, steps: Array) -> Array:
        return np.asarray(
            line_slopes(scores, change, y, frozen(weight), self.positive, self.stiffness, self.band, steps)
        )

    def slope(self, scores: Array, change: Array, y: Array, weight: Array, step: float) -> tuple[float, float]:
        """Return the first and second derivative by the step of the summed losses at ``scores + step · change``."""
        first, second = band_slope(scores, change, y, frozen(weight), self.positive, self.stiffness, self.band, step)
        return float(first), float(second)

    def segment_gaps(self, scores: Array, y: Array, weight: Array, start: Array, stop: Array, steps: Array) -> Array:
        """Return, for each of ``steps``, the sum of the rows' Fenchel gaps with dual variables on a segment.

        The dual variables at a step are ``start + step · (stop − start)``.
        """
        rows = scores, y, frozen(weight), self.positive, self.stiffness, self.band
        return np.asarray(band_gaps(*rows, start, stop, steps))

    def pack(self, curvature: Array, y: Array, weight: Array) -> Array:
        """Return two bits per row: whether it is outside the band, and whether it has the full stiffness."""
        full = curvature == self.row_stiffness(y, weight)
        return np.stack([np.packbits(curvature > 0), np.packbits(full)])

    def unpack(self, packed: Array, y: Array, weight: Array) -> Array:
        outside, full = np.unpackbits(packed, axis=1, count=len(y)).astype(bool)
        stiffness = self.row_stiffness(y, weight)
        return np.where(outside, np.where(full, stiffness, self.settings.upsilon * stiffness), 0.0)

    def linear_sums(
        self,
        X: Array,
        y: Array,
        weight: Array,
        w: Array,
        intercept: float,
        dual_image: Array,
        curvature: Array | None,
        hessian_stride: int,
    ) -> float:
        """Return the loss of C-contiguous rows ``X`` (n, d); add to ``dual_image`` and ``curvature``, of size d + 1.

        Last entries belong to a constant feature 1. The curvature is summed over one block of rows in
        ``hessian_stride`` and scaled up to all rows. Without ``curvature`` all is computed in float64.
        """
        rows = frozen(X), y, frozen(weight), w, intercept, self.positive, self.stiffness, self.band
        if curvature is None:
            return float(double_sums(*rows, dual_image))
        return float(small_sums(*rows, dual_image, curvature, hessian_stride))

    def span_sums(
        self, K: Array, y: Array, weight: Array, a: Array, dual_image: Array, curvature: Array, total: float
    ) -> float:
        """Return ``total`` plus the loss of scores ``K a``; add to ``dual_image`` (r,), set ``curvature`` (n,)."""
        rows = K, y, frozen(weight), a, self.positive, self.stiffness, self.band
        return float(span_sums(*rows, dual_image, curvature, total))
