"""The problem of two reduced convex hulls: half the squared distance between them, with bounds by passes over the rows.

Minimise ``½‖Aη − Bξ‖²`` for rows A of the positive class and B of the negative one. η and ξ are in the capped simplex:
≥ 0, with sum 1 and entries of at most ``c_i / mass``. For any w, ``m(w)`` is the least value of ``w·(Aη − Bξ)``, which
is taken at cuts of the scores (`dask_odm.methods.hulls.problem.weighted_quantile`). It bounds the optimum from below by
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
from dask_odm.methods.hulls.problem.query import HullQuery, Totals
from dask_odm.methods.hulls.problem.weighted_quantile import (
    CLASSES,
    Cut,
    Look,
    bin_count,
    cut_scores,
    find_quantiles,
    memory_of,
)
from dask_odm.typing import Array

TOUCHING = 1e-10  # distance relative to the rows' scale below which float64 cannot tell two hulls from touching ones
TILT_FEATURES = 1024  # most features for which `dask_odm.methods.hulls.feasibility` computes Hessians
LOOK_BYTES = 512 << 10  # bytes of the sums of a look for one class, which a pass over streamed rows returns


def hull_pass_bytes(d: int) -> PassBytes:
    """Return the memory that a task of a pass over rows of ``d`` features takes, for a look or the sums of a tilt."""
    tilt = 8 * (d + 3) ** 2 if d <= TILT_FEATURES else 0
    look = 16 * (bin_count(LOOK_BYTES, d) + 2) * (d + 3)
    return PassBytes(max(look, tilt), 64, 6 * BLOCK_BYTES)


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
class Vertex:
    """The ``points`` (2, d), a and b, of the two hulls that minimise ``w·(a − b)`` for one w.

    ``thresholds`` are the weighted quantiles of the scores w·x of each class, at which its capped simplex is filled.
    ``rows`` take part; None for rows that are not in memory. ``w·(a − b)`` may exceed the minimum by ``slack``.
    """

    points: Array
    thresholds: tuple[float, float]
    rows: RowSets | None = None
    slack: float = 0.0

    @property
    def difference(self) -> Array:
        return self.points[0] - self.points[1]

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

    def __post_init__(self) -> None:
        self.totals = self.run(HullQuery.totals)
        self._held = None if self.passes.streamed else self._hold()

    @property
    def d(self) -> int:
        return self.query.features.d

    @property
    def by_passes(self) -> HullProblem:
        """This problem, whose rows can be asked anything."""
        return self

    @property
    def costs(self) -> dict[str, Any]:
        """Further figures of a step's record: none."""
        return {}

    @property
    def holds_rows(self) -> bool:
        """Whether the rows are in memory, so that a vertex has its row sets."""
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
        rows = None
        if self._held is not None:
            full = np.packbits(np.ones(self.passes.rows, dtype=bool))
            rows = RowSets(full, np.zeros(0, dtype=np.int64), 1.0 / self.totals.weight[:, None] * np.array([1.0, 0.0]))
        return Vertex(self.totals.means, (0.0, 0.0), rows)

    def with_alpha(self, alpha: float | None) -> HullProblem:
        """Return the problem of the same rows for another alpha."""
        other = copy(self)
        other.alpha = alpha
        other.memory = np.empty(0)
        return other

    def vertex(self, w: Array, mass: float | None = None, *, exact: bool = False) -> Vertex:
        """Return the points of the hulls that minimise ``w·(a − b)``, w (d,).

        ``mass`` replaces the problem's, and ``exact`` allows no slack.
        """
        mass = self.mass if mass is None else mass
        if self._held is not None:
            return self._selected(w, mass, self._held)
        return self._looked_up(w, mass, 0.0 if exact else self.slack * float(w @ w))

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

    def _apart(self, w: Array, mass: float) -> bool:
        self.memory = np.empty(0)  # it belongs to another mass
        return self.vertex(w, mass).least(w) > TOUCHING * self.scale * float(np.linalg.norm(w))

    def run(self, method: Any, *arguments: Any, counted: bool = True) -> Any:
        """Run a pass of the problem's query over the rows, and count it."""
        self.passes_made += counted
        return self.passes.run(self.query, method, *arguments)

    # Rows in memory --------------------------------------------------------------------------------------------

    def _hold(self) -> HeldRows:
        blocks, signs, weights = zip(*self.run(HullQuery.held, counted=False), strict=True)
        sign = np.concatenate(signs)
        weight = np.concatenate(weights)
        members = [np.flatnonzero(sign == each) for each in CLASSES]
        plain = bool((weight == 1.0).all())
        return HeldRows(list(blocks), members, [None if plain else weight[own] for own in members])

    def _selected(self, w: Array, mass: float, held: HeldRows) -> Vertex:
        scores = np.concatenate(self.run(HullQuery.scores, w))
        cuts: list[Cut] = []
        full = np.zeros(len(scores), dtype=bool)
        tied = []
        shares = []
        for sign, members, weight in zip(CLASSES, held.members, held.weights, strict=True):
            signed = sign * scores[members]
            cut = cut_scores(signed, weight, mass)
            taken = np.flatnonzero(signed <= cut.high)
            signed = signed[taken]
            numbers = members[taken]
            shares.append((numbers, cut.entries(signed, None if weight is None else weight[taken])))
            full[numbers] = signed < cut.low
            tied.append(numbers[signed == cut.low])
            cuts.append(cut)
        few = sum(len(numbers) for numbers, _ in shares) <= 256  # to wake other threads would take longer
        points = self.query.points(held.blocks, shares) if few else self.run(HullQuery.points, shares, counted=False)
        rows = RowSets(np.packbits(full), np.concatenate(tied), np.array([[each.full, each.tied] for each in cuts]))
        return Vertex(points, (cuts[0].low, -cuts[1].low), rows)

    def entries(self, rows: RowSets) -> Array:
        """Return η and ξ of a vertex of rows in memory as one array (n,) in the rows' order."""
        held = self._held
        assert held is not None
        full = np.unpackbits(rows.full, count=self.passes.rows).astype(bool)
        tied = np.zeros(len(full), dtype=bool)
        tied[rows.tied] = True
        e = np.zeros(len(full))
        for members, weight, (of_full, of_tied) in zip(held.members, held.weights, rows.factors, strict=True):
            factor = np.where(full[members], of_full, np.where(tied[members], of_tied, 0.0))
            e[members] = factor if weight is None else factor * weight
        return e

    # Streamed rows ---------------------------------------------------------------------------------------------

    def _looked_up(self, w: Array, mass: float, allowed: float) -> Vertex:
        first = Look.first(w, self.scale, bin_count(LOOK_BYTES, self.d), self.memory)
        found = find_quantiles(lambda look: self.run(HullQuery.look, w, look), first, mass, allowed)
        self.memory = memory_of(w, [each.threshold for each in found], [each.mean for each in found])
        points = np.array([each.point for each in found])
        slack = found[0].slack + found[1].slack
        return Vertex(points, (found[0].threshold, -found[1].threshold), slack=slack)
