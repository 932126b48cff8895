"""Compiled loops of the linear problem.

The loop for few features transposes a block of rows, so that scores, losses and sums are vector instructions. It sums
the Hessian in squares of four by four features. Sums within a block have the dtype of the rows, sums over blocks are
float64.

The weight of a row's loss (class, weight, unknown label) is written out in every loop. As a function it would keep
`row_losses` from becoming vector instructions: 13 ns a row instead of 0.9. ``terms`` (5,) are `BandLoss.terms`; code 1
is the positive class's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_odm.learning.problem.band import band_slope, band_square
from dask_odm.linalg.jit import compiled, inlined
from dask_odm.typing import Array

MOST_FEATURES = 64  # most features for which the loop sums a Hessian; beyond, BLAS is as fast
_ROWS = 256  # rows per block
# entries between features of a block; a power of two would put all features in the same few cache lines
_STRIDE = _ROWS + 16


@compiled
def row_losses(scores: Array, codes: Array, weight: Array, terms: Array, dual: Array, second: Array) -> float:
    """Return the sum of the rows' losses; write y s to ``dual`` and the curvature c of every row to ``second``.

    An empty ``weight`` means 1 for all. A row with a negative code is dropped.
    """
    zero = scores[:1].sum() * 0
    low = zero + terms[2]
    high = zero + terms[3]
    upsilon = zero + terms[4]
    total = 0.0
    weighted = weight.size > 0
    # If it seems to the loop that an array that it writes overlaps one that it may read, it adds in another order and
    # takes twice as long. An empty weight seems as long as the scores, and overlaps whatever lies behind it in memory.
    weights = weight if weighted else np.empty(scores.size)
    for i in range(scores.size):
        is_positive = codes[i] == 1
        c = terms[1] if is_positive else terms[0]
        if weighted:
            c *= weights[i]
        c = 0.0 if codes[i] < 0 else c
        y = 1.0 if is_positive else -1.0
        m = y * scores[i]
        total += c * band_square(m, low, high, upsilon)
        dual[i] = y * c * band_slope(m, low, high, upsilon)
        second[i] = c if m < low else (c * upsilon if m > high else 0.0)
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


@compiled
def _block_losses(scores: Array, codes: Array, weight: Array, terms: Array, dual: Array, second: Array) -> Any:
    """Return the sum of `row_losses` for one block, in one dtype and without branches; pad outputs with zeros."""
    negative_stiffness = terms[0]
    positive_stiffness = terms[1]
    low = terms[2]
    high = terms[3]
    upsilon = terms[4]
    zero = scores[0] - scores[0]
    one = zero + scores.dtype.type(1)
    total = zero
    for i in range(codes.size):
        is_positive = codes[i] == 1
        c = positive_stiffness if is_positive else negative_stiffness
        c = zero if codes[i] < 0 else c
        second[i] = c
    if weight.size:
        for i in range(codes.size):
            second[i] *= weight[i]
    for i in range(codes.size):
        c = second[i]
        y = one if codes[i] == 1 else -one
        m = y * scores[i]
        below = max(low - m, zero)
        above = max(m - high, zero)
        total += c * (below * below + upsilon * above * above)
        dual[i] = y * c * (below - upsilon * above)
        upper = c * upsilon if m > high else zero
        second[i] = c if m < low else upper
    dual[codes.size :] = zero
    second[codes.size :] = zero
    return total / (one + one)


@compiled
def _square(left: Array, right: Array, a: int, b: int, out: Array) -> None:
    """Add ``left[a:a+4] @ right[b:b+4].T`` to ``out[a:a+4, b:b+4]``, for blocks stored feature by feature."""
    zero = left[0] - left[0]
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = zero
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = zero
    p0 = left[a * _STRIDE : a * _STRIDE + _ROWS]
    p1 = left[(a + 1) * _STRIDE : (a + 1) * _STRIDE + _ROWS]
    p2 = left[(a + 2) * _STRIDE : (a + 2) * _STRIDE + _ROWS]
    p3 = left[(a + 3) * _STRIDE : (a + 3) * _STRIDE + _ROWS]
    q0 = right[b * _STRIDE : b * _STRIDE + _ROWS]
    q1 = right[(b + 1) * _STRIDE : (b + 1) * _STRIDE + _ROWS]
    q2 = right[(b + 2) * _STRIDE : (b + 2) * _STRIDE + _ROWS]
    q3 = right[(b + 3) * _STRIDE : (b + 3) * _STRIDE + _ROWS]
    for i in range(_ROWS):
        x0 = p0[i]
        x1 = p1[i]
        x2 = p2[i]
        x3 = p3[i]
        z0 = q0[i]
        z1 = q1[i]
        z2 = q2[i]
        z3 = q3[i]
        s00 += x0 * z0
        s01 += x0 * z1
        s02 += x0 * z2
        s03 += x0 * z3
        s10 += x1 * z0
        s11 += x1 * z1
        s12 += x1 * z2
        s13 += x1 * z3
        s20 += x2 * z0
        s21 += x2 * z1
        s22 += x2 * z2
        s23 += x2 * z3
        s30 += x3 * z0
        s31 += x3 * z1
        s32 += x3 * z2
        s33 += x3 * z3
    for r, row in enumerate(((s00, s01, s02, s03), (s10, s11, s12, s13), (s20, s21, s22, s23), (s30, s31, s32, s33))):
        for c in range(4):
            out[a + r, b + c] += row[c]


@compiled
def _turn(values: Array, w: Array, intercept: Any, columns: Array, scores: Array) -> None:
    """Transpose a block: copy the rows in ``values`` to ``columns`` feature by feature, and compute their scores."""
    d = w.size
    m = values.size // d
    scores[:] = intercept
    step = _ROWS if d <= 32 else _ROWS // 4  # keeps these rows in the first-level cache
    for start in range(0, m, step):
        stop = min(m, start + step)
        for j in range(d):
            column = columns[j * _STRIDE : j * _STRIDE + m]
            for i in range(start, stop):
                column[i] = values[i * d + j]
    for j in range(d):
        column = columns[j * _STRIDE : j * _STRIDE + m]
        wj = w[j]
        for i in range(m):
            scores[i] += wj * column[i]


@compiled
def _rows_block(
    values: Array, codes: Array, weight: Array, w: Array, intercept: Any, terms: Array, dual_image: Array, work: Array,
    part: Array,
) -> Any:  # fmt: skip
    """Return the loss of a block of rows in ``values``, in the dtype of ``w`` and ``terms``; add to ``dual_image``."""
    d = w.size
    m = codes.size
    scores = work[0]
    r = work[1]
    c = work[2]
    for i in range(m):
        row = values[i * d : (i + 1) * d]
        total = intercept
        for j in range(d):
            total += w[j] * row[j]
        scores[i] = total
    loss = _block_losses(scores, codes, weight, terms, r, c)
    part[:] = 0
    quads = m // 4 * 4
    for i in range(0, quads, 4):
        one = values[i * d : (i + 1) * d]
        two = values[(i + 1) * d : (i + 2) * d]
        three = values[(i + 2) * d : (i + 3) * d]
        four = values[(i + 3) * d : (i + 4) * d]
        r0 = r[i]
        r1 = r[i + 1]
        r2 = r[i + 2]
        r3 = r[i + 3]
        for j in range(d):
            part[j] += (r0 * one[j] + r1 * two[j]) + (r2 * three[j] + r3 * four[j])
    for i in range(quads, m):
        row = values[i * d : (i + 1) * d]
        ri = r[i]
        for j in range(d):
            part[j] += ri * row[j]
    for j in range(d):
        dual_image[j] += part[j]
    dual_image[d] += r[:m].sum()
    return loss


@inlined
def _weigh_columns(columns: Array, r: Array, c: Array, d: int, weighted: Array, dual_image: Array) -> None:
    """Write the features of a block times ``c`` to ``weighted``, and add those times ``r`` to ``dual_image``."""
    for j in range(d + 1):
        column = columns[j * _STRIDE : j * _STRIDE + _ROWS]
        target = weighted[j * _STRIDE : j * _STRIDE + _ROWS]
        moment = r[0] - r[0]
        for i in range(_ROWS):
            moment += column[i] * r[i]
            target[i] = c[i] * column[i]
        dual_image[j] += moment


@compiled
def small_sums(
    X: Array, codes: Array, weight: Array, w: Array, intercept: float, terms: Array, dual_image: Array,
    curvature: Array, hessian_stride: int,
) -> float:  # fmt: skip
    """Return the loss of C-contiguous rows ``X`` (n, d); add to ``dual_image`` and ``curvature``, of size d + 1.

    Last entries belong to a constant feature 1. The curvature is summed over one block of rows in ``hessian_stride``
    and scaled up to all rows.
    """
    n, d = X.shape
    width = (d + 4) // 4 * 4
    columns = np.zeros(width * _STRIDE, X.dtype)
    weighted = np.zeros(width * _STRIDE, X.dtype)
    columns[d * _STRIDE : (d + 1) * _STRIDE] = 1
    values = X.reshape(-1)
    scores = np.zeros(_ROWS, X.dtype)
    r = np.zeros(_ROWS, X.dtype)
    c = np.zeros(_ROWS, X.dtype)
    total = 0.0
    second = np.zeros((width, width))
    narrow = w.astype(X.dtype)
    narrow_intercept = X.dtype.type(intercept)
    narrow_terms = terms.astype(X.dtype)
    work = np.zeros((3, _ROWS), X.dtype)
    part = np.zeros(d, X.dtype)
    sampled = 0
    for first in range(0, n, _ROWS):
        m = min(_ROWS, n - first)
        rows = values[first * d : (first + m) * d]
        its_codes = codes[first : first + m]
        its_weight = weight[first : first + m]
        if first // _ROWS % hessian_stride:
            total += _rows_block(
                rows, its_codes, its_weight, narrow, narrow_intercept, narrow_terms, dual_image, work, part
            )
            continue
        sampled += m
        _turn(rows, narrow, narrow_intercept, columns, scores)
        total += _block_losses(scores, its_codes, its_weight, narrow_terms, r, c)
        _weigh_columns(columns, r, c, d, weighted, dual_image)
        for a in range(0, width, 4):
            for b in range(0, a + 4, 4):
                _square(weighted, columns, a, b, second)
    share = n / max(1, sampled)
    for a in range(d + 1):
        for b in range(a + 1):
            curvature[a, b] += share * second[a, b]
            if b < a:
                curvature[b, a] += share * second[a, b]
    return total


@compiled
def double_sums(
    X: Array, codes: Array, weight: Array, w: Array, intercept: float, terms: Array, dual_image: Array
) -> tuple[float, float]:
    """Return the loss of `small_sums`, without the curvature, in float64 and for any number of features.

    The second value is the loss with scores rounded to the dtype of ``X``.
    """
    n, d = X.shape
    values = X.reshape(-1)
    work = np.zeros((3, _ROWS))
    part = np.zeros(d)
    total = 0.0
    predicted = 0.0
    for first in range(0, n, _ROWS):
        stop = min(n, first + _ROWS)
        rows = values[first * d : stop * d]
        its_codes = codes[first:stop]
        its_weight = weight[first:stop]
        total += _rows_block(rows, its_codes, its_weight, w, intercept, terms, dual_image, work, part)
        scores = work[0]
        for i in range(stop - first):
            scores[i] = X.dtype.type(scores[i])
        predicted += _block_losses(scores, its_codes, its_weight, terms, work[1], work[2])
    return total, predicted
