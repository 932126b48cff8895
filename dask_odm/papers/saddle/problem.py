"""The problem of two reduced convex hulls: half the squared distance between them, with bounds by passes over the rows.

Minimise ``½‖Aη − Bξ‖²`` for rows A of the positive class and B of the negative one. η and ξ are in the capped simplex:
≥ 0, with sum 1 and entries of at most ``c_i / mass``. For any w, ``m(w)`` is the least value of ``w·(Aη − Bξ)``, which
is taken at cuts of the scores (`dask_odm.papers.saddle.weighted_quantile`). It bounds the optimum from below by
``max(0, m(w))² / (2‖w‖²)``. Any point ``z = Aη − Bξ`` bounds it from above by ``½‖z‖²``. So a pass over the rows gives
a point of the hulls and both bounds. Tasks carry a `HullQuery` to the holder of the rows.

Sources: Bennett, Bredensteiner: *Duality and geometry in SVM classifiers*, 2000. Jin, Huang, Li: *SVM via saddle point
optimization*, 2017, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse

from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import BLOCK_BYTES, block_rows
from dask_odm.linalg.jit import compiled, frozen
from dask_odm.linalg.row_passes import PassBytes, Passes, RowBlock
from dask_odm.papers.saddle.weighted_quantile import (
    CLASSES,
    Cut,
    Look,
    Looked,
    bin_count,
    cut_scores,
    find_quantiles,
    look_at,
    memory_of,
)
from dask_odm.typing import Array

TOUCHING = 1e-10  # distance relative to the rows' scale below which float64 cannot tell two hulls from touching ones
TILT_FEATURES = 1024  # most features for which `dask_odm.papers.saddle.feasibility` computes Hessians
LOOK_BYTES = 512 << 10  # bytes of the sums of a look for one class, which a pass over streamed rows returns


def hull_pass_bytes(d: int) -> PassBytes:
    """Return the memory that a task of a pass over rows of ``d`` features takes, for a look or the sums of a tilt."""
    tilt = 8 * (d + 3) ** 2 if d <= TILT_FEATURES else 0
    look = 16 * (bin_count(LOOK_BYTES, d) + 2) * (d + 3)
    return PassBytes(max(look, tilt), 64, 6 * BLOCK_BYTES)


@dataclass(frozen=True, eq=False)
class Totals:
    """Weights (2,) and weighted sums of rows (2, d) of both classes, the positive one first.

    ``square`` is the largest squared norm of a row.
    """

    weight: Array
    sums: Array
    square: float

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.weight + other.weight, self.sums + other.sums, max(self.square, other.square))

    @property
    def means(self) -> Array:
        """The class means, (2, d)."""
        return self.sums / self.weight[:, None]


@dataclass(frozen=True, eq=False)
class HullQuery:
    """The query to all rows; tasks carry it.

    ``features`` have no constant one. Rows of the code 1 are positive, those of a code below zero are left out, and all
    others are negative. ``class_weights`` are those of the negative and the positive class.
    """

    features: FeatureMap
    class_weights: tuple[float, float] = (1.0, 1.0)

    def totals(self, blocks: Iterable[RowBlock]) -> Totals:
        """Sum the weights and the rows of both classes."""
        shift, factor = self._affine
        sums = np.zeros((2, self.features.d + 1))
        square = 0.0
        for X, codes, given in self._cut(blocks):
            if not issparse(X):
                Z = frozen(self.features.unscaled(X))
                square = max(square, add_totals(Z, codes, given, np.array(self.class_weights), shift, factor, sums))
                continue
            sign, weight = self._sign_and_weight(codes, given)
            for k, each in enumerate(CLASSES):
                of_class = np.where(sign == each, weight, 0.0)
                sums[k, :-1] += self.features.weighted_sum(self._features_of(X), of_class)
                sums[k, -1] += of_class.sum()
            square = float(self._squares(X)[sign != 0].max(initial=square))
        return Totals(sums[:, -1], sums[:, :-1], square)

    def scores(self, blocks: Iterable[RowBlock], w: Array) -> list[Array]:
        """Return ``w·x`` of every row, (n,) for each block."""
        shift, factor = self._affine
        found = []
        u = w * factor
        for block in blocks:
            if issparse(block.X):
                found.append(self.features.scores(self._features_of(block.X), w))
            else:
                found.append(np.empty(block.X.shape[0]))
                score_rows(frozen(self.features.unscaled(block.X)), u, shift, found[-1])
        return found

    def points(self, blocks: Iterable[RowBlock], shares: Sequence[tuple[Array, Array]]) -> Array:
        """Sum ``e_i x_i`` for either class, (2, d), over consecutive blocks of rows in memory.

        ``shares`` has the row numbers of each class, ascending, and their e.
        """
        total = np.zeros((2, self.features.d))
        following = list(blocks)
        edges = np.array([*(block.first for block in following), following[-1].first + following[-1].X.shape[0]])
        for k, (numbers, entries) in enumerate(shares):
            bounds = numbers.searchsorted(edges)
            for i in np.flatnonzero(bounds[:-1] < bounds[1:]):
                part = slice(bounds[i], bounds[i + 1])
                block = following[i]
                self._add(block.X, numbers[part] - block.first, entries[part], total[k])
        return total

    def _add(self, X: Any, rows: Array, entries: Array, total: Array) -> None:
        """Add some ``rows`` of ``X``, multiplied by ``entries``, to a total (d,)."""
        if issparse(X):
            total += self.features.weighted_sum(self._features_of(X[rows]), entries)
        else:
            add_rows(frozen(self.features.unscaled(X)), rows, entries, *self._affine, total)

    def quantiles(self, blocks: Iterable[RowBlock], w: Array, look: Look) -> Looked:
        """Sum the weights and the rows by their scores, near the thresholds that ``look`` guesses."""
        shift, factor = self._affine
        pieces = ((self.features.unscaled(X), y, weight) for X, y, weight in self._cut(blocks))
        return look_at(look, pieces, w * factor, shift, factor, self.class_weights)

    @property
    def _affine(self) -> tuple[Array, Array]:
        """Shift and factor of the feature scaling; zeros and ones if there is none."""
        scaling = self.features.scaling
        d = self.features.d
        return (np.zeros(d), np.ones(d)) if scaling is None else (scaling.shift, scaling.factor)

    def _cut(self, blocks: Iterable[RowBlock]) -> Iterator[tuple[Any, Array, Array]]:
        """Yield raw rows, codes and weights, a bounded number of rows at a time."""
        for block in blocks:
            step = block_rows(self.features.d, block.X)
            for start in range(0, len(block.y), step):
                rows = slice(start, start + step)
                yield block.X[rows], block.y[rows], block.weight[rows]

    def _features_of(self, X: Any) -> Any:
        return self.features.block(X.astype(np.float64, copy=False))

    def _sign_and_weight(self, y: Array, weight: Array) -> tuple[Array, Array]:
        negative, positive = self.class_weights
        sign = np.where(y == 1, 1.0, np.where(y >= 0, -1.0, 0.0))
        factor = np.where(sign > 0, positive, negative)
        return sign, factor * weight if len(weight) else factor

    def pieces(self, blocks: Iterable[RowBlock]) -> Iterator[tuple[Any, Array, Array]]:
        """Yield the features in float64, a bounded number of rows at a time, with signs and weights.

        The sign is zero for rows that take no part.
        """
        for X, y, given in self._cut(blocks):
            sign, weight = self._sign_and_weight(y, given)
            yield self._features_of(X), np.where(weight > 0, sign, 0.0), weight

    def _squares(self, X: Any) -> Array:
        """Return the squared norms of sparse rows, (n,)."""
        shift, factor = self._affine
        squares = X.multiply(X) @ factor**2 - 2.0 * (X @ (factor**2 * shift)) + factor**2 @ shift**2
        return np.maximum(squares, 0.0)


@compiled
def add_totals(
    X: Array, codes: Array, weight: Array, class_weights: Array, shift: Array, factor: Array, sums: Array
) -> float:
    """Add scaled rows to the weighted sums (2, d + 1) of the positive and the negative class, with weights at the end.

    Returns the largest squared norm of a row that takes part.
    """
    d = X.shape[1]
    largest = 0.0
    for i in range(codes.size):
        k = 0 if codes[i] == 1 else 1
        c = 0.0 if codes[i] < 0 else class_weights[1 - k]
        if weight.size > 0:
            c *= weight[i]
        if c > 0.0:
            row = X[i]
            total = sums[k]
            total[d] += c
            square = 0.0
            for j in range(d):
                x = (row[j] - shift[j]) * factor[j]
                total[j] += c * x
                square += x * x
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


# The problem -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Vertex:
    """The ``points`` (2, d), a and b, of the two hulls that minimise ``w·(a − b)`` for one w.

    ``thresholds`` are the weighted quantiles of the scores w·x of each class, at which its capped simplex is filled.
    ``w·(a − b)`` may exceed the minimum by ``slack``. Of ``held`` rows in memory, ``rows`` are the numbers of those
    whose η or ξ is positive, class by class.
    """

    points: Array
    thresholds: tuple[float, float]
    slack: float = 0.0
    held: int = 0
    rows: Sequence[Array] = ()

    @property
    def difference(self) -> Array:
        return self.points[0] - self.points[1]

    def support(self) -> Array:
        """Return a bit for every row in memory, packed: whether its η or ξ is positive."""
        mask = np.zeros(self.held, dtype=bool)
        for numbers in self.rows:
            mask[numbers] = True
        return np.packbits(mask)

    def least(self, w: Array) -> float:
        """Return m(w), or less by up to the slack, if this is the vertex of w."""
        return float(w @ self.difference) - self.slack


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Rows in memory: their blocks, and the numbers and weights of each class's rows; None stands for weights of 1."""

    blocks: list[RowBlock]
    members: list[Array]
    weights: list[Array | None]


@dataclass(eq=False)
class HullProblem:
    """Two reduced hulls, of which solvers need the vertex of a direction. The rows stay with ``passes``.

    The caps are ``c_i / (alpha · min(C₊, C₋))``, C being the weight of a class; None means the whole hulls.
    ``passes_made`` counts passes over the rows. The score of a vertex of streamed rows may exceed the least by the
    share ``slack`` of ‖w‖², which saves passes. ``memory`` has the results of the last look at streamed rows, by which
    a resumed run goes on to the same bits; it is empty at the start.
    """

    query: HullQuery
    passes: Passes
    alpha: float | None
    passes_made: int = 0
    slack: float = 0.0
    memory: Array = field(init=False, default_factory=lambda: np.empty(0))
    totals: Totals = field(init=False)
    _held: HeldRows | None = field(init=False)
    costs: ClassVar[dict[str, Any]] = {}  # further figures of a step's record, as clients have them

    def __post_init__(self) -> None:
        self.totals = self.run(HullQuery.totals)
        self._held = None if self.passes.streamed else self._hold()

    @property
    def d(self) -> int:
        return self.query.features.d

    @property
    def by_passes(self) -> HullProblem:
        """This problem itself, since any sum over its rows can be asked for by a pass."""
        return self

    @property
    def holds_rows(self) -> bool:
        """Whether the rows are in memory, so that a vertex has its support."""
        return self._held is not None

    @property
    def mass(self) -> float:
        """1/ν, by which weights are divided for their caps; 0 for whole hulls."""
        return 0.0 if self.alpha is None else self.alpha * float(self.totals.weight.min())

    @property
    def scale(self) -> float:
        """The largest norm of a row."""
        return float(np.sqrt(self.totals.square))

    @property
    def start(self) -> Vertex:
        """The class means, which are in the hulls whatever the caps."""
        vertex = Vertex(self.totals.means, (0.0, 0.0))
        return vertex if self._held is None else replace(vertex, held=self.passes.rows, rows=self._held.members)

    def with_alpha(self, alpha: float | None) -> HullProblem:
        """Return the problem of the same rows for another alpha."""
        other = copy(self)
        other.alpha = alpha
        other.memory = np.empty(0)
        return other

    def vertex(self, w: Array, *, exact: bool = False) -> Vertex:
        """Return the points of the hulls that minimise ``w·(a − b)``, w (d,); ``exact`` allows no slack."""
        if self._held is not None:
            return self._selected(w, self._held)
        return self._looked_up(w, 0.0 if exact else self.slack * float(w @ w))

    def run(self, method: Any, *arguments: Any) -> Any:
        """Run a pass of the problem's query over the rows, and count it."""
        self.passes_made += 1
        return self.passes.run(self.query, method, *arguments)

    # Rows in memory --------------------------------------------------------------------------------------------

    def _hold(self) -> HeldRows:
        blocks = self.passes.run(self.query, lambda _, blocks: list(blocks))
        codes = np.concatenate([block.y for block in blocks])
        given = np.concatenate([block.weight for block in blocks])
        negative, positive = self.query.class_weights
        members = []
        weights = []
        for own, factor in ((codes == 1, positive), ((codes >= 0) & (codes != 1), negative)):
            members.append(np.flatnonzero(own & (given > 0) if given.size else own))
            weight = factor * given[members[-1]] if given.size else np.full(len(members[-1]), factor)
            weights.append(None if (weight == 1.0).all() else weight)
        return HeldRows(blocks, members, weights)

    def _selected(self, w: Array, held: HeldRows) -> Vertex:
        scores = np.concatenate(self.run(HullQuery.scores, w))
        cuts: list[Cut] = []
        shares = []
        for sign, members, weight in zip(CLASSES, held.members, held.weights, strict=True):
            signed = sign * scores[members]
            cut = cut_scores(signed, weight, self.mass)
            taken = np.flatnonzero(signed <= cut.high if cut.tied > 0 else signed < cut.low)
            shares.append((members[taken], cut.entries(signed[taken], None if weight is None else weight[taken])))
            cuts.append(cut)
        few = sum(len(numbers) for numbers, _ in shares) <= 256  # to wake other threads would take longer
        run = self.passes.run
        points = self.query.points(held.blocks, shares) if few else run(self.query, HullQuery.points, shares)
        rows = [numbers for numbers, _ in shares]
        return Vertex(points, (cuts[0].low, -cuts[1].low), held=self.passes.rows, rows=rows)

    # Streamed rows ---------------------------------------------------------------------------------------------

    def _looked_up(self, w: Array, allowed: float) -> Vertex:
        first = Look.first(w, self.scale, bin_count(LOOK_BYTES, self.d), self.memory)
        found = find_quantiles(lambda look: self.run(HullQuery.quantiles, w, look), first, self.mass, allowed)
        self.memory = memory_of(w, [each.threshold for each in found], [each.mean for each in found])
        points = np.array([each.point for each in found])
        slack = found[0].slack + found[1].slack
        return Vertex(points, (found[0].threshold, -found[1].threshold), slack=slack)
