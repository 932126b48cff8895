"""Weighted quantile of the scores at which a capped simplex is filled, over rows in memory or spread over workers.

The *capped simplex* has the vectors e ≥ 0 with Σ e_i = 1 and e_i ≤ c_i / mass, c being the weights of rows. They are
the coefficients of a reduced convex hull (Bennett and Bredensteiner 2000; Crisp and Burges 1999); a mass of 0 gives the
whole hull. ``Σ e_i s_i`` is least if rows of low scores get their caps, up to a weighted quantile of the scores, called
the *threshold* here. Rows of equal score share what is left for them in proportion to their weights. So a row that is
there twice equals one of weight 2 to the last bit, and neither the order of the rows nor who holds them matters.

Over spread rows, a *look* is one pass. For either class it returns the weights and the weighted sums of the rows below
a window of scores, in equal bins of the window, and above it, with the least and the largest score of each bin. If the
threshold is in a bin, all rows of the bin share what is left to reach a sum of 1. That gives a point of the hull, whose
score exceeds the least one by the bin's spread of scores at most. If that is too much, the bin is the window of the
next look. When the rows of a bin have a single score, the point is exact.

The window is predicted. A quantile of w·x is homogeneous in w, and its derivative is the mean of the rows there, which
the bin of the last look gave. So it is expected at the product of that mean and the new w, in a window that is narrow
if w moved little. It cannot leave a certain range, since no score moves by more than ‖x‖ ‖Δw‖. If it is not in the
window, the scores on its side of it, within the range, are the next window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dask_odm.linalg.jit import compiled, frozen
from dask_odm.typing import Array

CLASSES = (1.0, -1.0)  # the positive one comes first everywhere
ONE_SCORE = 1e-100  # difference up to which scores are the same
ROUNDING = 1e-12  # share of the mass by which sums of the same weights in another order may differ


@dataclass(frozen=True)
class Cut:
    """The e that minimises ``Σ e_i s_i``: ``full · c_i`` below the scores ``low`` to ``high``, ``tied · c_i`` within.

    The two scores are the same threshold, unless a bin's rows share what is left for them.
    """

    low: float
    high: float
    full: float
    tied: float

    def entries(self, scores: Array, weight: Array | None) -> Array:
        """Return e of rows with ``scores`` (n,) and weights (n,); None stands for weights of 1."""
        e = np.where(scores < self.low, self.full, np.where(scores <= self.high, self.tied, 0.0))
        return e if weight is None else e * weight


def cut_at(low: float, high: float, below: float, tied: float, mass: float) -> Cut:
    """Return the cut for rows of total weight ``below`` below the scores ``low`` to ``high``, and ``tied`` within."""
    full = 1.0 / mass if mass > 0 else 0.0
    return Cut(low, high, full, max(0.0, 1.0 - full * below) / tied)


def cut_scores(scores: Array, weight: Array | None, mass: float) -> Cut:
    """Minimise ``Σ e_i s_i`` over the capped simplex of ``mass``, which is at most the sum of the weights.

    The weights (n,) of the rows are positive; None stands for weights of 1.
    """
    n = len(scores)
    if weight is None:
        m = min(int(mass), n - 1)
        threshold = float(np.partition(scores, m)[m])
        counts = np.count_nonzero(scores < threshold), np.count_nonzero(scores == threshold)
        return cut_at(threshold, threshold, float(counts[0]), float(counts[1]), mass)
    order = np.argsort(scores, kind="stable")
    at = min(int(np.searchsorted(np.cumsum(weight[order]), mass, side="right")), n - 1)
    threshold = float(scores[order[at]])
    below = float(weight[scores < threshold].sum())
    return cut_at(threshold, threshold, below, float(weight[scores == threshold].sum()), mass)


# Rows spread over workers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guess:
    """The range of a threshold: certainly from ``start`` to ``stop``, probably in the window ``low`` to ``high``."""

    start: float
    stop: float
    low: float
    high: float

    def within(self, low: float, high: float) -> Guess:
        """Return the guess with the window from score ``low`` to ``high``, both included."""
        return replace(self, low=low, high=high)


@dataclass(frozen=True)
class Look:
    """The message of a look: the guesses of both classes' thresholds, and the number of ``bins`` of each window."""

    guesses: tuple[Guess, Guess]
    bins: int

    @classmethod
    def first(cls, w: Array, scale: float, bins: int, memory: Array, share: float = 0.1) -> Look:
        """Return the first look at ``w`` (d,), using the `memory_of` the last w; it is empty if there is none.

        ``scale`` is the largest norm of a row. The window about the expected threshold covers a ``share`` of the range.
        """
        reach = max(scale * float(np.linalg.norm(w)) * (1 + 1e-6), ONE_SCORE)
        if not memory.size:
            return cls((Guess(-reach, reach, -reach, reach),) * 2, bins)
        last, *means = memory[2:].reshape(3, -1)
        moved = scale * float(np.linalg.norm(w - last)) + 1e-6 * reach
        guesses = []
        for threshold, mean in zip(memory[:2].tolist(), means, strict=True):
            start = max(-reach, threshold - moved)
            stop = min(reach, threshold + moved)
            if not start < stop:
                start = -reach
                stop = reach
            expected = float(mean @ w)
            low = max(start, expected - share * moved)
            high = min(stop, expected + share * moved)
            guesses.append(Guess(start, stop, low, high) if low < high else Guess(start, stop, start, stop))
        return cls((guesses[0], guesses[1]), bins)


def memory_of(w: Array, thresholds: Sequence[float], means: Sequence[Array] | Array) -> Array:
    """Return what the next look needs, (3 d + 2,): thresholds of scores along w (d,), and mean signed rows there."""
    return np.concatenate([thresholds, w, *means])


@dataclass(frozen=True)
class Found:
    """Vertex of one class along w: ``w·point`` (``point`` (d,)) exceeds its least value by at most ``slack``.

    ``threshold`` is that of the signed scores, which ``cut`` takes within a bin; ``mean`` (d,) is of the signed rows
    there.
    """

    cut: Cut
    threshold: float
    point: Array
    mean: Array
    slack: float


@dataclass(frozen=True, eq=False)
class Looked:
    """The result of a look for either class, in bins + 2 groups: below the window, in its bins, and above it.

    ``sums`` (2, bins + 2, d + 1) are the weighted sums of the unsigned rows, with the weights in the last column;
    ``ends`` (2, 2, bins + 2) are the least scores of the groups of each class, and the largest ones.
    """

    sums: Array
    ends: Array

    def __add__(self, other: Looked) -> Looked:
        ends = np.stack([np.minimum(self.ends[0], other.ends[0]), np.maximum(self.ends[1], other.ends[1])])
        return Looked(self.sums + other.sums, ends)

    def found(self, k: int, mass: float) -> Found | None:
        """Return the vertex of class ``k`` if the threshold is in the window, else None."""
        weights = self.sums[k, :, -1]
        sums = self.sums[k, :, :-1]
        until = np.cumsum(weights)
        at = int(np.searchsorted(until, mass, side="right"))
        if weights[-1] == 0 and at >= len(until) - 1:
            at = int(np.flatnonzero(weights)[-1])  # all weight is used up, up to rounding
        elif at == 0 and until[0] <= mass * (1 + ROUNDING) and weights[1:-1].any():
            at = 1 + int(np.flatnonzero(weights[1:])[0])  # else looks at either side could follow each other for ever
        if not 0 < at < len(until) - 1:
            return None
        (low, high), own = self.ends[:, k, at].tolist(), float(weights[at])
        cut = cut_at(low, high, float(until[at - 1]), own, mass)
        left = min(1.0, cut.tied * own)  # the sum of e over the bin's rows
        used = 0.0 if mass == 0 else min(1.0, left * mass / own)
        point = cut.full * sums[:at].sum(axis=0) + cut.tied * sums[at]
        slack = left * (1.0 - used) * (high - low)
        return Found(cut, low + used * (high - low), point, CLASSES[k] * sums[at] / own, slack)

    def elsewhere(self, k: int, guess: Guess, mass: float) -> Guess:
        """Return the guess for the next look: all scores of class ``k`` beyond the window, on the threshold's side.

        If none of them is in the range, rounding put the threshold outside.
        """
        group = 0 if self.sums[k, 0, -1] > mass or self.sums[k, -1, -1] == 0 else -1
        least, largest = self.ends[:, k, group].tolist()
        low = max(least, guess.start)
        high = min(largest, guess.stop)
        return guess.within(low, high) if low < high else guess.within(least, largest)


def find_quantiles(
    ask: Callable[[Look], Looked], first: Look, mass: float, allowed: float, rounded: float = 1e-15
) -> tuple[Found, Found]:
    """Return the vertices of both classes, by as many looks as make twice the slack of each at most ``allowed``.

    ``ask`` answers a look. Scores that differ by the share ``rounded`` of the threshold are a single score.
    """
    look = first
    while True:
        looked = ask(look)
        found = []
        following = []
        for k, guess in enumerate(look.guesses):
            known = looked.found(k, mass)
            if known is None:
                following.append(looked.elsewhere(k, guess, mass))
            elif 2 * known.slack > max(allowed, rounded * abs(known.threshold), ONE_SCORE):
                following.append(guess.within(known.cut.low, known.cut.high))
            else:
                following.append(guess)
                found.append(known)
        if len(found) == 2:
            return found[0], found[1]
        look = Look((following[0], following[1]), look.bins)


def bin_count(kept: int, d: int) -> int:
    """Return the number of bins, 64 to 1024, whose sums of ``d`` features take ``kept`` bytes for a class."""
    return max(64, min(1024, kept // (8 * (d + 3)) - 2))


def look_at(
    look: Look,
    rows: Iterable[tuple[Array, Array, Array]],
    u: Array,
    shift: Array,
    factor: Array,
    class_weights: tuple[float, float] = (1.0, 1.0),
) -> Looked:
    """Answer a look at ``rows``: blocks of X (n, d), class codes (n,) and weights (n,), which if empty stand for 1.

    The score of a row is ``Σ u (x − shift)``, and its features are ``(x − shift) · factor``. Rows of a code below zero
    take no part.
    """
    groups = look.bins + 2
    far = np.finfo(float).max  # ends of an empty bin; the compiled loops know no infinity
    edges = np.array([[each.low, each.high] for each in look.guesses])
    sums = np.zeros((2 * groups, len(u) + 1))
    ends = np.repeat([[far], [-far]], 2 * groups, axis=1)
    for X, codes, weight in rows:
        deal_rows(frozen(X), codes, weight, np.array(class_weights), u, shift, edges, sums, ends)
    sums[:, :-1] *= factor
    return Looked(np.stack(np.split(sums, 2)), np.stack(np.split(ends, 2, axis=1), axis=1))


@compiled
def deal_rows(
    X: Array, codes: Array, weight: Array, class_weights: Array, u: Array, shift: Array, edges: Array, sums: Array,
    ends: Array,
) -> None:  # fmt: skip
    """Add rows to the sums of `look_at`, which have the slots of the positive class before those of the negative one.

    ``class_weights`` (2,) are those of the negative and the positive class, ``edges`` (2, 2) the windows. The loops
    avoid branches on the scores, which are in no order, so that the processor would mispredict half of them.
    """
    block = 256  # rows whose scores are computed before any is added to its bin
    d = X.shape[1]
    slots = ends.shape[1] // 2
    last = slots - 3.0
    per = (slots - 2) / np.maximum(edges[:, 1] - edges[:, 0], ONE_SCORE)
    scores = np.empty(block)
    parts = np.empty(block)
    slot = np.empty(block, dtype=np.int64)
    for first in range(0, X.shape[0], block):
        m = min(block, X.shape[0] - first)
        for r in range(m):
            s = 0.0
            for j in range(d):
                s += (X[first + r, j] - shift[j]) * u[j]
            scores[r] = s
        for r in range(m):
            is_positive = codes[first + r] == 1
            c = class_weights[1] if is_positive else class_weights[0]
            if weight.size > 0:
                c *= weight[first + r]
            parts[r] = 0.0 if codes[first + r] < 0 else c
            s = scores[r] if is_positive else -scores[r]
            low, high, each = (edges[0, 0], edges[0, 1], per[0]) if is_positive else (edges[1, 0], edges[1, 1], per[1])
            # the ends of a window are scores: rounding must not put them outside, or the search would never end
            place = 1.0 + min(max((s - low) * each, 0.0), last)
            place = 0.0 if s < low else (last + 2.0 if s > high else place)
            scores[r], slot[r] = s, int(place) + (0 if is_positive else slots)
        for r in range(m):
            c = parts[r]
            total = sums[slot[r]]
            row = X[first + r]
            total[d] += c
            for j in range(d):
                total[j] += c * (row[j] - shift[j])
        for r in range(m):
            if parts[r] > 0.0:
                ends[0, slot[r]] = min(ends[0, slot[r]], scores[r])
                ends[1, slot[r]] = max(ends[1, slot[r]], scores[r])
