"""The axes that a search chooses from, with its stages and budgets, and the record of all that it tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dask_odm.learning.solution import Record
from dask_odm.typing import Array

# stages; after the first two come one of the next two, or neither, and perhaps the last
COARSE, FINE, WHOLE, JUDGED, LEARNED = range(5)


class Budget(NamedTuple):
    """How much a search tries (benchmarks/tables.py)."""

    scales: int  # maps of the columns for each kernel
    climbing: int  # views of the fine stage
    judged: int  # settings that folds judge
    metrics: tuple[str, ...]  # kinds that are learned for each view of the fine stage


BUDGETS = {
    "fast": Budget(1, 1, 4, ()),
    "default": Budget(3, 2, 8, ("diagonal", "full")),
    "thorough": Budget(3, 5, 16, ("diagonal", "full")),
}


@dataclass(frozen=True)
class SearchTuning:
    """Settings that the search tries if the user does not say, and its end; chosen so that it takes about 70 trials."""

    upsilons: tuple[float, ...] = (0.0125, 0.05, 0.2, 0.8)
    thetas: tuple[float, ...] = (0.1, 0.3, 0.6)
    gammas: tuple[float, ...] = tuple(2.0**k for k in range(-4, 7))  # in units of that of gamma="scale"
    shares: tuple[float, ...] = tuple(2.5**k for k in range(-4, 7))  # of λ in the number of rows
    first_upsilon: float = 0.05  # of the coarse stage, as is the next
    first_theta: float = 0.3
    first_landmarks: int = 300  # the climb uses the number of landmarks that is nearest to this
    few_errors: float = 0.005  # share of wrong rows up to which neighbouring settings are not worth a trial
    most_climbs: int = 3  # most steps along γ in a stage
    rows: tuple[int, int] = (2000, 8000)  # of the samples of the coarse and the fine stage
    landmarks: tuple[int, int, int] = (150, 300, 500)  # of a trial in the three stages, the last over all rows
    more_landmarks: int = 1000  # of the last stage if it uses the larger sample
    needed: float = 0.8  # share of the fine stage's landmarks; a kernel that uses more may need more than there are
    folds: int = 5  # of settings that folds judge
    folded: int = 4000  # rows times machines up to which folds judge; more take longer than the rest of the search
    parts: int = 10  # of left-out rows: each is judged by the setting that is best on the others
    tol: float = 1e-2  # relative gap of a trial; settings differ by more than that
    many: int = 2  # with more rows than so many times the larger sample, settings are tried on all rows, too


TUNING = SearchTuning()


class View(NamedTuple):
    """A kernel, how the columns that it sees are scaled, and the kind of a learned metric."""

    kernel: str
    scale: str | None
    metric: str | None = None


class Setting(NamedTuple):
    """The parameters of a trial; ``n_landmarks`` is None if it is not searched for."""

    kernel: str
    scale: str | None
    metric: str | None
    gamma: float
    share: float
    upsilon: float
    theta: float
    n_landmarks: int | None

    @classmethod
    def of(cls, record: Record) -> Setting:
        """Return the setting that a record of the search belongs to."""
        return cls(**{name: record[name] for name in cls._fields})

    @property
    def view(self) -> View:
        return View(self.kernel, self.scale, self.metric)


class SearchPoint(NamedTuple):
    """A setting as its places on the axes."""

    view: int
    gamma: int
    share: int
    upsilon: int
    theta: int
    landmark: int


@dataclass(frozen=True)
class Axes:
    """The values to choose from, ascending except for the views; ``landmarks`` is one None if not searched for."""

    views: tuple[View, ...]
    gammas: tuple[tuple[float, ...], ...]
    shares: tuple[float, ...]
    upsilons: tuple[float, ...]
    thetas: tuple[float, ...]
    landmarks: tuple[int | None, ...]

    @property
    def coarse_views(self) -> range:
        """Numbers of the views of the coarse stage: those without a metric, unless all have one."""
        return range(sum(view.metric is None for view in self.views) or len(self.views))

    def setting(self, point: SearchPoint) -> Setting:
        """Return the setting of a point."""
        return Setting(
            *self.views[point.view],
            self.gammas[point.view][point.gamma],
            self.shares[point.share],
            self.upsilons[point.upsilon],
            self.thetas[point.theta],
            None if self._is_linear(point) else self.landmarks[point.landmark],
        )

    def along(self, point: SearchPoint, axis: str) -> list[SearchPoint]:
        """Return all points along an axis through a point. A linear kernel has no axis of landmarks."""
        if axis == "landmark" and self._is_linear(point):
            return [point]
        values = self.gammas[point.view] if axis == "gamma" else getattr(self, f"{axis}s")
        return [point._replace(**{axis: place}) for place in range(len(values))]

    def _is_linear(self, point: SearchPoint) -> bool:
        return self.views[point.view].kernel == "linear"

    def near(self, point: SearchPoint, axis: str) -> list[SearchPoint]:
        """Return the neighbours of a point along an axis."""
        place = getattr(point, axis)
        return [other for other in self.along(point, axis) if abs(getattr(other, axis) - place) == 1]

    def first(self, view: int) -> list[list[SearchPoint]]:
        """Return the coarse stage's points for a view: for every second γ a list of every third λ, in one band."""
        band = nearest(self.upsilons, TUNING.first_upsilon), nearest(self.thetas, TUNING.first_theta)
        landmark = nearest([count or 0 for count in self.landmarks], TUNING.first_landmarks)
        gammas = _every(2, len(self.gammas[view]))
        shares = _every(3, len(self.shares))
        return [[SearchPoint(view, g, s, *band, landmark) for s in shares] for g in gammas]


@dataclass(frozen=True, eq=False)
class SearchState:
    """All settings tried so far, for the checkpoint and for ``cv_results_``.

    ``scores`` are (m, q, splits), and ``points`` (m, 6) are places on the axes, as floats. In a record of ``history``,
    ``objective`` is the score that decides, and ``gap`` is 1 − score.
    """

    scores: Array
    points: Array
    history: list[Record]


def nearest(values: Any, wanted: float) -> int:
    """Return the place of the value that is nearest to the one wanted."""
    return int(np.argmin(np.abs(np.array(values) - wanted)))


def _every(step: int, count: int) -> list[int]:
    """Return the places of one value in ``step``, the last among them; all places if there are at most ``step``."""
    return list(range(count)) if count <= step else list(range((count - 1) % step, count, step))
