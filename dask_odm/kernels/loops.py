"""The compiled loop behind tiles of distance kernels, and behind products with any tile.

A tile is made four rows by 256 columns at a time in a buffer that stays in the first-level cache; there it is
stored, or multiplied and forgotten. Only columns laid out feature by feature, with the number of features of
a step known to the compiler, become vector instructions.

Sums of products run in the dtype of the rows over at most 256 entries, from there on in float64: in float32 alone
they would stall the gap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dask_odm.kernels.jit import compiled, inlined

COLUMNS = 256  # of a panel
RUN_ROWS = 256  # whose products with a column are added up before they go to float64
FEATURES = 8  # of a step at most: more and their factors do not fit the registers

STORE, FORWARD, BACKWARD, STORED = 0, 1, 2, 4  # what to do with entries; STORED: they are read, not computed

LOG2 = 0.6931471805599453
# 2**f on [-1/2, 1/2]: Taylor polynomials, log(2)**k / k!. The first term left out is below half a unit
# in the last place of 1: 1.5e-8 after degree 6 in float32, 1e-17 after degree 13 in float64.
_P32 = tuple(np.float32(LOG2**k / np.prod(np.arange(1.0, k + 1))) for k in range(7))
_P64 = tuple(float(LOG2**k / np.prod(np.arange(1.0, k + 1))) for k in range(14))


def step_of(width: int) -> int:
    """Features of a step: as few as the least number of steps allows, so that little is padded."""
    return -(-width // -(-width // FEATURES))


def padded(width: int) -> int:
    """``width`` features up to a whole number of steps."""
    step = step_of(width)
    return step * -(-width // step)


@compiled
def exp2_float32(t: Any, bias: Any) -> None:
    """``t <- 2**min(t, 0) + bias`` for a flat float32 array; smaller than 2**-126 becomes that."""
    c0, c1, c2, c3, c4, c5, c6 = _P32
    low = np.float32(-126.0)
    half = np.float32(0.5)
    zero = np.float32(0.0)
    for i in range(t.size):
        x = min(max(t[i], low), zero)
        n = np.int32(x - half)
        f = x - np.float32(n)
        p = np.float32(((((((c6 * f + c5) * f + c4) * f + c3) * f + c2) * f + c1) * f) + c0)
        bits = np.int32(p.view(np.int32) + (n << np.int32(23)))
        t[i] = bits.view(np.float32) + bias


@compiled
def exp2_float64(t: Any, bias: Any) -> None:
    """``t <- 2**min(t, 0) + bias`` for a flat float64 array."""
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13 = _P64
    for i in range(t.size):
        x = min(max(t[i], -1022.0), 0.0)
        n = np.int64(x - 0.5)
        f = x - np.float64(n)
        p = c13 * f + c12
        p = p * f + c11
        p = p * f + c10
        p = p * f + c9
        p = p * f + c8
        p = p * f + c7
        p = p * f + c6
        p = p * f + c5
        p = p * f + c4
        p = p * f + c3
        p = p * f + c2
        p = p * f + c1
        p = p * f + c0
        bits = np.int64(np.float64(p).view(np.int64) + (n << 52))
        t[i] = bits.view(np.float64) + bias


@inlined
def _add_features(
    entries: Any, a0: Any, a1: Any, a2: Any, a3: Any, b: Any, step: int, manhattan: bool, fresh: bool
) -> None:
    """Add to ``entries`` (4, COLUMNS) what ``step`` features contribute; ``fresh``: to zeros."""
    size = COLUMNS
    zero = b[0] - b[0]
    for j in range(size):
        if fresh:
            t0, t1, t2, t3 = zero, zero, zero, zero
        else:
            t0, t1, t2, t3 = entries[j], entries[size + j], entries[2 * size + j], entries[3 * size + j]
        for k in range(step):
            x = b[k * size + j]
            if manhattan:
                t0 -= abs(a0[k] - x)
                t1 -= abs(a1[k] - x)
                t2 -= abs(a2[k] - x)
                t3 -= abs(a3[k] - x)
            else:
                t0 += a0[k] * x
                t1 += a1[k] * x
                t2 += a2[k] * x
                t3 += a3[k] * x
        entries[j], entries[size + j], entries[2 * size + j], entries[3 * size + j] = t0, t1, t2, t3


@inlined
def _compute(
    entries: Any,
    left: Any,
    rows: Any,
    i: int,
    width: int,
    panel: Any,
    bias: Any,
    step: int,
    manhattan: bool,
    narrow: bool,
) -> None:
    """``entries <-`` kernel values of four rows from ``rows[i]`` on, the last again where there are fewer."""
    last = rows.size - 1
    at0, at1 = rows[i] * width, rows[min(i + 1, last)] * width
    at2, at3 = rows[min(i + 2, last)] * width, rows[min(i + 3, last)] * width
    for k in range(0, width, step):
        a0, a1 = left[at0 + k : at0 + k + step], left[at1 + k : at1 + k + step]
        a2, a3 = left[at2 + k : at2 + k + step], left[at3 + k : at3 + k + step]
        b = panel[k * COLUMNS : (k + step) * COLUMNS]
        if k == 0:
            _add_features(entries, a0, a1, a2, a3, b, step, manhattan, True)
        else:
            _add_features(entries, a0, a1, a2, a3, b, step, manhattan, False)
    if narrow:
        exp2_float32(entries, bias)
    else:
        exp2_float64(entries, bias)


@inlined
def _copy(source: Any, target: Any) -> None:
    for j in range(source.size):
        target[j] = source[j]


@inlined
def _add_forward(entries: Any, weights: Any, by_row: Any, i: int, some: int) -> None:
    size = COLUMNS
    s0 = s1 = s2 = s3 = weights[0] - weights[0]
    for j in range(size):
        x = weights[j]
        s0 += entries[j] * x
        s1 += entries[size + j] * x
        s2 += entries[2 * size + j] * x
        s3 += entries[3 * size + j] * x
    for r in range(some):
        by_row[i + r] += s0 if r == 0 else s1 if r == 1 else s2 if r == 2 else s3


@inlined
def _add_backward(entries: Any, u: Any, rows: Any, i: int, some: int, sums: Any) -> None:
    size, zero = COLUMNS, u[0] - u[0]
    u0 = u[rows[i]]
    u1 = u[rows[i + 1]] if some > 1 else zero
    u2 = u[rows[i + 2]] if some > 2 else zero
    u3 = u[rows[i + 3]] if some > 3 else zero
    for j in range(size):
        sums[j] += (u0 * entries[j] + u1 * entries[size + j]) + (
            u2 * entries[2 * size + j] + u3 * entries[3 * size + j]
        )


@cache
def tile_loop(step: int, manhattan: bool, narrow: bool) -> Callable[..., None]:
    """The loop for packed rows of a width that ``step`` divides, of float32 if ``narrow``.

    Entries are ``2**(left_i · right_j) + bias`` or, if ``manhattan``, ``2**−Σ_k |left_ik − right_jk| + bias``.
    One function: were it made of compiled closures, the next process would not find it on disk. And one for all it
    does with entries, computed or stored, so that products have the same bits however the entries came.
    """

    @compiled
    def run(
        mode: int,
        left: Any,
        right: Any,
        n: int,
        m: int,
        bias: Any,
        tile: Any,
        u: Any,
        v: Any,
        by_row: Any,
        by_column: Any,
    ) -> None:
        """Of left (n, width) and right (panels, width, columns), and ``tile`` (n, m): all flat.

        FORWARD: ``by_row += K v``. BACKWARD: ``by_column += K.T u``. STORE: into ``tile``.
        """
        size, width = COLUMNS, left.size // max(n, 1)
        entries, weights, sums = np.zeros(4 * size, v.dtype), np.zeros(size, v.dtype), np.zeros(size, v.dtype)
        rows = np.flatnonzero(u) if mode & ~STORED == BACKWARD else np.arange(n)
        for start in range(0, m, size):
            columns = min(size, m - start)
            panel = right[start * width : (start + size) * width]
            if mode & FORWARD:
                weights[columns:] = 0
                _copy(v[start : start + columns], weights)
            for first in range(0, rows.size, RUN_ROWS):
                sums[:] = 0
                for i in range(first, min(first + RUN_ROWS, rows.size), 4):
                    some = min(4, rows.size - i)
                    if mode & STORED:
                        for r in range(some):
                            at = rows[i + r] * m + start
                            _copy(tile[at : at + columns], entries[r * size : r * size + columns])
                    else:
                        _compute(entries, left, rows, i, width, panel, bias, step, manhattan, narrow)
                    if mode == STORE:
                        for r in range(some):
                            at = (i + r) * m + start
                            _copy(entries[r * size : r * size + columns], tile[at : at + columns])
                    if mode & FORWARD:
                        _add_forward(entries, weights, by_row, i, some)
                    if mode & BACKWARD:
                        _add_backward(entries, u, rows, i, some, sums)
                if mode & BACKWARD:
                    for j in range(columns):
                        by_column[start + j] += sums[j]

    return run
