"""Dual coordinate descent in one variable per row, over rows whose Gram matrix is in memory.

For row i with ``g_i = (Qs)_i − Q_ii s_i`` the dual is maximal in s_i at::

    s_i ← (1−θ−g_i) / (Q_ii + ρ_ζ)   if g_i < 1−θ
          (1+θ−g_i) / (Q_ii + ρ_β)   if g_i > 1+θ
          0                          otherwise

The dual value never falls.
"""

from __future__ import annotations

from dask_odm.linalg.jit import compiled
from dask_odm.typing import Array


@compiled
def descend(
    K: Array, a: Array, f: Array, y: Array, inv_low: Array, inv_high: Array, low: float, high: float, order: Array
) -> None:
    """Update ``a`` and ``f`` in place, visiting rows in ``order`` (visits, rows) until a visit changes nothing."""
    for visit in range(order.shape[0]):
        largest = 0.0
        for t in range(order.shape[1]):
            i = order[visit, t]
            s = y[i] * a[i]
            g = y[i] * f[i] - K[i, i] * s
            new = 0.0
            # (low − g)/(Q + ρ) written with 1/ρ, which is 0 on the upper side if υ = 0
            if g < low:
                new = (low - g) * inv_low[i] / (1.0 + K[i, i] * inv_low[i])
            elif g > high:
                new = (high - g) * inv_high[i] / (1.0 + K[i, i] * inv_high[i])
            change = y[i] * (new - s)
            if change != 0.0:
                largest = max(largest, abs(change))
                a[i] += change
                row = K[i]
                for j in range(row.size):
                    f[j] += change * row[j]
        if largest == 0.0:
            break
