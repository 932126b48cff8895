"""Compiled loops of the linear problem, over rows whose scores are known.

The weight of a row's loss (class, weight, unknown label) is written out in every loop. As a function it would keep
`row_losses` from becoming vector instructions: 13 ns a row instead of 0.9. ``terms`` (5,) are `BandLoss.terms`; code 1
is the positive class's.
"""

from __future__ import annotations

import numpy as np

from dask_odm.learning.problem.band import band_curvature, band_slope, band_square
from dask_odm.linalg.jit import compiled
from dask_odm.typing import Array


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


@compiled
def gather_active(features: Array, second: Array, constant: float, out: Array) -> int:
    """Copy rows of positive curvature c, times √c, to the front of ``out``, and return how many.

    ``out`` has one column more than ``features`` if there is a constant feature.
    """
    count = 0
    d = features.shape[1]
    for i in range(second.size):
        if second[i] > 0:
            root = np.sqrt(second[i])
            row = features[i]
            target = out[count]
            for j in range(d):
                target[j] = row[j] * root
            if target.size > d:
                target[d] = constant * root
            count += 1
    return count
