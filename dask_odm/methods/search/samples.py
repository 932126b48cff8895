"""Settings that are tried on samples of training data, as `Search` asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.search.climb import (
    BUDGETS,
    COARSE,
    FINE,
    JUDGED,
    TUNING,
    WHOLE,
    Axes,
    Budget,
    Search,
    SearchState,
    Setting,
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


class SampleTrials:
    """The trials of settings on samples of the rows; the features of the last kernel are kept."""

    def __init__(
        self,
        data: TrainingData,
        kernel: KernelChoice,
        run: FitRun,
        splits: Splits,
        most: int = TUNING.more_landmarks,
        score: Score = accuracy,
        groups: Array | None = None,
    ) -> None:
        self._data = data
        self._kernel = kernel
        self._run = run
        self._splits = splits
        self._most = most  # landmarks of a trial
        self._score = score
        self._groups = groups  # that are left out instead of rows, (n,) of all rows that were given
        self._samples: dict[int, list[MemoryData]] = {}
        self._last: tuple[tuple[Any, ...], list[TrialRows]] | None = None

    @property
    def splits(self) -> int:
        """Number of splits."""
        return self._splits.count

    def rows(self, stage: int) -> int:
        """Return the number of rows of a stage."""
        return sum(sample.rows for sample in self.samples(min(stage, FINE)))

    def samples(self, stage: int) -> list[MemoryData]:
        """Return the samples of a stage."""
        if stage not in self._samples:
            self._samples[stage] = self._samples_of(stage)
        return self._samples[stage]

    def _samples_of(self, stage: int) -> list[MemoryData]:
        few = 2 if len(self._data.class_weights) > 2 else 1  # each class has its machine
        return [self._data.sample(TUNING.rows[stage] // few, self._run.seed)]

    def scores(self, stage: int, settings: Sequence[Setting]) -> Array:
        """Return the scores (m, q, splits) of settings on the rows of a stage, those of all samples together.

        Of one split, the scores of its parts, (m, q, parts), follow behind those of all its rows.
        """
        folds = Splits(TUNING.folds, self._run.seed) if stage == JUDGED else self._splits
        values = [(each.share, each.upsilon, each.theta) for each in settings]
        found = [rows.left_out(values, folds) for rows in self._seen(stage, settings[0])]
        together: Any = [[part for parts in found for part in parts]] if stage == JUDGED else zip(*found, strict=True)
        splits = [LeftOut.joined(parts) for parts in together]
        scores = np.stack([split.scores(self._score) for split in splits], axis=-1)
        if len(splits) > 1:
            return scores
        return np.concatenate([scores, splits[0].scores_of_parts(self._score, self._run.seed)], axis=-1)

    def nested_score(self, state: SearchState) -> float:
        """Return the score of rows by settings that were chosen by the scores of other rows.

        The best of many scores is too good. So each part of the rows, a split or a tenth of them, is judged by the
        setting that is best on the other parts, of those that folds judge, or else of the fine stage.
        """
        stages = [record["stage"] for record in state.history]
        last = [i for i, stage in enumerate(stages) if stage == (JUDGED if JUDGED in stages else FINE)]
        table = state.scores[last, :, 1 if self._splits.count == 1 else 0 :]
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

    def search(
        self, axes: Axes, budget: Budget = BUDGETS["default"], resume: SearchState | None = None,
        on_state: Callable[[SearchState], object] = lambda state: None,
    ) -> Search:  # fmt: skip
        """Return the search that tries settings here."""
        if len(self._data.class_weights) > 2:
            budget = budget._replace(climbing=max(1, budget.climbing // 2))
        return Search(
            axes, self.scores, self.splits, self.goes_on, resume, on_state, self.decides, self.judges, budget,
            holds_back=self._of_classes and self._score is not accuracy,
        )  # fmt: skip

    def _seen(self, stage: int, setting: Setting) -> list[TrialRows]:
        """Return the samples of a stage with the features that a setting's kernel and landmarks give."""
        key = stage, setting.view, setting.gamma, setting.n_landmarks
        if self._last is None or self._last[0] != key:
            choice = replace(self._kernel, **setting.view._asdict(), gamma=setting.gamma)
            count = self._count(stage, setting)
            leaves_one = self._splits.cv is None
            samples = self.samples(min(stage, FINE))
            self._last = (
                key,
                [
                    trial_rows(each, choice, count, self._run, leaves_one=leaves_one, groups=self._groups)
                    for each in samples
                ],
            )
        return self._last[1]

    def _count(self, stage: int, setting: Setting) -> int:
        """Return the number of landmarks of a trial; after the coarse stage it is the setting's own if it has one."""
        if setting.n_landmarks is not None and stage != COARSE:
            return setting.n_landmarks
        # of fewer rows, folds take as long with more landmarks
        judged = int(TUNING.landmarks[FINE] * np.sqrt(TUNING.folded / max(1, self._work)))
        counts = (*TUNING.landmarks[:WHOLE], TUNING.more_landmarks, min(judged, TUNING.more_landmarks))
        return min(counts[stage], setting.n_landmarks or self._most)

    @property
    def decides(self) -> int:
        """Number of the score that settings are compared by."""
        return int(self._score is accuracy)

    @property
    def judges(self) -> bool:
        """Whether folds judge the best settings: of rows that are left out one by one, if they are few."""
        if self._splits.cv is not None or not self._of_classes:  # left-out numbers do not fool
            return False
        if self._data.labelled_rows > TUNING.rows[FINE] or self._work > TUNING.folded:
            return False
        units = (each.kept if self._groups is None else self._groups[each.kept] for each in self.samples(FINE))
        return all(map(Splits(TUNING.folds, self._run.seed).divide, units))  # few groups may all be in one fold

    @property
    def _of_classes(self) -> bool:
        return len(self._data.class_weights) > 0

    @property
    def _work(self) -> int:
        """Number of rows that all machines of a trial of all rows learn from."""
        classes = len(self._data.class_weights)
        return self._data.labelled_rows * (classes if classes > 2 else 1)

    @property
    def _many(self) -> bool:
        """Whether all rows are many more than the larger sample."""
        return self._data.labelled_rows > TUNING.many * TUNING.rows[FINE]

    @property
    def _has_room(self) -> bool:
        """Whether a trial of the larger sample can have more landmarks than it has."""
        if len(self._data.class_weights) > 2:  # more machines by more landmarks take longer than all other stages
            return False
        (sample,) = self.samples(FINE)
        count = min(TUNING.more_landmarks, self._most, sample.rows)
        return count > TUNING.landmarks[FINE] and trial_bytes(sample.rows, count) <= sample.cluster.share(1)[0]


def best_setting(data: MemoryData, kernel: KernelChoice, axes: Axes, run: FitRun) -> tuple[Setting, float]:
    """Return the best setting for rows in memory, and its score when they are left out one by one."""
    trials = SampleTrials(data, kernel, run, Splits(None, run.seed))
    search = trials.search(axes)
    best = search.run().history[search.best]
    return Setting.of(best), best["objective"]
