"""Line search: the step of least P along a direction. Its slope is piecewise linear and increasing in the step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_odm.learning.problem.odm import RowLosses
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


def least_row_step(losses: RowLosses, scores: Array, change: Array, inner: float, norm: float) -> float:
    """Return the step in [0, 1] of least P for rows in memory, by bisection.

    ``change`` (n,) is how scores change by a whole step along d, ``inner`` is ⟨w, d⟩ and ``norm`` ⟨d, d⟩.
    """

    def slope(step: float) -> float:
        dual = losses.y * losses.dual_candidate(losses.y * (scores + step * change))
        return inner + step * norm - float(dual @ change)

    if slope(1.0) <= 0:
        return 1.0
    low = 0.0
    high = 1.0
    for _ in range(40):  # halvings of [0, 1]
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 0.5 * (low + high)


def few_rows_step(losses: RowLosses, scores: Array, change: Array, inner: float, norm: float) -> float:
    """Return the step of `least_row_step` by `least_step`, which is faster for up to a few thousand rows."""
    moving = losses.y * change

    def slopes(steps: Array) -> Array:
        duals = losses.dual_candidate(losses.y * scores + steps[:, None] * moving)
        return np.asarray(inner + steps * norm - duals @ moving)

    return least_step(slopes, float(slopes(np.zeros(1))[0]))
