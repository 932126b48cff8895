"""Losses of rows, weighed row by row; the optimal margin distribution machine, its dual, and duality gaps.

A fit minimises the sum of the losses plus ``½‖w‖²``. A loss is a convex function of a row's score and its target. A
problem needs its value, minus its derivative (the row's signed dual variable at the optimum), its second derivative,
and its slopes along a change of the scores. Since the problem sums over rows, a new loss needs no new pass. For
`BandLoss` itself, compiled loops compute scores, losses and sums in one go.

ODM's source: *Scalable Optimal Margin Distribution Machine* (IJCAI-23). The papers' dual has two variables per row,
ζ, β ≥ 0. At the optimum ζβ = 0, so one signed variable ``s = ζ − β`` says the same with half the work::

    primal  P(w) = ½‖w‖² + Σ_i [ (1−θ−m_i)₊² / (2ρ_i) + υ (m_i−1−θ)₊² / (2ρ_i) ],   m_i = y_i w·φ(x_i)
    dual    D(s) = (1−θ) Σ s₊ − (1+θ) Σ s₋ − ½ sᵀQs − ½ Σ ρ_i (s₊² + s₋²/υ)
    ρ_i = M (1−θ)² / (λ c_i),   c_i row weights,   M = Σ c_i,   Q_ij = y_i y_j κ(x_i, x_j)

P ≥ D for every pair. For the model ``f = Σ_i y_i s_i κ(x_i, ·)`` the difference is a sum of non-negative terms, one per
row (Fenchel and Young). Computed in this form, rounding cannot make it negative. Other lower bounds of P hold for every
model, whoever found it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from scipy.linalg import solve_triangular
from scipy.sparse import issparse

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.problem.band import line_slopes, row_losses
from dask_odm.learning.problem.products import Products, quadratic
from dask_odm.linalg.jit import frozen
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.typing import Array

if TYPE_CHECKING:
    from dask_odm.models.model import Model

L = TypeVar("L", bound="Loss")


@dataclass(frozen=True)
class ODMSettings:
    """λ > 0 weighs the loss, θ in [0, 1) is half the band's width, υ in [0, 1] weighs margins above the band."""

    lam: float
    upsilon: float
    theta: float

    @property
    def low(self) -> float:
        """Lower end of the band of margins that cost nothing, 1 − θ."""
        return 1.0 - self.theta

    @property
    def high(self) -> float:
        """Upper end of the band, 1 + θ."""
        return 1.0 + self.theta

    @property
    def stiffness(self) -> float:
        """M times the second derivative of the loss of a row of weight 1 below the band, λ/(1−θ)²."""
        return self.lam / self.low**2

    def outside(self, margins: Array) -> tuple[Array, Array]:
        """Return how far ``margins`` are below the band, and how far above it."""
        return np.maximum(self.low - margins, 0.0), np.maximum(margins - self.high, 0.0)


@dataclass(frozen=True)
class ResidualSettings(ODMSettings):
    """λ > 0 weighs the loss, θ ≥ 0 is half the width of the band of residuals around 0, υ ≥ 0 weighs those above it.

    A residual here is a score minus its target, so that υ weighs scores that are too high.
    """

    @property
    def low(self) -> float:
        return -self.theta

    @property
    def high(self) -> float:
        return self.theta

    @property
    def stiffness(self) -> float:
        """M times the second derivative of the loss of a row of weight 1 below the band, λ."""
        return self.lam


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

    Distances above the band weigh υ times as much, and the whole is weighed by λ/(M(1−θ)²) and the row's weight. So its
    second derivative is 0, or has one value below the band and υ times that above it. Code 1 is the positive class's,
    another from 0 on the other's; a row with a negative code is dropped.
    """

    settings: ODMSettings
    total_weight: float  # M, the sum of all rows' weights
    negative_weight: float = 1.0  # class weights, which multiply the rows' own weights
    positive_weight: float = 1.0

    def with_lam(self, lam: float) -> Any:
        return replace(self, settings=replace(self.settings, lam=lam))

    def of_stiff_rows(self) -> Any:
        return type(self)(self.settings, self.settings.stiffness * self._most)

    @property
    def _most(self) -> float:
        """The larger of the weights of either side."""
        return max(1.0, self.settings.upsilon)

    @cached_property
    def stiffness(self) -> Array:
        """Second derivative below the band of a row of weight 1 of the negative and the positive class, (2,)."""
        unit = self.settings.stiffness / self.total_weight
        return np.array([unit * self.negative_weight, unit * self.positive_weight])

    @cached_property
    def band(self) -> Array:
        """Ends of the band and υ, (3,)."""
        return np.array([self.settings.low, self.settings.high, self.settings.upsilon])

    @cached_property
    def terms(self) -> Array:
        """Stiffness of either class, and the band, (5,), as compiled loops take them."""
        return np.concatenate([self.stiffness, self.band])

    def stiffness_below(self, y: Array, weight: Array) -> Array:
        """Return the second derivative of every row's loss below the band, float64 (n,)."""
        negative, positive = self.stiffness
        unit = np.where(y == 1, positive, np.where(y < 0, 0.0, negative))
        return unit * weight if weight.size else unit

    def row_stiffness(self, y: Array, weight: Array) -> Array:
        found = self.stiffness_below(y, weight)
        found *= self._most
        return found

    def evaluate(self, scores: Array, y: Array, weight: Array) -> tuple[float, Array, Array]:
        dual = np.empty_like(scores)
        curvature = np.empty_like(scores)
        return row_losses(*self._coded(scores, y), frozen(weight), self.terms, dual, curvature), dual, curvature

    def slopes(self, scores: Array, change: Array, y: Array, weight: Array, steps: Array) -> Array:
        scores, codes = self._coded(scores, y)
        return np.asarray(line_slopes(scores, change, codes, frozen(weight), self.terms, steps))

    def _coded(self, scores: Array, y: Array) -> tuple[Array, Array]:
        """Return the scores and codes of classes that compiled loops take for rows."""
        return scores, y

    def pack(self, curvature: Array, y: Array, weight: Array) -> Array:
        """Return two bits per row: whether it is outside the band, and whether it is below."""
        below = curvature == self.stiffness_below(y, weight)
        return np.stack([np.packbits(curvature > 0), np.packbits(below)])

    def unpack(self, packed: Array, y: Array, weight: Array) -> Array:
        outside, below = np.unpackbits(packed, axis=1, count=len(y)).astype(bool)
        stiffness = self.stiffness_below(y, weight)
        return np.where(outside, np.where(below, stiffness, self.settings.upsilon * stiffness), 0.0)


class ResidualLoss(BandLoss):
    """The loss of a row with a real target: half the squared distance of its residual to the band [−θ, θ].

    Distances above the band weigh υ times as much, and the whole is weighed by λ/M and the row's weight. It is ODM's
    loss of a positive row, at the row's score less its target. Settings are `ResidualSettings`.
    """

    def stiffness_below(self, y: Array, weight: Array) -> Array:
        return self.stiffness[0] * weight if weight.size else np.full(len(y), self.stiffness[0])

    def _coded(self, scores: Array, y: Array) -> tuple[Array, Array]:
        """Return residuals, and the code of the positive class for each."""
        return (scores - y).astype(scores.dtype, copy=False), np.ones(len(scores), np.int8)


@dataclass(frozen=True, eq=False)
class PredictedLoss:
    """Losses of rows at the values that ``model``, of one output, predicts: a query for a pass over all rows."""

    model: Model
    loss: Loss
    threads: int = 1

    def total(self, blocks: Iterable[RowBlock]) -> float:
        """Return the sum of the losses of the blocks."""
        total = 0.0
        for block in blocks:
            X = block.X if issparse(block.X) else np.ascontiguousarray(block.X)
            scores = self.model.values(X, self.threads)[:, 0].astype(np.float64)
            total += self.loss.evaluate(scores, block.y, block.weight)[0]
        return total


@dataclass(frozen=True, eq=False)
class RowLosses:
    """The losses of the rows of one partition, as functions of their margins.

    Labels ``y`` (n,) are −1.0 or 1.0. The sum of the row weights c_i > 0, ``weight`` (n,), is the M (or m_k) that
    scales the loss. Of real ``targets`` (n,), all labels are 1.0, margins are scores, and every row has its own band,
    around its target.
    """

    settings: ODMSettings
    y: Array
    weight: Array
    targets: Array | None = None

    def at(self, index: Array) -> RowLosses:
        """Return the losses of some of the rows, which are then all."""
        targets = None if self.targets is None else self.targets[index]
        return replace(self, y=self.y[index], weight=self.weight[index], targets=targets)

    @cached_property
    def low(self) -> Array | float:
        """Lower end of the band of margins that cost nothing, of all rows or (n,)."""
        return self.settings.low if self.targets is None else self.targets + self.settings.low

    @cached_property
    def high(self) -> Array | float:
        """Upper end of the band, of all rows or (n,)."""
        return self.settings.high if self.targets is None else self.targets + self.settings.high

    def aims(self, margins: Array) -> Array:
        """Return the end of the band that is nearer to each margin, (n,), to which its square pulls it."""
        return np.where(2.0 * margins < self.low + self.high, self.low, self.high)

    def _outside(self, margins: Array) -> tuple[Array, Array]:
        """Return how far margins are below the band, and how far above it."""
        return np.maximum(self.low - margins, 0.0), np.maximum(margins - self.high, 0.0)

    @cached_property
    def total_weight(self) -> float:
        return float(self.weight.sum())

    @cached_property
    def stiffness_low(self) -> Array:
        """1/ρ_ζ of every row: second derivative of the loss below the band."""
        return self.weight * (self.settings.stiffness / self.total_weight)

    @cached_property
    def stiffness_high(self) -> Array:
        """1/ρ_β of every row: second derivative of the loss above the band; zeros if υ = 0."""
        return self.settings.upsilon * self.stiffness_low

    def losses(self, margins: Array) -> Array:
        """Return the loss of every row at its margin, (n,)."""
        below, above = self._outside(margins)
        return 0.5 * (self.stiffness_low * below**2 + self.stiffness_high * above**2)

    def primal(self, a: Array, scores: Array) -> float:
        """Return P for coefficients ``a`` (n,) of the rows and their scores (n,)."""
        return 0.5 * float(a @ scores) + float(self.losses(self.y * scores).sum())

    def dual_candidate(self, margins: Array) -> Array:
        """Return the s that the optimality conditions give at ``margins``: minus the derivative of the loss."""
        below, above = self._outside(margins)
        return self.stiffness_low * below - self.stiffness_high * above

    def curvature(self, margins: Array) -> Array:
        """Return the second derivative of every row's loss: 1/ρ of its side, 0 within the band."""
        low = np.where(margins < self.low, self.stiffness_low, 0.0)
        return np.where(margins > self.high, self.stiffness_high, low)

    def dual_squares(self, s: Array) -> Array:
        """Return the part of every row's conjugate that is quadratic in s: ρ s²/2 by side."""
        return 0.5 * np.maximum(s, 0.0) ** 2 / self.stiffness_low + self._down(np.maximum(-s, 0.0))

    def row_gaps(self, s: Array, margins: Array) -> Array:
        """Return non-negative terms, (n,), whose sum is P − D if the margins are those of the model of s."""
        below = self.low - margins
        above = margins - self.high
        up = np.maximum(s, 0.0)
        down = np.maximum(-s, 0.0)
        rho = 1.0 / self.stiffness_low
        lower = np.where(
            below > 0,
            0.5 * self.stiffness_low * (below - up * rho) ** 2,
            0.5 * rho * up**2 - up * np.minimum(below, 0.0),
        )
        stiffness = np.where(self.stiffness_high > 0, self.stiffness_high, 1.0)
        hit = np.where(
            self.stiffness_high > 0,
            0.5 * stiffness * (np.maximum(above, 0.0) - down / stiffness) ** 2,
            self._down(down),
        )
        upper = np.where(above > 0, hit, self._down(down) - down * np.minimum(above, 0.0))
        return lower + upper

    def _down(self, down: Array) -> Array:
        """Return ρ_β s₋²/2 of every row; if υ = 0 it is infinite unless s₋ = 0."""
        positive = self.stiffness_high > 0
        inner = 0.5 * down**2 / np.where(positive, self.stiffness_high, 1.0)
        return np.where(positive, inner, np.where(down > 0, np.inf, 0.0))


@dataclass(frozen=True)
class Point:
    """Values at one model: primal, dual and their relative gap (P − D)/P."""

    primal: float
    dual: float
    gap: float


def relative_gap(primal: float, left: float, square: float) -> float:
    """Return ``left``/P, which is P − D of a model with ``‖w‖²`` = ``square``.

    It is infinite if the square is negative by more than rounding of P: the kernel matrix is then not positive
    semidefinite, and D bounds nothing.
    """
    if not square >= -1e-8 * abs(primal):
        return math.inf
    return max(0.0, left) / max(primal, np.finfo(float).tiny)


def scaled_dual(losses: RowLosses, s: Array, square: float) -> float:
    """Return the largest D(c s) over c ≥ 0, a lower bound of P everywhere.

    ``s`` (n,) are dual variables, not negative if υ = 0. ``square`` is ``sᵀQs``; a larger one gives a looser bound.
    """
    linear = float((losses.low * np.maximum(s, 0.0)).sum() - (losses.high * np.maximum(-s, 0.0)).sum())
    curved = square + 2.0 * float(losses.dual_squares(s).sum())
    return 0.5 * linear**2 / curved if linear > 0 and curved > 0 else 0.0


def certified_gap(losses: RowLosses, margins: Array, square_norm: float, products: Products) -> Point:
    """Return P of a model, a lower bound of every model's P, and their relative gap, for the kernel itself in float64.

    ``margins`` (n,) are ``y f(x)`` on all rows, from kernel values in float64; ``square_norm`` is ``‖w‖²``. The dual
    variables are those that the optimality conditions give at the margins. Takes one product in double precision, over
    the rows outside the band.
    """
    s = losses.dual_candidate(margins)
    support = np.flatnonzero(s)
    square = quadratic(products, support, (losses.y * s)[support])
    return _point(losses, margins, square_norm, s, square)


def own_gap(losses: RowLosses, coefficients: Array, scores: Array) -> Point:
    """Return P, D and gap of a model whose dual variables are its own coefficients.

    ``coefficients`` (n,) are ``y s``; ``scores`` (n,) are ``K (y s)``, from kernel values in float64.
    """
    margins = losses.y * scores
    primal = losses.primal(coefficients, scores)
    left = float(losses.row_gaps(losses.y * coefficients, margins).sum())
    return Point(primal, primal - left, relative_gap(primal, left, float(coefficients @ scores)))


def span_gap(
    losses: RowLosses, margins: Array, square_norm: float, dual_image: Array, landmarks: Landmarks, residual: Array
) -> Point:
    """Return what `certified_gap` does for a Nyström model, with ``sᵀQs`` bounded by the landmarks' residual of κ.

    With ``K̂ = K_nr G⁻¹ K_rn`` the matrix ``K − K̂`` is positive semi-definite, so its entries are at most ``√(r_i
    r_j)`` of its diagonal r: ``sᵀQs ≤ ‖L⁻¹v‖² + (Σ |s_i| √r_i)²``. The bound is rigorous, and loose unless the residual
    is tiny.

    ``dual_image`` (r,) is ``v = K_rn (y s)`` with s the dual variables at the margins; ``residual`` (n,) is the
    landmarks' `Landmarks.residual`.
    """
    s = losses.dual_candidate(margins)
    white = solve_triangular(landmarks.factor, dual_image, lower=True)
    square = float(white @ white) + float(np.abs(s) @ np.sqrt(residual)) ** 2
    return _point(losses, margins, square_norm, s, square)


def _point(losses: RowLosses, margins: Array, square_norm: float, s: Array, square: float) -> Point:
    primal = 0.5 * square_norm + float(losses.losses(margins).sum())
    bound = scaled_dual(losses, s, square)
    return Point(primal, bound, relative_gap(primal, primal - bound, min(square_norm, square)))
