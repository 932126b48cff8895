"""Two reduced hulls whose rows stay with clients: thresholds, bounds and vertices by questions to all of them.

It serves a solver that needs vertices, such as Gilbert's, like `dask_odm.methods.hulls.problem.hulls.HullProblem`. The
messages are a direction, numbers, and sums of rows. For whole hulls each client answers with its best point of either
class. For reduced hulls the threshold, a weighted quantile of the scores, is found first, by weights within bins of a
range of scores.
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

PAD = 1e-3  # share of a bin by which a narrower range exceeds it, since rounding moves the bin's ends
LEAST_RANGE = 1e-100  # least half width of the range of scores
CLOSED = (np.inf, np.inf)  # a range without scores, for a class whose threshold is known


class Clients(Protocol):
    """All clients, asked at once; their answers are in the order of the clients.

    ``rounds`` counts the questions so far, ``floats`` the numbers sent to and received from all clients.
    """

    count: int
    rounds: int
    floats: int

    def ask(self, step: Callable[..., Any], message: Any) -> list[Any]:
        """Run ``step(rows, state, message) -> (state, answer)`` on every client. Keep the states, return answers."""

    def read(self, question: Callable[..., Any], message: Any) -> list[Any]:
        """Return the answers of ``question(rows, state, message)`` from every client."""


@dataclass(frozen=True)
class Threshold:
    """The cut of one class's signed scores, and its value Σ e s."""

    cut: Cut
    value: float


@dataclass(eq=False)
class ClientHulls:
    """Two reduced hulls of rows that clients hold.

    Parameters
    ----------
    clients : Clients
    totals : Totals
        Totals of all rows, in the clients' coordinates.
    alpha : float or None
        As in `HullProblem`.
    d : int
        Number of features. A unit of communication is so many numbers to or from every client.
    passes_made : int
        Passes of all clients over their rows.
    """

    clients: Clients
    totals: Totals
    alpha: float | None
    d: int
    passes_made: int = 0
    _last: tuple[Array, Array] | None = field(init=False, default=None)

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
        """The class means."""
        return Vertex(self.totals.means, (0.0, 0.0))

    @property
    def costs(self) -> dict[str, Any]:
        """Figures for a record: rounds, numbers that travelled, and these in units of one per client and feature."""
        clients = self.clients
        unit = clients.count * self.d
        return {"rounds": clients.rounds, "floats": clients.floats, "communication": clients.floats / unit}

    @property
    def memory(self) -> Array:
        """The last w and its thresholds, if any, and the costs, as a vector for the checkpoint."""
        numbers = np.array([self.clients.rounds, self.clients.floats], dtype=np.float64)
        return numbers if self._last is None else np.concatenate([*self._last, numbers])

    def recall(self, memory: Array) -> None:
        """Restore the `memory` of another run, so that this one goes on to the same bits and figures."""
        self.clients.rounds, self.clients.floats = (int(number) for number in memory[-2:])
        self._last = None if len(memory) == 2 else (memory[:-4], memory[-4:-2])

    def vertex(self, w: Array) -> Vertex:
        """Return the points of the hulls that minimise ``w·(a − b)``, w (D,)."""
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
        """Return the thresholds of both classes' signed scores that minimise ``w·(a − b)``, without the points."""
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
        """Return the first ranges of both thresholds, (2, 2).

        From one w to the next no quantile of the scores moves by more than ‖x‖ ‖Δw‖.
        """
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
    """Return the threshold of one class if it is among the scores that all clients listed, else None."""
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
    """Return the bin of a range that has the threshold, or a wider range if rounding put the threshold outside."""
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
    """Return the distinct scores that clients listed, ascending, and their weights."""
    told = np.concatenate([each.pairs for each in answers], axis=1)
    scores, of = np.unique(told[0], return_inverse=True)
    return scores, np.bincount(of, told[1], len(scores))
