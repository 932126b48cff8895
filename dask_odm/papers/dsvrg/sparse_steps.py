"""Steps of SVRG over sparse rows, each of which costs the entries of its row and not the number of features.

A step ``w ← (1 − η) w + η v + t φ`` changes every weight, but all alike except where the row has entries. So w is kept
as ``a u + b v + e c``: ``φ = D x − c`` is the scaled row, with D the factors of the scaling and c its scaled shift. A
step changes the numbers a, b and e, and u where x has entries. The weights are written out at the end, and whenever a
is about to leave the range of float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dask_odm.learning.problem.band import band_slope
from dask_odm.learning.problem.features import EntryRows, FeatureMap
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.linalg.jit import compiled, frozen
from dask_odm.typing import Array


class SparseWalk:
    """The steps of an epoch from ``w`` (k,) on, over sparse rows that are given a part at a time.

    ``snapshot`` (k,) and ``dual_image`` (k,) are those of the epoch, of ``n`` rows, and ``step`` is η.
    """

    def __init__(
        self, features: FeatureMap, loss: BandLoss, n: int, w: Array, snapshot: Array, dual_image: Array, step: float
    ) -> None:
        d = features.d
        factor, self._shift = scaled_shift(features)
        self._features = features
        self._stiffness = n * loss.stiffness
        self._band = loss.band
        self._step = step
        # side by side, since a row's entries are all over memory
        self._table = np.column_stack([w[:d], dual_image[:d], snapshot[:d], np.broadcast_to(factor, d)])
        constant = (w[d], dual_image[d], snapshot[d]) if features.bias > 0 else (0.0, 0.0, 0.0)
        shifted = self._shift @ self._table[:, :3] if len(self._shift) else np.zeros(3)
        # a, b, e; c·u, c·v, c·snapshot, c·c; and w, v and the snapshot at the constant feature
        self._numbers = np.array([1.0, 0.0, 0.0, *shifted, self._shift @ self._shift, *constant])

    def take(self, X: Any, codes: Array, weight: Array, order: Array) -> None:
        """Take a step for each of the raw CSR rows ``X`` in ``order``; ``codes`` and ``weight`` are theirs."""
        rows = *EntryRows.of(X), frozen(codes), frozen(weight), order
        settings = self._stiffness, self._band, self._features.constant, self._step
        _take_steps(*rows, self._table, self._shift, self._numbers, *settings)

    def end(self) -> Array:
        """Return the weights (k,) that the steps so far end at."""
        _write_out(self._table, self._shift, self._numbers)
        return np.append(self._table[:, 0], self._numbers[7:8] if self._features.bias > 0 else [])


def scaled_shift(features: FeatureMap) -> tuple[Array, Array]:
    """Return factors and shift of features that are ``factor x − shift``: (1,) or (d,), and (d,) or empty for zeros."""
    if features.scaling is None:
        return np.ones(1), np.zeros(0)
    factor = features.scaling.factor
    shift = features.scaling.shift * factor
    return factor, shift if shift.any() else np.zeros(0)


def square_norms(X: Any, features: FeatureMap) -> Array:
    """Return ‖φ‖² (n,) of raw CSR rows ``X``, without the constant feature."""
    factor, shift = scaled_shift(features)
    factor = np.broadcast_to(factor, features.d)
    squares = csr_array((X.data.astype(np.float64) ** 2, X.indices, X.indptr), shape=X.shape) @ factor**2
    if shift.size:
        squares += shift @ shift - 2.0 * (X @ (factor * shift))
    return squares


@compiled
def _write_out(table: Array, shift: Array, numbers: Array) -> None:
    """Write the weights to the first column of the ``table``, so that a = 1 and b = e = 0."""
    a = numbers[0]
    b = numbers[1]
    e = numbers[2]
    for j in range(table.shape[0]):
        table[j, 0] = a * table[j, 0] + b * table[j, 1]
        if shift.size:
            table[j, 0] += e * shift[j]
    numbers[3] = a * numbers[3] + b * numbers[4] + e * numbers[6]
    numbers[0] = 1.0
    numbers[1] = 0.0
    numbers[2] = 0.0


@compiled
def _take_steps(
    data: Array, indices: Array, indptr: Array, codes: Array, weight: Array, order: Array, table: Array, shift: Array,
    numbers: Array, stiffness: Array, band: Array, constant: float, step: float,
) -> None:  # fmt: skip
    """Take one step for each row of ``order``, changing ``table`` (d, 4) and ``numbers`` (10,) in place.

    The columns of the table are u, v, the snapshot and the factors of the features. ``stiffness`` is n times the
    loss's, and ``step`` η. An empty ``weight`` stands for weights of 1.
    """
    low = band[0]
    high = band[1]
    upsilon = band[2]
    weighted = weight.size > 0
    keep = 1.0 - step
    for at in range(order.size):
        i = order[at]
        start = indptr[i]
        stop = indptr[i + 1]
        of_u = of_v = there = of_shift = 0.0
        for p in range(start, stop):
            j = indices[p]
            value = data[p] * table[j, 3]
            of_u += value * table[j, 0]
            of_v += value * table[j, 1]
            there += value * table[j, 2]
            if shift.size:
                of_shift += value * shift[j]
        score = numbers[0] * (of_u - numbers[3]) + numbers[1] * (of_v - numbers[4])
        score += numbers[2] * (of_shift - numbers[6]) + constant * numbers[7]
        there += constant * numbers[9] - numbers[5]
        c = stiffness[1] if codes[i] == 1 else stiffness[0]
        if weighted:
            c *= weight[i]
        y = 1.0 if codes[i] == 1 else -1.0
        m = y * score
        m_there = y * there
        change = band_slope(m, low, high, upsilon) - band_slope(m_there, low, high, upsilon)
        t = step * c * y * change
        numbers[0] *= keep
        numbers[1] = keep * numbers[1] + step
        numbers[2] = keep * numbers[2] - t
        numbers[7] = keep * numbers[7] + step * numbers[8] + t * constant
        if not 1e-150 < abs(numbers[0]) < 1e150:
            _write_out(table, shift, numbers)
        if t != 0.0:
            g = t / numbers[0]
            for p in range(start, stop):
                j = indices[p]
                table[j, 0] += g * data[p] * table[j, 3]
            numbers[3] += g * of_shift
