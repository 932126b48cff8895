"""The threshold of scores up to which a class's rows use its caps up, found over rows that nobody holds together.

A *look* is one pass: of either class it brings back the weights of the rows by score, in equal bins of a range that has
the threshold, their weighted sum below a window, and the rows within the window themselves, where they are few. If the
threshold is in the window, all is known exactly; if not, the bin that has it is the next look's window. The range is
known beforehand: from one w to another no score, and so no quantile of scores, moves by more than ‖x‖ ‖Δw‖.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numba
import numpy as np

from dask_odm.problems.caps import Cut, cut_at
from dask_odm.typing import Array

BINS = 1024
PAD = 1e-3  # of a bin: where its edges are is a matter of rounding
LEAST_RANGE = 1e-100

Last = tuple[Array, tuple[float, float], tuple[float, float]]
Found = tuple[Cut, Array, float]


class Gathered(Protocol):
    """Features of some rows."""

    @property
    def d(self) -> int: ...
    def weighted_sum(self, r: Array) -> Array:
        """Σ r x, (d,)."""

    def rows(self, taken: Array) -> Array:
        """Those at ``taken``, dense."""


@dataclass(frozen=True)
class Guess:
    """Where a threshold is: between ``start`` and ``stop`` for certain, between ``low`` and ``high`` perhaps."""

    start: float
    stop: float
    low: float
    high: float


@dataclass(frozen=True)
class Look:
    """What is looked for: the thresholds of both classes, and how many rows near one may be brought back."""

    guesses: tuple[Guess, Guess]
    most: int

    @classmethod
    def first(cls, w: Array, scale: float, most: int, rows: int, last: Last | None) -> Look:
        """The first one at ``w`` (d,): near the ``last`` w's thresholds, in signed scores, and as wide as told there.

        ``scale`` is the largest norm of a row. Of many ``rows`` none is brought back before anything is known.
        """
        reach = max(scale * float(np.linalg.norm(w)) * (1 + 1e-6), LEAST_RANGE)
        if last is None:
            return cls((Guess(-reach, reach, -reach, reach if rows <= most else -reach),) * 2, most)
        moved = scale * float(np.linalg.norm(w - last[0])) + 1e-6 * reach
        guesses = []
        for threshold, width in zip(last[1], last[2], strict=True):
            start, stop = max(-reach, threshold - moved), min(reach, threshold + moved)
            if not start < stop:
                start, stop = -reach, reach
            guesses.append(Guess(start, stop, max(start, threshold - width), min(stop, threshold + width)))
        return cls((guesses[0], guesses[1]), most)


@dataclass(frozen=True, eq=False)
class Near:
    """Rows within the window, those of equal score together: score (k,), weight (k,) and weighted sum (k, d)."""

    scores: Array
    weights: Array
    sums: Array

    @classmethod
    def merged(cls, scores: Array, weights: Array, sums: Array) -> Near:
        if not len(scores):
            return cls(scores, weights, sums)
        order = np.argsort(scores, kind="stable")
        scores = scores[order]
        first = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
        return cls(scores[first], np.add.reduceat(weights[order], first), np.add.reduceat(sums[order], first, axis=0))


@dataclass(frozen=True, eq=False)
class ClassLook:
    """What a look finds of one class.

    Attributes
    ----------
    before : float
        Weight of the rows below the range.
    bins : ndarray of shape (BINS,)
        Weights of those within it.
    below : float
        Weight of the rows below the window.
    below_sum : ndarray of shape (d,)
    near : Near or None
        Those within the window; None where they are too many.
    above : int
        Rows above the window.
    most : int
    """

    before: float
    bins: Array
    below: float
    below_sum: Array
    near: Near | None
    above: int
    most: int

    @classmethod
    def total(cls, parts: Sequence[ClassLook]) -> ClassLook:
        """All of them together."""
        near: Near | None = None
        known = [part.near for part in parts if part.near is not None]
        if len(known) == len(parts):
            near = Near.merged(
                np.concatenate([each.scores for each in known]),
                np.concatenate([each.weights for each in known]),
                np.concatenate([each.sums for each in known]),
            )
        return cls(
            sum(part.before for part in parts),
            np.add.reduce([part.bins for part in parts]),
            sum(part.below for part in parts),
            np.add.reduce([part.below_sum for part in parts]),
            None if near is None or len(near.scores) > parts[0].most else near,
            sum(part.above for part in parts),
            parts[0].most,
        )

    def found(self, mass: float) -> Found | None:
        """Cut, weighted sum of the rows by it and the next window's half width; None if it is not in the window."""
        near = self.near
        if near is None or not len(near.scores) or self.below > mass:
            return None
        until = self.below + np.cumsum(near.weights)
        at = int(np.searchsorted(until, mass, side="right"))
        if at == len(until):
            if self.above:
                return None
            at -= 1
        before = float(until[at - 1]) if at else self.below
        cut = cut_at(float(near.scores[at]), before, float(near.weights[at]), mass)
        point = cut.full * (self.below_sum + near.sums[:at].sum(axis=0)) + cut.tied * near.sums[at]
        spread = float(near.scores[-1] - near.scores[0]) / len(near.scores)
        return cut, point, 0.125 * spread * self.most

    def narrower(self, guess: Guess, mass: float) -> Guess:
        """The bin that has the threshold, or the range's neighbourhood where rounding had it wrong."""
        width = guess.stop - guess.start
        until = self.before + np.cumsum(self.bins)
        at = int(np.searchsorted(until, mass, side="right"))
        if self.before > mass or (at == BINS and (self.above or not self.bins.any())):
            start, stop = guess.start - width, guess.stop + width
        else:
            at = int(np.flatnonzero(self.bins)[-1]) if at == BINS else at
            start = guess.start + width * (at - PAD) / BINS
            stop = guess.start + width * (at + 1 + PAD) / BINS
        return Guess(start, stop, start, stop)


@dataclass(frozen=True, eq=False)
class Looked:
    """What a look finds, of the positive class and of the negative one."""

    classes: tuple[ClassLook, ClassLook]

    @classmethod
    def of(
        cls, rows: Gathered, scores: Array, sign: Array, weight: Array, look: Look, gathers: Sequence[bool]
    ) -> Looked:
        """Of some rows: scores w·x (n,), signs (n,), zero of rows that take no part, and weights (n,).

        ``gathers`` tells of either class whether rows within the window are still brought back.
        """
        n = len(scores)
        below, near = np.zeros((2, n)), np.empty((2, n), dtype=np.int64)
        bins, figures = np.zeros((2, BINS)), np.zeros((2, 4))
        edges = np.array([[each.start, each.stop, each.low, each.high] for each in look.guesses])
        deal_rows(scores, sign, weight, edges, below, near, bins, figures)
        classes = []
        for k in range(2):
            before, mass, above, count = figures[k]
            taken = near[k, : int(count)]
            signed = scores[taken] if k == 0 else -scores[taken]
            kept = _near(rows, signed, weight[taken], taken, look.most) if gathers[k] else None
            below_sum = rows.weighted_sum(below[k]) if mass > 0 else np.zeros(rows.d)
            classes.append(ClassLook(before, bins[k], mass, below_sum, kept, int(above), look.most))
        return cls((classes[0], classes[1]))

    @classmethod
    def total(cls, parts: Sequence[Looked]) -> Looked:
        positive, negative = (ClassLook.total([part.classes[k] for part in parts]) for k in range(2))
        return cls((positive, negative))

    def __add__(self, other: Looked) -> Looked:
        return Looked.total([self, other])


def settle(looked: Looked, look: Look, mass: float) -> tuple[tuple[Found, Found] | None, Look]:
    """What was found of both classes, or None and how to look next."""
    found = [each.found(mass) for each in looked.classes]
    if found[0] is not None and found[1] is not None:
        return (found[0], found[1]), look
    following = [
        guess if known is not None else each.narrower(guess, mass)
        for each, guess, known in zip(looked.classes, look.guesses, found, strict=True)
    ]
    return None, Look((following[0], following[1]), look.most)


def _near(rows: Gathered, scores: Array, weight: Array, taken: Array, most: int) -> Near | None:
    if len(taken) > most and len(np.unique(scores)) > most:
        return None
    return Near.merged(scores, weight, weight[:, None] * rows.rows(taken))


@numba.njit(nogil=True, cache=True)
def deal_rows(
    scores: Array, sign: Array, weight: Array, edges: Array, below: Array, near: Array, bins: Array, figures: Array
) -> None:
    """Weights of rows below the window, their numbers within it, and by bins, of both classes.

    Parameters
    ----------
    edges : ndarray of shape (2, 4)
        start, stop, low and high of the guesses.
    figures : ndarray of shape (2, 4)
        To add to: weight before the range and below the window, rows above it and within it.
    """
    for i in range(scores.size):
        if sign[i] == 0.0:
            continue
        k = 0 if sign[i] > 0 else 1
        s, c = sign[i] * scores[i], weight[i]
        start, stop, low, high = edges[k]
        if s < start:
            figures[k, 0] += c
        elif s < stop:
            bins[k, min(BINS - 1, int((s - start) * (BINS / (stop - start))))] += c
        if s < low:
            below[k, i] = c
            figures[k, 1] += c
        elif s < high:
            near[k, int(figures[k, 3])] = i
            figures[k, 3] += 1
        else:
            figures[k, 2] += 1
