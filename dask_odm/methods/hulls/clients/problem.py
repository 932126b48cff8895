"""Two reduced hulls whose rows stay with clients: thresholds, bounds and vertices by questions to all of them.

As `dask_odm.methods.hulls.problem.hulls.HullProblem` for a solver that asks for vertices, such as Gilbert's. What
travels is a direction, numbers, and sums of rows: of whole hulls each client answers with its best point of either
class; of reduced ones the threshold is looked for first, by weights within parts of a range of scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dask_odm.methods.hulls.clients.rows import (
    BINS,
    Below,
    BestPoints,
    Ranges,
    ScoresOf,
    SumsBelow,
    best_points,
    bin_of,
    look_within,
    sum_below,
)
from dask_odm.methods.hulls.problem.capped_simplex import Cut, cut_at
from dask_odm.methods.hulls.problem.hulls import Vertex
from dask_odm.methods.hulls.problem.query import Totals
from dask_odm.typing import Array

PAD = 1e-3  # of a part of a range: where it begins is a matter of rounding
LEAST_RANGE = 1e-100
CLOSED = (np.inf, np.inf)  # a range of no scores, of a class whose threshold is known


class Clients(Protocol):
    """All clients, asked at once; what they answer is in their order.

    Attributes
    ----------
    count : int
    rounds, floats : int
        Questions asked, and numbers that travelled to and from all clients for them, so far.
    """

    count: int
    rounds: int
    floats: int

    def ask(self, step: Callable[..., Any], message: Any) -> list[Any]:
        """Answers of ``step(rows, state, message) -> (state, answer)`` of every client; states move on."""

    def read(self, question: Callable[..., Any], message: Any) -> list[Any]:
        """Answers of ``question(rows, state, message)`` of every client."""


@dataclass(frozen=True)
class Threshold:
    """Up to where a cut of one class's signed scores goes, and Σ e s of it."""

    cut: Cut
    value: float


@dataclass(eq=False)
class ClientHulls:
    """Two reduced hulls of rows that clients have.

    Parameters
    ----------
    clients : Clients
    totals : Totals
        Of all rows, in the clients' coordinates.
    alpha : float or None
        As of `HullProblem`.
    d : int
        Features: a unit of communication is as many numbers to or from every client.

    Attributes
    ----------
    passes_made : int
        Times that every client went over its rows.
    """

    clients: Clients
    totals: Totals
    alpha: float | None
    d: int
    passes_made: int = 0
    _last: tuple[Array, Array] | None = field(init=False, default=None)

    @property
    def mass(self) -> float:
        """1/ν; 0 of whole hulls."""
        return 0.0 if self.alpha is None else self.alpha * float(self.totals.weight.min())

    @property
    def scale(self) -> float:
        """The largest norm of a row."""
        return float(np.sqrt(self.totals.square))

    @property
    def start(self) -> Vertex:
        """The class means."""
        return Vertex(self.totals.means, (0.0, 0.0))

    @property
    def costs(self) -> dict[str, Any]:
        """Figures of a record: rounds, numbers that travelled, and in units of one per client and feature."""
        clients = self.clients
        unit = clients.count * self.d
        return {"rounds": clients.rounds, "floats": clients.floats, "communication": clients.floats / unit}

    @property
    def memory(self) -> Array:
        """What the next search for a threshold goes by, and the costs: a vector that a checkpoint holds."""
        numbers = np.array([self.clients.rounds, self.clients.floats], dtype=np.float64)
        return numbers if self._last is None else np.concatenate([*self._last, numbers])

    def recall(self, memory: Array) -> None:
        """Go on by the `memory` of another run, to the same bits and figures."""
        self.clients.rounds, self.clients.floats = (int(number) for number in memory[-2:])
        self._last = None if len(memory) == 2 else (memory[:-4], memory[-4:-2])

    def vertex(self, w: Array) -> Vertex:
        """The point of the hulls that minimises ``w·(a − b)``, w (D,)."""
        if self.alpha is None:
            return self._best(self._read(best_points, w))
        found = self.thresholds(w)
        cuts = [each.cut for each in found]
        sums: list[SumsBelow] = self._read(sum_below, Below(w, np.array([cut.threshold for cut in cuts])))
        factors = np.array([[cut.full, cut.tied] for cut in cuts])
        below = sum(each.below for each in sums)
        tied = sum(each.tied for each in sums)
        points = factors[:, :1] * below + factors[:, 1:] * tied
        return Vertex(points, (cuts[0].threshold, -cuts[1].threshold))

    def thresholds(self, w: Array) -> tuple[Threshold, Threshold]:
        """Of both classes, of signed scores, where ``w·(a − b)`` is least: no point is asked for."""
        mass = self.mass
        whole = self.alpha is None
        ranges = self._ranges(w)
        found: list[Threshold | None] = [None, None]
        while True:
            looked = self._read(look_within, Ranges(w, ranges, whole))
            for k in range(2):
                if found[k] is None:
                    found[k] = threshold_of([each[k] for each in looked], mass)
                    known = found[k] is not None
                    ranges[k] = CLOSED if known else narrower([each[k] for each in looked], ranges[k], mass)
            positive, negative = found
            if positive is not None and negative is not None:
                self._last = w, np.array([positive.cut.threshold, negative.cut.threshold])
                return positive, negative

    def _ranges(self, w: Array) -> Array:
        """(2, 2): from one w to another no quantile of scores moves by more than ‖x‖ ‖Δw‖."""
        reach = max(self.scale * float(np.linalg.norm(w)) * (1 + 1e-6), LEAST_RANGE)
        if self._last is None:
            return np.array([[-reach, reach]] * 2)
        moved = self.scale * float(np.linalg.norm(w - self._last[0])) + 1e-6 * reach
        around = self._last[1][:, None] + np.array([-moved, moved])
        inside = np.clip(around, -reach, reach)
        return np.where((inside[:, :1] < inside[:, 1:]), inside, [-reach, reach])

    def _best(self, answers: Sequence[BestPoints]) -> Vertex:
        points = np.zeros((2, answers[0].sums.shape[1]))
        thresholds = []
        for k in range(2):
            least = min(float(each.scores[k]) for each in answers)
            having = [each for each in answers if each.scores[k] == least]
            points[k] = sum(each.sums[k] for each in having) / sum(each.weights[k] for each in having)
            thresholds.append(least)
        return Vertex(points, (thresholds[0], -thresholds[1]))

    def _read(self, question: Callable[..., Any], message: Any) -> list[Any]:
        self.passes_made += 1
        return self.clients.read(question, message)


def threshold_of(answers: Sequence[ScoresOf], mass: float) -> Threshold | None:
    """The threshold of one class, if it is among scores that all clients told."""
    scores, weights = _pairs(answers)
    below = sum(each.below for each in answers)
    if any(len(each.bins) for each in answers) or not len(scores) or below > mass:
        return None
    until = below + np.cumsum(weights)
    at = int(np.searchsorted(until, mass, side="right"))
    if at == len(until):
        if any(each.above for each in answers):
            return None
        at -= 1
    cut = cut_at(float(scores[at]), float(until[at - 1]) if at else below, float(weights[at]), mass)
    full = sum(each.below_scores for each in answers) + float(scores[:at] @ weights[:at])
    return Threshold(cut, cut.full * full + cut.tied * float(scores[at] * weights[at]))


def narrower(answers: Sequence[ScoresOf], within: Array, mass: float) -> tuple[float, float]:
    """The part of a range that has the threshold, or the range's neighbourhood where rounding had it wrong."""
    start, stop = within.tolist()
    width = stop - start
    scores, weights = _pairs(answers)
    bins = np.bincount(bin_of(scores, start, stop), weights, BINS)
    for each in answers:
        if len(each.bins):
            bins = bins + each.bins
    below = sum(each.below for each in answers)
    at = int(np.searchsorted(below + np.cumsum(bins), mass, side="right"))
    if below > mass or (at == BINS and (any(each.above for each in answers) or not bins.any())):
        return start - width, stop + width
    at = int(np.flatnonzero(bins)[-1]) if at == BINS else at
    return start + width * (at - PAD) / BINS, start + width * (at + 1 + PAD) / BINS


def _pairs(answers: Sequence[ScoresOf]) -> tuple[Array, Array]:
    """Distinct scores that clients told, ascending, and their weights."""
    told = np.concatenate([each.pairs for each in answers], axis=1)
    scores, of = np.unique(told[0], return_inverse=True)
    return scores, np.bincount(of, told[1], len(scores))
