"""Settings that are tried on samples of training data, as `Search` asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Stretch
from dask_odm.errors import InputError, MemoryLimitError
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.odm_fit import AUTO_LAM
from dask_odm.methods.search.axes import (
    COARSE,
    FINE,
    JUDGED,
    TUNING,
    WHOLE,
    Budget,
    SearchState,
    Setting,
    View,
)
from dask_odm.methods.search.trials import (
    LeftOut,
    Score,
    Splits,
    TrialRows,
    accuracy,
    trial_bytes,
    trial_rows,
)  # fmt: skip
from dask_odm.typing import Array


@dataclass(eq=False)
class SampleTrials:
    """The trials of settings on samples of the rows; the features of the last kernel are kept."""

    data: TrainingData
    kernel: KernelChoice
    run: FitRun
    splits: Splits
    views: Sequence[View]
    most: int = TUNING.more_landmarks  # landmarks of a trial
    score: Score = accuracy
    groups: Array | None = None  # that are left out instead of rows, (n,) of all rows that were given
    metric: Any = None  # a `Metric`, how those of views are learned but for its kind
    learn: Callable[..., Any] | None = None  # `learn_metric`, given since tasks load this module without scikit-learn
    _learned: dict[View, Any] = field(init=False, default_factory=dict)
    _samples: dict[int, list[MemoryData]] = field(init=False, default_factory=dict)
    _last: tuple[tuple[Any, ...], list[TrialRows]] | None = field(init=False, default=None)

    @property
    def n_splits(self) -> int:
        """Number of splits."""
        return self.splits.count

    def rows(self, stage: int) -> int:
        """Return the number of rows of a stage."""
        return sum(sample.rows for sample in self.samples(min(stage, FINE)))

    def samples(self, stage: int) -> list[MemoryData]:
        """Return the samples of a stage."""
        if stage not in self._samples:
            self._samples[stage] = self._samples_of(stage)
        return self._samples[stage]

    def _samples_of(self, stage: int) -> list[MemoryData]:
        few = 2 if self._has_machines else 1
        return [self.data.sample(TUNING.rows[stage] // few, self.run.seed)]

    def scores(self, stage: int, settings: Sequence[Setting]) -> Array:
        """Return the scores (m, q, splits) of settings on the rows of a stage, those of all samples together.

        Of one split, the scores of its parts, (m, q, parts), follow behind those of all its rows.
        """
        folds = Splits(TUNING.folds, self.run.seed) if stage == JUDGED else self.splits
        values = [(each.share, each.upsilon, each.theta) for each in settings]
        found = [rows.left_out(values, folds) for rows in self._seen(stage, settings[0])]
        together: Any = [[part for parts in found for part in parts]] if stage == JUDGED else zip(*found, strict=True)
        splits = [LeftOut.joined(parts) for parts in together]
        if self._judged_apart(stage):
            splits = [split.without(self._known_units) for split in splits]
        scores = np.stack([split.scores(self.score) for split in splits], axis=-1)
        if len(splits) > 1:
            return scores
        return np.concatenate([scores, splits[0].scores_of_parts(self.score, self.run.seed)], axis=-1)

    def nested_score(self, state: SearchState) -> float:
        """Return the score of rows by settings that were chosen by the scores of other rows.

        The best of many scores is too good. So each part of the rows, a split or a tenth of them, is judged by the
        setting that is best on the other parts, of those that folds judge, or else of the fine stage.
        """
        stages = [record["stage"] for record in state.history]
        last = [i for i, stage in enumerate(stages) if stage == (JUDGED if JUDGED in stages else FINE)]
        table = state.scores[last, :, 1 if self.splits.count == 1 else 0 :]
        table = table[..., ~np.isnan(table).any(axis=(0, 1))]
        count = table.shape[-1]
        if count < 2:
            return float("nan")
        deciding = table[:, self.decides]
        best = (deciding.sum(axis=1, keepdims=True) - deciding).argmax(axis=0)
        return float(table[best, 0, np.arange(count)].mean())

    def goes_on(self, setting: Setting) -> bool:
        """Whether the last stage is worth its time: the kernel may need more landmarks, and has room for them."""
        asked = setting.kernel == "linear" or setting.n_landmarks is not None
        enough = TUNING.needed * TUNING.landmarks[FINE]
        return not self._many and not asked and self._has_room and self._seen(FINE, setting)[0].features.k > enough

    def learned(self, setting: Setting) -> tuple[float, float] | None:
        """Learn the metric of a setting's view, with its γ, λ, υ and θ, and return its loss and the γ for it.

        None if no metric is better, or its trials do not fit into memory.
        """
        try:
            found = self._of_rounds(setting, setting.gamma)
        except MemoryLimitError:
            return None
        return None if found.metric is None else (found.loss, found.gamma)

    def _of_rounds(self, setting: Setting, start: float | None) -> Any:
        assert self.learn is not None
        kernel = replace(self.kernel, kernel=setting.kernel, scale=setting.scale, gamma="scale")
        band = setting.share, setting.upsilon, setting.theta
        metric = type(self.metric)(setting.metric, rounds=self.metric.rounds, rows=self.metric.rows)
        rows, known = self._rows_of_metric
        if known.all() or not known.any():
            raise InputError("metric: one half of the groups learns it and the other judges it; give more groups.")
        count = TUNING.landmarks[COARSE if self._has_machines else FINE]
        found = self.learn(rows, kernel, band, metric, self.run, held=~known, start=start, count=count)
        self._learned[setting.view] = found
        return found

    def kernel_of(self, setting: Setting) -> KernelChoice:
        """Return the kernel of a setting, with the metric of its view, which is learned first if the user named it."""
        kernel = replace(self.kernel, kernel=setting.kernel, scale=setting.scale, gamma=setting.gamma)
        if setting.metric is None:
            return kernel
        if self.metric.values is not None:
            return replace(kernel, metric=Stretch.of(self.metric.values, self.data.features))
        if setting.view not in self._learned:
            first = setting._replace(share=AUTO_LAM, upsilon=TUNING.first_upsilon, theta=TUNING.first_theta)
            self._of_rounds(first, None)
        return replace(kernel, metric=self._learned[setting.view].metric)

    @cached_property
    def _rows_of_metric(self) -> tuple[MemoryData, Array]:
        """The sample of a metric, and the mask of the half that it learns from; what judges it has no row of these."""
        rows = self._all_alike.sample(self.metric.rows, self.run.seed)
        # by their places, so that rows of weight zero beside them change nothing
        units = np.arange(rows.rows) if self.groups is None else self._units_of(rows)
        parts = Splits(0.5, self.run.seed + 1).parts(units, 0)
        assert parts is not None
        return rows, parts[0]

    @property
    def _all_alike(self) -> TrainingData:
        """Rows of which the larger sample is drawn, or these."""
        return self.samples(FINE)[0]

    @cached_property
    def _known_units(self) -> Array:
        """The units whose labels a metric knows."""
        rows, known = self._rows_of_metric
        return np.unique(self._units_of(rows)[known])

    def _units_of(self, rows: MemoryData) -> Array:
        """Return the numbers of what is left out at a time, rows or groups, of all that were given."""
        return rows.kept if self.groups is None else self.groups[rows.kept]

    def seen_by(self, setting: Setting, *, told: bool = False) -> dict[str, Any]:
        """Return the parameters of an estimator that has a setting's view: those in which views differ, or all told."""
        view = setting.view._asdict()
        found = {
            name: value for name, value in view.items()
            if told or len({getattr(each, name) for each in self.views}) > 1
        }  # fmt: skip
        found.pop("metric", None)
        if setting.metric is not None and (learned := self.kernel_of(setting).metric) is not None:
            found["metric"] = type(self.metric)(setting.metric, values=learned.values.tolist())
        return found

    def of_metric(self, setting: Setting) -> dict[str, Any]:
        """Return the fitted attributes of the metric of a setting's view, or of one that was not better there."""
        for view in (setting.view, *(setting.view._replace(metric=kind) for kind in ("diagonal", "full"))):
            if view in self._learned:
                return {"feature_importances_": self._learned[view].importances}
        return {}

    def climbing(self, budget: Budget) -> int:
        """Return the number of views of the fine stage, at most; half as many if classes have machines."""
        return max(1, budget.climbing // 2) if self._has_machines else budget.climbing

    def work(self, stage: int) -> float:
        """Return the work of a trial of a stage; 0 if the stage is left out."""
        few, some, many = TUNING.landmarks
        if stage == JUDGED:
            return TUNING.folds * self.work(FINE) if self.judges else 0.0
        if stage == WHOLE and self._many and not self._has_machines:
            return self.work_of(self.data.labelled_rows, many)
        if stage == WHOLE:
            goes_on = not self.judges and not self._many and self._has_room
            return self.work_of(self.rows(FINE), TUNING.more_landmarks) if goes_on else 0.0
        return self.work_of(self.rows(stage), few if stage == COARSE else some)

    @property
    def last_work(self) -> float:
        """Work of the last fit."""
        return self.work_of(self.data.labelled_rows, TUNING.more_landmarks)

    def work_of(self, rows: int, landmarks: int) -> float:
        """Return the work of so many rows and landmarks: kernel values, and a matrix of each machine."""
        machines = len(self.data.class_weights) if self._has_machines else 1
        count = min(landmarks, rows)
        return float(rows * count * (count + TUNING.landmarks[FINE]) * machines)

    def _seen(self, stage: int, setting: Setting) -> list[TrialRows]:
        """Return the samples of a stage with the features that a setting's kernel and landmarks give."""
        key = stage, setting.view, setting.gamma, setting.n_landmarks
        if self._last is None or self._last[0] != key:
            choice = self.kernel_of(setting)
            count = self._count(stage, setting)
            own: dict[str, Any] = {"leaves_one": self.splits.cv is None, "groups": self.groups}
            samples = self.samples(min(stage, FINE))
            self._last = key, [trial_rows(each, choice, count, self.run, **own) for each in samples]
        return self._last[1]

    def _count(self, stage: int, setting: Setting) -> int:
        """Return the number of landmarks of a trial; after the coarse stage it is the setting's own if it has one."""
        if setting.n_landmarks is not None and stage != COARSE:
            return setting.n_landmarks
        # of fewer rows, folds take as long with more landmarks
        judged = int(TUNING.landmarks[FINE] * np.sqrt(TUNING.folded / max(1, self._work)))
        counts = (*TUNING.landmarks[:WHOLE], TUNING.more_landmarks, min(judged, TUNING.more_landmarks))
        return min(counts[stage], setting.n_landmarks or self.most)

    @property
    def decides(self) -> int:
        """Number of the score that settings are compared by."""
        return int(self.score is accuracy)

    @property
    def holds_back(self) -> bool:
        """Whether smaller λ are tried first where more landmarks lower a score, as they let it learn by heart."""
        return self._of_classes and self.score is not accuracy

    @property
    def judges(self) -> bool:
        """Whether folds judge the best settings: of rows that are left out one by one, if they are few."""
        if self.splits.cv is not None or not self._of_classes:  # left-out numbers do not fool
            return False
        if self.data.labelled_rows > TUNING.rows[FINE] or self._work > TUNING.folded:
            return False
        units = map(self._units_of, self.samples(FINE))
        return all(map(Splits(TUNING.folds, self.run.seed).divide, units))  # few groups may all be in one fold

    def _judged_apart(self, stage: int) -> bool:
        """Whether the settings of a stage are compared by rows that no metric knows."""
        given = self.metric is not None and self.metric.values is not None
        return not given and self.views[0 if stage == COARSE else -1].metric is not None

    @property
    def _has_machines(self) -> bool:
        """Whether each class has its machine."""
        return len(self.data.class_weights) > 2

    @property
    def _of_classes(self) -> bool:
        return len(self.data.class_weights) > 0

    @property
    def _work(self) -> int:
        """Number of rows that all machines of a trial of all rows learn from."""
        return self.data.labelled_rows * (len(self.data.class_weights) if self._has_machines else 1)

    @property
    def _many(self) -> bool:
        """Whether all rows are many more than the larger sample."""
        return self.data.labelled_rows > TUNING.many * TUNING.rows[FINE]

    @property
    def _has_room(self) -> bool:
        """Whether a trial of the larger sample can have more landmarks than it has."""
        sample, *cells = self.samples(FINE)
        if cells or self._has_machines:  # more machines by more landmarks take longer than all other stages
            return False
        count = min(TUNING.more_landmarks, self.most, sample.rows)
        return count > TUNING.landmarks[FINE] and trial_bytes(sample.rows, count) <= sample.cluster.share(1)[0]
