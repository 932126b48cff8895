"""Two classes against each other, from kernel values in memory: dual coordinate descent that takes large changes first.

For row i with ``g_i = m_i − K_ii s_i``, m its margin, the dual is largest in s_i at (see `dask_odm.solvers.dual_cd`)::

    s_i ← c (1−θ−g_i) / (1 + K_ii c)          if g_i < 1−θ         c the row's stiffness
          υ c (1+θ−g_i) / (1 + K_ii υ c)      if g_i > 1+θ
          0                                   otherwise

To find that value takes the row's score alone, to change s_i its whole row of K. So a sweep leaves a row as it is
unless its own margin would move by a threshold or more; the threshold falls from sweep to sweep, which is nearly as
good as to choose the row that gains most each time. Every sweep has an order of its own: with the same one for all,
sweeps were seen to gain next to nothing. Changes go `OVER` times as far as they should, where s_i keeps its sign:
successive over-relaxation (Mangasarian and Musicant, *Successive overrelaxation for support vector machines*, 1999).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from dask_odm.jit import compiled, inlined
from dask_odm.problems.odm import RowLosses
from dask_odm.solvers.step_log import Record, step_record
from dask_odm.typing import Array

FIRST, SHRINK = 1.0, 0.85  # thresholds: of the first sweep, and the share that is left of it in the next
LOOK = 0.03  # below this threshold the gap is looked at after every sweep: above, it is never small
LEAST = 1e-3  # the last threshold: what is left then is smooth, and Newton's
OVER = 1.3
SPARE = 0.9  # of the gap that is asked for: what rounding adds to the scores meanwhile
TURN = 16  # rows and columns that are transposed at a time
TINY = np.finfo(float).tiny


@dataclass(frozen=True, eq=False)
class PairValues:
    """Kernel values of the rows of two classes, all C-contiguous and of one number type.

    Attributes
    ----------
    negative, positive : ndarrays of shape (n, n) and (m, m)
        Of each class's rows among themselves.
    across : ndarray of shape (n, m)
    back : ndarray of shape (m, n)
        Its transpose: descent reads whole rows.
    error : float
        How far any of them may be from the kernel's value.
    """

    negative: Array
    positive: Array
    across: Array
    back: Array
    error: float = 0.0

    def matrix(self) -> Array:
        """The whole kernel matrix (n + m, n + m), in float64."""
        n = len(self.negative)
        K = np.empty((n + len(self.positive),) * 2)
        K[:n, :n], K[n:, n:] = self.negative, self.positive
        K[:n, n:], K[n:, :n] = self.across, self.back
        return K


@dataclass(frozen=True, eq=False)
class PairSolution:
    """Coefficients (n,), P and its relative gap, and one record a step."""

    coefficients: Array
    primal: float
    gap: float
    converged: bool
    history: list[Record]


def descend_pair(losses: RowLosses, values: PairValues, tol: float, seed: int) -> PairSolution:
    """Minimise P over the rows of two classes, the negative ones first, until the gap is at most ``tol`` of P.

    It may end before that. The gap is the largest that kernel values within ``values.error`` of the true ones allow.

    Parameters
    ----------
    losses : RowLosses
        Of all rows.
    values : PairValues
        In whose number type descent computes; the gap is summed in float64.
    tol : float
    seed : int
        Of the order of the rows.
    """
    began, dtype = time.perf_counter(), values.across.dtype
    n, settings = len(losses.y), losses.settings
    a, scores = np.zeros((2, n), dtype)
    stiffness, band = losses.stiffness_low, np.array([settings.low, settings.high, settings.upsilon])
    order = np.random.default_rng(seed).permutation(n)
    blocks = values.negative, values.positive, values.across, values.back
    sweeps = _descend(*blocks, stiffness, band, order, values.error, SPARE * tol, a, scores)
    exact = np.zeros(n)
    _add_scores(*blocks, a, exact)
    a = a.astype(np.float64)
    spread = values.error * float(np.abs(a).sum())
    loss, lacking = _judge(a, exact, len(values.negative), stiffness, band, spread)
    primal = 0.5 * float(a @ exact) + loss
    gap = lacking / max(primal, TINY)
    history = [step_record(0, gap, primal, float(sweeps), time.perf_counter() - began)]
    return PairSolution(a, primal, gap, gap <= tol, history)


@compiled
def turn(values: Array, out: Array) -> None:
    """``out`` (m, n) ``<-`` the transpose of ``values`` (n, m)."""
    n, m = values.shape
    for i in range(0, n, TURN):
        for j in range(0, m, TURN):
            for t in range(j, min(j + TURN, m)):
                for k in range(i, min(i + TURN, n)):
                    out[t, k] = values[k, t]


@inlined
def _row_gap(s: float, margin: float, c: float, low: float, high: float, upsilon: float) -> float:
    """Of one row, as `RowLosses.row_gaps`."""
    below, above, over = low - margin, margin - high, upsilon * c
    up, down = max(s, 0.0), max(-s, 0.0)
    gap = 0.5 * c * (below - up / c) ** 2 if below > 0.0 else 0.5 * up * up / c - up * below
    if above > 0.0:
        gap += 0.5 * over * (above - down / over) ** 2 if over > 0.0 else 0.0
    elif down > 0.0:
        gap += 0.5 * down * down / over - down * above
    return gap


@compiled
def _judge(
    a: Array, scores: Array, negatives: int, stiffness: Array, band: Array, spread: float
) -> tuple[float, float]:
    """The sum of the losses, and P − D where any score may be ``spread`` off."""
    low, high, upsilon = band[0], band[1], band[2]
    loss, gap = 0.0, 0.0
    for i in range(a.size):
        y, c = -1.0 if i < negatives else 1.0, stiffness[i]
        s, margin = y * a[i], y * scores[i]
        below, above = max(low - margin, 0.0), max(margin - high, 0.0)
        loss += 0.5 * c * (below * below + upsilon * above * above)
        near = _row_gap(s, margin - spread, c, low, high, upsilon)
        # convex in the margin: no margin between the two has more
        gap += max(near, _row_gap(s, margin + spread, c, low, high, upsilon)) if spread > 0.0 else near
    return loss, gap


@inlined
def _add_row(step: float, near: Array, far: Array, to_near: Array, to_far: Array) -> None:
    """Add ``step`` times a row of K to scores: those of its own class, and of the other."""
    for j in range(near.size):
        to_near[j] += step * near[j]
    for j in range(far.size):
        to_far[j] += step * far[j]


@compiled
def _add_scores(negative: Array, positive: Array, across: Array, back: Array, a: Array, out: Array) -> None:
    """``out += K a``, (n,), in float64."""
    n = len(negative)
    for i in range(a.size):
        if a[i] != 0.0:
            step = np.float64(a[i])
            if i < n:
                _add_row(step, negative[i], across[i], out[:n], out[n:])
            else:
                _add_row(step, positive[i - n], back[i - n], out[n:], out[:n])


@compiled
def _sweep(
    negative: Array,
    positive: Array,
    across: Array,
    back: Array,
    stiffness: Array,
    band: Array,
    order: Array,
    stride: int,
    threshold: float,
    a: Array,
    scores: Array,
) -> None:
    """Visit every ``stride``-th row of ``order``, round and round; ``a`` and ``scores`` are changed in place."""
    n, low, high, upsilon, at = len(negative), band[0], band[1], band[2], 0
    for _ in range(order.size):
        i = order[at]
        at += stride
        if at >= order.size:
            at -= order.size
        y, own = (-1.0, negative[i, i]) if i < n else (1.0, positive[i - n, i - n])
        s = y * a[i]
        g, c, new = y * scores[i] - own * s, stiffness[i], 0.0
        if g < low:
            new = (low - g) * c / (1.0 + own * c)
        elif g > high:
            c *= upsilon
            new = (high - g) * c / (1.0 + own * c)
        change = new - s
        if abs(change) * (1.0 + own * c) < threshold * c or change == 0.0:
            continue
        if (s + OVER * change) * new > 0.0:
            change *= OVER
        step = a.dtype.type(y * change)
        a[i] += step
        if i < n:
            _add_row(step, negative[i], across[i], scores[:n], scores[n:])
        else:
            _add_row(step, positive[i - n], back[i - n], scores[n:], scores[:n])


@inlined
def _common(a: int, b: int) -> int:
    """The greatest common divisor."""
    while b:
        a, b = b, a % b
    return a


@compiled
def _descend(
    negative: Array,
    positive: Array,
    across: Array,
    back: Array,
    stiffness: Array,
    band: Array,
    order: Array,
    error: float,
    tol: float,
    a: Array,
    scores: Array,
) -> int:
    """Sweep until the relative gap is at most ``tol``, or the threshold is the least; returns how often."""
    threshold, sweeps = FIRST, 0
    while threshold > LEAST:
        stride = order[sweeps % order.size] or 1
        while _common(stride, order.size) > 1:
            stride += 1
        _sweep(negative, positive, across, back, stiffness, band, order, stride, threshold, a, scores)
        threshold *= SHRINK
        sweeps += 1
        if threshold < LOOK:
            square, spread = 0.0, 0.0
            for i in range(a.size):
                square += np.float64(a[i]) * scores[i]
                spread += error * abs(a[i])
            loss, gap = _judge(a, scores, len(negative), stiffness, band, spread)
            if gap <= tol * (loss + 0.5 * square):
                break
    return sweeps
