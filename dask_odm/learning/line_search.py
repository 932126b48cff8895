"""Line search: the step of least P along a direction. Its slope is piecewise linear and increasing in the step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_odm.learning.problem.losses import RowLosses
from dask_odm.typing import Array

FRACTIONS = np.concatenate([np.geomspace(2.0**-12, 2.0**-4, 16, endpoint=False), np.arange(1, 17) / 16])


def least_step(slopes: Callable[[Array], Array], first: float, refinements: int = 3) -> float:
    """Return the step in [0, 1] of least P, exact but for rounding.

    ``slopes`` returns the derivatives of P by the step at given steps (m,), by one pass over the rows. It is called up
    to ``refinements`` times. ``first`` is the derivative at step 0, negative.
    """
    low = (0.0, first)
    high = (1.0, np.inf)
    for _ in range(refinements):
        steps = low[0] + (high[0] - low[0]) * FRACTIONS
        found = slopes(steps)
        above = int(np.argmax(found >= 0)) if found[-1] >= 0 else len(steps)
        if above:
            low = float(steps[above - 1]), float(found[above - 1])
        if above == len(steps):
            return low[0]
        high = float(steps[above]), float(found[above])
    return low[0] - low[1] * (high[0] - low[0]) / max(high[1] - low[1], np.finfo(float).tiny)


def slope_root(look: Callable[[float], tuple[float, float]], high: float, share: float, most: int) -> float:
    """Return the step below ``high`` of least P by Newton's method between bounds; 0 if P does not fall there.

    ``look`` returns the derivative of P by the step at a step, and the second derivative. It is called up to ``most``
    times after step 0, until the derivative is at most a ``share`` of that at step 0.
    """
    slope, curvature = look(0.0)
    if not -slope > 0.0:
        return 0.0
    enough = share * -slope
    low = 0.0
    step = 0.0
    for _ in range(most):
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

    return 1.0 if look(1.0)[0] <= 0 else slope_root(look, 1.0, 1e-9, 40)
