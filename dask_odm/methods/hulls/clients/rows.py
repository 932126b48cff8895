"""What a client of two hulls does with its rows: steps of their weights η and ξ, scores of a direction, sums.

Rows of the positive class come first. A client is told vectors of the features' size and numbers, and answers with
such; it never tells a row of itself. Weights are kept in logarithms: e of a row of weight 1, not yet normalised, since
what all clients' weights sum to is known a message later.

Jin, Huang, Li: *SVM via saddle point optimization: new bounds and distributed algorithms*, 2017, algorithm 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.typing import Array

BINS = 32  # of a range of scores, whose weights an answer has
FEW = 16  # distinct scores within a range that an answer has themselves instead
SIGNS = (1.0, -1.0)


@dataclass(frozen=True, eq=False)
class ClientRows:
    """The rows that a client holds.

    Attributes
    ----------
    S : ndarray or sparse array of shape (D, n)
        Features in columns, those of the positive class first; sparse only where steps move all coordinates.
    positive : int
        Rows of the positive class.
    weight, log_weight : ndarrays of shape (n,)
    log_cap : float
        log of what e of a row of weight 1 is at most: ∞ of whole hulls.
    start : tuple of two floats
        log e to begin with, of either class.
    """

    S: Any
    positive: int
    weight: Array
    log_weight: Array
    log_cap: float
    start: tuple[float, float]

    @property
    def n(self) -> int:
        return len(self.weight)

    @property
    def size(self) -> int:
        """D."""
        return int(self.S.shape[0])

    @property
    def classes(self) -> tuple[slice, slice]:
        """Rows of the positive and of the negative class."""
        return slice(0, self.positive), slice(self.positive, self.n)

    @property
    def n_of(self) -> tuple[int, int]:
        """Rows of either class."""
        return self.positive, self.n - self.positive

    def per_class(self, values: Sequence[float] | Array) -> Array:
        """One of two ``values`` a row, by its class; (n,)."""
        return np.repeat(np.asarray(values, dtype=np.float64), self.n_of)

    def sums(self, block: tuple[int, int], e: Array) -> Array:
        """Σ e x of either class over some coordinates, (2, B)."""
        part = self.part(*block)
        if issparse(part):
            of_class = np.zeros((self.n, 2))
            for k, own in enumerate(self.classes):
                of_class[own, k] = e[own]
            return np.asarray((part @ of_class).T)
        return np.array([part[:, own] @ e[own] for own in self.classes])

    def part(self, first: int, stop: int) -> Any:
        """Some coordinates of S."""
        return self.S if stop - first == self.size else self.S[first:stop]

    def signed_scores(self, w: Array) -> Array:
        """y w·x, (n,), of w over all coordinates."""
        return self.per_class(SIGNS) * (w @ self.S)


@dataclass(frozen=True, eq=False)
class ClientState:
    """Where a client stands.

    Attributes
    ----------
    logs : ndarray of shape (n,)
        log e of a row of weight 1, but for a summand of each class.
    p : ndarray of shape (n,)
        y w·x.
    """

    logs: Array
    p: Array


def begin(rows: ClientRows) -> ClientState:
    """All rows of a class alike, and w = 0."""
    return ClientState(rows.per_class(rows.start), np.zeros(rows.n))


@dataclass(frozen=True, eq=False)
class Facts:
    """Rows of either class, (2,), and the largest entry of a row."""

    counts: Array
    largest: float


def tell_facts(rows: ClientRows, state: Any, message: None) -> Facts:
    """What the server has to know before it begins."""
    values = rows.S.data if issparse(rows.S) else rows.S
    return Facts(np.array(rows.n_of), max(float(values.max(initial=0.0)), -float(values.min(initial=0.0))))


# Steps of the weights ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Move:
    """A step: the last one's e is to be normalised, w moves in a block, and e by it.

    Attributes
    ----------
    shift : ndarray of shape (2,)
        Summands of log e that make either class of the last e sum to one.
    first : int
        Coordinate at which the block begins.
    change : ndarray of shape (B,)
        Δ of the features as they are.
    following : int
        Coordinate at which the next block begins.
    keep, rate : float
        a, and b.
    blocks : int
        n_b.
    guess : ndarray of shape (2,), or empty
        Of capped weights: what the next shift may be.
    """

    shift: Array
    first: int
    change: Array
    following: int
    keep: float
    rate: float
    blocks: int
    guess: Array


@dataclass(frozen=True, eq=False)
class Moved:
    """Of both classes: log and factor of Σ e without caps, (2,) each, and sums over the next block.

    Attributes
    ----------
    tops, totals : ndarrays of shape (2,)
    sums : ndarray of shape (2, B), or empty where there are caps
        Σ e x / exp(top).
    before : ndarray of shape (2, B), or empty where a block is all coordinates
        Σ e x of the e before.
    guessed : Weighed or None
        At the shift that was guessed, without sums.
    """

    tops: Array
    totals: Array
    sums: Array
    before: Array
    guessed: Weighed | None


def move(rows: ClientRows, state: ClientState, message: Move) -> tuple[ClientState, Moved]:
    """A step of Saddle-DSVC."""
    size = len(message.change)
    d = rows.size
    block = message.first, message.first + size
    coming = message.following, message.following + size
    logs = settled(rows, state, message.shift)
    before = rows.sums(coming, np.exp(logs + rows.log_weight)) if size < d else np.empty(0)
    moved = rows.per_class(SIGNS) * (message.change @ rows.part(*block))
    logs = message.keep * logs - message.rate * (state.p + message.blocks * moved)
    following = ClientState(logs, state.p + moved)
    tops = np.full(2, -np.inf)
    totals = np.zeros(2)
    e = logs + rows.log_weight
    for k, own in enumerate(rows.classes):
        if rows.n_of[k]:
            tops[k] = e[own].max()
            np.exp(e[own] - tops[k], out=e[own])
            totals[k] = e[own].sum()
    if np.isinf(rows.log_cap):
        return following, Moved(tops, totals, rows.sums(coming, e), before, None)
    guessed = weigh(rows, following, Weigh(message.guess, 0, 0))
    return following, Moved(tops, totals, np.empty(0), before, guessed)


def settled(rows: ClientRows, state: ClientState, shift: Array) -> Array:
    """log e of rows of weight 1, normalised by ``shift`` (2,) and capped; (n,)."""
    return np.minimum(state.logs + rows.per_class(shift), rows.log_cap)


@dataclass(frozen=True, eq=False)
class Weigh:
    """What do the e sum to if their logarithms are shifted by ``shift`` (2,) and capped, and their rows in a block?"""

    shift: Array
    first: int
    stop: int


@dataclass(frozen=True, eq=False)
class Weighed:
    """Of both classes, (2,) each: rows at their caps, and their Σ e; log and factor of the others'; Σ e x (2, B)."""

    counts: Array
    capped: Array
    tops: Array
    totals: Array
    sums: Array


def weigh(rows: ClientRows, state: ClientState, message: Weigh) -> Weighed:
    """Sums that `capped_simplex.cap_factor` needs of all rows, whoever has them."""
    logs = state.logs + rows.per_class(message.shift)
    at_cap = logs >= rows.log_cap
    e = np.minimum(logs, rows.log_cap) + rows.log_weight
    counts = np.zeros(2)
    capped = np.zeros(2)
    tops = np.full(2, -np.inf)
    totals = np.zeros(2)
    for k, own in enumerate(rows.classes):
        free = e[own][~at_cap[own]]
        if len(free):
            tops[k] = free.max()
            totals[k] = np.exp(free - tops[k]).sum()
        counts[k], capped[k] = at_cap[own].sum(), np.exp(e[own][at_cap[own]]).sum()
    return Weighed(counts, capped, tops, totals, rows.sums((message.first, message.stop), np.exp(e)))


@dataclass(frozen=True, eq=False)
class Spread:
    """What is Σ e x (x·v) over the rows of both classes, of e normalised by ``shift`` (2,), and of v (D,)?"""

    shift: Array
    v: Array


def spread(rows: ClientRows, state: ClientState, message: Spread) -> Array:
    """A client's part of the rows' second moments by e, times v; (D,)."""
    e = np.exp(settled(rows, state, message.shift) + rows.log_weight)
    return np.asarray(rows.S @ (e * (message.v @ rows.S)))


# Scores of a direction ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ranges:
    """How much weight has a score of a direction within a range, class by class? Of the least score alone, if so asked.

    Attributes
    ----------
    w : ndarray of shape (D,)
    ranges : ndarray of shape (2, 2)
        Of signed scores: start and stop, for each class.
    least : bool
    """

    w: Array
    ranges: Array
    least: bool = False


@dataclass(frozen=True, eq=False)
class ScoresOf:
    """Of one class.

    Attributes
    ----------
    below, below_scores : float
        Weight of the rows below the range, and the sum of their scores times their weights.
    above : int
        Rows above the range.
    pairs : ndarray of shape (2, m)
        Distinct scores within the range, ascending, and their weights; where they are few.
    bins : ndarray of shape (BINS,), or empty
        Weights by equal parts of the range, where they are not.
    """

    below: float
    below_scores: float
    above: int
    pairs: Array
    bins: Array


def look_within(rows: ClientRows, state: Any, message: Ranges) -> tuple[ScoresOf, ScoresOf]:
    """Weights by scores, for the threshold up to which the caps are used up."""
    scores = rows.signed_scores(message.w)
    found = [
        _scores_of(scores[own], rows.weight[own], *message.ranges[k], least=message.least)
        for k, own in enumerate(rows.classes)
    ]
    return found[0], found[1]


def _scores_of(scores: Array, weight: Array, start: float, stop: float, *, least: bool) -> ScoresOf:
    if least:
        start = -np.inf
        stop = np.nextafter(scores.min(initial=np.inf), np.inf)
    below = scores < start
    within = (scores >= start) & (scores < stop)
    values, of = np.unique(scores[within], return_inverse=True)
    pairs: Array = np.empty((2, 0))
    bins: Array = np.empty(0)
    if len(values) <= FEW:
        pairs = np.array([values, np.bincount(of, weight[within], len(values))])
    else:
        bins = np.bincount(bin_of(scores[within], start, stop), weight[within], BINS)
    below_weight = weight[below]
    above = len(scores) - int(below.sum()) - int(within.sum())
    return ScoresOf(float(below_weight.sum()), float(scores[below] @ below_weight), above, pairs, bins)


def bin_of(scores: Array, start: float, stop: float) -> Array:
    """The bin of every score within a range, (n,)."""
    return np.minimum(((scores - start) * (BINS / (stop - start))).astype(np.int64), BINS - 1)


@dataclass(frozen=True, eq=False)
class Below:
    """What do the rows sum to whose signed scores of ``w`` (D,) are below, and at, ``thresholds`` (2,)?"""

    w: Array
    thresholds: Array


@dataclass(frozen=True, eq=False)
class SumsBelow:
    """Of both classes: Σ c x of the rows below the threshold, and of those at it, (2, D) each."""

    below: Array
    tied: Array


def sum_below(rows: ClientRows, state: Any, message: Below) -> SumsBelow:
    """Sums of the rows that a cut takes, before they are multiplied by its factors."""
    scores = rows.signed_scores(message.w)
    thresholds = rows.per_class(message.thresholds)
    whole = 0, rows.size
    below = rows.sums(whole, np.where(scores < thresholds, rows.weight, 0.0))
    return SumsBelow(below, rows.sums(whole, np.where(scores == thresholds, rows.weight, 0.0)))


@dataclass(frozen=True, eq=False)
class BestPoints:
    """Of both classes: the least signed score, (2,), weight (2,) and Σ c x (2, D) of the rows that have it."""

    scores: Array
    weights: Array
    sums: Array


def best_points(rows: ClientRows, state: Any, w: Array) -> BestPoints:
    """A client's best points of a direction w (D,), which is all that Gilbert's algorithm asks for of whole hulls."""
    scores = rows.signed_scores(w)
    least = np.array([scores[own].min(initial=np.inf) for own in rows.classes])
    taken = np.where(scores == rows.per_class(least), rows.weight, 0.0)
    return BestPoints(least, np.array([taken[own].sum() for own in rows.classes]), rows.sums((0, rows.size), taken))


def floats_of(told: Any) -> int:
    """Numbers in what is told: an array's entries, those of a record's fields, a number itself."""
    if isinstance(told, np.ndarray):
        return int(told.size)
    if isinstance(told, tuple | list):
        return sum(map(floats_of, told))
    if isinstance(told, bool) or told is None:
        return 0
    if isinstance(told, int | float):
        return 1
    return sum(floats_of(getattr(told, field.name)) for field in fields(told))
