"""The problem of two reduced convex hulls: half the squared distance between them, with bounds by passes over the rows.

Minimise ``½‖Aη − Bξ‖²`` for rows A of the positive class and B of the negative one. η and ξ are in the capped simplex:
≥ 0, with sum 1 and entries of at most ``c_i / mass``. For any w, ``m(w)`` is the least value of ``w·(Aη − Bξ)``, which
is taken at cuts of the scores (`dask_odm.methods.hulls.problem.capped_simplex`). It bounds the optimum from below by
``max(0, m(w))² / (2‖w‖²)``. Any point ``z = Aη − Bξ`` bounds it from above by ``½‖z‖²``. So a pass over the rows gives
a point of the hulls and both bounds.

Sources: Bennett, Bredensteiner: *Duality and geometry in SVM classifiers*, 2000. Jin, Huang, Li: *SVM via saddle point
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

ROUNDING = 1e-10  # distance relative to the rows' scale below which float64 cannot tell two hulls from touching ones
MOST_TILTED = 1024  # most features for which `dask_odm.methods.hulls.problem.feasibility` computes Hessians
FEW = 256  # rows of a vertex that one thread adds up, since to wake others would take longer
KEPT_BYTES = 512 << 10  # bytes of the sums of a look for one class, which a pass over streamed rows returns


def hull_pass_bytes(d: int) -> PassBytes:
    """Return the memory that a task of a pass over rows of ``d`` features takes, for a look or the sums of a tilt."""
    tilt = 8 * (d + 3) ** 2 if d <= MOST_TILTED else 0
    look = 16 * (bin_count(KEPT_BYTES, d) + 2) * (d + 3)
    return PassBytes(max(look, tilt), 64, 6 * BLOCK_BYTES)


@dataclass(frozen=True, eq=False)
class Vertex:
    """The points a and b of the two hulls that minimise ``w·(a − b)`` for one w.

    Attributes
    ----------
    points : ndarray of shape (2, d)
        a and b.
    thresholds : tuple of two floats
        Weighted quantiles of the scores w·x of each class, at which its capped simplex is filled.
    rows : RowSets or None
        The rows that take part; None for streamed rows.
    slack : float
        By how much ``w·(a − b)`` may exceed the minimum.
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
    """The η and ξ of a vertex, packed: a bit a row for those at their caps, and the numbers of tied rows.

    The entry of a row is its weight times a factor. ``factors[k]`` has those of a full and of a tied row, for the
    positive (k = 0) and the negative class.
    """

    full: Array
    tied: Array
    factors: Array


@dataclass(frozen=True, eq=False)
class HullState:
    """Rows in memory: their blocks, and the numbers and weights of each class's rows; None stands for weights of 1."""

    blocks: list[RowBlock]
    members: tuple[Array, Array]
    weights: tuple[Array | None, Array | None]
    rows: int


@dataclass(eq=False)
class HullProblem:
    """Two reduced hulls, of which solvers need the vertex of a direction. The rows stay with ``passes``.

    Parameters
    ----------
    query : HullQuery
    passes : Passes
        Passes over blocks of raw rows. For streamed rows a threshold takes one pass or a few.
    alpha : float or None
        The caps are ``c_i / (alpha · min(C₊, C₋))``, C being the weight of a class. None means the whole hulls.
    passes_made : int
        Passes over the rows so far.
    slack : float
        Share of ‖w‖² by which the score of a vertex of streamed rows may exceed the least, to save a pass.
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
        """Whether the rows are in memory, so that a vertex has its row sets."""
        return self._state is not None

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
        rows = None
        if self._state is not None:
            full = np.packbits(np.ones(self._state.rows, dtype=bool))
            rows = RowSets(full, np.zeros(0, dtype=np.int64), 1.0 / self.totals.weight[:, None] * np.array([1.0, 0.0]))
        return Vertex(self.totals.means, (0.0, 0.0), rows)

    def vertex(self, w: Array, mass: float | None = None, *, exact: bool = False) -> Vertex:
        """Return the points of the hulls that minimise ``w·(a − b)``, w (d,).

        ``mass`` replaces the problem's, and ``exact`` allows no slack.
        """
        mass = self.mass if mass is None else mass
        if self._state is not None:
            return self._selected(w, mass, self._state)
        return self._looked_up(w, mass, 0.0 if exact else self.slack * float(w @ w))

    def entries(self, rows: RowSets) -> Array:
        """Return η and ξ of a vertex as one array (n,) in the rows' order."""
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
        """Numbers of the rows of the positive and of the negative class, for rows in memory."""
        return self._held.members

    @property
    def weights(self) -> Array:
        """Weights of rows in memory, (n,)."""
        found = np.ones(self._held.rows)
        for members, weight in zip(self._held.members, self._held.weights, strict=True):
            found[members] = 1.0 if weight is None else weight
        return found

    def signed_rows(self) -> Array:
        """Return the features of rows in memory, dense (n, d), those of the negative class times −1."""
        rows = np.concatenate(self._run(HullQuery.dense, counted=False))
        rows[self._held.members[1]] *= -1.0
        return rows

    def points(self, entries: Array) -> Array:
        """Return the points (2, d) of both hulls for η and ξ as `entries` returns them."""
        return np.asarray(self._run(HullQuery.points, [(own, entries[own]) for own in self._held.members]))

    @property
    def _held(self) -> HullState:
        assert self._state is not None, "the rows are not at hand"
        return self._state

    def with_alpha(self, alpha: float | None) -> HullProblem:
        """Return the problem of the same rows for another alpha."""
        other = copy(self)
        other.alpha = alpha
        other._last = None
        return other

    def separating_alpha(self, w: Array) -> float | None:
        """Return the least alpha of two digits whose hulls are disjoint along ``w`` (d,); None if 1 is not enough."""
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
        """The results of the last look at streamed rows, as a vector for the checkpoint; empty at the start."""
        return np.empty(0) if self._last is None else self._last.vector()

    def recall(self, memory: Array) -> None:
        """Restore the `memory` of another run, so that this one goes on to the same bits."""
        self._last = Known.of_vector(memory) if memory.size else None

    def _apart(self, w: Array, mass: float) -> bool:
        self._last = None  # it belongs to another mass
        vertex = self.vertex(w, mass)
        return float(w @ vertex.difference) - vertex.slack > ROUNDING * self.scale * float(np.linalg.norm(w))

    # Rows in memory --------------------------------------------------------------------------------------------

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

    # Streamed rows ---------------------------------------------------------------------------------------------

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
        """Run the pass of another query over the rows, and count it."""
        self.passes_made += 1
        return self.passes.run(query, method, *arguments)

    def _run(self, method: Any, *arguments: Any, counted: bool = True) -> Any:
        self.passes_made += counted
        return self.passes.run(self.query, method, *arguments)
