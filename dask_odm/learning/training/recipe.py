"""Recipes: how one solver of a family learns, and what it needs to know before it starts."""

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


@dataclass(frozen=True)
class StoreShape:
    """Rows, features and bytes per entry of a store."""

    rows: int
    features: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.features * self.itemsize

    @property
    def is_small(self) -> bool:
        """Whether its rows are read into memory by default."""
        return self.nbytes <= read_limit()


def small(shape: StoreShape, fit: Any) -> bool:
    """Return whether a store is read into memory because its rows take few bytes."""
    return shape.is_small


def always(data: TrainingData, fit: Any, scheme: str) -> bool:
    """Return True: all machines are learned in shared passes, whatever the data."""
    return True


def never(fit: Any) -> bool:
    """Return False: rows in memory are never written to a store for the workers."""
    return False


def one(data: TrainingData, fit: Any) -> int:
    """Return 1: machines are learned one after the other."""
    return 1


@dataclass(frozen=True)
class Together(Generic[F]):
    """How a solver learns all machines of many classes in shared passes.

    Attributes
    ----------
    train : callable
        Takes training data of many classes, the fit's settings, the machines' targets, and the number of classes for
        one-against-one machines (0 for one against the rest); returns what it trained.
    suits : callable
        Takes data, settings and scheme; returns whether to learn all machines at once, or one after the other.
    """

    train: Callable[[TrainingData, F, Sequence[OneOfMany], int], Trained]
    suits: Callable[[TrainingData, F, str], bool] = always


@dataclass(frozen=True)
class Recipe(Generic[F]):
    """How one solver learns.

    Attributes
    ----------
    train : callable
        Takes training data and the fit's settings, and returns what it trained.
    reads : callable
        Takes the shape of a store and settings; returns whether the store is read into memory.
    spreads : callable
        Takes settings; returns whether rows in memory go to the workers by a store, if there are workers.
    linear : bool
        Whether it is for the linear kernel only, in the weights of its features, from which it can start.
    together : Together or None
        How all machines of many classes are learned at once; None trains each like two classes.
    at_once : callable
        Takes data and settings; returns how many machines share their passes over a store.
    """

    train: Callable[[TrainingData, F], Trained]
    reads: Callable[[StoreShape, F], bool] = small
    spreads: Callable[[F], bool] = never
    linear: bool = False
    together: Together[F] | None = None
    at_once: Callable[[TrainingData, F], int] = one


@dataclass(frozen=True)
class Choice(Generic[F]):
    """The recipe of a fit, the name of its solver, and the reason for the choice."""

    solver: str
    why: str
    recipe: Recipe[F]

    def train(self, data: TrainingData, fit: F) -> Trained:
        """Train, and note solver and reason in the first record of the history, if there is one."""
        with single_threaded_blas:  # once for all products, since entering it looks for libraries
            return self._named(self.recipe.train(data, fit))

    def together(self, data: TrainingData, fit: F, machines: Sequence[OneOfMany], pairs: int) -> Trained:
        """Train all machines of many classes at once; note solver and reason as `train` does."""
        assert self.recipe.together is not None
        with single_threaded_blas:
            return self._named(self.recipe.together.train(data, fit, machines, pairs))

    def _named(self, trained: Trained) -> Trained:
        for model in (trained, *trained.path):
            for record in model.history[:1]:
                record |= {"solver": self.solver, "why": self.why}
        return trained
