"""The search for settings: many on few rows, few on more rows, and the best by folds or on all rows.

γ, λ/M, υ and θ are axes of ascending values. Views (a kernel, and the map of the columns that it sees) are another
axis, and numbers of landmarks one more if the user names several. There are five stages:

coarse   every second γ and third λ of every view, with one band (υ, θ)
fine     more rows and landmarks, and the best view of each kernel. It climbs from the best setting of each to
         neighbouring γ, with the λ about them; then it tries other bands, then the neighbouring λ once more, unless
         nearly all rows are right already. Then metrics are learned for these views, which climb from the best settings
         without; last other numbers of landmarks
whole    larger γ, and for scores of order smaller λ, with all rows, or with more landmarks for each of these views
judged   the best settings of the fine stage by folds, if there are few rows: left-out values in closed form favour
         large λ, and are those of the rows that chose
learned  the best by trials of the solver that learns all rows. In cells, of every view: a tree divides by scale and
         metric. By the exact solver, of every kernel, and other γ and λ: few landmarks cannot follow a large γ

Kernel values of one γ are computed once for all settings that a stage tries with it. The state of a run is all that it
has tried, so that a resumed run takes the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

import numpy as np

from dask_odm.errors import InputError
from dask_odm.events import Progress, report
from dask_odm.learning.solution import Record, StepClock
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.methods.search.axes import (
    BUDGETS,
    COARSE,
    FINE,
    JUDGED,
    LEARNED,
    TUNING,
    WHOLE,
    Axes,
    Budget,
    SearchPoint,
    SearchState,
    Setting,
    nearest,
)
from dask_odm.methods.search.forecast import Forecast
from dask_odm.methods.search.samples import SampleTrials
from dask_odm.methods.search.trials import Splits
from dask_odm.typing import Array


@dataclass(eq=False)
class Search:
    """One run of the search, which goes on from the state ``resume`` and calls ``on_state`` with every new one.

    Of the scores of ``trials``, that of number ``decides`` is compared, and the first told, by their means over the
    first ``n_splits``. The last stage tries the best setting of each view of the fine stage, since a rough kernel needs
    more rows and landmarks than a smooth one, and then larger γ as long as they are better.

    Views with a metric follow those without in the ``axes``, if there are any of these.
    """

    axes: Axes
    trials: SampleTrials
    budget: Budget = BUDGETS["default"]
    resume: SearchState | None = None
    on_state: Callable[[SearchState], object] = lambda state: None
    _trials: list[tuple[Array, SearchPoint, Record]] = field(init=False, default_factory=list)
    _found: dict[tuple[int, SearchPoint], float] = field(init=False, default_factory=dict)  # what decides
    _climbed: list[int] = field(init=False, default_factory=list)  # views
    _expected: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.forecast = Forecast(self.trials.work, self.trials.last_work)
        self._climbing = self.trials.climbing(self.budget)

    def run(self) -> SearchState:
        """Try settings on samples, stage by stage but for the last one, and return all that were tried."""
        axes = self.axes
        views = axes.coarse_views
        climbing = min(len(views), self._climbing)
        first = [axes.first(view) for view in views]
        coarse = sum(len(points) for lists in first for points in lists)
        # a view with a metric takes twice as long, as that is learned first
        fine = climbing * (9 + len(axes.upsilons) + len(axes.thetas)) * (3 if len(views) < len(axes.views) else 1)
        further = climbing * TUNING.most_climbs
        self._expected = coarse + fine
        self.forecast.begin({COARSE: coarse, FINE: fine, WHOLE: further, JUDGED: self.budget.judged, LEARNED: further})
        for lists in first:
            for points in lists:
                self._try(COARSE, points)
            self.forecast.tell()
        starts = self._starts()[:climbing]
        for start in starts:
            self._climb(start)
        stretched = self._stretched(starts)
        for start in stretched:
            self._climb(start, bands=self._climbing > 1)
        self._change_landmarks()
        self._climbed = [start.view for start in (*starts, *stretched)]
        return self._state()

    def go_on(self) -> SearchState:
        """Try the best settings in the last stage, if it is worth its time; return all that were tried."""
        if not self._good_enough(FINE):
            if self.trials.judges:
                self._judge()
            else:
                found = [self._best(FINE, view) for view in self._climbed]
                if any(self.trials.goes_on(self.axes.setting(point)) for point in found):
                    for point in found:
                        self._climb_further(point)
        return self._state()

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that the first trials told, and those since the search began."""
        return {"expected": self.forecast.first or np.nan, "taken": self.forecast.taken}

    @property
    def best(self) -> int:
        """Number of the trial of the last stage's best setting."""
        stage = max(stage for stage, _ in self._found)
        tried = [(record["stage"], point) for _, point, record in self._trials]
        return tried.index((stage, self._best(stage)))

    @property
    def winner(self) -> tuple[Setting, float]:
        """The last stage's best setting, and its score."""
        record = self._trials[self.best][2]
        return Setting.of(record), record["objective"]

    def go_on_as_learned(self, *, in_cells: bool) -> SearchState:
        """Try settings by the solver that learns all rows; return all that were tried.

        In cells, the best λ, υ and θ are tried with the best γ of each view and larger ones: scales and metrics also
        decide how a tree of cells divides rows, of which landmarks know nothing. Else the best setting of each kernel
        and larger γ are, and of the best of these smaller γ and λ.
        """
        last = {point.view: stage for stage, point in self._found}  # of each view, since stages follow each other
        found = self._best(max(last.values()))
        best = {view: self._best(stage, view) for view, stage in sorted(last.items())}
        if in_cells:
            starts = [found._replace(view=view, gamma=point.gamma) for view, point in best.items()]
        else:
            own = {self.axes.views[found.view].kernel: found}
            for view in sorted(best, key=lambda view: (-last[view], -self._found[last[view], best[view]])):
                own.setdefault(self.axes.views[view].kernel, best[view])
            starts = list(own.values())
        for start in starts:
            self._try(LEARNED, [start])
            self._try_along(LEARNED, self.axes.along(start, "gamma")[start.gamma + 1 :])
        for axis in () if in_cells else ("gamma", "share"):
            at = self._best(LEARNED)
            self._try_along(LEARNED, self.axes.along(at, axis)[: getattr(at, axis)][::-1])
        return self._state()

    def end(self) -> None:
        """Report that the search has ended."""
        report(Progress("search", len(self._trials), len(self._trials), "settings"))

    def _starts(self) -> list[SearchPoint]:
        """Return the best point of each view, that of each kernel first: more rows change the order of kernels most."""
        found = [self._best(COARSE, view) for view in self.axes.coarse_views]
        found.sort(key=lambda point: -self._found[COARSE, point])
        kernels = [self.axes.views[point.view].kernel for point in found]
        return [found[i] for i in sorted(range(len(found)), key=lambda i: kernels[:i].count(kernels[i]))]

    def _stretched(self, starts: Sequence[SearchPoint]) -> list[SearchPoint]:
        """Learn the metrics of the views that were climbed, and return the points to climb from with the best of each.

        These have the best settings without it, but for γ.
        """
        views = self.axes.views
        found = []
        for start in starts if not self._good_enough(FINE) else ():
            best = self._best(FINE, start.view)
            learned = []
            for number in range(len(self.axes.coarse_views), len(views)):
                if views[number]._replace(metric=None) == views[best.view]:
                    point = best._replace(view=number)
                    pair = self.trials.learned(self.axes.setting(point))
                    if pair is not None:
                        gamma = nearest(np.log(self.axes.gammas[number]), np.log(pair[1]))
                        learned.append((pair[0], point._replace(gamma=gamma)))
            found += [min(learned)[1]] if learned else []
        return found

    def _climb(self, start: SearchPoint, *, bands: bool = True) -> None:
        """Climb from ``start`` along γ, with the λ about each, until neither neighbour is better; then change bands.

        Views with a metric keep the band of those without where one view is climbed, as of many classes.
        """
        self._try(FINE, self._about(start))
        for _ in range(TUNING.most_climbs):
            best = self._best(FINE, start.view)
            for near in self.axes.near(best, "gamma"):
                self._try(FINE, self._about(near))
            if self._best(FINE, start.view).gamma == best.gamma:
                break
        if bands and not self._good_enough(FINE):
            for axis in ("theta", "upsilon"):
                self._try(FINE, self.axes.along(self._best(FINE, start.view), axis))
            self._try(FINE, self.axes.near(self._best(FINE, start.view), "share"))

    def _about(self, at: SearchPoint) -> list[SearchPoint]:
        """Return a point and its neighbours along λ, or the point alone if the coarse stage was good enough."""
        return [at] if self._good_enough(COARSE) else sorted([at, *self.axes.near(at, "share")])

    def _change_landmarks(self) -> None:
        """Try all numbers of landmarks, and near a better one the neighbouring γ: more landmarks support a larger γ."""
        before = self._best(FINE)
        for point in self.axes.along(before, "landmark"):
            self._try(FINE, [point])
        best = self._best(FINE)
        if best.landmark != before.landmark:
            for near in self.axes.near(best, "gamma"):
                self._try(FINE, [near])

    def _good_enough(self, stage: int) -> bool:
        """Whether so few rows are wrong with the best setting of a stage that neighbours cannot be told from it."""
        best = stage, self._best(stage)
        told = next(record["objective"] for _, point, record in self._trials if (record["stage"], point) == best)
        return bool(told >= 1.0 - TUNING.few_errors)

    def _judge(self) -> None:
        """Try the best settings of the fine stage by folds, those of the same kernel values together."""
        fine = [point for stage, point in self._found if stage == FINE]
        chosen = sorted(fine, key=lambda point: -self._found[FINE, point])[: self.budget.judged]
        features = attrgetter("view", "gamma", "landmark")
        for _, points in groupby(sorted(chosen, key=features), key=features):
            self._try(JUDGED, list(points))

    def _climb_further(self, at: SearchPoint) -> None:
        """Try larger γ in the last stage, as long as they are better; before that smaller λ, if the score fell."""
        self._try(WHOLE, [at])
        if self.trials.holds_back and self._found[WHOLE, at] < self._found[FINE, at]:
            for smaller in self.axes.along(at, "share")[: at.share][::-2]:
                self._try(WHOLE, [smaller])
            at = self._best(WHOLE, at.view)
        self._try_along(WHOLE, self.axes.along(at, "gamma")[at.gamma + 1 :][: TUNING.most_climbs])

    def _try_along(self, stage: int, points: Sequence[SearchPoint]) -> None:
        """Try points in a stage as long as they are better."""
        for point in points:
            self._try(stage, [point])
            if self._best(stage, point.view) != point:
                return

    def _try(self, stage: int, points: Sequence[SearchPoint]) -> None:
        """Try those of the points that were not tried in this stage.

        All points have the same view, γ and number of landmarks. The trials of a resumed run are taken from its
        state; InputError is raised if they are others.
        """
        new = [point for point in points if (stage, point) not in self._found]
        if not new:
            return
        done = len(self._trials)
        expected = max(self._expected, done + len(new))
        report(Progress("search", done, expected, "settings", seconds=self.forecast.seconds))
        clock = StepClock()
        known = self.resume
        if known is not None and len(known.history) >= done + len(new):
            for i, point in enumerate(new, done):
                if known.history[i]["stage"] != stage or tuple(known.points[i]) != point:
                    raise InputError("the checkpoint of the search has tried other settings; remove it.")
                self._add(known.scores[i], point, known.history[i])
            self.forecast.add(stage, len(new), sum(record["seconds"] for record in known.history[done:][: len(new)]))
            return
        settings = [self.axes.setting(point) for point in new]
        found = self.trials.scores(stage, settings)
        self.forecast.add(stage, len(new), clock.seconds)
        each = clock.seconds / len(new)
        for scores, point, setting in zip(found, new, settings, strict=True):
            score = float(np.mean(scores[0, : self.trials.n_splits]))
            record = clock.record(len(self._trials), 1.0 - score, score, 0.0, seconds=each, stage=stage)
            self._add(scores, point, record | setting._asdict())
        self.on_state(self._state())

    def _add(self, scores: Array, point: SearchPoint, record: Record) -> None:
        self._trials.append((scores, point, record))
        self._found[record["stage"], point] = float(np.mean(scores[self.trials.decides, : self.trials.n_splits]))

    def _best(self, stage: int, view: int | None = None) -> SearchPoint:
        """Return the best point of a stage; among equals that of the fewest landmarks, then least λ, then least γ."""
        mine = [
            (-score, point.landmark, point.share, point.gamma, point)
            for (at, point), score in self._found.items()
            if at == stage and view in (None, point.view)
        ]
        return min(mine)[-1]

    def _state(self) -> SearchState:
        scores, points, history = zip(*self._trials, strict=True)
        return SearchState(np.array(scores), np.array(points, dtype=np.float64), list(history))


def best_setting(data: MemoryData, kernel: KernelChoice, axes: Axes, run: FitRun) -> tuple[Setting, float]:
    """Return the best setting for rows in memory, and its score when they are left out one by one."""
    trials = SampleTrials(data, kernel, run, Splits(None, run.seed), axes.views)
    search = Search(axes, trials)
    search.run()
    search.go_on()
    search.end()
    return search.winner
