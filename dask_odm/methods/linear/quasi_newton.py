"""L-BFGS on the primal of a linear model over sparse rows: two passes per step, and no Hessian.

direction  −H ∇P(w) with H the inverse Hessian suggested by the last `MEMORY` steps and changes of the gradient, from a
           multiple of the identity (Nocedal and Wright, *Numerical Optimization*, algorithm 7.4)
step       of least P along the direction, by Newton's method on its piecewise linear slope
gap        against the best dual variables so far. Those that the margins give are mixed with the best before, in the
           share that makes the gap least. Gradients of such a run go up and down; the mixture's gap mostly falls
           (like residual smoothing of linear systems: Zhou and Walker, SIAM J. Sci. Comput. 15, 1994)

Newton's method with conjugate gradients spends ten to fifty passes on a direction for the rows that are active at
first. Here every pass sees the rows that are active by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from dask_odm.learning.line_search import slope_root
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.sparse_linear import SparsePrimal
from dask_odm.learning.step_log import OnStep, StepLog
from dask_odm.typing import Array

MEMORY = 10  # steps from which the inverse Hessian is made
SHARES = np.array([0.0, 0.25, 0.5, 0.75])  # shares of the new dual variables in the mixture; a share of 1 is known


def solve_quasi_newton(
    problem: SparsePrimal, w: Array, *, tol: float, max_iter: int, on_step: OnStep = lambda record: None
) -> PrimalSolution[None]:
    """Minimise P from ``w`` (k,) in up to ``max_iter`` steps, to the relative duality gap ``tol``."""
    log = StepLog(on_step)
    pairs: deque[tuple[Array, Array, float]] = deque(maxlen=MEMORY)  # steps, changes of the gradient, inverse products
    dual = _BestDual(problem)
    scores = problem.scores(w)
    steps = 0
    step, before = np.empty((2, 0))  # the last step, and the gradient where it began
    while True:
        loss, u = problem.losses(scores)
        image = problem.image(u)
        gradient = w - image
        primal = 0.5 * float(w @ w) + loss
        gap = dual.gap(w, scores, u, image) / max(primal, np.finfo(float).tiny)
        log.add(gap, primal, 2 * steps + 1)
        if steps == max_iter or (gap <= tol and (steps or w.any())):
            break
        if steps:
            turn = gradient - before
            pairs.append((step, turn, 1.0 / float(step @ turn)))  # at least ‖step‖², since P has the term ½‖w‖²
        direction = -_inverse_hessian_times(pairs, gradient)
        change = problem.scores(direction)
        length = _length(problem, w, scores, direction, change)
        if length == 0.0:
            break
        step = length * direction
        before = gradient
        w = w + step
        scores = scores + length * change
        steps = steps + 1
    log.settle()
    return PrimalSolution(w, primal, gap, gap <= tol, log.history, steps)


def _inverse_hessian_times(pairs: Sequence[tuple[Array, Array, float]], gradient: Array) -> Array:
    """Return H times the current gradient, by the two-loop recursion over the last ``pairs``."""
    q = gradient.copy()
    along = []
    for step, turn, inverse in reversed(pairs):
        along.append(inverse * float(step @ q))
        q -= along[-1] * turn
    if pairs:
        _, turn, inverse = pairs[-1]
        q /= inverse * float(turn @ turn)
    for (step, turn, inverse), a in zip(pairs, reversed(along), strict=True):
        q += (a - inverse * float(turn @ q)) * step
    return q


class _BestDual:
    """The dual variables with the best D so far."""

    def __init__(self, problem: SparsePrimal) -> None:
        self._problem = problem
        self._best: tuple[Array, Array] | None = None

    def gap(self, w: Array, scores: Array, u: Array, image: Array) -> float:
        """Return P(w) − D, after mixing in the margins' own dual variables ``u`` (n,) with their ``image`` (k,)."""
        whole = 0.5 * float((w - image) @ (w - image))
        if self._best is None:
            self._best = u, image
            return whole
        before, there = self._best
        away = w - there
        turn = image - there
        gaps = self._problem.segment_gaps(scores, before, u, SHARES)
        gaps += 0.5 * (float(away @ away) - 2.0 * SHARES * float(away @ turn) + SHARES**2 * float(turn @ turn))
        least = int(np.argmin(gaps))
        if whole <= gaps[least]:
            self._best = u, image
            return whole
        share = SHARES[least]
        self._best = before + share * (u - before), there + share * turn
        return float(gaps[least])


def _length(problem: SparsePrimal, w: Array, scores: Array, direction: Array, change: Array) -> float:
    """Return the step of nearly least P along ``direction``; 0 if float64 cannot tell."""
    inner, norm = float(w @ direction), float(direction @ direction)

    def look(step: float) -> tuple[float, float]:
        slope, curvature = problem.slope(scores, change, step)
        return inner + step * norm + slope, norm + curvature

    return slope_root(look, np.inf, 1e-2, 12)
