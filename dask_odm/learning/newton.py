"""Newton's method on the primal, one loop for linear models and for spans of landmarks: rows it never sees.

minimise    ``P(x) = ½ xᵀGx + Σ_i loss_i(x)``, G the identity or the landmarks' Gram matrix; convex losses
step        ``(G + Σ c_i k_i k_iᵀ) Δ = −∇P(x)`` with c the curvature of the rows' losses
line search where the full step does not lower P: exact but for rounding, from a few passes
stop        ``½ ∇Pᵀ G⁻¹ ∇P ≤ tol · P``, which is the duality gap; from zero not before the first step, since a loss
            that weighs little leaves a gap of little of P there, and zero classifies nothing

What a run shares is here: the loop, its records, the trial of a step, stopping, and going on from a state. What
differs is in `dask_odm.methods.linear.solver` and `dask_odm.methods.landmark.solver`: how the system is solved, which
arithmetic is left to fall back on where steps cease to help, and what a state holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from dask_odm.learning.line_search import least_step
from dask_odm.learning.step_log import Record, StepLog, record_after
from dask_odm.typing import Array

S = TypeVar("S")
DESCENT = 1e-4  # share of the decrease that the slope promises, which a full step must reach (Armijo's condition)


@dataclass(frozen=True, eq=False)
class Iterate(Generic[S]):
    """Where a solver is.

    Attributes
    ----------
    x : ndarray of shape (k,)
        Weights, or coefficients of landmarks.
    Gx : ndarray of shape (k,)
        The gradient of ``½ xᵀGx``.
    primal, gap : float
        P(x), and ``½ ∇Pᵀ G⁻¹ ∇P / P``.
    gradient : ndarray of shape (k,)
    sums : object
        Sums over the rows at x.
    number : int
        Of the pass, counted as records are.
    """

    x: Array
    Gx: Array
    primal: float
    gap: float
    gradient: Array
    sums: S
    number: int = 0

    @classmethod
    def of(
        cls, x: Array, Gx: Array, sums: Any, number: int = 0, whiten: Callable[[Array], Array] = lambda g: g
    ) -> Iterate[S]:
        """At ``x`` with ``sums``; ``whiten(g)`` has the squared norm ``gᵀ G⁻¹ g``."""
        primal = 0.5 * float(x @ Gx) + sums.loss
        gradient = Gx - sums.dual_image
        white = whiten(gradient)
        gap = 0.5 * float(white @ white) / max(primal, np.finfo(float).tiny)
        return cls(x, Gx, primal, gap, gradient, sums, number)


@dataclass(frozen=True, eq=False)
class PrimalSolution(Generic[S]):
    """x (k,), P(x), its relative gap, one record a pass of value and gradient, steps taken; sums at x, if kept."""

    x: Array
    primal: float
    gap: float
    converged: bool
    history: list[Record]
    steps: int
    sums: S | None = None

    def after(self, ahead: PrimalSolution[Any] | None) -> PrimalSolution[S]:
        """The same, found by a run that went on from the solution ``ahead``."""
        if ahead is None:
            return self
        history = [*ahead.history, *(record_after(ahead.history, record) for record in self.history)]
        return replace(self, history=history, steps=ahead.steps + self.steps)


class Newton(ABC, Generic[S]):
    """One run of Newton's method.

    Parameters
    ----------
    tol : float
        Relative duality gap to reach.
    log : StepLog
    """

    def __init__(self, tol: float, log: StepLog) -> None:
        self.tol = tol
        self.log = log
        self.steps = 0
        self.passes = 0
        self.stuck = False  # no digits are left to gain

    def take_up(self, history: list[Record], steps: int) -> None:
        """Go on where another run was lost; its last pass is done again."""
        self.passes = self.log.take_up(history)["passes"] - 1
        self.steps = steps

    def run(self, x: Array, max_iter: int, known: S | None = None) -> PrimalSolution[S]:
        """Minimise P from ``x`` by up to ``max_iter`` steps; ``known`` sums at ``x`` spare the first pass."""
        at = self.at(x, known)
        if not self.steps:
            self.save(at)
        while self.steps < max_iter and not self.stuck:
            if at.gap <= self.tol and (self.steps or at.x.any()):
                at = self.confirmed(at)
                if at.gap <= self.tol:
                    break
            self.log.settle()
            at = self.accepted(at, self.tried(at))
            self.steps += 1
            if not self.stuck:
                self.save(at)
        else:
            at = self.confirmed(at)
        self.log.settle()
        return PrimalSolution(at.x, at.primal, at.gap, at.gap <= self.tol, self.log.history, self.steps, at.sums)

    def at(self, x: Array, known: S | None = None) -> Iterate[S]:
        """One pass at ``x``, unless its sums are known; it is recorded, and told once what follows it is saved."""
        if known is None:
            self.passes += 1
        at = self.look(x, len(self.log.history), known)
        self.log.add(at.gap, at.primal, self.passes, hold=True)
        return at

    def tried(self, at: Iterate[S]) -> Iterate[S]:
        """A full step, or as much of it as P falls for."""
        direction = self.direction(at)
        after = self.at(at.x + direction)
        slope = float(at.gradient @ direction)
        if after.primal > at.primal + DESCENT * slope and not self.rounds(at, after, slope):
            after = self.at(at.x + self._length(at, direction, slope) * direction)
        return after

    def _length(self, at: Iterate[S], direction: Array, slope: float) -> float:
        """Where P is least along ``direction``."""
        inner, norm = float(at.Gx @ direction), float(direction @ self.gram_times(direction))

        def slopes(steps: Array) -> Array:
            self.passes += 1
            return inner + steps * norm + self.loss_slopes(at, direction, steps)

        return least_step(slopes, slope)

    @abstractmethod
    def look(self, x: Array, number: int, known: S | None) -> Iterate[S]:
        """The pass of that ``number``, counted as records are."""

    @abstractmethod
    def direction(self, at: Iterate[S]) -> Array:
        """The Newton step, as exactly as the gap asks for."""

    @abstractmethod
    def gram_times(self, v: Array) -> Array:
        """``G v``."""

    @abstractmethod
    def loss_slopes(self, at: Iterate[S], direction: Array, steps: Array) -> Array:
        """Derivatives by step of the losses: one pass."""

    @abstractmethod
    def rounds(self, at: Iterate[S], after: Iterate[S], slope: float) -> bool:
        """Whether a step that does not lower P is as good as one, P being rounded."""

    @abstractmethod
    def accepted(self, at: Iterate[S], after: Iterate[S]) -> Iterate[S]:
        """Which of the two to go on from; sets ``stuck`` where there is no point in it."""

    @abstractmethod
    def save(self, at: Iterate[S]) -> None:
        """Hand on the state after a step."""

    def confirmed(self, at: Iterate[S]) -> Iterate[S]:
        """The same x with a gap that is certain."""
        return at
