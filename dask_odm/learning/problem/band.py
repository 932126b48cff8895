"""The loss of the optimal margin distribution machine at a margin, as compiled loops take it.

A row of stiffness c loses ``c/2 [(low − m)₊² + υ (m − high)₊²]`` at its margin m, with low = 1 − θ and high = 1 + θ.
Loops inline these helpers. NumPy's formulas begin with `dask_odm.learning.problem.losses.ODMSettings.outside`.
"""

from __future__ import annotations

import numpy as np

from dask_odm.linalg.jit import inlined

TINY = float(np.finfo(np.float64).tiny)


@inlined
def band_slope(m: float, low: float, high: float, upsilon: float) -> float:
    """Return minus the derivative of a row's loss at margin ``m``, divided by its stiffness."""
    return max(low - m, 0.0) - upsilon * max(m - high, 0.0)


@inlined
def band_square(m: float, low: float, high: float, upsilon: float) -> float:
    """Return twice the loss of a row at margin ``m``, divided by its stiffness."""
    below = max(low - m, 0.0)
    above = max(m - high, 0.0)
    return below * below + upsilon * above * above


@inlined
def band_curvature(m: float, c: float, low: float, high: float, upsilon: float) -> float:
    """Return the second derivative of the loss of a row of stiffness ``c`` at margin ``m``: 0 within the band."""
    return c if m < low else (c * upsilon if m > high else 0.0)


@inlined
def row_gap(s: float, m: float, c: float, low: float, high: float, upsilon: float) -> float:
    """Return the Fenchel gap of a row with dual variable ``s``, margin ``m`` and stiffness ``c`` > 0.

    It has no branches, so that it vectorises over rows.
    """
    over = upsilon * c
    below = low - m
    above = m - high
    up = max(s, 0.0)
    down = max(-s, 0.0)
    lacking = max(below, 0.0) - up / c
    exceeding = max(above, 0.0) - down / max(over, TINY)
    return 0.5 * (c * lacking * lacking + over * exceeding * exceeding) - up * min(below, 0.0) - down * min(above, 0.0)


@inlined
def best_dual(g: float, norm: float, c: float, low: float, high: float, upsilon: float) -> float:
    """Return the dual variable s at which the dual is largest, of a row with margin ``g + norm · s``."""
    over = upsilon * c
    new = 0.0
    if g < low:
        new = c * (low - g) / (1.0 + norm * c)
    elif g > high:
        new = over * (high - g) / (1.0 + norm * over)
    return new
