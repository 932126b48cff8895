"""Two reduced hulls whose rows stay with clients: bounds and vertices by questions to all of them.

It serves a solver that needs vertices, such as Gilbert's, like `dask_odm.papers.saddle.problem.HullProblem`. The
messages are a direction, numbers, and sums of rows. For whole hulls each client answers with its best point of either
class. For reduced hulls the threshold, a weighted quantile of the scores, is found first, by weights and scores within
bins of a range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from dask_odm.papers.saddle.client_rows import (
    ClientRows,
    ClientState,
    Preparation,
    best_points,
    floats_of,
    look_along,
    sum_below,
)
from dask_odm.papers.saddle.problem import HullProblem, Vertex
from dask_odm.papers.saddle.weighted_quantile import Found, Look, Looked, find_quantiles, memory_of
from dask_odm.typing import Array


class GroupHere:
    """A single group of clients, asked in this process; ``states`` are those of a resumed run."""

    def __init__(self, held: Sequence[ClientRows], states: Sequence[ClientState] | None = None) -> None:
        self._held = held
        self._states = begin_all(held) if states is None else list(states)

    def ask(self, step: Any, message: Any) -> list[Any]:
        self._states, answers = step(self._held, self._states, message)
        return [answers]

    def read(self, question: Any, message: Any) -> list[Any]:
        return [question(self._held, self._states, message)]

    def snapshot(self) -> list[Any]:
        return [self._states]


# Questions to a group of clients -----------------------------------------------------------------------------------


def begin_all(held: Sequence[ClientRows]) -> list[ClientState]:
    """Return the first states: equal e for all rows of a class, and w = 0."""
    return [(np.zeros(rows.n), np.zeros(rows.n)) for rows in held]


def step_all(
    step: Callable[..., Any], held: Sequence[ClientRows], states: Sequence[ClientState], message: Any
) -> tuple[list[ClientState], list[Any]]:
    moved = [step(rows, state, *message) for rows, state in zip(held, states, strict=True)]
    return [state for state, _ in moved], [answer for _, answer in moved]


def read_all(
    question: Callable[..., Any], held: Sequence[ClientRows], states: Sequence[ClientState], message: Any
) -> list[Any]:
    return [question(rows, state, *message) for rows, state in zip(held, states, strict=True)]


@dataclass(eq=False)
class ClientHulls:
    """Two reduced hulls of rows that ``count`` clients hold, in the clients' coordinates.

    ``groups`` of clients are a `GroupHere`, or `dask_odm.engine.rounds.Rounds`. All clients are asked at once, and
    answer in their order. ``by_passes`` is the problem of the same rows, to which other questions are put.
    ``passes_made`` counts passes of all clients over their rows, ``rounds`` the questions, and ``floats`` the numbers
    sent to and received from all clients, unless they are not ``counted``. A single client is this process itself: to
    it, messages cost nothing.
    """

    groups: Any
    count: int
    by_passes: HullProblem
    preparation: Preparation
    counted: bool = True
    passes_made: int = 0
    rounds: int = 0
    floats: int = 0
    holds_rows: ClassVar[bool] = False  # clients have them
    _last: Array = field(init=False, default_factory=lambda: np.empty(0))

    def step(self, step: Callable[..., Any], *message: Any) -> list[Any]:
        """Run ``step(rows, state, *message) -> (state, answer)`` on every client. Keep the states, return answers."""
        return self._told(message, self.groups.ask(partial(step_all, step), message))

    def ask(self, question: Callable[..., Any], *message: Any) -> list[Any]:
        """Return the answers of ``question(rows, state, *message)`` from every client."""
        return self._told(message, self.groups.read(partial(read_all, question), message))

    def read(self, question: Callable[..., Any], *message: Any) -> list[Any]:
        """Ask all clients a question for which they pass over their rows."""
        self.passes_made += 1
        return self.ask(question, *message)

    def states(self) -> list[ClientState]:
        """Return the state of every client. Fetching it is not counted as communication."""
        return list(chain.from_iterable(self.groups.snapshot()))

    def _told(self, message: Any, of_groups: list[Any]) -> list[Any]:
        answers = list(chain.from_iterable(of_groups))
        if self.counted:
            self.rounds += 1
            self.floats += self.count * floats_of(message) + floats_of(answers)
        return answers

    @property
    def scale(self) -> float:
        return self.by_passes.scale

    @property
    def start(self) -> Vertex:
        """The vertex at the means of the two classes, in the clients' coordinates."""
        return Vertex(self.preparation.rotated(self.by_passes.totals.means).T, (0.0, 0.0))

    @property
    def costs(self) -> dict[str, Any]:
        """Figures for a record: rounds, numbers that travelled, and these in units of one per client and feature."""
        if not self.counted:
            return {}
        unit = self.count * self.by_passes.d
        return {"rounds": self.rounds, "floats": self.floats, "communication": self.floats / unit}

    @property
    def memory(self) -> Array:
        """Costs and results of the last look, from which a resumed run continues to the same bits and figures."""
        return np.concatenate([[self.rounds, self.floats], self._last])

    @memory.setter
    def memory(self, memory: Array) -> None:
        self.rounds, self.floats = (int(number) for number in memory[:2])
        self._last = memory[2:]

    def vertex(self, w: Array, *, exact: bool = True) -> Vertex:
        """Return the points of the hulls that minimise ``w·(a − b)``, w (D,), always without slack."""
        if self.by_passes.alpha is None:
            answers = np.array(self.read(best_points, w, True))
            least = answers[:, :, :1].min(axis=0)
            best = np.where(answers[:, :, :1] == least, answers, 0.0).sum(axis=0)
            return Vertex(best[:, 2:] / best[:, 1:2], (float(least[0, 0]), -float(least[1, 0])))
        positive, negative = self._quantiles(w, 0.0)
        points = np.sum(self.read(sum_below, w, (positive.cut, negative.cut)), axis=0)
        return Vertex(points, (positive.threshold, -negative.threshold))

    def least(self, w: Array) -> float:
        """Return the least ``w·(a − b)`` of the hulls, w (D,), or less by up to the problem's slack."""
        if self.by_passes.alpha is None:
            answers = self.read(best_points, w, False)
            return float(np.min(answers, axis=0).sum())
        positive, negative = self._quantiles(w, self.by_passes.slack * float(w @ w))
        return float(positive.point[0] - negative.point[0]) - positive.slack - negative.slack

    def _quantiles(self, w: Array, allowed: float) -> tuple[Found, Found]:
        """Find the thresholds of both classes; the ``point`` of each is Σ e s of its unsigned scores."""
        # an answer of eight numbers a bin is about two vectors
        bins = 1024 if self.count == 1 else max(16, len(w) // 4 - 2)
        first = Look.first(w, self.scale, bins, self._last, share=0.5)

        def ask(look: Look) -> Looked:
            positive, *others = self.read(look_along, w, look)
            return sum(others, positive)

        found = find_quantiles(ask, first, self.by_passes.mass, allowed)
        # of the mean rows at the thresholds, which would be vectors to send, the part along w is known
        thresholds = [each.threshold for each in found]
        self._last = memory_of(w, thresholds, np.outer(thresholds, w) / (float(w @ w) or 1.0))
        return found
