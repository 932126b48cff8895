"""Two reduced convex hulls: the distance between them, and what is summed over the rows of two classes for it.

minimise ``½‖Aη − Bξ‖²`` over the rows A of the positive class and B of the negative one, η and ξ ≥ 0 with sum 1 and
entries of at most ``c_i / mass``. Of any w, ``m(w)`` is the least ``w·(Aη − Bξ)`` there is, where η and ξ are cuts of
the scores (`dask_odm.methods.hulls.problem.capped_simplex`), and bounds the optimum from below by
``max(0, m(w))² / (2‖w‖²)``; any point ``z = Aη − Bξ`` bounds it by ``½‖z‖²`` from above. So a pass over the rows gives
a point of the hulls and both bounds.

Bennett, Bredensteiner: *Duality and geometry in SVM classifiers*, 2000. Jin, Huang, Li: *SVM via saddle point
optimization*, 2017, section 2.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_odm.learning.problem.linear import BLOCK_BYTES
from dask_odm.linalg.row_passes import PassBytes, Passes, RowBlock
from dask_odm.methods.hulls.problem.capped_simplex import Cut, cut_scores
from dask_odm.methods.hulls.problem.query import CLASSES, HullQuery, Totals
from dask_odm.methods.hulls.problem.weighted_quantile import Known, Look, Looked, bin_count, settle
from dask_odm.typing import Array

ROUNDING = 1e-10  # of the rows' scale: two hulls that are nearer touch, as far as float64 can tell
MOST_TILTED = 1024  # features of rows that `dask_odm.methods.hulls.problem.feasibility` has second derivatives for
FEW = 256  # rows of a vertex that are added up at once: to wake other threads for them would take longer
KEPT_BYTES = 512 << 10  # of sums about the threshold of a class, that a pass over streamed rows brings back


def hull_pass_bytes(d: int) -> PassBytes:
    """What a task of a pass over rows of ``d`` features holds: of a look, or of sums about a tilt."""
    tilt = 8 * (d + 3) ** 2 if d <= MOST_TILTED else 0
    look = 16 * (bin_count(KEPT_BYTES, d) + 2) * (d + 3)
    return PassBytes(max(look, tilt), 64, 6 * BLOCK_BYTES)


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
    slack : float
        By how much ``w·(a − b)`` may be above the least there is.
    """

    points: Array
    thresholds: tuple[float, float]
    rows: RowSets | None = None
    slack: float = 0.0

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
class HullState:
    """Rows at hand: their blocks, which are of either class, and their weights or None: all 1."""

    blocks: list[RowBlock]
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
        Over blocks of raw rows; of streamed ones, the threshold is looked for in one pass or a few.
    alpha : float or None
        The caps are ``c_i / (alpha · min(C₊, C₋))``, C the weights of a class; None: the whole hulls.
    passes_made : int
        Passes over the rows so far.
    slack : float
        By what part of ‖w‖² the score of a vertex of streamed rows may be above the least, for the sake of a pass.
    """

    query: HullQuery
    passes: Passes
    alpha: float | None
    passes_made: int = 0
    slack: float = 0.0
    _last: Known | None = field(init=False, default=None)
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

    def vertex(self, w: Array, mass: float | None = None, *, exact: bool = False) -> Vertex:
        """The point of the hulls that minimises ``w·(a − b)``, w (d,); of another mass perhaps, or without slack."""
        mass = self.mass if mass is None else mass
        if self._state is not None:
            return self._selected(w, mass, self._state)
        return self._looked_up(w, mass, 0.0 if exact else self.slack * float(w @ w))

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
        return np.asarray(self._run(HullQuery.points, [(own, entries[own]) for own in self._held.members]))

    @property
    def _held(self) -> HullState:
        assert self._state is not None, "the rows are not at hand"
        return self._state

    def with_alpha(self, alpha: float | None) -> HullProblem:
        """The hulls of the same rows for other caps."""
        other = copy(self)
        other.alpha = alpha
        other._last = None
        return other

    def separating_alpha(self, w: Array) -> float | None:
        """The least alpha of two digits whose reduced hulls are apart along ``w`` (d,); None where 1 is not enough."""
        least = float(self.totals.weight.min())
        low = int(100 * (self.alpha or 0.0))
        high = 100
        if not self._apart(w, least):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._apart(w, middle / 100 * least) else (middle, high)
        return high / 100

    @property
    def memory(self) -> Array:
        """What the next look at streamed rows goes by: a vector that a checkpoint holds, empty at the start."""
        return np.empty(0) if self._last is None else self._last.vector()

    def recall(self, memory: Array) -> None:
        """Go on by the `memory` of another run, to the same bits."""
        self._last = Known.of_vector(memory) if memory.size else None

    def _apart(self, w: Array, mass: float) -> bool:
        self._last = None  # of another mass
        vertex = self.vertex(w, mass)
        return float(w @ vertex.difference) - vertex.slack > ROUNDING * self.scale * float(np.linalg.norm(w))

    # Rows at hand ----------------------------------------------------------------------------------------------

    def _columns(self) -> HullState:
        columns = np.concatenate(self._run(HullQuery.columns, counted=False), axis=1)
        members = tuple(np.flatnonzero(columns[0] == each) for each in CLASSES)
        plain = bool((columns[1] == 1.0).all())
        weights = tuple(None if plain else columns[1, each] for each in members)
        blocks = self._run(HullQuery.blocks, counted=False)
        return HullState(blocks, members, weights, columns.shape[1])  # type: ignore[arg-type]

    def _selected(self, w: Array, mass: float, state: HullState) -> Vertex:
        scores = np.concatenate(self._run(HullQuery.scores, w))
        cuts: list[Cut] = []
        full = np.zeros(state.rows, dtype=bool)
        tied = []
        shares = []
        for sign, members, weight in zip(CLASSES, state.members, state.weights, strict=True):
            signed = sign * scores[members]
            cut = cut_scores(signed, weight, mass)
            taken = np.flatnonzero(signed <= cut.threshold)
            signed = signed[taken]
            numbers = members[taken]
            shares.append((numbers, cut.entries(signed, None if weight is None else weight[taken])))
            full[numbers] = signed < cut.threshold
            tied.append(numbers[signed == cut.threshold])
            cuts.append(cut)
        few = sum(len(numbers) for numbers, _ in shares) <= FEW
        points = self.query.points(state.blocks, shares) if few else self._run(HullQuery.points, shares, counted=False)
        rows = RowSets(np.packbits(full), np.concatenate(tied), np.array([[each.full, each.tied] for each in cuts]))
        return Vertex(points, (cuts[0].threshold, -cuts[1].threshold), rows)

    # Rows that are streamed ------------------------------------------------------------------------------------

    def _looked_up(self, w: Array, mass: float, allowed: float) -> Vertex:
        look = Look.first(w, self.scale, bin_count(KEPT_BYTES, self.d), self._last)
        while True:
            looked: Looked = self._run(HullQuery.look, w, look)
            found, look = settle(looked, look, mass, allowed)
            if found is not None:
                break
        positive, negative = found
        thresholds = np.array([each.threshold for each in found])
        self._last = Known(w, thresholds, np.array([each.mean for each in found]))
        points = np.array([each.point for each in found])
        slack = positive.slack + negative.slack
        return Vertex(points, (positive.threshold, -negative.threshold), slack=slack)

    def run(self, query: Any, method: Any, *arguments: Any) -> Any:
        """What another query sums over the rows: a pass that is counted."""
        self.passes_made += 1
        return self.passes.run(query, method, *arguments)

    def _run(self, method: Any, *arguments: Any, counted: bool = True) -> Any:
        self.passes_made += counted
        return self.passes.run(self.query, method, *arguments)
