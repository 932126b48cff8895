"""The loss of the optimal margin distribution machine at a margin, as compiled loops take it, and its sums over rows.

A row of stiffness c loses ``c/2 [(low − m)₊² + υ (m − high)₊²]`` at its margin m, with low = 1 − θ and high = 1 + θ.
Loops inline these helpers. NumPy's formulas begin with `dask_odm.learning.problem.losses.ODMSettings.outside`.

The weight of a row's loss (class, weight, unknown label) is written out in every loop. As a function it would keep
`row_losses` from becoming vector instructions: 13 ns a row instead of 0.9. ``terms`` (5,) are `BandLoss.terms`; code 1
is the positive class's.
"""

from __future__ import annotations

import numpy as np

from dask_odm.linalg.jit import compiled, inlined
from dask_odm.typing import Array

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


@compiled
def row_losses(scores: Array, codes: Array, weight: Array, terms: Array, dual: Array, second: Array) -> float:
    """Return the sum of the rows' losses; write y s to ``dual`` and the curvature c of every row to ``second``.

    An empty ``weight`` means 1 for all. A row with a negative code is dropped.
    """
    low = terms[2]
    high = terms[3]
    upsilon = terms[4]
    total = 0.0
    weighted = weight.size > 0
    for i in range(scores.size):
        is_positive = codes[i] == 1
        c = terms[1] if is_positive else terms[0]
        if weighted:
            c *= weight[i]
        c = 0.0 if codes[i] < 0 else c
        y = 1.0 if is_positive else -1.0
        m = y * scores[i]
        total += c * band_square(m, low, high, upsilon)
        dual[i] = y * c * band_slope(m, low, high, upsilon)
        second[i] = band_curvature(m, c, low, high, upsilon)
    return 0.5 * total


@compiled
def line_slopes(scores: Array, change: Array, codes: Array, weight: Array, terms: Array, steps: Array) -> Array:
    """Return the summed derivatives of the rows' losses at ``scores + step · change``, for each of ``steps``."""
    low = terms[2]
    high = terms[3]
    upsilon = terms[4]
    out = np.zeros(steps.size)
    weighted = weight.size > 0
    for i in range(scores.size):
        is_positive = codes[i] == 1
        c = terms[1] if is_positive else terms[0]
        if weighted:
            c *= weight[i]
        c = 0.0 if codes[i] < 0 else c
        y = 1.0 if is_positive else -1.0
        m = y * np.float64(scores[i])
        dm = y * np.float64(change[i])
        for t in range(steps.size):
            at = m + steps[t] * dm
            out[t] -= c * dm * band_slope(at, low, high, upsilon)
    return out
