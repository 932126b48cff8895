"""Weighted quantile of the scores at which a capped simplex is filled, over rows that are spread over workers.

The quantile is called the *threshold* here: rows of lower scores get their caps. A *look* is one pass. For either class
it returns the weights and the weighted sums of the rows below a window of scores, in equal bins of the window, and
above it, with the least and the largest score of each bin. If the threshold is in a bin, all rows of the bin share what
is left to reach a sum of 1. That gives a point of the hull, whose score exceeds the least one by the bin's spread of
scores at most. If that is too much, the bin is the window of the next look. When the rows of a bin have a single score,
the point is exact.

The window is predicted. A quantile of w·x is homogeneous in w, and its derivative is the mean of the rows there, which
the bin of the last look gave. So it is expected at the product of that mean and the new w, in a window that is narrow
if w moved little. It cannot leave a certain range, since no score moves by more than ‖x‖ ‖Δw‖. If it is not in the
window, the rest of the range is the next window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dask_odm.linalg.jit import compiled, frozen
from dask_odm.methods.hulls.problem.capped_simplex import cut_at
from dask_odm.typing import Array

BINS = 1024  # most bins of a window
FEWEST_BINS = 64
BLOCK_ROWS = 256  # rows whose scores are computed before any is added to its bin
LEAST_RANGE = 1e-100  # least half width of the range of scores
FAR = float(np.finfo(float).max)  # ends of an empty bin; the compiled loops know no infinity
ROUNDED = 1e-15  # spread of scores, relative to the threshold, that is a single score up to rounding
SHARE = 0.1  # share of the range that the window about the expected threshold covers


@dataclass(frozen=True, eq=False)
class Known:
    """Results of the last look for the next: w (d,), thresholds of signed scores, and mean signed rows there (2, d)."""

    w: Array
    thresholds: Array
    means: Array

    def vector(self) -> Array:
        """Return all numbers as one vector, (3 d + 2,)."""
        return np.concatenate([self.w, self.thresholds, *self.means])

    @classmethod
    def of_vector(cls, numbers: Array) -> Known:
        d = (len(numbers) - 2) // 3
        return cls(numbers[:d], numbers[d : d + 2], numbers[d + 2 :].reshape(2, d))


@dataclass(frozen=True)
class Guess:
    """The range of a threshold: certainly from ``start`` to ``stop``, probably in the window ``low`` to ``high``."""

    start: float
    stop: float
    low: float
    high: float


@dataclass(frozen=True)
class Look:
    """The message of a look: the guesses of both classes' thresholds, and the number of ``bins`` of each window."""

    guesses: tuple[Guess, Guess]
    bins: int

    @classmethod
    def first(cls, w: Array, scale: float, bins: int, known: Known | None) -> Look:
        """Return the first look at ``w`` (d,), using the results of the last w if there are any.

        ``scale`` is the largest norm of a row.
        """
        reach = max(scale * float(np.linalg.norm(w)) * (1 + 1e-6), LEAST_RANGE)
        if known is None:
            return cls((Guess(-reach, reach, -reach, reach),) * 2, bins)
        moved = scale * float(np.linalg.norm(w - known.w)) + 1e-6 * reach
        guesses = []
        for threshold, expected in zip(known.thresholds.tolist(), (known.means @ w).tolist(), strict=True):
            start = max(-reach, threshold - moved)
            stop = min(reach, threshold + moved)
            if not start < stop:
                start = -reach
                stop = reach
            low = max(start, expected - SHARE * moved)
            high = min(stop, expected + SHARE * moved)
            guesses.append(Guess(start, stop, low, high) if low < high else Guess(start, stop, start, stop))
        return cls((guesses[0], guesses[1]), bins)


@dataclass(frozen=True)
class Found:
    """The vertex of one class, up to ``slack``.

    Attributes
    ----------
    threshold : float
        Threshold of the signed scores.
    point : ndarray of shape (d,)
    mean : ndarray of shape (d,)
        Mean of the signed rows at the threshold.
    slack : float
        By how much ``w·point`` may exceed the least of the hull.
    bin : (low, high)
        Least and largest score of the rows in the threshold's bin.
    """

    threshold: float
    point: Array
    mean: Array
    slack: float
    bin: tuple[float, float]


@dataclass(frozen=True, eq=False)
class ClassLook:
    """The result of a look for one class.

    Attributes
    ----------
    sums : ndarray of shape (bins + 2, d + 1)
        Weighted sums of the unsigned rows below the window, in its bins and above it. The last column has the weights.
    ends : ndarray of shape (2, bins + 2)
        Least and largest score of each of these groups.
    """

    sums: Array
    ends: Array

    def __add__(self, other: ClassLook) -> ClassLook:
        ends = np.stack([np.minimum(self.ends[0], other.ends[0]), np.maximum(self.ends[1], other.ends[1])])
        return ClassLook(self.sums + other.sums, ends)

    def found(self, mass: float, sign: float) -> Found | None:
        """Return the vertex if the threshold is in the window, else None."""
        weights = self.sums[:, -1]
        sums = self.sums[:, :-1]
        until = np.cumsum(weights)
        at = int(np.searchsorted(until, mass, side="right"))
        if weights[-1] == 0 and at >= len(until) - 1:
            at = int(np.flatnonzero(weights)[-1])  # all weight is used up, up to rounding
        if not 0 < at < len(until) - 1:
            return None
        (low, high), own = self.ends[:, at].tolist(), float(weights[at])
        cut = cut_at(low, float(until[at - 1]), own, mass)
        left = min(1.0, cut.tied * own)  # the sum of e over the bin's rows
        used = 0.0 if mass == 0 else min(1.0, left * mass / own)
        point = cut.full * sums[:at].sum(axis=0) + cut.tied * sums[at]
        slack = left * (1.0 - used) * (high - low)
        return Found(low + used * (high - low), point, sign * sums[at] / own, slack, (low, high))

    def elsewhere(self, guess: Guess, mass: float) -> Guess:
        """Return the rest of the range on the threshold's side of the window.

        If rounding put the threshold outside the range, that is an interval beside it.
        """
        width = guess.stop - guess.start
        if self.sums[0, -1] > mass or self.sums[-1, -1] == 0:
            start = guess.start if guess.start < guess.low else guess.low - width
            stop = guess.low
        else:
            start = guess.high
            stop = guess.stop if guess.high < guess.stop else guess.high + width
        return Guess(start, stop, start, stop)


@dataclass(frozen=True, eq=False)
class Looked:
    """The result of a look for the positive and the negative class."""

    classes: tuple[ClassLook, ClassLook]

    def __add__(self, other: Looked) -> Looked:
        positive, negative = (mine + its for mine, its in zip(self.classes, other.classes, strict=True))
        return Looked((positive, negative))


@dataclass(eq=False)
class Tally:
    """The sums of a look, added up block by block.

    The score of a row is ``Σ u (x − shift)``, and its features are ``(x − shift) · factor``.
    """

    look: Look
    u: Array
    shift: Array
    factor: Array

    def __post_init__(self) -> None:
        bins = self.look.bins
        d = len(self.u)
        self._edges = np.array([[each.low, each.high] for each in self.look.guesses])
        self._sums, self._ends = np.zeros((2 * (bins + 2), d + 1)), np.empty((2, 2 * (bins + 2)))
        self._ends[0], self._ends[1] = FAR, -FAR

    def add(self, X: Array, codes: Array, weight: Array, positive: int, class_weights: Sequence[float]) -> None:
        """Add rows ``X`` (n, d) with codes (n,) and weights (n,); empty weights stand for 1.

        Rows of a code below zero take no part.
        """
        weights = np.array(class_weights, dtype=np.float64)
        deal_rows(frozen(X), codes, weight, positive, weights, self.u, self.shift, self._edges, self._sums, self._ends)

    def total(self) -> Looked:
        """Return all sums, in scaled features."""
        self._sums[:, :-1] *= self.factor
        positive, negative = zip(np.split(self._sums, 2), np.split(self._ends, 2, axis=1), strict=True)
        return Looked((ClassLook(*positive), ClassLook(*negative)))


def bin_count(kept: int, d: int) -> int:
    """Return the number of bins whose sums of ``d`` features take ``kept`` bytes for a class, within limits."""
    return max(FEWEST_BINS, min(BINS, kept // (8 * (d + 3)) - 2))


def settle(looked: Looked, look: Look, mass: float, allowed: float) -> tuple[tuple[Found, Found] | None, Look]:
    """Return the vertices of both classes if twice the slack of each is within ``allowed``, else None.

    The second value is the look to make next, if there is one to make.
    """
    found = [each.found(mass, sign) for each, sign in zip(looked.classes, (1.0, -1.0), strict=True)]
    following = []
    for each, guess, known in zip(looked.classes, look.guesses, found, strict=True):
        if known is None:
            following.append(each.elsewhere(guess, mass))
        elif 2 * known.slack > max(allowed, ROUNDED * abs(known.threshold)):
            low, high = known.bin
            following.append(Guess(guess.start, guess.stop, low, float(np.nextafter(high, np.inf))))
        else:
            following.append(guess)
    positive, negative = found
    if tuple(following) == look.guesses and positive is not None and negative is not None:
        return (positive, negative), look
    return None, Look((following[0], following[1]), look.bins)


@compiled
def deal_rows(
    X: Array, codes: Array, weight: Array, positive: int, class_weights: Array, u: Array, shift: Array, edges: Array,
    sums: Array, ends: Array,
) -> None:  # fmt: skip
    """Add rows to the sums of a `Tally`, which has the slots of the positive class before those of the negative one.

    ``class_weights`` (2,) are those of the negative and the positive class, ``edges`` (2, 2) the windows. The loops
    avoid branches on the scores, which are in no order, so that the processor would mispredict half of them.
    """
    d = X.shape[1]
    slots = ends.shape[1] // 2
    per = (slots - 2) / (edges[:, 1] - edges[:, 0])
    scores = np.empty(BLOCK_ROWS)
    parts = np.empty(BLOCK_ROWS)
    slot = np.empty(BLOCK_ROWS, dtype=np.int64)
    for first in range(0, X.shape[0], BLOCK_ROWS):
        m = min(BLOCK_ROWS, X.shape[0] - first)
        for r in range(m):
            s = 0.0
            for j in range(d):
                s += (X[first + r, j] - shift[j]) * u[j]
            scores[r] = s
        for r in range(m):
            is_positive = codes[first + r] == positive
            c = class_weights[1] if is_positive else class_weights[0]
            if weight.size > 0:
                c *= weight[first + r]
            parts[r] = 0.0 if codes[first + r] < 0 else c
            s = scores[r] if is_positive else -scores[r]
            low, each = (edges[0, 0], per[0]) if is_positive else (edges[1, 0], per[1])
            place = min(max((s - low) * each + 1.0, 0.0), slots - 1.0)
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


@compiled
def add_totals(
    X: Array, codes: Array, weight: Array, positive: int, class_weights: Array, shift: Array, factor: Array, sums: Array
) -> float:
    """Add scaled rows to the weighted sums (2, d + 1) of the positive and the negative class.

    The last column has their weights. Returns the largest squared norm of a row that takes part.
    """
    d = X.shape[1]
    largest = 0.0
    for i in range(X.shape[0]):
        if codes[i] < 0:
            continue
        k = 0 if codes[i] == positive else 1
        c = class_weights[1 - k]
        if weight.size > 0:
            c *= weight[i]
        if c == 0.0:
            continue
        row = X[i]
        total = sums[k]
        square = 0.0
        for j in range(d):
            x = (row[j] - shift[j]) * factor[j]
            total[j] += c * x
            square += x * x
        total[d] += c
        largest = max(largest, square)
    return largest


@compiled
def score_rows(X: Array, u: Array, shift: Array, scores: Array) -> None:
    """Compute the scores (n,) of the rows of ``X`` less ``shift`` (d,), by weights ``u`` (d,)."""
    for i in range(scores.size):
        s = 0.0
        for j in range(u.size):
            s += (X[i, j] - shift[j]) * u[j]
        scores[i] = s


@compiled
def add_rows(X: Array, rows: Array, entries: Array, shift: Array, factor: Array, total: Array) -> None:
    """Add ``entries`` times the scaled ``rows`` of ``X`` to a total (d,)."""
    for i in range(rows.size):
        row = X[rows[i]]
        e = entries[i]
        for j in range(total.size):
            total[j] += e * ((row[j] - shift[j]) * factor[j])
