"""The optimal margin distribution machine: primal and dual value, optimality conditions, duality gap.

Source: *Scalable Optimal Margin Distribution Machine* (IJCAI-23). The papers' dual has two variables per row,
ζ, β ≥ 0. At the optimum ζβ = 0, so one signed variable ``s = ζ − β`` says the same with half the work::

    primal  P(w) = ½‖w‖² + Σ_i [ (1−θ−m_i)₊² / (2ρ_i) + υ (m_i−1−θ)₊² / (2ρ_i) ],   m_i = y_i w·φ(x_i)
    dual    D(s) = (1−θ) Σ s₊ − (1+θ) Σ s₋ − ½ sᵀQs − ½ Σ ρ_i (s₊² + s₋²/υ)
    ρ_i = M (1−θ)² / (λ c_i),   c_i row weights,   M = Σ c_i,   Q_ij = y_i y_j κ(x_i, x_j)

P ≥ D for every pair. For the model ``f = Σ_i y_i s_i κ(x_i, ·)`` the difference is a sum of non-negative terms, one per
row (Fenchel and Young). Computed in this form, rounding cannot make it negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dask_odm.typing import Array


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


@dataclass(frozen=True, eq=False)
class RowLosses:
    """The losses of the rows of one partition, as functions of their margins.

    Labels ``y`` (n,) are −1.0 or 1.0. The sum of the row weights c_i > 0, ``weight`` (n,), is the M (or m_k) that
    scales the loss.
    """

    settings: ODMSettings
    y: Array
    weight: Array

    @cached_property
    def total_weight(self) -> float:
        return float(self.weight.sum())

    @cached_property
    def stiffness_low(self) -> Array:
        """1/ρ_ζ of every row: second derivative of the loss below the band."""
        s = self.settings
        return self.weight * (s.lam / (self.total_weight * s.low**2))

    @cached_property
    def stiffness_high(self) -> Array:
        """1/ρ_β of every row: second derivative of the loss above the band; zeros if υ = 0."""
        return self.settings.upsilon * self.stiffness_low

    def losses(self, margins: Array) -> Array:
        """Return the loss of every row at its margin, (n,)."""
        below = np.maximum(self.settings.low - margins, 0.0)
        above = np.maximum(margins - self.settings.high, 0.0)
        return 0.5 * (self.stiffness_low * below**2 + self.stiffness_high * above**2)

    def primal(self, a: Array, scores: Array) -> float:
        """Return P for coefficients ``a`` (n,) of the rows and their scores (n,)."""
        return 0.5 * float(a @ scores) + float(self.losses(self.y * scores).sum())

    def dual_candidate(self, margins: Array) -> Array:
        """Return the s that the optimality conditions give at ``margins``: minus the derivative of the loss."""
        below = np.maximum(self.settings.low - margins, 0.0)
        above = np.maximum(margins - self.settings.high, 0.0)
        return self.stiffness_low * below - self.stiffness_high * above

    def curvature(self, margins: Array) -> Array:
        """Return the second derivative of every row's loss: 1/ρ of its side, 0 within the band."""
        low = np.where(margins < self.settings.low, self.stiffness_low, 0.0)
        return np.where(margins > self.settings.high, self.stiffness_high, low)

    def dual_squares(self, s: Array) -> Array:
        """Return the part of every row's conjugate that is quadratic in s: ρ s²/2 by side."""
        return 0.5 * np.maximum(s, 0.0) ** 2 / self.stiffness_low + self._down(np.maximum(-s, 0.0))

    def row_gaps(self, s: Array, margins: Array) -> Array:
        """Return non-negative terms, (n,), whose sum is P − D if the margins are those of the model of s."""
        below = self.settings.low - margins
        above = margins - self.settings.high
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
