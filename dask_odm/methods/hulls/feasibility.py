"""A proof that two reduced hulls overlap, or that they do not: Newton's method on
`dask_odm.methods.hulls.problem.feasibility`.

Solvers that come to the nearest points see that hulls overlap only when they are at rounding level of nothing, after
hundreds of passes. Here it takes two passes a step and a few steps: the problem is smooth, and where features are
nearly dependent, as those of real data are, Newton's steps do not mind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_odm.methods.hulls.problem.feasibility import STEPS, Tilt
from dask_odm.methods.hulls.problem.hulls import MOST_TILTED, ROUNDING, HullProblem
from dask_odm.typing import Array

MOST_STEPS = 40
RIDGE = 1e-14  # of the second derivatives' trace: what makes them regular where features depend on each other
WORTHWHILE = 8  # iterations of another solver without a lower bound, after which the test is made


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was proved of two hulls.

    Attributes
    ----------
    overlap : bool or None
        None: neither.
    direction : ndarray of shape (d,)
        Along which they are apart, or nearly so.
    """

    overlap: bool | None
    direction: Array


def judge(problem: HullProblem) -> Verdict:
    """Whether the hulls have a point in common, to rounding of the rows' scale.

    Nothing is found of more than `MOST_TILTED` features.
    """
    if problem.d > MOST_TILTED:
        return Verdict(None, problem.start.difference)
    tilt = Tilt(problem)
    memory = problem.memory
    at = tilt.start
    overlap = None
    for _ in range(MOST_STEPS):
        sums = tilt.sums(at)
        step, left = newton_step(sums.gradient, sums.hessian, problem.scale)
        broken, values = tilt.reach(at, step)
        best = int(np.argmin(values))
        if values[best] < 0:
            at = at + STEPS[best] * step
            overlap = False
            break
        if broken + left <= ROUNDING:
            overlap = True
            break
        if not values[best] < sums.value:
            break
        at = at + STEPS[best] * step
    problem.recall(memory)
    return Verdict(overlap, -at[:-2])


def newton_step(gradient: Array, hessian: Array, scale: float) -> tuple[Array, float]:
    """The step (k,), and what it leaves of the gradient: of its last two entries, and of the others by ``scale``."""
    regular = hessian.copy()
    unit = np.sqrt(np.maximum(np.diag(hessian), np.finfo(float).tiny))
    regular /= unit[:, None] * unit
    regular[np.diag_indices_from(regular)] += RIDGE * len(unit)
    step = -np.linalg.solve(regular, gradient / unit) / unit
    left = gradient + hessian @ step
    return step, float(np.linalg.norm(left[:-2]) / (scale or 1.0) + np.abs(left[-2:]).sum())
