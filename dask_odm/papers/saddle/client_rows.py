"""The rows of a client of two hulls, and its work on them: steps of their weights η and ξ, scores, sums.

The rows are prepared once. The paper rotates them by random signs and the Walsh-Hadamard transform, here divided by √d,
which makes all coordinates alike. Steps in all coordinates at once do not depend on a rotation, so rows stay as they
are for these.

Rows of the positive class come first. A client receives vectors of the features' size and numbers, and answers with
such; it does not send rows as such. Weights are kept as logarithms of e for a row of weight 1. They are not yet
normalised, since the sum over all clients is known one message later.

Source: Jin, Huang, Li: *SVM via saddle point optimization: new bounds and distributed algorithms*, 2017, algorithms 1
and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from scipy.sparse import issparse, vstack

from dask_odm.linalg.jit import compiled
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.papers.saddle.problem import HullProblem, HullQuery
from dask_odm.papers.saddle.weighted_quantile import CLASSES, Cut, Look, Looked, look_at
from dask_odm.typing import Array

NO_SUMS = np.empty(0)  # in answers, whose numbers are counted


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
            return (part @ of_class).T
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


# Preparation -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Preparation:
    """The function that prepares the rows of a client: its coordinates and weights.

    ``query`` makes features, classes and weights of raw rows. ``log_cap`` is the largest log e of a row of weight 1; ∞
    for whole hulls. ``signs`` (2^k,) are those of the rotation of the padded features; None means no rotation. ``size``
    is the number of coordinates, padded with zeros at the end; a step moves ``block`` of them, which ``seed`` draws.
    """

    query: HullQuery
    log_cap: float
    signs: Array | None
    size: int
    block: int
    seed: int

    @classmethod
    def of(cls, problem: HullProblem, block_size: int | None = None, seed: int = 0) -> Preparation:
        """Return the preparation for steps in blocks of ``block_size`` coordinates, or in all if it is None."""
        log_cap = -math.log(problem.mass) if problem.mass > 0 else math.inf
        if block_size is None:
            return cls(problem.query, log_cap, None, problem.d, problem.d, seed)
        size = 1 << max(0, problem.d - 1).bit_length()
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size)
        block = min(block_size, size)
        return cls(problem.query, log_cap, signs, size + -size % block, block, seed)

    def __call__(self, blocks: Iterable[RowBlock]) -> ClientRows:
        """Prepare the rows of one client."""
        pieces = list(self.query.pieces(blocks))
        sign, weight = (np.concatenate([part[i] for part in pieces]) for i in (1, 2))
        order = np.concatenate([np.flatnonzero(sign == each) for each in CLASSES])
        S = self._columns([part[0] for part in pieces], order)
        weight = weight[order]
        return ClientRows(S, int((sign == CLASSES[0]).sum()), weight, np.log(weight), self.log_cap)

    def keeps_sparse(self, X: Any) -> bool:
        """Whether the rows ``X`` stay sparse: if they are neither rotated nor scaled."""
        return bool(issparse(X)) and self.signs is None and self.query.features.scaling is None

    def _columns(self, pieces: Sequence[Any], order: Array) -> Any:
        """Return the rows in ``order`` as columns in the clients' coordinates, (size, n)."""
        if self.keeps_sparse(pieces[0]):
            return vstack(pieces, format="csr")[order].T
        return self.rotated(np.concatenate([self.query.features.dense(X) for X in pieces])[order])

    def rotated(self, rows: Array) -> Array:
        """Convert rows (n, d) to columns in the clients' coordinates, (size, n)."""
        S = np.zeros((self.size, len(rows)))
        S[: rows.shape[1]] = rows.T
        if self.signs is not None:
            hadamard(S[: len(self.signs)], self.signs)
        return S

    def back(self, points: Array) -> Array:
        """Convert points (m, size) in the clients' coordinates to features (m, d)."""
        if self.signs is not None:
            columns = np.array(points.T[: len(self.signs)], order="C")
            hadamard(columns, np.ones(len(self.signs)))  # but for the signs the rotation is its own inverse
            points = (self.signs[:, None] * columns).T
        return points[:, : self.query.features.d]

    def within(self, w: Array) -> Array:
        """Project w (size,) onto the directions that belong to features, in the clients' coordinates."""
        return w if self.signs is None else self.rotated(self.back(w[None]))[:, 0]

    def nbytes(self, X: Any, rows: int) -> int:
        """Return the peak bytes of a client with so many ``rows``; ``X`` are those of one in memory, else None."""
        vectors = 16 * rows  # numbers a row that a client holds or works in
        if self.keeps_sparse(X):
            return 8 * (8 * X.nnz + vectors)
        return 8 * (4 * rows * max(self.query.features.d, self.size) + vectors)


def hadamard(columns: Array, signs: Array) -> None:
    """Multiply the rows of ``columns`` (D, n) by ``signs``, and apply the Walsh-Hadamard transform, in place.

    D is a power of two. The transform is divided by √D, which makes it orthogonal and its own inverse.
    """
    d, n = columns.shape
    columns *= signs[:, None]
    half = 1
    while half < d:
        pairs = columns.reshape(d // (2 * half), 2, half, n)
        left = pairs[:, 0] + pairs[:, 1]
        np.subtract(pairs[:, 0], pairs[:, 1], out=pairs[:, 1])
        pairs[:, 0] = left
        half *= 2
    columns /= math.sqrt(d)


# Work ---------------------------------------------------------------------------------------------------------------

# The state of a client: log e of its rows of weight 1, up to a summand for each class, and y w·x; (n,) each.
ClientState = tuple[Array, Array]


def tell_facts(rows: ClientRows, state: Any) -> Array:
    """Return the facts that the server needs before it begins: rows of either class, and the largest absolute entry."""
    values = rows.S.data if issparse(rows.S) else rows.S
    largest = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    return np.array([rows.positive, rows.n - rows.positive, largest])


# Steps of the weights ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Weighed:
    """Sums of e for either class: those that the projection onto the capped simplex needs, and those of rows.

    ``counts`` (2,) are rows at their caps, and ``capped`` (2,) is their Σ e; both are empty for whole hulls. ``free``
    (2,) is log Σ e of the other rows. ``sums`` (2, B) is Σ e x over a block, if it was asked for; ``before`` (2, B) is
    that for e before a step, empty if a block is all coordinates.
    """

    counts: Array
    capped: Array
    free: Array
    sums: Array
    before: Array = field(default_factory=lambda: NO_SUMS)


def move(
    rows: ClientRows, state: ClientState, shift: Array, first: int, change: Array, following: int, keep: float,
    rate: float, blocks: int, guess: Array,
) -> tuple[ClientState, Weighed]:  # fmt: skip
    """Make a step of Saddle-DSVC: normalise the last e, move w in a block, and update e.

    ``shift`` (2,) are summands of log e that make either class of the last e sum to one. ``change`` (B,) is Δ of the
    block from coordinate ``first`` on, for unscaled coordinates; ``following`` is the first of the next block. ``keep``
    and ``rate`` are a and b, ``blocks`` is n_b. ``guess`` (2,) is a guess of the next shift for reduced hulls, else
    empty. The sums over the next block are for e that sum to one, and only for whole hulls; for reduced hulls the
    others are those at the guess.
    """
    size = len(change)
    coming = following, following + size
    logs = settled(rows, state, shift)
    before = rows.sums(coming, np.exp(logs + rows.log_weight)) if size < rows.size else NO_SUMS
    moved = rows.per_class(CLASSES) * (change @ rows.part(first, first + size))
    _, p = state
    logs = keep * logs - rate * (p + blocks * moved)
    state = logs, p + moved
    if np.isfinite(rows.log_cap):
        return state, replace(weigh(rows, state, guess, 0, 0), before=before)
    free, e = rows.normalised(logs)
    return state, Weighed(NO_SUMS, NO_SUMS, free, rows.sums(coming, e), before)


def settled(rows: ClientRows, state: ClientState, shift: Array) -> Array:
    """Return log e of rows of weight 1, normalised by ``shift`` (2,) and capped, (n,)."""
    logs, _ = state
    return np.minimum(logs + rows.per_class(shift), rows.log_cap)


def weigh(rows: ClientRows, state: ClientState, shift: Array, first: int, stop: int) -> Weighed:
    """Return a client's part of the sums of e, shifted by ``shift`` (2,) in logarithms, with Σ e x over a block."""
    found = np.full((3, 2), -np.inf)
    sum_capped(state[0], rows.weight, rows.log_weight, rows.positive, shift, rows.log_cap, found)
    counts, capped, free = found
    return Weighed(counts, capped, free, sum_block(rows, state, shift, first, stop) if stop > first else NO_SUMS)


@compiled
def sum_capped(
    logs: Array, weight: Array, log_weight: Array, positive: int, shift: Array, log_cap: float, found: Array
) -> None:
    """Compute rows at their caps, their Σ e, and log Σ e of the other rows, for either class and shifted log e.

    They are the rows of ``found`` (3, 2), which is −inf: the logarithm of no rows, which fast arithmetic need not give.
    """
    cap = math.exp(log_cap)
    for k, start, stop in ((0, 0, positive), (1, positive, logs.size)):
        count, weights, top = 0, 0.0, -1e300  # below any logarithm of a number
        for i in range(start, stop):
            if logs[i] + shift[k] >= log_cap:
                count += 1
                weights += weight[i]
            else:
                top = max(top, logs[i] + log_weight[i])
        total = 0.0
        for i in range(start, stop):
            if logs[i] + shift[k] < log_cap:
                total += math.exp(logs[i] + log_weight[i] - top)
        found[0, k] = count
        found[1, k] = cap * weights
        if total > 0.0:
            found[2, k] = top + shift[k] + math.log(total)


def sum_block(rows: ClientRows, state: ClientState, shift: Array, first: int, stop: int) -> Array:
    """Return a client's part of Σ e x of both classes over a block, (2, B), with e normalised by ``shift`` (2,)."""
    return rows.sums((first, stop), np.exp(settled(rows, state, shift) + rows.log_weight))


def sum_uncapped(rows: ClientRows, state: ClientState) -> Array:
    """Return a client's part of log Σ e of both classes without caps, (2,)."""
    return rows.normalised(state[0])[0]


def spread(rows: ClientRows, state: ClientState, shift: Array, v: Array) -> Array:
    """Return a client's part of Σ e x (x·v), (D,), over the rows of both classes, e being normalised by ``shift``."""
    e = np.exp(settled(rows, state, shift) + rows.log_weight)
    return rows.S @ (e * (v @ rows.S))


# Scores of a direction w (D,) --------------------------------------------------------------------------------------


def look_along(rows: ClientRows, state: Any, w: Array, look: Look) -> Looked:
    """Answer a look by sums of scores and weights, with the score as the only feature."""
    codes = rows.per_class((1.0, 0.0)).astype(np.int8)
    return look_at(look, [((w @ rows.S)[:, None], codes, rows.weight)], np.ones(1), np.zeros(1), np.ones(1))


def sum_below(rows: ClientRows, state: Any, w: Array, cuts: tuple[Cut, Cut]) -> Array:
    """Return a client's part of the points of both hulls, (2, D), for the ``cuts`` of either class's signed scores."""
    scores = rows.per_class(CLASSES) * (w @ rows.S)
    e = [cut.entries(scores[own], rows.weight[own]) for cut, own in zip(cuts, rows.classes, strict=True)]
    return rows.sums((0, rows.size), np.concatenate(e))


def best_points(rows: ClientRows, state: Any, w: Array, points: bool) -> Array:
    """Return a client's best points, which are all that Gilbert's algorithm needs for whole hulls.

    They are the least signed score of either class, and the weight and Σ c x of the rows that have it, (2, 2 + D), or
    without ``points`` the scores only, (2, 1).
    """
    scores = rows.per_class(CLASSES) * (w @ rows.S)
    least = np.array([[scores[own].min(initial=np.inf)] for own in rows.classes])
    if not points:
        return least
    taken = np.where(scores == rows.per_class(least[:, 0]), rows.weight, 0.0)
    weights = [[taken[own].sum()] for own in rows.classes]
    return np.concatenate([least, weights, rows.sums((0, rows.size), taken)], axis=1)


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
    return sum(floats_of(getattr(told, each.name)) for each in fields(told))
