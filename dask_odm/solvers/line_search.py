"""Where P is least along a direction: its slope is piecewise linear and grows, so a few passes close in on the root."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_odm.typing import Array

FRACTIONS = np.concatenate([np.geomspace(2.0**-12, 2.0**-4, 16, endpoint=False), np.arange(1, 17) / 16])
REFINEMENTS = 3


def least_step(slopes: Callable[[Array], Array], first: float) -> float:
    """The step in [0, 1] of least P, exact but for rounding.

    Parameters
    ----------
    slopes : callable
        Derivatives of P by step at each of given steps (m,): one pass over the rows. Called up to `REFINEMENTS` times.
    first : float
        The derivative at step 0, negative.
    """
    low, high = (0.0, first), (1.0, np.inf)
    for _ in range(REFINEMENTS):
        steps = low[0] + (high[0] - low[0]) * FRACTIONS
        found = slopes(steps)
        above = int(np.argmax(found >= 0)) if found[-1] >= 0 else len(steps)
        if above:
            low = float(steps[above - 1]), float(found[above - 1])
        if above == len(steps):
            return low[0]
        high = float(steps[above]), float(found[above])
    return low[0] - low[1] * (high[0] - low[0]) / max(high[1] - low[1], np.finfo(float).tiny)
