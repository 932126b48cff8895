"""The work of a client of two hulls on its rows: steps of their weights η and ξ, scores of a direction, sums.

Rows of the positive class come first. A client receives vectors of the features' size and numbers, and answers with
such; it does not send rows as such. Weights are kept as logarithms of e for a row of weight 1. They are not yet
normalised, since the sum over all clients is known one message later.

Source: Jin, Huang, Li: *SVM via saddle point optimization: new bounds and distributed algorithms*, 2017, algorithm 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.typing import Array

BINS = 32  # bins of a range of scores, whose weights an answer has
FEW = 16  # distinct scores within a range, up to which an answer lists the scores instead of bins
SIGNS = (1.0, -1.0)


@dataclass(frozen=True, eq=False)
class ClientRows:
    """The rows that a client holds.

    Attributes
    ----------
    S : ndarray or sparse array of shape (D, n)
        Features in columns, those of the positive class first; sparse only if steps move all coordinates.
    positive : int
        Rows of the positive class.
    weight, log_weight : ndarrays of shape (n,)
    log_cap : float
        Largest log e of a row of weight 1; ∞ for whole hulls.
    start : tuple of two floats
        First log e of a row of weight 1, for either class.
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
        """D, the number of coordinates."""
        return int(self.S.shape[0])

    @property
    def classes(self) -> tuple[slice, slice]:
        """Slices of the rows of the positive and of the negative class."""
        return slice(0, self.positive), slice(self.positive, self.n)

    @property
    def n_of(self) -> tuple[int, int]:
        """Numbers of rows of the positive and of the negative class."""
        return self.positive, self.n - self.positive

    def per_class(self, values: Sequence[float] | Array) -> Array:
        """Return for every row the one of two ``values`` that belongs to its class, (n,)."""
        return np.repeat(np.asarray(values, dtype=np.float64), self.n_of)

    def sums(self, block: tuple[int, int], e: Array) -> Array:
        """Sum e x for either class over a block of coordinates, (2, B)."""
        part = self.part(*block)
        if issparse(part):
            of_class = np.zeros((self.n, 2))
            for k, own in enumerate(self.classes):
                of_class[own, k] = e[own]
            return np.asarray((part @ of_class).T)
        return np.array([part[:, own] @ e[own] for own in self.classes])

    def part(self, first: int, stop: int) -> Any:
        """Return the coordinates ``first:stop`` of S."""
        return self.S if stop - first == self.size else self.S[first:stop]

    def signed_scores(self, w: Array) -> Array:
        """Return y w·x, (n,), for w over all coordinates."""
        return self.per_class(SIGNS) * (w @ self.S)


@dataclass(frozen=True, eq=False)
class ClientState:
    """The state of a client.

    ``logs`` (n,) is log e of a row of weight 1, up to a summand for each class; ``p`` (n,) is y w·x.
    """

    logs: Array
    p: Array


def begin(rows: ClientRows) -> ClientState:
    """Return the first state: equal e for all rows of a class, and w = 0."""
    return ClientState(rows.per_class(rows.start), np.zeros(rows.n))


@dataclass(frozen=True, eq=False)
class Facts:
    """Numbers of rows of either class, (2,), and the largest absolute entry of a row."""

    counts: Array
    largest: float


def tell_facts(rows: ClientRows, state: Any, message: None) -> Facts:
    """Return the facts that the server needs before it begins."""
    values = rows.S.data if issparse(rows.S) else rows.S
    return Facts(np.array(rows.n_of), max(float(values.max(initial=0.0)), -float(values.min(initial=0.0))))


# Steps of the weights ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Move:
    """The message of a step: normalise the last e, move w in a block, and update e.

    Attributes
    ----------
    shift : ndarray of shape (2,)
        Summands of log e that make either class of the last e sum to one.
    first : int
        First coordinate of the block.
    change : ndarray of shape (B,)
        Δ, for unscaled coordinates.
    following : int
        First coordinate of the next block.
    keep, rate : float
        a, and b.
    blocks : int
        n_b.
    guess : ndarray of shape (2,), or empty
        A guess of the next shift, for reduced hulls.
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
    """The answer to a step, for both classes.

    Attributes
    ----------
    tops, totals : ndarrays of shape (2,)
        Σ e without caps is ``totals · exp(tops)``.
    sums : ndarray of shape (2, B), or empty for reduced hulls
        Σ e x / exp(top) over the next block.
    before : ndarray of shape (2, B), or empty if a block is all coordinates
        Σ e x over the next block, for e before the step.
    guessed : Weighed or None
        The sums at the guessed shift, for reduced hulls, without a block.
    """

    tops: Array
    totals: Array
    sums: Array
    before: Array
    guessed: Weighed | None


def move(rows: ClientRows, state: ClientState, message: Move) -> tuple[ClientState, Moved]:
    """Make a step of Saddle-DSVC."""
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
    """Return log e of rows of weight 1, normalised by ``shift`` (2,) and capped, (n,)."""
    return np.minimum(state.logs + rows.per_class(shift), rows.log_cap)


@dataclass(frozen=True, eq=False)
class Weigh:
    """The question for the sums of e, shifted by ``shift`` (2,) in logarithms and capped, and of e x in a block."""

    shift: Array
    first: int
    stop: int


@dataclass(frozen=True, eq=False)
class Weighed:
    """The answer to `Weigh`, for both classes.

    ``counts`` are rows at their caps, and ``capped`` is their Σ e. For the other rows Σ e is ``totals · exp(tops)``.
    ``sums`` (2, B) is Σ e x over the block.
    """

    counts: Array
    capped: Array
    tops: Array
    totals: Array
    sums: Array


def weigh(rows: ClientRows, state: ClientState, message: Weigh) -> Weighed:
    """Return a client's part of the sums that the Newton steps of `capped_simplex.cap_factor` need."""
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
    """The question for Σ e x (x·v) over the rows of both classes, with e normalised by ``shift`` (2,), and v (D,)."""

    shift: Array
    v: Array


def spread(rows: ClientRows, state: ClientState, message: Spread) -> Array:
    """Return a client's part of the rows' second moments by e, times v, (D,)."""
    e = np.exp(settled(rows, state, message.shift) + rows.log_weight)
    return np.asarray(rows.S @ (e * (message.v @ rows.S)))


# Scores of a direction ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ranges:
    """The question for the weights of the rows by their signed scores along w (D,), within a range for each class.

    ``ranges`` (2, 2) has start and stop for each class. With ``least`` only the least score counts, whatever the range.
    """

    w: Array
    ranges: Array
    least: bool = False


@dataclass(frozen=True, eq=False)
class ScoresOf:
    """The answer to `Ranges` for one class.

    Attributes
    ----------
    below, below_scores : float
        Weight of the rows below the range, and the sum of their scores times their weights.
    above : int
        Number of rows above the range.
    pairs : ndarray of shape (2, m)
        Distinct scores within the range, ascending, and their weights, if there are at most `FEW`.
    bins : ndarray of shape (BINS,), or empty
        Else the weights in equal bins of the range.
    """

    below: float
    below_scores: float
    above: int
    pairs: Array
    bins: Array


def look_within(rows: ClientRows, state: Any, message: Ranges) -> tuple[ScoresOf, ScoresOf]:
    """Return a client's weights by scores, from which the server finds the thresholds."""
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
    """Return the bin of every score within a range, (n,)."""
    return np.minimum(((scores - start) * (BINS / (stop - start))).astype(np.int64), BINS - 1)


@dataclass(frozen=True, eq=False)
class Below:
    """The question for the sums of the rows whose signed scores along ``w`` (D,) are below, and at, ``thresholds``."""

    w: Array
    thresholds: Array


@dataclass(frozen=True, eq=False)
class SumsBelow:
    """The answer to `Below`: Σ c x of the rows below the threshold, and of those at it, (2, D) each by class."""

    below: Array
    tied: Array


def sum_below(rows: ClientRows, state: Any, message: Below) -> SumsBelow:
    """Sum the rows of a cut, below and at its threshold, before its factors are applied."""
    scores = rows.signed_scores(message.w)
    thresholds = rows.per_class(message.thresholds)
    whole = 0, rows.size
    below = rows.sums(whole, np.where(scores < thresholds, rows.weight, 0.0))
    return SumsBelow(below, rows.sums(whole, np.where(scores == thresholds, rows.weight, 0.0)))


@dataclass(frozen=True, eq=False)
class BestPoints:
    """The least signed score (2,) of either class, and the weight (2,) and Σ c x (2, D) of the rows that have it."""

    scores: Array
    weights: Array
    sums: Array


def best_points(rows: ClientRows, state: Any, w: Array) -> BestPoints:
    """Return a client's best points along w (D,), which are all that Gilbert's algorithm needs for whole hulls."""
    scores = rows.signed_scores(w)
    least = np.array([scores[own].min(initial=np.inf) for own in rows.classes])
    taken = np.where(scores == rows.per_class(least), rows.weight, 0.0)
    return BestPoints(least, np.array([taken[own].sum() for own in rows.classes]), rows.sums((0, rows.size), taken))


def floats_of(told: Any) -> int:
    """Count the numbers in a message: entries of arrays and of a record's fields, and plain numbers."""
    if isinstance(told, np.ndarray):
        return int(told.size)
    if isinstance(told, tuple | list):
        return sum(map(floats_of, told))
    if isinstance(told, bool) or told is None:
        return 0
    if isinstance(told, int | float):
        return 1
    return sum(floats_of(getattr(told, field.name)) for field in fields(told))
