"""Compiled loops of the linear problem over sparse rows, in float64 for rows of any dtype.

``terms`` (5,) are `BandLoss.terms`; code 1 is the positive class's.
"""

from __future__ import annotations

import numpy as np

from dask_odm.linalg.jit import compiled
from dask_odm.typing import Array


@compiled
def entry_scores(
    data: Array, indices: Array, indptr: Array, weights: Array, intercept: float, scores: Array
) -> None:  # fmt: skip
    """Write ``x·weights + intercept`` of CSR rows x to ``scores`` (n,); the first row begins at ``indptr[0]``."""
    for i in range(scores.size):
        total = intercept
        for t in range(indptr[i], indptr[i + 1]):
            total += data[t] * weights[indices[t]]
        scores[i] = total


@compiled
def add_entries(data: Array, indices: Array, indptr: Array, factors: Array, out: Array) -> None:
    """Add ``Σ factors_i x_i`` of CSR rows x to ``out`` (d,)."""
    for i in range(factors.size):
        factor = factors[i]
        if factor != 0.0:
            for t in range(indptr[i], indptr[i + 1]):
                out[indices[t]] += factor * data[t]


@compiled
def band_slope(
    scores: Array, change: Array, codes: Array, weight: Array, terms: Array, step: float
) -> tuple[float, float]:
    """Return the summed first and second derivative of the rows' losses by the step, at ``scores + step · change``."""
    low = terms[2]
    high = terms[3]
    upsilon = terms[4]
    slope = 0.0
    curvature = 0.0
    weighted = weight.size > 0
    for i in range(scores.size):
        is_positive = codes[i] == 1
        c = terms[1] if is_positive else terms[0]
        if weighted:
            c *= weight[i]
        y = 1.0 if is_positive else -1.0
        m = y * (scores[i] + step * change[i])
        dm = y * change[i]
        over = upsilon * c
        second = c if m < low else (over if m > high else 0.0)
        slope -= dm * (c * max(low - m, 0.0) - over * max(m - high, 0.0))
        curvature += second * dm * dm
    return slope, curvature


@compiled
def segment_gaps(
    scores: Array, codes: Array, weight: Array, terms: Array, start: Array, stop: Array, steps: Array
) -> Array:
    """Return, for each of ``steps`` in [0, 1], the sum of the rows' Fenchel gaps with dual variables on a segment.

    The dual variables (n,) are ``start + step · (stop − start)``, in the form ``y s``. A row's gap is 0 if its dual
    variable is minus the derivative of its loss.
    """
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
        y = 1.0 if is_positive else -1.0
        m = y * scores[i]
        over = upsilon * c
        below = low - m
        above = m - high
        for t in range(steps.size):
            s = y * (start[i] + steps[t] * (stop[i] - start[i]))
            if s > 0.0:
                out[t] += 0.5 * c * (below - s / c) ** 2 if below > 0.0 else 0.5 * s * s / c - s * below
                out[t] += 0.5 * over * max(above, 0.0) ** 2
            else:
                out[t] += 0.5 * c * max(below, 0.0) ** 2
                if s < 0.0:
                    out[t] += 0.5 * over * (above + s / over) ** 2 if above > 0.0 else 0.5 * s * s / over + s * above
                elif above > 0.0:
                    out[t] += 0.5 * over * above**2
    return out


@compiled
def sweep_entries(
    data: Array, indices: Array, indptr: Array, constant: float, codes: Array, stiffness: Array, band: Array,
    norms: Array, order: Array, w: Array, dual: Array,
) -> None:  # fmt: skip
    """Maximise the dual in the variable of every row once, in the given ``order`` (n,); update ``w``.

    The last weight of ``w`` (k,) belongs to the constant feature, whose value is ``constant``; without one it is 0.
    ``norms`` and ``stiffness`` (n,) are of the rows; ``dual`` (n,) is ``y s``.
    """
    low = band[0]
    high = band[1]
    upsilon = band[2]
    last = w.size - 1
    for i in order:
        start = indptr[i]
        stop = indptr[i + 1]
        c = stiffness[i]
        norm = norms[i]
        score = constant * w[last]
        for t in range(start, stop):
            score += data[t] * w[indices[t]]
        y = 1.0 if codes[i] == 1 else -1.0
        g = y * (score - norm * dual[i])
        new = 0.0
        if g < low:
            new = c * (low - g) / (1.0 + norm * c)
        elif g > high:
            new = upsilon * c * (high - g) / (1.0 + norm * upsilon * c)
        change = y * new - dual[i]
        if change != 0.0:
            dual[i] = y * new
            for t in range(start, stop):
                w[indices[t]] += change * data[t]
            w[last] += constant * change


@compiled
def entry_norms(data: Array, indptr: Array, norms: Array) -> None:
    """Add ``‖x‖²`` of CSR rows x to ``norms`` (n,)."""
    for i in range(norms.size):
        for t in range(indptr[i], indptr[i + 1]):
            norms[i] += data[t] * data[t]


@compiled
def entry_hessian(data: Array, indices: Array, indptr: Array, curvature: Array, out: Array) -> None:
    """Add ``Σ c x xᵀ`` of CSR rows x, whose columns ascend, to the lower triangle of ``out`` (d, d)."""
    for i in range(curvature.size):
        if curvature[i] != 0.0:
            for t in range(indptr[i], indptr[i + 1]):
                row = out[indices[t]]
                value = curvature[i] * data[t]
                for q in range(indptr[i], t + 1):
                    row[indices[q]] += value * data[q]


@compiled
def entry_counts(X: Array, ends: Array) -> None:
    """Write the number of nonzero entries of each row of ``X`` (n, d) to ``ends`` (n,)."""
    for i in range(X.shape[0]):
        row = X[i]
        count = 0
        for j in range(row.size):
            count += row[j] != 0
        ends[i] = count


@compiled
def copy_entries(X: Array, indptr: Array, data: Array, indices: Array) -> None:
    """Copy the nonzero entries of the rows of ``X`` (n, d) to the places that ``indptr`` (n + 1,) gives."""
    for i in range(X.shape[0]):
        row = X[i]
        t = indptr[i]
        for j in range(row.size):
            if row[j] != 0:
                data[t], indices[t] = row[j], j
                t += 1
