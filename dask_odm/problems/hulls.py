"""Two reduced convex hulls: the distance between them, and what is summed over the rows of two classes for it.

minimise ``½‖Aη − Bξ‖²`` over the rows A of the positive class and B of the negative one, η and ξ ≥ 0 with sum 1 and
entries of at most ``c_i / mass``. Of any w, ``m(w)`` is the least ``w·(Aη − Bξ)`` there is, where η and ξ are cuts of
the scores (`dask_odm.problems.caps`), and bounds the optimum from below by ``max(0, m(w))² / (2‖w‖²)``; any point
``z = Aη − Bξ`` bounds it by ``½‖z‖²`` from above. So a pass over the rows gives a point of the hulls and both bounds.

Bennett, Bredensteiner: *Duality and geometry in SVM classifiers*, 2000. Jin, Huang, Li: *SVM via saddle point
optimization*, 2017, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.problems.caps import Cut, cut_scores
from dask_odm.problems.features import FeatureMap
from dask_odm.problems.primal import BLOCK_BYTES, block_rows
from dask_odm.problems.row_passes import PassBytes, Passes, RowBlock
from dask_odm.problems.threshold import Look, Looked, settle
from dask_odm.typing import Array

CLASSES = (1.0, -1.0)  # the positive one comes first everywhere
ROUNDING = 1e-10  # of the rows' scale: two hulls that are nearer touch, as far as float64 can tell
HELD_PIECES = 8  # of looks, whose rows near the threshold are then sorted together
MOST_TILTED = 1024  # features of rows that `dask_odm.problems.common_point` has second derivatives for
KEPT_BYTES = 2 << 20  # of rows near the threshold, that a pass over a store brings back


def hull_pass_bytes(d: int) -> PassBytes:
    """What a task of a pass over rows of ``d`` features holds: of a look, or of sums about a tilt."""
    tilt = 8 * (d + 3) ** 2 if d <= MOST_TILTED else 0
    return PassBytes(max(2 * (KEPT_BYTES + 8 * d), tilt), 64, (6 + HELD_PIECES) * BLOCK_BYTES)


@dataclass(frozen=True, eq=False)
class Totals:
    """Of either class, the positive one first: weights (2,) and weighted sums of the rows (2, d).

    Attributes
    ----------
    weight, sums : ndarrays
    square : float
        The largest squared norm of a row.
    """

    weight: Array
    sums: Array
    square: float

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.weight + other.weight, self.sums + other.sums, max(self.square, other.square))

    @property
    def means(self) -> Array:
        """(2, d)."""
        return np.asarray(self.sums / self.weight[:, None])


@dataclass(frozen=True, eq=False)
class Vertex:
    """The point of the two hulls where ``w·(a − b)`` is least, of one w.

    Attributes
    ----------
    points : ndarray of shape (2, d)
        a and b.
    thresholds : tuple of two floats
        Scores w·x of the positive and of the negative row at which the caps are used up.
    rows : RowSets or None
        Which rows take part; None of rows that are not at hand.
    """

    points: Array
    thresholds: tuple[float, float]
    rows: RowSets | None = None

    @property
    def difference(self) -> Array:
        return np.asarray(self.points[0] - self.points[1])


@dataclass(frozen=True, eq=False)
class RowSets:
    """Entries of a vertex, packed: a bit a row for those that are full, and the others, which share what is left.

    Attributes
    ----------
    full : uint8 ndarray
    tied : ndarray of ints
    factors : ndarray of shape (2, 2)
        What the weight of a full, and of a tied row is multiplied by, for the positive and the negative class.
    """

    full: Array
    tied: Array
    factors: Array


@dataclass(frozen=True, eq=False)
class HullQuery:
    """What is asked of all rows; tasks carry it.

    Parameters
    ----------
    features : FeatureMap
        Without a constant feature.
    positive : int
        Code of the positive class; other codes are of the negative one, and rows of those below zero are left out.
    class_weights : tuple of two floats
        Of the negative and the positive class.
    """

    features: FeatureMap
    positive: int = 1
    class_weights: tuple[float, float] = (1.0, 1.0)

    def totals(self, blocks: Iterable[RowBlock]) -> Totals:
        """Weights and sums of the classes."""
        found = Totals(np.zeros(2), np.zeros((2, self.features.d)), 0.0)
        for X, sign, weight in self.pieces(blocks):
            of_class = [np.where(sign == each, weight, 0.0) for each in CLASSES]
            sums = np.array([self.features.weighted_sum(X, each) for each in of_class])
            square = float(np.where(sign != 0, self._squares(X), 0.0).max(initial=0.0))
            found += Totals(np.array([each.sum() for each in of_class]), sums, square)
        return found

    def columns(self, blocks: Iterable[RowBlock]) -> list[Array]:
        """Sign and weight of every row, (2, n) of each block."""
        return [np.stack(self._sign_and_weight(block.y, block.weight)) for block in blocks]

    def scores(self, blocks: Iterable[RowBlock], w: Array) -> list[Array]:
        """``w·x`` of every row, (n,) of each block."""
        return [self.features.scores(self._features_of(block.X), w) for block in blocks]

    def dense(self, blocks: Iterable[RowBlock]) -> list[Array]:
        """Features of every block, dense."""
        return [np.array(self.features.dense(self._features_of(block.X))) for block in blocks]

    def points(self, blocks: Iterable[RowBlock], entries: tuple[Array, Array]) -> Array:
        """``Σ e_i x_i`` of either class, (2, d), of its entries of all rows (n,)."""
        total = np.zeros((2, self.features.d))
        for block in blocks:
            rows = slice(block.first, block.first + block.X.shape[0])
            for k, each in enumerate(entries):
                e = each[rows]
                taken = np.flatnonzero(e)
                if len(taken):
                    X = block.X if 4 * len(taken) > 3 * len(e) else block.X[taken]
                    e = e if X is block.X else e[taken]
                    total[k] += self.features.weighted_sum(self._features_of(X), e)
        return total

    def look(self, blocks: Iterable[RowBlock], w: Array, look: Look) -> Looked:
        """Weights and sums of the rows by their scores, near the thresholds that ``look`` guesses."""
        parts: list[Looked] = []
        for X, sign, weight in self.pieces(blocks):
            gathers = [parts[0].classes[k].near is not None for k in range(2)] if parts else [True, True]
            parts.append(Looked.of(_Rows(self.features, X), self.features.scores(X, w), sign, weight, look, gathers))
            if len(parts) == HELD_PIECES:
                parts = [Looked.total(parts)]
        return Looked.total(parts)

    def _features_of(self, X: Any) -> Any:
        return self.features.block(X.astype(np.float64, copy=False))

    def _sign_and_weight(self, y: Array, weight: Array) -> tuple[Array, Array]:
        negative, positive = self.class_weights
        sign = np.where(y == self.positive, 1.0, np.where(y >= 0, -1.0, 0.0))
        factor = np.where(sign > 0, positive, negative)
        return sign, factor * weight if len(weight) else factor

    def pieces(self, blocks: Iterable[RowBlock]) -> Iterator[tuple[Any, Array, Array]]:
        """Features of every block in float64, a bounded number of rows at a time, with signs and weights.

        The sign is zero of rows that take no part.
        """
        for block in blocks:
            sign, weight = self._sign_and_weight(block.y, block.weight)
            sign = np.where(weight > 0, sign, 0.0)
            step = block_rows(self.features.d, block.X)
            for start in range(0, len(sign), step):
                rows = slice(start, start + step)
                yield self._features_of(block.X[rows]), sign[rows], weight[rows]

    def _squares(self, X: Any) -> Array:
        """Squared norms of the rows."""
        if not issparse(X):
            return np.einsum("ij,ij->i", X, X)
        scaling, squared = self.features.scaling, X.multiply(X).tocsr()
        if scaling is None:
            return np.asarray(squared.sum(axis=1)).ravel()
        factor = scaling.factor**2
        mixed = X @ (factor * scaling.shift)
        return np.maximum(squared @ factor - 2.0 * mixed + factor @ scaling.shift**2, 0.0)


@dataclass(frozen=True, eq=False)
class _Rows:
    features: FeatureMap
    X: Any

    @property
    def d(self) -> int:
        return self.features.d

    def weighted_sum(self, r: Array) -> Array:
        return self.features.weighted_sum(self.X, r)

    def rows(self, taken: Array) -> Array:
        return self.features.dense(self.X[taken])


@dataclass(frozen=True, eq=False)
class HullState:
    """Columns of rows at hand: which are of either class, and their weights or None: all 1."""

    members: tuple[Array, Array]
    weights: tuple[Array | None, Array | None]
    rows: int


@dataclass(eq=False)
class HullProblem:
    """Two reduced hulls of rows it never sees, which solvers ask for the vertex of a direction.

    Parameters
    ----------
    query : HullQuery
    passes : Passes
        Over blocks of raw rows; of streamed ones, the threshold is looked for in one pass or two.
    alpha : float or None
        The caps are ``c_i / (alpha · min(C₊, C₋))``, C the weights of a class; None: the whole hulls.

    Attributes
    ----------
    passes_made : int
        Passes over the rows so far.
    """

    query: HullQuery
    passes: Passes
    alpha: float | None
    passes_made: int = 0
    _last: tuple[Array, tuple[float, float], tuple[float, float]] | None = None
    totals: Totals = field(init=False)
    _state: HullState | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.totals = self._run(HullQuery.totals)
        if not self.passes.streamed:
            self._state = self._columns()

    @property
    def d(self) -> int:
        return self.query.features.d

    @property
    def holds_rows(self) -> bool:
        """Whether a vertex tells its rows."""
        return self._state is not None

    @property
    def mass(self) -> float:
        """1/ν: the caps are weights divided by it; 0 of whole hulls."""
        return 0.0 if self.alpha is None else self.alpha * float(self.totals.weight.min())

    @property
    def scale(self) -> float:
        """The largest norm of a row."""
        return float(np.sqrt(self.totals.square))

    @property
    def start(self) -> Vertex:
        """The class means: in the hulls, whatever the caps."""
        rows = None
        if self._state is not None:
            full = np.packbits(np.ones(self._state.rows, dtype=bool))
            rows = RowSets(full, np.zeros(0, dtype=np.int64), 1.0 / self.totals.weight[:, None] * np.array([1.0, 0.0]))
        return Vertex(self.totals.means, (0.0, 0.0), rows)

    def vertex(self, w: Array, mass: float | None = None) -> Vertex:
        """The point of the hulls that minimises ``w·(a − b)``, w (d,); of another mass perhaps."""
        mass = self.mass if mass is None else mass
        return self._looked_up(w, mass) if self._state is None else self._selected(w, mass, self._state)

    def entries(self, rows: RowSets) -> Array:
        """η and ξ of a vertex, (n,), one after the other in the rows' order."""
        full = np.unpackbits(rows.full, count=self._held.rows).astype(bool)
        tied = np.zeros(self._held.rows, dtype=bool)
        tied[rows.tied] = True
        e = np.zeros(self._held.rows)
        for k, (members, weight) in enumerate(zip(self._held.members, self._held.weights, strict=True)):
            factor = np.where(full[members], rows.factors[k, 0], np.where(tied[members], rows.factors[k, 1], 0.0))
            e[members] = factor if weight is None else factor * weight
        return e

    @property
    def members(self) -> tuple[Array, Array]:
        """Numbers of the rows of the positive and of the negative class, of rows at hand."""
        return self._held.members

    @property
    def weights(self) -> Array:
        """Weights of rows at hand, (n,)."""
        found = np.ones(self._held.rows)
        for members, weight in zip(self._held.members, self._held.weights, strict=True):
            found[members] = 1.0 if weight is None else weight
        return found

    def signed_rows(self) -> Array:
        """Features of rows at hand, those of the negative class times −1, dense (n, d)."""
        rows = np.concatenate(self._run(HullQuery.dense, counted=False))
        rows[self._held.members[1]] *= -1.0
        return rows

    def points(self, entries: Array) -> Array:
        """Points (2, d) of both hulls, of η and ξ as `entries` gives them."""
        of_class = []
        for members in self._held.members:
            of_class.append(np.zeros(self._held.rows))
            of_class[-1][members] = entries[members]
        return np.asarray(self._run(HullQuery.points, tuple(of_class)))

    @property
    def _held(self) -> HullState:
        assert self._state is not None, "the rows are not at hand"
        return self._state

    def with_alpha(self, alpha: float) -> HullProblem:
        """The hulls of the same rows for other caps."""
        other = copy(self)
        other.alpha = alpha
        return other

    def separating_alpha(self, w: Array) -> float | None:
        """The least alpha of two digits whose reduced hulls are apart along ``w`` (d,); None where 1 is not enough."""
        least, low, high = float(self.totals.weight.min()), int(100 * (self.alpha or 0.0)), 100
        if not self._apart(w, least):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._apart(w, middle / 100 * least) else (middle, high)
        return high / 100

    @property
    def memory(self) -> Array:
        """What the next look at streamed rows goes by: a vector that a checkpoint holds, empty at the start."""
        return np.empty(0) if self._last is None else np.concatenate(self._last)

    def recall(self, memory: Array) -> None:
        """Go on by the `memory` of another run, to the same bits."""
        numbers = memory[-4:].tolist()
        self._last = None if not memory.size else (memory[:-4], (numbers[0], numbers[1]), (numbers[2], numbers[3]))

    def _apart(self, w: Array, mass: float) -> bool:
        self._last = None
        return float(w @ self.vertex(w, mass).difference) > ROUNDING * self.scale * float(np.linalg.norm(w))

    # Rows at hand ----------------------------------------------------------------------------------------------

    def _columns(self) -> HullState:
        columns = np.concatenate(self._run(HullQuery.columns, counted=False), axis=1)
        members = tuple(np.flatnonzero(columns[0] == each) for each in CLASSES)
        plain = bool((columns[1] == 1.0).all())
        weights = tuple(None if plain else columns[1, each] for each in members)
        return HullState(members, weights, columns.shape[1])  # type: ignore[arg-type]

    def _selected(self, w: Array, mass: float, state: HullState) -> Vertex:
        scores = np.concatenate(self._run(HullQuery.scores, w))
        cuts: list[Cut] = []
        full, tied, entries = np.zeros(state.rows, dtype=bool), [], []
        for sign, members, weight in zip(CLASSES, state.members, state.weights, strict=True):
            signed = sign * scores[members]
            cut = cut_scores(signed, weight, mass)
            entries.append(np.zeros(state.rows))
            entries[-1][members] = cut.entries(signed, weight)
            full[members] = signed < cut.threshold
            tied.append(members[signed == cut.threshold])
            cuts.append(cut)
        points = self._run(HullQuery.points, tuple(entries), counted=False)
        rows = RowSets(np.packbits(full), np.concatenate(tied), np.array([[each.full, each.tied] for each in cuts]))
        return Vertex(points, (cuts[0].threshold, -cuts[1].threshold), rows)

    # Rows that are streamed ------------------------------------------------------------------------------------

    def _looked_up(self, w: Array, mass: float) -> Vertex:
        most = max(64, KEPT_BYTES // (8 * (self.d + 2)))
        look = Look.first(w, self.scale, most, self.passes.rows, self._last)
        while True:
            looked: Looked = self._run(HullQuery.look, w, look)
            found, look = settle(looked, look, mass)
            if found is not None:
                break
        (positive, width), (negative, other) = ((cut.threshold, width) for cut, _, width in found)
        self._last = w, (positive, negative), (width, other)
        return Vertex(np.array([point for _, point, _ in found]), (positive, -negative))

    def run(self, query: Any, method: Any, *arguments: Any) -> Any:
        """What another query sums over the rows: a pass that is counted."""
        self.passes_made += 1
        return self.passes.run(query, method, *arguments)

    def _run(self, method: Any, *arguments: Any, counted: bool = True) -> Any:
        self.passes_made += counted
        return self.passes.run(self.query, method, *arguments)
