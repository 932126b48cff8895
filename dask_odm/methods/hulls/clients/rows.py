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

from dask_odm.methods.hulls.problem.weighted_quantile import CLASSES, Cut, Look, Looked, Tally
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class ClientRows:
    """The rows that a client holds.

    The columns of ``S`` (D, n) are their features, those of the ``positive`` rows first; sparse only if steps move all
    coordinates. ``weight`` and ``log_weight`` have shape (n,). ``log_cap`` is the largest log e of a row of weight 1; ∞
    for whole hulls.
    """

    S: Any
    positive: int
    weight: Array
    log_weight: Array
    log_cap: float

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

    def per_class(self, values: Sequence[float] | Array) -> Array:
        """Return for every row the one of two ``values`` that belongs to its class, (n,)."""
        return np.repeat(np.asarray(values, dtype=np.float64), (self.positive, self.n - self.positive))

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

    def normalised(self, logs: Array) -> tuple[Array, Array]:
        """Return log Σ e (2,) of either class, and e divided by that sum (n,), for log e (n,) of rows of weight 1."""
        e = logs + self.log_weight
        found = np.full(2, -np.inf)
        for k, own in enumerate(self.classes):
            top = e[own].max(initial=-np.inf)
            e[own] = np.exp(e[own] - top) if top > -np.inf else 0.0
            total = e[own].sum()
            if total > 0:
                e[own] /= total
                found[k] = top + np.log(total)
        return found, e


@dataclass(frozen=True, eq=False)
class ClientState:
    """The state of a client.

    ``logs`` (n,) is log e of a row of weight 1, up to a summand for each class; ``p`` (n,) is y w·x.
    """

    logs: Array
    p: Array


def begin(rows: ClientRows) -> ClientState:
    """Return the first state: equal e for all rows of a class, and w = 0."""
    return ClientState(np.zeros(rows.n), np.zeros(rows.n))


def tell_facts(rows: ClientRows, state: Any) -> Array:
    """Return the facts that the server needs before it begins: rows of either class, and the largest absolute entry."""
    values = rows.S.data if issparse(rows.S) else rows.S
    largest = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    return np.array([rows.positive, rows.n - rows.positive, largest])


# Steps of the weights ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Moved:
    """The answer to a step, for both classes.

    For whole hulls ``logs`` (2,) is log Σ e, and ``sums`` (2, B) is Σ e x over the next block for e that sum to one.
    For reduced hulls these are empty, and ``guessed`` are the sums at the guessed shift, without a block. ``before``
    (2, B) is Σ e x for e before the step; empty if a block is all coordinates.
    """

    logs: Array
    sums: Array
    before: Array
    guessed: Weighed | None


def move(
    rows: ClientRows, state: ClientState, shift: Array, first: int, change: Array, following: int, keep: float,
    rate: float, blocks: int, guess: Array,
) -> tuple[ClientState, Moved]:  # fmt: skip
    """Make a step of Saddle-DSVC: normalise the last e, move w in a block, and update e.

    ``shift`` (2,) are summands of log e that make either class of the last e sum to one. ``change`` (B,) is Δ of the
    block from coordinate ``first`` on, for unscaled coordinates; ``following`` is the first of the next block. ``keep``
    and ``rate`` are a and b, ``blocks`` is n_b. ``guess`` (2,) is a guess of the next shift for reduced hulls, else
    empty.
    """
    size = len(change)
    coming = following, following + size
    logs = settled(rows, state, shift)
    before = rows.sums(coming, np.exp(logs + rows.log_weight)) if size < rows.size else np.empty(0)
    moved = rows.per_class(CLASSES) * (change @ rows.part(first, first + size))
    logs = keep * logs - rate * (state.p + blocks * moved)
    state = ClientState(logs, state.p + moved)
    if np.isfinite(rows.log_cap):
        return state, Moved(np.empty(0), np.empty(0), before, weigh(rows, state, guess, 0, 0))
    sums, e = rows.normalised(logs)
    return state, Moved(sums, rows.sums(coming, e), before, None)


def settled(rows: ClientRows, state: ClientState, shift: Array) -> Array:
    """Return log e of rows of weight 1, normalised by ``shift`` (2,) and capped, (n,)."""
    return np.minimum(state.logs + rows.per_class(shift), rows.log_cap)


@dataclass(frozen=True, eq=False)
class Weighed:
    """Sums of e for either class, each (2,), that the projection onto the capped simplex needs.

    ``counts`` are rows at their caps, and ``capped`` is their Σ e. ``free`` is log Σ e of the other rows. ``sums``
    (2, B) is Σ e x over the block.
    """

    counts: Array
    capped: Array
    free: Array
    sums: Array


def weigh(rows: ClientRows, state: ClientState, shift: Array, first: int, stop: int) -> Weighed:
    """Return a client's part of the sums of e, shifted by ``shift`` (2,) in logarithms, with Σ e x over a block."""
    logs = state.logs + rows.per_class(shift)
    at_cap = logs >= rows.log_cap
    counts = np.array([at_cap[own].sum() for own in rows.classes], dtype=np.float64)
    weights = np.array([rows.weight[own] @ at_cap[own] for own in rows.classes])
    capped = np.exp(rows.log_cap) * weights if counts.any() else np.zeros(2)
    free, _ = rows.normalised(np.where(at_cap, -np.inf, logs))
    return Weighed(counts, capped, free, sum_block(rows, state, shift, first, stop) if stop > first else np.empty(0))


def sum_block(rows: ClientRows, state: ClientState, shift: Array, first: int, stop: int) -> Array:
    """Return a client's part of Σ e x of both classes over a block, (2, B), with e normalised by ``shift`` (2,)."""
    return rows.sums((first, stop), np.exp(settled(rows, state, shift) + rows.log_weight))


def sum_uncapped(rows: ClientRows, state: ClientState) -> Array:
    """Return a client's part of log Σ e of both classes without caps, (2,)."""
    return rows.normalised(state.logs)[0]


def spread(rows: ClientRows, state: ClientState, shift: Array, v: Array) -> Array:
    """Return a client's part of Σ e x (x·v), (D,), over the rows of both classes, e being normalised by ``shift``."""
    e = np.exp(settled(rows, state, shift) + rows.log_weight)
    return np.asarray(rows.S @ (e * (v @ rows.S)))


# Scores of a direction w (D,) --------------------------------------------------------------------------------------


def look_along(rows: ClientRows, state: Any, w: Array, look: Look) -> Looked:
    """Answer a look, the score being the only feature: the sums have scores and weights, and no vectors."""
    tally = Tally(look, np.ones(1), np.zeros(1), np.ones(1))
    codes = rows.per_class((1.0, 0.0)).astype(np.int8)
    tally.add((w @ rows.S)[:, None], codes, rows.weight, 1, (1.0, 1.0))
    return tally.total()


def sum_below(rows: ClientRows, state: Any, w: Array, cuts: tuple[Cut, Cut]) -> Array:
    """Return a client's part of the points of both hulls, (2, D), for the ``cuts`` of either class's signed scores."""
    scores = rows.per_class(CLASSES) * (w @ rows.S)
    e = [cut.entries(scores[own], rows.weight[own]) for cut, own in zip(cuts, rows.classes, strict=True)]
    return rows.sums((0, rows.size), np.concatenate(e))


@dataclass(frozen=True, eq=False)
class BestPoints:
    """The least signed score (2,) of either class, and the weight (2,) and Σ c x (2, D) of the rows that have it."""

    scores: Array
    weights: Array
    sums: Array


def best_points(rows: ClientRows, state: Any, w: Array, points: bool) -> BestPoints:
    """Return a client's best points, which are all that Gilbert's algorithm needs for whole hulls.

    Without ``points`` there are only their scores.
    """
    scores = rows.per_class(CLASSES) * (w @ rows.S)
    least = np.array([scores[own].min(initial=np.inf) for own in rows.classes])
    if not points:
        return BestPoints(least, np.empty(0), np.empty(0))
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
