"""Hull feasibility: a proof that two reduced hulls have a common point, or that they have none.

A solver of the nearest points notices a common point only when their distance is at rounding level, after hundreds of
passes. Newton's method on the smooth problem of `dask_odm.methods.hulls.problem.feasibility` takes a few steps of two
passes each, even if features are nearly dependent, as those of real data are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_odm.methods.hulls.problem.feasibility import STEPS, Tilt
from dask_odm.methods.hulls.problem.hulls import MOST_TILTED, ROUNDING, HullProblem
from dask_odm.typing import Array

MOST_STEPS = 40  # most steps of Newton's method
RIDGE = 1e-14  # share of the Hessian's trace added to its diagonal, which makes it regular for dependent features
WORTHWHILE = 8  # iterations without a positive lower bound, after which a solver makes this test


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer of the feasibility test.

    ``overlap`` says whether the hulls have a common point; None means that neither was proved. Along ``direction`` (d,)
    the hulls are disjoint, or nearly so.
    """

    overlap: bool | None
    direction: Array


def judge(problem: HullProblem) -> Verdict:
    """Decide whether the hulls have a common point, up to rounding at the rows' scale.

    The answer is undecided for more than `MOST_TILTED` features.
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
    """Return Newton's step (k,), and the size of the gradient that it leaves by the quadratic model.

    All entries of that gradient are divided by ``scale`` but the last two.
    """
    regular = hessian.copy()
    unit = np.sqrt(np.maximum(np.diag(hessian), np.finfo(float).tiny))
    regular /= unit[:, None] * unit
    regular[np.diag_indices_from(regular)] += RIDGE * len(unit)
    step = -np.linalg.solve(regular, gradient / unit) / unit
    left = gradient + hessian @ step
    return step, float(np.linalg.norm(left[:-2]) / (scale or 1.0) + np.abs(left[-2:]).sum())
