"""Newton's method on the primal: one loop for linear models and for landmarks. It never sees the rows, only sums.

minimise    ``P(x) = ½ xᵀGx + Σ_i loss_i(x)``, G the identity or the landmarks' Gram matrix; convex losses
step        ``(G + Σ c_i k_i k_iᵀ) Δ = −∇P(x)`` with c the curvature of the rows' losses
line search if the full step does not lower P: exact but for rounding, in a few passes
stop        if ``½ ∇Pᵀ G⁻¹ ∇P ≤ tol · P``, which is the duality gap. A start at zero takes at least one step:
            with a loss of little weight the gap at zero is a small share of P, but zero classifies nothing

This module holds what both share: the loop, its records, the trial of a step, stopping, and resuming. The subclasses in
`dask_odm.methods.linear.solver` and `dask_odm.methods.landmark.solver` solve the system, choose the arithmetic to fall
back on when steps cease to help, and save their state. Other solvers search along a line over rows in memory, by
`slope_root` and `least_row_step`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from dask_odm.learning.problem.losses import RowLosses
from dask_odm.learning.solution import Record, StepLog, record_after
from dask_odm.typing import Array

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Iterate(Generic[S]):
    """A point of the iteration with its primal value, gap, gradient and sums."""

    x: Array  # weights, or coefficients of landmarks, (k,)
    Gx: Array  # gradient of ``½ xᵀGx``, (k,)
    primal: float  # P(x)
    gap: float  # ``½ ∇Pᵀ G⁻¹ ∇P / P``
    gradient: Array  # (k,)
    sums: S  # over the rows at x
    number: int = 0  # of the pass, counted like records

    @classmethod
    def of(
        cls, x: Array, Gx: Array, sums: Any, number: int = 0, whiten: Callable[[Array], Array] = lambda g: g
    ) -> Iterate[S]:
        """Build the iterate at ``x`` from its ``sums``; ``whiten(g)`` has the squared norm ``gᵀ G⁻¹ g``."""
        primal = 0.5 * float(x @ Gx) + sums.loss
        gradient = Gx - sums.dual_image
        white = whiten(gradient)
        gap = 0.5 * float(white @ white) / max(primal, np.finfo(float).tiny)
        return cls(x, Gx, primal, gap, gradient, sums, number)


@dataclass(frozen=True, eq=False)
class PrimalSolution(Generic[S]):
    """Result of a run: x (k,), P(x), its relative gap, one record per pass, the steps taken, and sums at x if kept."""

    x: Array
    primal: float
    gap: float
    converged: bool
    history: list[Record]
    steps: int
    sums: S | None = None

    def after(self, ahead: PrimalSolution[Any] | None) -> PrimalSolution[S]:
        """Return this solution with the history and steps of the run ``ahead``, from which it went on, included."""
        if ahead is None:
            return self
        history = [*ahead.history, *(record_after(ahead.history, record) for record in self.history)]
        return replace(self, history=history, steps=ahead.steps + self.steps)


@dataclass(eq=False)
class Newton(ABC, Generic[S]):
    """One run of Newton's method, to the relative duality gap ``tol``.

    Subclasses supply sums over the rows and the solution of the system.
    """

    tol: float
    log: StepLog
    steps: int = field(default=0, init=False)
    passes: int = field(default=0, init=False)
    stuck: bool = field(default=False, init=False)  # set when rounding leaves nothing to gain

    def take_up(self, history: list[Record], steps: int) -> None:
        """Resume a lost run from its ``history``. Its last pass is repeated."""
        self.passes = self.log.take_up(history)["passes"] - 1
        self.steps = steps

    def run(self, x: Array, max_iter: int, known: S | None = None) -> PrimalSolution[S]:
        """Minimise P from ``x`` in up to ``max_iter`` steps; ``known`` sums at ``x`` save the first pass."""
        at = self.at(x, known)
        if not self.steps:
            self.save(at)
        while self.steps < max_iter and not self.stuck:
            if (at.gap <= self.tol or self.doubts(at)) and (self.steps or at.x.any()):
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
        """Return the iterate at ``x`` after one pass, or none if its sums are known.

        Its record is added, and reported once the state that follows it is saved.
        """
        if known is None:
            self.passes += 1
        at = self.look(x, len(self.log.history), known)
        self.log.add(at.gap, at.primal, self.passes, hold=True)
        return at

    def tried(self, at: Iterate[S]) -> Iterate[S]:
        """Return the iterate after a full step, or after the step of least P if the full step does not lower P."""
        direction = self.direction(at)
        after = self.at(at.x + direction)
        slope = float(at.gradient @ direction)
        # Armijo's condition: a full step must reach a share of the decrease that the slope promises
        if after.primal > at.primal + 1e-4 * slope and not self.rounds(at, after, slope):
            after = self.at(at.x + self._length(at, direction, slope) * direction)
        return after

    def _length(self, at: Iterate[S], direction: Array, slope: float) -> float:
        """Return the step in [0, 1] of least P along ``direction``, exact but for rounding, in up to three passes.

        The derivative of P by the step is piecewise linear and increasing. ``slope`` is that at step 0, negative.
        """
        inner, norm = float(at.Gx @ direction), float(direction @ self.gram_times(direction))
        fractions = np.concatenate([np.geomspace(2.0**-12, 2.0**-4, 16, endpoint=False), np.arange(1, 17) / 16])
        low = (0.0, slope)
        high = (1.0, np.inf)
        for _ in range(3):
            steps = low[0] + (high[0] - low[0]) * fractions
            self.passes += 1
            found = inner + steps * norm + self.loss_slopes(at, direction, steps)
            above = int(np.argmax(found >= 0)) if found[-1] >= 0 else len(steps)
            if above:
                low = float(steps[above - 1]), float(found[above - 1])
            if above == len(steps):
                return low[0]
            high = float(steps[above]), float(found[above])
        return low[0] - low[1] * (high[0] - low[0]) / max(high[1] - low[1], np.finfo(float).tiny)

    @abstractmethod
    def look(self, x: Array, number: int, known: S | None) -> Iterate[S]:
        """Evaluate P and its gradient at ``x`` in one pass; ``number`` counts passes like records."""

    @abstractmethod
    def direction(self, at: Iterate[S]) -> Array:
        """Return the Newton step, as exactly as the gap requires."""

    @abstractmethod
    def gram_times(self, v: Array) -> Array:
        """Return ``G v``."""

    @abstractmethod
    def loss_slopes(self, at: Iterate[S], direction: Array, steps: Array) -> Array:
        """Return the derivatives of the losses by the step, at each of ``steps``, in one pass."""

    @abstractmethod
    def rounds(self, at: Iterate[S], after: Iterate[S], slope: float) -> bool:
        """Return whether a step that does not lower P differs from one that does only by the rounding of P."""

    @abstractmethod
    def accepted(self, at: Iterate[S], after: Iterate[S]) -> Iterate[S]:
        """Return the iterate to go on from; set ``stuck`` if there is nothing left to gain."""

    @abstractmethod
    def save(self, at: Iterate[S]) -> None:
        """Save the state after a step."""

    def confirmed(self, at: Iterate[S]) -> Iterate[S]:
        """Return the same x with a gap that is certain."""
        return at

    def doubts(self, at: Iterate[S]) -> bool:
        """Return whether a gap above ``tol`` is to be confirmed too."""
        return False


def slope_root(look: Callable[[float], tuple[float, float]], share: float) -> float:
    """Return the step in [0, 1] of least P by Newton's method between bounds; 0 if P does not fall there.

    ``look`` returns the derivative of P by the step at a step, and the second derivative. It is called up to 40 times
    between 0 and 1, until the derivative is at most a ``share`` of that at step 0.
    """
    if look(1.0)[0] <= 0:
        return 1.0
    slope, curvature = look(0.0)
    if not -slope > 0.0:
        return 0.0
    enough = share * -slope
    low, high = 0.0, 1.0
    step = 0.0
    for _ in range(40):
        low, high = (step, high) if slope < 0 else (low, step)
        ahead = step - slope / max(curvature, np.finfo(float).tiny)
        step = ahead if low < ahead < high else 0.5 * (low + high)
        slope, curvature = look(step)
        if abs(slope) <= enough:
            break
    return step


def least_row_step(losses: RowLosses, scores: Array, change: Array, inner: float, norm: float) -> float:
    """Return the step in [0, 1] of least P for rows in memory, to rounding.

    ``change`` (n,) is how scores change by a whole step along d, ``inner`` is ⟨w, d⟩ and ``norm`` ⟨d, d⟩.
    """
    margins = losses.y * scores
    moving = losses.y * change

    def look(step: float) -> tuple[float, float]:
        ahead = margins + step * moving
        slope = inner + step * norm - float(losses.dual_candidate(ahead) @ moving)
        return slope, norm + float(losses.curvature(ahead) @ moving**2)

    return slope_root(look, 1e-9)
