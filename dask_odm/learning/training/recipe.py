"""Recipes: how one solver of a family learns, and what is known about it before it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dask_odm.data.rows.targets import OneOfMany
from dask_odm.learning.training.run import read_limit
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import single_threaded_blas

F = TypeVar("F")
Machines = Sequence[OneOfMany]  # the targets of each


def is_small(store: TrainingData, fit: Any = None) -> bool:
    """Return whether the rows of a store take few enough bytes to be read into memory by default."""
    return store.rows * store.features * store.raw_dtype.itemsize <= read_limit()


@dataclass(frozen=True)
class Recipe(Generic[F]):
    """How one solver learns from training data, with the settings of one fit: functions of its method's folder."""

    train: Callable[[TrainingData, F], Trained]  # trains a model; every class has a row of positive weight
    linear: bool = False  # whether it is for the linear kernel only, and can start from weights of features
    reads: Callable[[TrainingData, F], bool] = is_small  # whether the rows of a store are read into memory
    spreads: Callable[[F], bool] = lambda fit: False  # whether workers, if there are any, get rows in memory by a store
    # Trains all machines of many classes at once, or returns None if each is to be trained like two classes. Its last
    # argument is the number of classes for one-against-one machines, and 0 for one against the rest.
    train_machines: Callable[[TrainingData, F, Machines, int], Trained | None] = lambda *_: None
    at_once: Callable[[TrainingData, F], int] = lambda data, fit: 1  # machines that share their passes over a store


@dataclass(frozen=True)
class Choice(Generic[F]):
    """The recipe of a fit, the name of its solver, and the reason for the choice."""

    solver: str
    why: str
    recipe: Recipe[F]

    def train(self, data: TrainingData, fit: F) -> Trained:
        """Train, and note solver and reason in the first record of the history, if there is one."""
        with single_threaded_blas:  # once for all products, since entering it looks for libraries
            return self._noted(self.recipe.train(data, fit))

    def train_machines(self, data: TrainingData, fit: F, machines: Machines, pairs: int) -> Trained | None:
        """Train all machines of many classes at once, if the recipe does that, and note what `train` does."""
        with single_threaded_blas:
            found = self.recipe.train_machines(data, fit, machines, pairs)
        return None if found is None else self._noted(found)

    def _noted(self, trained: Trained) -> Trained:
        for model in (trained, *trained.path):
            for record in model.history[:1]:
                record |= {"solver": self.solver, "why": self.why}
        return trained
