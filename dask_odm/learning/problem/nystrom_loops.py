"""Compiled loops over kernel values at landmarks. Each reads every row of a tile (n, r) from memory once.

Tiles are float32 or float64 and sums float64: sums in float32 keep the gap above about 3e-3. A row is short enough to
stay in the first-level cache until it is read again. Taking several rows at once was not faster.
"""

from __future__ import annotations

from dask_odm.linalg.jit import compiled
from dask_odm.typing import Array


@compiled
def span_sums(
    K: Array, codes: Array, weight: Array, a: Array, terms: Array, dual_image: Array, curvature: Array, loss: float
) -> float:
    """Return ``loss`` plus that of scores ``K a``; add ``Kᵀ (y s)`` to ``dual_image``, set ``curvature`` (n,).

    An empty ``weight`` means 1 for all. A row with a negative code is dropped. ``terms`` are `BandLoss.terms`.
    """
    low = terms[2]
    high = terms[3]
    upsilon = terms[4]
    for i in range(K.shape[0]):
        row = K[i]
        score = 0.0
        for j in range(row.size):
            score += row[j] * a[j]
        y = -1.0
        c = terms[0]
        if codes[i] == 1:
            y = 1.0
            c = terms[1]
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
    """Add ``Kᵀ (c ∘ K a)`` to ``out``; rows with c = 0 are skipped."""
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
    """Write ``K a`` to ``out``."""
    for i in range(K.shape[0]):
        row = K[i]
        total = 0.0
        for j in range(row.size):
            total += row[j] * a[j]
        out[i] = total
