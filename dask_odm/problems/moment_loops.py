"""Compiled loops for second moments of few features: rows are turned into columns, columns multiplied four by four.

Products and sums over up to `SUMMED` rows are in the rows' type, the rest is float64.
"""

from __future__ import annotations

import numpy as np

from dask_odm.kernels.jit import compiled
from dask_odm.typing import Array

TILE = 4  # columns whose products are summed at a time: sixteen sums stay in registers
SUMMED = 512  # rows that are summed over in the rows' type


@compiled
def turn(X: Array, rows: Array, y: Array, root: Array, origin: Array, y_origin: Array, out: Array) -> None:
    """``√c (x − origin, y − y_origin, 1)`` of some rows as columns.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    rows : int64 ndarray of shape (m,)
        Those that are meant; empty: all, in their order.
    y : ndarray of shape (n, t)
    root : ndarray of shape (n,), or empty: all 1
        Square roots of weights.
    origin, y_origin : ndarrays of shapes (d,) and (t,)
        In the type of ``out``, the former.
    out : ndarray of shape (k, m), k ≥ d + t + 1
        Further rows stay as they are.
    """
    d, t, m = origin.size, y_origin.size, out.shape[1]
    for j in range(d):
        column, here = out[j], origin[j]
        if rows.size:
            for i in range(m):
                column[i] = X[rows[i], j] - here
        else:
            for i in range(m):
                column[i] = X[i, j] - here
    for j in range(t):
        for i in range(m):
            out[d + j, i] = y[rows[i] if rows.size else i, j] - y_origin[j]
    for i in range(m):
        out[d + t, i] = 1.0
    if root.size:
        for j in range(d + t + 1):
            for i in range(m):
                out[j, i] *= root[rows[i] if rows.size else i]


@compiled
def add_products(z: Array, first: int, last: int, total: Array) -> None:
    """Add ``z[:, first:last] z[:, first:last]ᵀ`` to the lower blocks of float64 ``total`` (k, k), k a multiple of 4."""
    zero = np.zeros(1, z.dtype)[0]
    for start in range(first, last, SUMMED):
        n = min(last, start + SUMMED) - start
        some = np.ascontiguousarray(z[:, start : start + n])  # or the loop is not vectorised: five times slower
        for a in range(0, z.shape[0], TILE):
            a0, a1, a2, a3 = some[a], some[a + 1], some[a + 2], some[a + 3]
            for b in range(0, a + 1, TILE):
                b0, b1, b2, b3 = some[b], some[b + 1], some[b + 2], some[b + 3]
                s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = zero
                s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = zero
                for i in range(n):
                    p, q, r, s = b0[i], b1[i], b2[i], b3[i]
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
                _add_row(total[a], b, s00, s01, s02, s03)
                _add_row(total[a + 1], b, s10, s11, s12, s13)
                _add_row(total[a + 2], b, s20, s21, s22, s23)
                _add_row(total[a + 3], b, s30, s31, s32, s33)


@compiled
def _add_row(row: Array, b: int, s0: float, s1: float, s2: float, s3: float) -> None:
    row[b] += s0
    row[b + 1] += s1
    row[b + 2] += s2
    row[b + 3] += s3
