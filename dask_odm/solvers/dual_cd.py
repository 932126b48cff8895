"""Dual coordinate descent in the one-variable form, block by block.

For row i with ``g_i = (Qs)_i − Q_ii s_i`` the dual is maximal in s_i at::

    s_i ← (1−θ−g_i) / (Q_ii + ρ_ζ)   if g_i < 1−θ
          (1+θ−g_i) / (Q_ii + ρ_β)   if g_i > 1+θ
          0                          otherwise

Rows are visited in a random order of blocks and a random order within each; a block's own tile stays in
cache for a few visits, after which one kernel pass over the block's columns brings all scores up to date.
The dual value never falls.
"""

from __future__ import annotations

import numpy as np

from dask_odm.jit import compiled
from dask_odm.kernels.blocks import Gram
from dask_odm.problems.odm import KernelProblem
from dask_odm.typing import Array

VISITS = 5


@compiled
def descend(
    K: Array, a: Array, f: Array, y: Array, inv_low: Array, inv_high: Array, low: float, high: float, order: Array
) -> None:
    """Visit the rows of one block as ``order`` (visits, rows) says; ``a`` and ``f`` are changed in place."""
    for visit in range(order.shape[0]):
        largest = 0.0
        for t in range(order.shape[1]):
            i = order[visit, t]
            s = y[i] * a[i]
            g = y[i] * f[i] - K[i, i] * s
            new = 0.0
            # (low − g)/(Q + ρ) written with 1/ρ, which is 0 where υ = 0 leaves the upper side free
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


def sweep(problem: KernelProblem[Gram], u: Array, rng: np.random.Generator) -> None:
    """One pass over all blocks; the pair ``u`` (2, n) is changed in place."""
    losses, tiling = problem.losses, problem.gram.tiling
    for b in rng.permutation(tiling.count):
        rows = slice(*tiling.span(int(b)))
        before, scores = u[0, rows].copy(), u[1, rows].copy()
        order = np.stack([rng.permutation(len(before)) for _ in range(VISITS)])
        descend(
            problem.gram.block(int(b)),
            u[0, rows],
            scores,
            problem.y[rows],
            losses.stiffness_low[rows],
            losses.stiffness_high[rows],
            losses.settings.low,
            losses.settings.high,
            order,
        )
        problem.gram.add_columns(int(b), u[0, rows] - before, u[1])
