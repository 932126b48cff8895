"""The hot loops over kernel values at landmarks: each reads every row of a tile (n, r) from memory once.

Tiles are float32 or float64, sums float64: sums in float32 keep the gap above some 3e-3. A row is short enough to
be in the first-level cache when it is read for the second time; taking several at once gained nothing.
"""

from __future__ import annotations

from dask_odm.linalg.jit import compiled
from dask_odm.typing import Array


@compiled
def span_sums(
    K: Array,
    codes: Array,
    weight: Array,
    a: Array,
    positive: int,
    stiffness: Array,
    band: Array,
    dual_image: Array,
    curvature: Array,
    loss: float,
) -> float:
    """``loss`` and that of rows with scores ``K a``; adds ``Kᵀ (y s)`` to ``dual_image``, sets ``curvature`` (n,).

    ``weight`` may be empty: all 1. Rows whose code is negative count for nothing.
    """
    low = band[0]
    high = band[1]
    upsilon = band[2]
    for i in range(K.shape[0]):
        row = K[i]
        score = 0.0
        for j in range(row.size):
            score += row[j] * a[j]
        y = -1.0
        c = stiffness[0]
        if codes[i] == positive:
            y = 1.0
            c = stiffness[1]
        if weight.size:
            c *= weight[i]
        if codes[i] < 0:
            c = 0.0
        below = low - y * score
        above = y * score - high
        s = 0.0
        if below > 0:
            s = c * below
            loss += 0.5 * s * below
        elif above > 0:
            c *= upsilon
            s = -c * above
            loss -= 0.5 * s * above
        else:
            c = 0.0
        curvature[i] = c
        if s != 0.0:
            s *= y
            for j in range(row.size):
                dual_image[j] += s * row[j]
    return loss


@compiled
def span_product(K: Array, curvature: Array, a: Array, out: Array) -> None:
    """``out += Kᵀ (c ∘ K a)``; rows where c is 0 are skipped."""
    for i in range(K.shape[0]):
        if curvature[i] != 0.0:
            row = K[i]
            total = 0.0
            for j in range(row.size):
                total += row[j] * a[j]
            total *= curvature[i]
            for j in range(row.size):
                out[j] += total * row[j]


@compiled
def span_scores(K: Array, a: Array, out: Array) -> None:
    """``out <- K a``."""
    for i in range(K.shape[0]):
        row = K[i]
        total = 0.0
        for j in range(row.size):
            total += row[j] * a[j]
        out[i] = total
