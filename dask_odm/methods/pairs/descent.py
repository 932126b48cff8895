"""Dual coordinate descent for two classes with kernel values in memory, which makes large changes first.

Let κ = κ₀ + β, where β makes the intercept. A row's score is ``(K₀ a)_i + b``, b = β Σ a. For row i with
``g_i = m_i − κ₀(x_i, x_i) s_i``, m its margin, the dual is largest in s_i at::

    s_i ← c (1−θ−g_i) / (1 + K_ii c)          if g_i < 1−θ         c the row's stiffness
          υ c (1+θ−g_i) / (1 + K_ii υ c)      if g_i > 1+θ
          0                                   otherwise

Finding that value takes only the row's score, but changing s_i takes the whole row of K. So a sweep skips a row unless
its own margin would move by a threshold or more. The threshold falls from sweep to sweep, which is nearly as good as
choosing the row of largest gain each time. It falls more slowly while more than three rows in a hundred change, as they
do for a large λ. A sweep first computes the moves of all rows at once. Then it visits those within .4 of the threshold,
in an order of its own: with the same order each time, sweeps were seen to gain next to nothing. Changes go 1.2 times as
far as they should if s_i keeps its sign: successive over-relaxation (Mangasarian and Musicant, *Successive
overrelaxation for support vector machines*, 1999).

During a sweep b is fixed. If it moved with every change, all rows would respond to each, with two to three times as
many changes in all. After the sweep b moves towards β Σ a. Rows respond to a rise of b by a fall of Σ a, so a full step
would be too long. How much too long depends on the kernel's width, and is learned. The response is assumed to be a
share of what the rows would do independently. The share shrinks while b lags on the same side, and grows after b went
too far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.learning.problem.band import TINY, band_square, row_gap
from dask_odm.learning.problem.losses import Point, RowLosses
from dask_odm.learning.problem.nystrom_features import span_images
from dask_odm.learning.solution import StepClock
from dask_odm.linalg.jit import compiled, inlined, pointer
from dask_odm.methods.exact.solver import ExactSolution
from dask_odm.typing import Array

Blocks = tuple[Array, Array, Array, Array]  # κ₀ of the negative and of the positive class, across, and back


@dataclass(frozen=True, eq=False)
class PairValues:
    """Kernel values of the rows of two classes, all C-contiguous and of one dtype."""

    negative: Array  # κ₀ of this class's rows among themselves, (n, n)
    positive: Array  # the same of the other class, (m, m)
    across: Array  # κ₀ between the classes, (n, m)
    back: Array  # its transpose, (m, n), since descent reads whole rows
    bias: float = 0.0  # β, the constant by which κ exceeds κ₀
    error: float = 0.0  # bound of the error of each value

    def product(self, a: Array) -> Array:
        """Return ``K a`` (n + m,), with values and short sums in the values' dtype."""
        n = len(self.negative)
        v = a.astype(self.across.dtype)
        low = (self.negative @ v[:n]).astype(np.float64) + self.across @ v[n:]
        high = (self.back @ v[:n]).astype(np.float64) + self.positive @ v[n:]
        return np.concatenate([low, high]) + self.bias * a.sum()

    def matrix(self) -> Array:
        """Return the whole kernel matrix (n + m, n + m), in float64."""
        K = np.block([[self.negative, self.across], [self.back, self.positive]]).astype(np.float64, copy=False)
        K += self.bias
        return K


def descend_pair(losses: RowLosses, values: PairValues, tol: float, seed: int) -> ExactSolution:
    """Minimise P over the rows of two classes, the negative ones first, until the gap is at most ``tol`` of P.

    It may stop earlier. The gap is the largest that kernel values within ``values.error`` of the true ones allow.
    Descent computes in the dtype of ``values``; the gap is summed in float64. ``seed`` determines the order of the
    rows.
    """
    clock = StepClock()
    dtype = values.across.dtype
    n = len(losses.y)
    settings = losses.settings
    bias = values.bias
    a, scores = np.zeros((2, n), dtype)
    stiffness = losses.stiffness_low
    band = np.array([settings.low, settings.high, settings.upsilon])
    order = np.random.default_rng(seed).permutation(n)
    blocks = values.negative, values.positive, values.across, values.back
    enough = 0.9 * tol  # leaves room for rounding of the scores
    memory = np.empty((7, n), dtype), np.empty(n + 1, np.int64)
    sweeps = _descend(blocks, stiffness, band, order, bias, values.error, enough, a, scores, *memory)
    exact = np.zeros((1, n))
    a = a.astype(np.float64)
    m = len(values.negative)
    span_images(values.negative, a[:m, None], exact[:, :m])
    span_images(values.across, a[:m, None], exact[:, m:])
    span_images(values.back, a[m:, None], exact[:, :m])
    span_images(values.positive, a[m:, None], exact[:, m:])
    scores = exact[0] + bias * a.sum()
    spread = values.error * float(np.abs(a).sum())
    loss, lacking, _ = _judge(a, scores, 0.0, len(values.negative), stiffness, band, spread)
    primal = 0.5 * float(a @ scores) + loss
    gap = lacking / max(primal, TINY)
    history = [clock.record(0, gap, primal, float(sweeps))]
    return ExactSolution(a, scores, Point(primal, primal - lacking, gap), gap <= tol, history)


@compiled
def _judge(
    a: Array, scores: Array, shift: float, negatives: int, stiffness: Array, band: Array, spread: float
) -> tuple[float, float, float]:
    """Return the losses at ``scores + shift``, P − D if any of these may be off by ``spread``, and P − D if none is."""
    low = band[0]
    high = band[1]
    upsilon = band[2]
    loss = 0.0
    gap = 0.0
    own = 0.0
    for i in range(a.size):
        y = -1.0 if i < negatives else 1.0
        c = stiffness[i]
        s = y * a[i]
        margin = y * (scores[i] + shift)
        loss += 0.5 * c * band_square(margin, low, high, upsilon)
        near = 0.0
        largest = 0.0
        for side in range(-1, 2):  # convex in the margin, so none in between has a larger gap than both ends
            before = near
            near = row_gap(s, margin + spread * side, c, low, high, upsilon)
            largest = max(largest, near)
        own += before
        gap += largest
    return loss, gap, own


@inlined
def _terms(blocks: Blocks, stiffness: Array, upsilon: float, terms: Any) -> None:
    """Fill all but the last of ``terms`` (7, n) with figures of every row.

    They are y, κ₀ of the row with itself, the dual variable per margin missing below and above the band, and the
    inverses of these two. The last is for how far the row's margin would move.
    """
    n = stiffness.size
    negatives = len(blocks[0])
    low_values = pointer(blocks[0])
    high_values = pointer(blocks[1])
    for i in range(n):
        k = i - negatives
        own = low_values[i * (negatives + 1)] if k < 0 else high_values[k * (n - negatives + 1)]
        c = stiffness[i]
        over = c * upsilon
        terms[i] = -1.0 if k < 0 else 1.0
        terms[n + i] = own
        terms[2 * n + i] = c / (1.0 + own * c)
        terms[3 * n + i] = over / (1.0 + own * over)
        terms[4 * n + i] = own + 1.0 / c
        terms[5 * n + i] = own + 1.0 / (over if over > 0.0 else c)


@inlined
def _change(a: float, score: float, terms: Any, n: int, i: int, low: float, high: float) -> tuple[float, float, float]:
    """Return the distance of a row's s from its best value, that value, and how far the row's margin would move."""
    s = terms[i] * a
    g = terms[i] * score - terms[n + i] * s
    zero = s - s
    new = max(low - g, zero) * terms[2 * n + i] + min(high - g, zero) * terms[3 * n + i]
    # read both without a branch, so that the loop vectorises
    below = terms[4 * n + i]
    above = terms[5 * n + i]
    return new - s, new, abs(new - s) * (above if g > high else below)


@inlined
def _near(
    order: Array, terms: Any, low: float, high: float, least: float, b: float, a: Any, scores: Any, rows: Any
) -> int:
    """Write the rows whose margins would move by ``least`` or more into ``rows``, in ``order``; return their number."""
    n = order.size
    moves = 6 * n
    count = 0
    for i in range(n):
        terms[moves + i] = _change(a[i], scores[i] + b, terms, n, i, low, high)[2]
    for i in order:
        rows[count] = i
        count += terms[moves + i] >= least
    return count


@inlined
def _sweep(
    blocks: Blocks, terms: Any, band: Array, order: Array, number: int, threshold: float, b: float, a: Any, sums: Any,
    rows: Any, exact: Any,
) -> tuple[float, int]:  # fmt: skip
    """Visit the rows near the threshold, and update ``a`` and ``sums`` in place, in numbers of the type ``exact``.

    Return the growth of Σ a, and how many rows changed.
    """
    negative, positive, across, back = blocks
    n = len(negative)
    m = len(positive)
    grown = 0.0
    changed = 0
    low = exact(band[0])
    high = exact(band[1])
    further = exact(0.2)  # over-relaxation
    least = exact(threshold)
    shift = exact(b)
    count = _near(order, terms, low, high, exact(0.4) * least, shift, a, sums, rows)
    at = 0
    stride = order[number % order.size] % max(count, 1) or 1
    common = 2
    while common > 1:  # until no divisor is left that stride and count have in common
        common = stride
        rest = count
        while rest:
            common, rest = rest, common % rest
        stride += common > 1
    for _ in range(count):
        i = rows[at]
        at += stride
        if at >= count:
            at -= count
        change, new, move = _change(a[i], sums[i] + shift, terms, n + m, i, low, high)
        if move < least:
            continue
        if (new + further * change) * new > exact(0.0):
            change += further * change
        step = terms[i] * change
        a[i] += step
        grown += step
        changed += 1
        # the row's values with either class
        low_values = pointer(negative) if i < n else pointer(back)
        high_values = pointer(across) if i < n else pointer(positive)
        row = i if i < n else i - n
        for j in range(n):
            sums[j] += step * low_values[row * n + j]
        for j in range(m):
            sums[n + j] += step * high_values[row * m + j]
    return grown, changed


@inlined
def _answer(a: Any, terms: Any, n: int) -> float:
    """Return how far Σ a falls if all scores rise by 1 and each row responds independently."""
    zero = a[0] - a[0]
    out = zero
    for i in range(n):
        s = terms[i] * a[i]
        below = terms[2 * n + i]
        above = terms[3 * n + i]
        out += below if s > zero else above if s < zero else zero
    return out


@compiled
def _descend(
    blocks: Blocks, stiffness: Array, band: Array, order: Array, bias: float, error: float, tol: float, a: Array,
    scores: Array, terms: Array, rows: Array,
) -> int:  # fmt: skip
    """Sweep until the relative gap is at most ``tol``, or the threshold is the least; return the number of sweeps.

    It stops as well if nearly all of the gap is what the kernel's ``error`` allows. ``scores`` are those of κ₀;
    ``terms`` (7, n) and ``rows`` (n + 1,) are memory.
    """
    n = a.size
    negatives = len(blocks[0])
    figures = pointer(terms)
    own_a = pointer(a)
    sums = pointer(scores)
    threshold = 1.0
    sweeps = 0
    b = 0.0
    total = 0.0
    lag = 0.0
    share = 0.3  # of the response to b; grows and shrinks with what b does
    _terms(blocks, stiffness, band[2], figures)
    least = 1e-4
    while threshold > least:  # what is left then is smooth, and Newton's work
        grown, changed = _sweep(
            blocks, figures, band, order, sweeps, threshold, b, own_a, sums, pointer(rows), a.dtype.type
        )  # fmt: skip
        total += grown
        # five times as many sweeps are the most, since Newton is quicker then
        threshold *= 0.9 ** max(0.2, min(1.0, 0.03 * n / max(changed, 1)))
        sweeps += 1
        if threshold < 0.03:  # above, the gap is never small
            square = 0.0
            spread = 0.0
            for i in range(n):
                square += own_a[i] * (sums[i] + bias * total)
                spread += error * abs(own_a[i])
            loss, gap, own = _judge(a, scores, bias * total, negatives, stiffness, band, spread)
            primal = loss + 0.5 * square
            if gap <= tol * primal or own <= min(0.1 * gap, tol * primal):  # the rest is rounding
                break
            if gap <= 0.1 * primal:  # a few more sweeps are quicker than Newton's steps
                least = 1e-5
        before = lag
        lag = bias * total - b
        if before != 0.0:
            share *= 0.65 if lag * before > 0.0 else 1.5
        b += lag / (1.0 + bias * share * _answer(own_a, figures, n))
    return sweeps
