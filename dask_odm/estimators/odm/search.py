"""The search for settings: coarse on a few rows, climbing on more of them, and the best settings on all that there is.

γ, λ/M, υ and θ are axes of ascending values. The coarse stage tries every second γ and λ with one band. The fine stage
climbs from the best of these on more rows over more landmarks: to neighbouring γ with the λ about them, then to other
bands, then once more along λ, unless so few rows are wrong that they tell nothing more. The last stage goes on to
larger γ with all rows, or more landmarks. Every γ's kernel values are found once for all that is tried with it in a
stage. All that a run has tried is its state: who goes on from it takes the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dask_odm.errors import InputError
from dask_odm.events import Progress, report
from dask_odm.solvers.step_log import Record, step_record
from dask_odm.typing import Array

UPSILONS = (0.0125, 0.05, 0.2, 0.8)
THETAS = (0.1, 0.3, 0.6)
FIRST_BAND = (0.05, 0.3)  # υ and θ of the coarse stage
GAMMAS = tuple(2.0**k for k in range(-4, 7))  # times "scale"'s γ
SHARES = tuple(2.5**k for k in range(-4, 7))  # λ/M
COARSE, FINE, WHOLE = 0, 1, 2  # the last on all rows, or on those of the fine stage with more landmarks
FEW_ERRORS = 0.005  # of the rows
MOST_CLIMBS = 3  # along γ
STRIDE = 2  # every so many values of γ and λ are tried first

Point = tuple[int, int, int, int]  # places on the axes of γ, λ/M, υ and θ
Try = Callable[[int, float, Sequence[tuple[float, float, float]]], Array]


@dataclass(frozen=True)
class Axes:
    """Values to choose from, ascending: γ, λ/M, υ, θ."""

    gammas: tuple[float, ...]
    shares: tuple[float, ...]
    upsilons: tuple[float, ...]
    thetas: tuple[float, ...]

    def setting(self, point: Point) -> tuple[float, float, float, float]:
        """γ, λ/M, υ and θ."""
        return self.gammas[point[0]], self.shares[point[1]], self.upsilons[point[2]], self.thetas[point[3]]

    def near(self, point: Point, axis: int) -> list[Point]:
        """The neighbours of a point along an axis."""
        size = (len(self.gammas), len(self.shares), len(self.upsilons), len(self.thetas))[axis]
        return [(*point[:axis], at, *point[axis + 1 :]) for at in (point[axis] - 1, point[axis] + 1) if 0 <= at < size]  # type: ignore[misc]


@dataclass(frozen=True, eq=False)
class SearchState:
    """All that was tried so far, a record each: what it takes to go on, and what ``cv_results_`` is made of.

    Attributes
    ----------
    scores : ndarray of shape (m, splits)
    points : float ndarray of shape (m, 4)
        Places on the axes.
    history : list of dict
        ``objective`` is the score, ``gap`` what it lacks of 1.
    """

    scores: Array
    points: Array
    history: list[Record]


class Search:
    """One run of the search.

    In the last stage, with more rows or landmarks, the best setting of the fine stage is tried, and larger γ as long as
    they are better: they bear it.

    Parameters
    ----------
    axes : Axes
    tried : callable
        ``tried(stage, gamma, settings)``: scores (m, splits) of (λ/M, υ, θ) by one kernel on the rows of a stage.
    goes_on : callable
        ``goes_on(gamma)``: whether more rows or landmarks may tell more of the best setting so far, of that ``gamma``.
    resume : SearchState or None
        What a run before had tried.
    on_state : callable
        Told of every state.
    """

    def __init__(
        self,
        axes: Axes,
        tried: Try,
        goes_on: Callable[[float], bool],
        resume: SearchState | None,
        on_state: Callable[[SearchState], object],
    ) -> None:
        self._axes, self._tried, self._goes_on, self._on_state = axes, tried, goes_on, on_state
        self._known = [] if resume is None else list(zip(resume.scores, resume.points, resume.history, strict=True))
        self._scores: list[Array] = []
        self._points: list[Point] = []
        self._history: list[Record] = []
        self._found: dict[tuple[int, Point], float] = {}
        self._expected = 0

    def run(self) -> SearchState:
        """Try settings stage by stage."""
        band = _nearest(self._axes.upsilons, FIRST_BAND[0]), _nearest(self._axes.thetas, FIRST_BAND[1])
        gammas, shares = _every_second(len(self._axes.gammas)), _every_second(len(self._axes.shares))
        self._expected = len(gammas) * len(shares)
        for g in gammas:
            self._try(COARSE, [(g, s, *band) for s in shares])
        best = self._best(COARSE)
        self._expected += 9 + len(self._axes.upsilons) + len(self._axes.thetas)
        self._climb(best)
        if not self._good_enough(FINE):
            for axis in (3, 2):
                self._along(self._best(FINE), axis)
            self._try(FINE, self._axes.near(self._best(FINE), 1))
        best = self._best(FINE)
        if not self._good_enough(FINE) and self._goes_on(self._axes.gammas[best[0]]):
            self._climb_further(best)
        report(Progress("search", len(self._history), len(self._history), "settings"))
        return self._state()

    def _good_enough(self, stage: int) -> bool:
        """Whether so few rows are wrong by the best setting of a stage that they do not tell it from its neighbours."""
        return self._found[stage, self._best(stage)] >= 1.0 - FEW_ERRORS

    @property
    def best(self) -> int:
        """The number of the best setting of the last stage."""
        stage = max(stage for stage, _ in self._found)
        tried = [(record["stage"], point) for record, point in zip(self._history, self._points, strict=True)]
        return tried.index((stage, self._best(stage)))

    def _climb(self, at: Point) -> None:
        """Along γ, with the λ about each, until neither neighbour is better."""
        self._try(FINE, self._about(at))
        for _ in range(MOST_CLIMBS):
            best = self._best(FINE)
            for near in self._axes.near(best, 0):
                self._try(FINE, self._about(near))
            if self._best(FINE)[0] == best[0]:
                return

    def _about(self, at: Point) -> list[Point]:
        """A point with the λ about it, unless it is good enough to begin with."""
        return [at] if self._good_enough(COARSE) else sorted([at, *self._axes.near(at, 1)])

    def _climb_further(self, at: Point) -> None:
        """To larger γ, in the last stage, as long as that is better."""
        self._try(WHOLE, [at])
        for g in range(at[0] + 1, min(at[0] + 1 + MOST_CLIMBS, len(self._axes.gammas))):
            self._try(WHOLE, [(g, *at[1:])])
            if self._best(WHOLE)[0] != g:
                return

    def _along(self, at: Point, axis: int) -> None:
        """All values of an axis, from a point."""
        size = (self._axes.gammas, self._axes.shares, self._axes.upsilons, self._axes.thetas)[axis]
        self._try(FINE, [(*at[:axis], i, *at[axis + 1 :]) for i in range(len(size))])  # type: ignore[misc]

    def _try(self, stage: int, points: Sequence[Point]) -> None:
        """Those of one γ that were not tried in this stage."""
        new = [point for point in points if (stage, point) not in self._found]
        if not new:
            return
        report(Progress("search", len(self._history), max(self._expected, len(self._history) + len(new)), "settings"))
        began = time.perf_counter()
        if len(self._known) >= len(new):
            kept, self._known = self._known[: len(new)], self._known[len(new) :]
            for (scores, at, record), point in zip(kept, new, strict=True):
                if record["stage"] != stage or tuple(at) != point:
                    raise InputError("the checkpoint of the search has tried other settings; remove it.")
                self._add(scores, record, point)
            return
        settings = [self._axes.setting(point) for point in new]
        found = self._tried(stage, settings[0][0], [setting[1:] for setting in settings])
        each = (time.perf_counter() - began) / len(new)
        for scores, point, setting in zip(found, new, settings, strict=True):
            score = float(np.mean(scores))
            record = step_record(len(self._history), 1.0 - score, score, 0.0, each, stage=stage)
            self._add(scores, record | dict(zip(("gamma", "share", "upsilon", "theta"), setting, strict=True)), point)
        self._on_state(self._state())

    def _add(self, scores: Array, record: Record, point: Point) -> None:
        self._scores.append(scores)
        self._points.append(point)
        self._history.append(record)
        self._found[record["stage"], point] = float(np.mean(scores))

    def _best(self, stage: int) -> Point:
        """Of equally good points the smoothest: of least λ, then γ."""
        mine = [(-score, point[1], point[0], point) for (at, point), score in self._found.items() if at == stage]
        return min(mine)[-1]

    def _state(self) -> SearchState:
        return SearchState(np.array(self._scores), np.array(self._points, dtype=np.float64), list(self._history))


def _nearest(values: Sequence[float], wanted: float) -> int:
    return int(np.argmin(np.abs(np.array(values) - wanted)))


def _every_second(count: int) -> list[int]:
    """Places of every second value, about the middle."""
    return list(range(count)) if count <= 2 else list(range((count % 2) ^ 1, count, STRIDE))
