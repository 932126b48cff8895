"""A toy regressor: ridge without an intercept by its normal equations, summed in one pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dask_odm.estimators.mixins import StoreRegressor
from dask_odm.learning.training.family import Family, OnlyRecipe
from dask_odm.learning.training.recipe import Choice, Recipe, Trained
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.models.models import LinearModel


@dataclass(frozen=True)
class RidgeFit:
    run: FitRun


@dataclass(frozen=True)
class NormalEquations:
    """``Σ c x xᵀ`` and, last, ``Σ c y x``."""

    def sums(self, blocks: Iterable[RowBlock], d: int) -> np.ndarray:
        total = np.zeros((d + 1, d))
        for block in blocks:
            X = np.asarray(block.X.toarray() if hasattr(block.X, "toarray") else block.X, np.float64)
            weighted = X * (block.weight[:, None] if block.weight.size else 1.0)
            total[:d] += weighted.T @ X
            total[d] += weighted.T @ block.y
        return total


class RidgeRecipe(Recipe[RidgeFit]):
    def train(self, data: TrainingData, fit: RidgeFit) -> Trained:
        d = data.features
        total = data.passes(d).run(NormalEquations(), NormalEquations.sums, d)
        weights = np.linalg.solve(total[:d] + np.eye(d), total[d])
        return Trained(LinearModel(weights[None], np.zeros(1)), {"n_iter_": 1})


class ToyRidge(StoreRegressor):
    """Ridge of penalty 1."""

    _family: ClassVar[Family[Any]] = OnlyRecipe(Choice("normal equations", "the only one", RidgeRecipe()))

    def __init__(self) -> None:
        """It has no parameters."""

    def _settings(self, run: FitRun, **more: Any) -> RidgeFit:
        return RidgeFit(run)
