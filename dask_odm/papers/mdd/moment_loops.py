"""Compiled loops that sum moments of rows of few features.

Rows are transposed in pieces, and multiplied in 4 × 4 blocks. Products and sums over up to `TURNED_ROWS` rows are in
the rows' type, the rest is float64.
"""

from __future__ import annotations

import numpy as np

from dask_odm.linalg.jit import compiled
from dask_odm.linalg.transpose import turn_rows
from dask_odm.typing import Array

TILE = 4  # columns whose products are summed at a time, so that sixteen sums stay in registers
TURNED_ROWS = 256  # rows that are transposed at a time, and summed over in the rows' type


@compiled
def add_moments(
    X: Array, y: Array, root: Array, rows: Array, origin: Array, y_origin: Array, some: Array, total: Array
) -> None:
    """Add the lower blocks of ``Σ z zᵀ`` over some rows to ``total``, with ``z = √c (x − origin, y − y_origin, 1)``.

    ``X`` (n, d) is C-contiguous, of the type of ``origin`` and ``some``; ``root`` (n,) is √c, and ``rows`` are the
    numbers of the rows to add, int64. Empty ones stand for weights of 1, and for all rows. Rows are transposed into
    ``some``, whose unused rows stay 0. ``total`` (k, k) is float64, and k a multiple of `TILE`.
    """
    m = rows.size if rows.size else y.shape[0]
    for start in range(0, m, TURNED_ROWS):
        n = min(m - start, TURNED_ROWS)
        _turn(X, y, root, rows, start, n, origin, y_origin, some)
        _add_products(some, n, total)


@compiled
def _turn(
    X: Array, y: Array, root: Array, rows: Array, start: int, n: int, origin: Array, y_origin: Array, out: Array
) -> None:
    """Write z of ``n`` rows from ``start`` on to the first columns of ``out``, which stays in the fastest cache."""
    d = origin.size
    t = y_origin.size
    turn_rows(X, rows, start, n, origin, out)
    for j in range(t):
        for i in range(n):
            out[d + j, i] = y[rows[start + i] if rows.size else start + i, j] - y_origin[j]
    for i in range(n):
        out[d + t, i] = 1.0
    if root.size:
        for j in range(d + t + 1):
            for i in range(n):
                out[j, i] *= root[rows[start + i] if rows.size else start + i]


@compiled
def _add_products(some: Array, n: int, total: Array) -> None:
    """Add ``some[:, :n] some[:, :n]ᵀ`` to the lower blocks of ``total``."""
    zero = np.zeros(1, some.dtype)[0]
    for a in range(0, some.shape[0], TILE):
        a0 = some[a]
        a1 = some[a + 1]
        a2 = some[a + 2]
        a3 = some[a + 3]
        for b in range(0, a + 1, TILE):
            b0 = some[b]
            b1 = some[b + 1]
            b2 = some[b + 2]
            b3 = some[b + 3]
            s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = zero
            s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = zero
            for i in range(n):
                p = b0[i]
                q = b1[i]
                r = b2[i]
                s = b3[i]
                x = a0[i]
                s00 += x * p
                s01 += x * q
                s02 += x * r
                s03 += x * s
                x = a1[i]
                s10 += x * p
                s11 += x * q
                s12 += x * r
                s13 += x * s
                x = a2[i]
                s20 += x * p
                s21 += x * q
                s22 += x * r
                s23 += x * s
                x = a3[i]
                s30 += x * p
                s31 += x * q
                s32 += x * r
                s33 += x * s
            sums = ((s00, s01, s02, s03), (s10, s11, s12, s13), (s20, s21, s22, s23), (s30, s31, s32, s33))
            for k, row in enumerate(sums):
                for c in range(TILE):
                    total[a + k, b + c] += row[c]
