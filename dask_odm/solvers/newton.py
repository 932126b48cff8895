"""Semismooth Newton on the primal of the linear kernel, for rows it never sees: one pass over them a step.

minimise    ``P(w) = ½‖w‖² + Σ_i loss_i(y_i w·φ_i)``, piecewise quadratic
step        ``(I + Σ c_i φ_i φ_iᵀ) Δ = −∇P(w)`` with c the curvature of the rows' losses: by Cholesky up to
            `EXACT_FEATURES` weights, by conjugate gradients with a diagonal preconditioner beyond;
            of very many rows the Hessian is that of a sample, value and gradient are of all (subsampled Newton:
            Roosta-Khorasani and Mahoney, 2019); where that is too coarse, of all rows from there on
line search where the full step does not lower P: exact but for rounding, from a few passes
stop        ``½‖∇P(w)‖² ≤ tol · P(w)``, which is the duality gap, summed in float64
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from dask_odm.problems.primal import LinearProblem, PrimalSums
from dask_odm.problems.primal_arrays import EXACT_FEATURES
from dask_odm.solvers.line_search import least_step
from dask_odm.typing import Array

MOST_PRODUCTS = 500  # conjugate gradients of one step
FORCING = 1e-2  # most of the gradient that conjugate gradients may leave
SLOW = 0.25
CREEP = 0.1  # a step that lowers P by less, and the gap hardly, is of a Hessian or a float too coarse


@dataclass(frozen=True)
class Iterate:
    """Where the solver is.

    Attributes
    ----------
    w : ndarray of shape (k,)
    primal, gap : float
        P(w), and ½‖∇P(w)‖²/P(w).
    gradient : ndarray of shape (k,)
    sums : PrimalSums
    """

    w: Array
    primal: float
    gap: float
    gradient: Array
    sums: PrimalSums

    @classmethod
    def of(cls, w: Array, sums: PrimalSums) -> Iterate:
        primal, gradient = 0.5 * float(w @ w) + sums.loss, w - sums.pull
        gap = 0.5 * float(gradient @ gradient) / max(primal, np.finfo(float).tiny)
        return cls(w, primal, gap, gradient, sums)

    @property
    def curvature(self) -> Array:
        return self.sums.curvature


@dataclass(frozen=True)
class LinearSolution:
    """Weights w (k,), P(w), its relative duality gap, records, steps or epochs taken, and the sums at w, if kept."""

    w: Array
    primal: float
    gap: float
    converged: bool
    history: list[dict[str, Any]]
    steps: int
    sums: PrimalSums | None = None


@dataclass(frozen=True)
class NewtonState:
    """Where a run stands after a step: all that it takes to go on from there.

    Attributes
    ----------
    w : ndarray of shape (k,)
    precise : bool
        Whether passes are in float64 by now.
    every : int
        Of how many rows one is taken for the Hessian.
    steps : int
    history : list of dict
    """

    w: Array
    precise: bool
    every: int
    steps: int
    history: list[dict[str, Any]]


Step = Callable[[dict[str, Any]], object]
Save = Callable[[NewtonState], object]


def solve_newton(
    problem: LinearProblem,
    w: Array,
    *,
    tol: float,
    max_iter: int,
    exact: bool | None = None,
    precise: bool = False,
    start: PrimalSums | None = None,
    resume: NewtonState | None = None,
    on_step: Step = lambda record: None,
    on_state: Save = lambda state: None,
) -> LinearSolution:
    """Minimise P from ``w`` (k,).

    Parameters
    ----------
    problem : LinearProblem
    w : ndarray of shape (k,)
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most steps.
    exact : bool, optional
        Steps by Cholesky of the Hessian; by default up to `EXACT_FEATURES` weights.
    precise : bool
        Compute all passes in float64; else only those that float32 has not digits enough for.
    start : PrimalSums, optional
        The sums at ``w`` with the curvature that is needed, where they are known: spares the first pass.
    resume : NewtonState, optional
        Go on from there, instead of ``w``.
    on_step : callable
        Told of every step: iteration, gap, objective, passes so far, seconds so far.
    on_state : callable
        Given the state after every step that is kept.
    """
    exact = problem.k <= EXACT_FEATURES if exact is None else exact
    newton = _Newton(problem, exact, tol, precise, on_step, on_state)
    if resume is not None:
        w = newton.take_up(resume)
    return newton.run(w, max_iter, start)


class _Newton:
    def __init__(
        self, problem: LinearProblem, exact: bool, tol: float, precise: bool, on_step: Step, on_state: Save
    ) -> None:
        self._problem, self._exact, self._tol, self._on_step = problem, exact, tol, on_step
        self._on_state = on_state
        self._precise = precise
        self._every = 1 if precise else problem.every
        self._steps = 0
        self._stuck = False  # float64 has no more digits to give
        self._passes = 0
        self._began = time.perf_counter()
        self._history: list[dict[str, Any]] = []

    def take_up(self, state: NewtonState) -> Array:
        """Go on where another run was lost; its last pass is done again."""
        *self._history, last = state.history
        self._passes, self._began = last["passes"] - 1, self._began - last["seconds"]
        self._precise, self._every, self._steps = state.precise, state.every, state.steps
        return state.w

    def run(self, w: Array, max_iter: int, start: PrimalSums | None) -> LinearSolution:
        at = self._at(w, start)
        while self._steps < max_iter and not self._stuck:
            if at.gap <= self._tol:
                at = self._certified(at)
                if at.gap <= self._tol:
                    break
            at = self._step(at)
            self._steps += 1
            self._on_state(NewtonState(at.w, self._precise, self._every, self._steps, self._history))
        else:
            at = self._certified(at)
        return LinearSolution(at.w, at.primal, at.gap, at.gap <= self._tol, self._history, self._steps, at.sums)

    def _at(self, w: Array, known: PrimalSums | None = None) -> Iterate:
        """One pass at ``w``, unless its sums are known; it is remembered as a step."""
        if known is None:
            self._passes += 1
            kind = "full" if self._exact else "diagonal"
            known = self._problem.sums(w, kind, precise=self._precise, every=self._every)
        at = Iterate.of(w, known)
        self._note(at)
        return at

    def _note(self, at: Iterate) -> None:
        record = {
            "iteration": len(self._history),
            "gap": at.gap,
            "objective": at.primal,
            "passes": self._passes,
            "seconds": time.perf_counter() - self._began,
        }
        self._history.append(record)
        self._on_step(record)

    def _certified(self, at: Iterate) -> Iterate:
        """The same w with sums in float64; where that gap is not small enough, all that follows is in float64."""
        if self._precise:
            return at
        self._passes += 1
        exact = Iterate.of(at.w, self._problem.sums(at.w, "none", precise=True, every=1))
        self._history[-1] |= {"gap": exact.gap, "objective": exact.primal, "passes": self._passes}
        if exact.gap > self._tol:
            self._precise, self._every = True, 1
        return Iterate.of(at.w, replace(exact.sums, curvature=at.curvature))

    def _step(self, at: Iterate) -> Iterate:
        direction = self._direction(at)
        after = self._at(at.w + direction)
        slope = float(at.gradient @ direction)
        if after.primal > at.primal + 1e-4 * slope and not _is_rounding(at, slope):
            after = self._at(at.w + self._length(at, direction) * direction)
        kept = after if after.primal <= at.primal or after.gap < at.gap else at
        still = after.gap > SLOW * at.gap and abs(after.primal - at.primal) < CREEP * at.primal
        if kept is at or (still and after.gap > self._tol):
            if self._every > 1:
                self._every = 1  # a sample of the rows has too few of the active ones: the same w again, of all
                return self._at(kept.w)
            if not self._precise:
                self._precise = True  # float32 has no more digits to give: the same w again, in float64
                return self._at(kept.w)
        self._stuck = kept is at
        return kept

    def _direction(self, at: Iterate) -> Array:
        if not self._exact:
            return self._conjugate_gradients(at)
        hessian = at.curvature.copy()
        hessian.flat[:: len(hessian) + 1] += 1.0
        return -_solve_positive(hessian, at.gradient)

    def _conjugate_gradients(self, at: Iterate) -> Array:
        """Solve for the step until the residual is as small a part of the gradient as the gap suggests."""
        inverse = 1.0 / (1.0 + at.curvature)
        x, r = np.zeros_like(at.w), -at.gradient
        z = inverse * r
        p, rz = z, float(r @ z)
        enough = min(FORCING, np.sqrt(at.gap)) ** 2 * rz
        for _ in range(MOST_PRODUCTS):
            if rz <= enough:
                break
            self._passes += 1
            Ap = p + self._problem.product(at.w, p, precise=self._precise)
            step = rz / float(p @ Ap)
            x, r = x + step * p, r - step * Ap
            z = inverse * r
            rz, before = float(r @ z), rz
            p = z + (rz / before) * p
        return x

    def _length(self, at: Iterate, direction: Array) -> float:
        """Where P is least along ``direction``."""
        norm, inner = float(direction @ direction), float(at.w @ direction)

        def slopes(steps: Array) -> Array:
            self._passes += 1
            return inner + steps * norm + self._problem.slopes(at.w, direction, steps, precise=self._precise)

        return least_step(slopes, float(at.gradient @ direction))


def _is_rounding(at: Iterate, slope: float) -> bool:
    """Whether the decrease that is due is too small to be seen in P."""
    return abs(slope) < 1e-7 * at.primal


def _solve_positive(A: Array, b: Array) -> Array:
    """``A⁻¹ b``; rounding may cost a matrix of large entries its definiteness, which a little on the diagonal mends."""
    ridge = 0.0
    while True:
        try:
            return cho_solve(cho_factor(A + ridge * np.eye(len(A)) if ridge else A), b)
        except LinAlgError:
            ridge = max(100.0 * ridge, float(np.finfo(np.float32).eps) * float(np.trace(A)) / len(A))
            if not np.isfinite(ridge):
                raise
