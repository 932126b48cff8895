"""Settings that are tried on samples of training data, as `Search` asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.search.climb import COARSE, FINE, TUNING, WHOLE, Axes, Search, SearchState, Setting
from dask_odm.methods.search.trials import LeftOut, Score, Splits, TrialRows, accuracy, trial_bytes, trial_rows
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
        return [self._data.sample(TUNING.rows[stage], self._run.seed)]

    def scores(self, stage: int, settings: Sequence[Setting]) -> Array:
        """Return the scores (m, q, splits) of settings on the rows of a stage, those of all samples together.

        Of one split, the deciding scores of its parts, (m, 1, parts), follow behind those of all its rows.
        """
        values = [(each.share, each.upsilon, each.theta) for each in settings]
        found = [rows.left_out(values, self._splits, sides=self.sides) for rows in self._seen(stage, settings[0])]
        splits = [LeftOut.joined(parts) for parts in zip(*found, strict=True)]
        scores = np.stack([split.scores(self._score) for split in splits], axis=-1)
        if len(splits) > 1:
            return scores
        return self.beside_parts(scores, splits[0].scores_of_parts(self._score, self._run.seed))

    @staticmethod
    def beside_parts(scores: Array, parts: Array) -> Array:
        """Return scores (m, q, 1) and, behind the first of the q, those of parts (m, parts)."""
        behind = np.full((*scores.shape[:2], TUNING.parts), np.nan)
        behind[:, 0] = parts
        return np.concatenate([scores, behind], axis=-1)

    def nested_score(self, state: SearchState) -> float:
        """Return the score of rows by settings that were chosen by the scores of other rows.

        The best of many scores is too good. So each part of the rows, a split or a tenth of them, is judged by the
        setting of the fine stage that is best on the other parts.
        """
        fine = [i for i, record in enumerate(state.history) if record["stage"] == FINE]
        table = state.scores[fine, 0, 1 if self._splits.count == 1 else 0 :]
        table = table[:, ~np.isnan(table).any(axis=0)]
        if table.shape[1] < 2:
            return float("nan")
        others = (table.sum(axis=1, keepdims=True) - table) / (table.shape[1] - 1)
        return float(table[others.argmax(axis=0), np.arange(table.shape[1])].mean())

    def goes_on(self, setting: Setting) -> bool:
        """Whether the last stage is worth its time: the kernel may need more landmarks, and has room for them."""
        asked = setting.kernel == "linear" or setting.n_landmarks is not None
        enough = TUNING.needed * TUNING.landmarks[FINE]
        return not self._many and not asked and self._has_room and self._seen(FINE, setting)[0].features.k > enough

    def _seen(self, stage: int, setting: Setting) -> list[TrialRows]:
        """Return the samples of a stage with the features that a setting's kernel and landmarks give."""
        key = stage, setting.kernel, setting.gamma, setting.n_landmarks
        if self._last is None or self._last[0] != key:
            choice = replace(self._kernel, kernel=setting.kernel, gamma=setting.gamma)
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
        return min((*TUNING.landmarks[:WHOLE], TUNING.more_landmarks)[stage], setting.n_landmarks or self._most)

    @property
    def sides(self) -> bool:
        """Whether only the sides of decision values matter, and not their order."""
        return self._score is accuracy

    @property
    def _many(self) -> bool:
        """Whether all rows are many more than the larger sample."""
        return self._data.labelled_rows > TUNING.many * TUNING.rows[FINE]

    @property
    def _has_room(self) -> bool:
        """Whether a trial of the larger sample can have more landmarks than it has."""
        (sample,) = self.samples(FINE)
        count = min(TUNING.more_landmarks, self._most, sample.rows)
        return count > TUNING.landmarks[FINE] and trial_bytes(sample.rows, count) <= sample.cluster.share(1)[0]


def best_setting(data: MemoryData, kernel: KernelChoice, axes: Axes, run: FitRun) -> tuple[Setting, float]:
    """Return the best setting for rows in memory, and its score when they are left out one by one."""
    trials = SampleTrials(data, kernel, run, Splits(None, run.seed))
    search = Search(axes, trials.scores, 1, trials.goes_on, None, lambda state: None)
    best = search.run().history[search.best]
    return Setting.of(best), best["objective"]
