"""A toy family: the nearest class centroid, learned by one pass. It shows how little a new estimator takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dask_odm.estimators.mixins import StoreClassifier
from dask_odm.events import IterationFinished, report
from dask_odm.learning.training.family import OnlyRecipe
from dask_odm.learning.training.recipe import Choice, Recipe, Trained
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.row_passes import PassBytes, RowBlock
from dask_odm.models.linear_model import LinearModel


@dataclass(frozen=True)
class CentroidFit:
    """Settings of one fit."""

    run: FitRun


@dataclass(frozen=True)
class ClassSums:
    """What is asked of all rows: the weighted sum of every class's rows, and of their weights, (k, d + 1)."""

    class_weights: tuple[float, ...]

    def sums(self, blocks: Iterable[RowBlock], d: int) -> np.ndarray:
        total = np.zeros((len(self.class_weights), d + 1))
        for block in blocks:
            weight = block.weight if block.weight.size else np.ones(len(block.y))
            for k, factor in enumerate(self.class_weights):
                c = np.where(block.y == k, factor * weight, 0.0)
                total[k] += [*(block.X.T @ c), c.sum()]
        return total


class CentroidRecipe(Recipe[CentroidFit]):
    """Scores ``c_k·x − ½‖c_k‖²`` are largest for the nearest centroid; of two classes, their difference."""

    def train(self, data: TrainingData, fit: CentroidFit) -> Trained:
        d, k = data.features, len(data.class_weights)
        data.require_pass(PassBytes(8 * k * (d + 1), 16, 0), "A pass for the centroids")
        total = data.passes(d).run(ClassSums(data.class_weights), ClassSums.sums, d)
        centroids = total[:, :d] / total[:, d:]
        offsets = -0.5 * (centroids**2).sum(axis=1)
        if k == 2:
            centroids, offsets = np.diff(centroids, axis=0), np.diff(offsets)
        record = {"iteration": 0, "gap": 0.0, "objective": 0.0, "passes": 1.0, "seconds": 0.0}
        report(IterationFinished(**record))
        return Trained(LinearModel(centroids, offsets), {"n_iter_": 1, "history_": [record]})


class CentroidClassifier(StoreClassifier):
    """Nearest centroid.

    Parameters
    ----------
    dtype : {"float32", "float64"} or None, default=None
        What to compute in.
    memory_limit : int, str or None, default=None
        Bytes a worker may use.
    callbacks : list of callables or None, default=None
        Called with events while fitting.
    """

    _family: ClassVar[Any] = OnlyRecipe(Choice("centroids", "the only one", CentroidRecipe()), by_machines=False)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        name: StoreClassifier._parameter_constraints[name] for name in ("dtype", "memory_limit", "callbacks")
    }

    def __init__(self, *, dtype=None, memory_limit=None, callbacks=None) -> None:
        self.dtype, self.memory_limit, self.callbacks = dtype, memory_limit, callbacks

    def _settings(self, run: FitRun, **more: Any) -> CentroidFit:
        return CentroidFit(run)
