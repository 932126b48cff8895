"""A recipe: how one solver of a family learns, and what it says of itself before it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dask_odm.data.rows.targets import OneOfMany
from dask_odm.learning.training.run import read_limit
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import TrainingData

F = TypeVar("F")


@dataclass(frozen=True)
class StoreShape:
    """Rows, features and bytes of an entry of a store."""

    rows: int
    features: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.features * self.itemsize

    @property
    def is_small(self) -> bool:
        """Whether its rows are read into memory, unless the solver knows better."""
        return self.nbytes <= read_limit()


def small(shape: StoreShape, fit: Any) -> bool:
    """Whether a store is read into memory: where its rows are few bytes."""
    return shape.is_small


def always(data: TrainingData, fit: Any, scheme: str) -> bool:
    """All machines are learned in the same passes, whatever the data."""
    return True


def never(fit: Any) -> bool:
    """Rows in memory are never written to a store for the workers."""
    return False


def one(data: TrainingData, fit: Any) -> int:
    """Machines are learned one after the other."""
    return 1


@dataclass(frozen=True)
class Together(Generic[F]):
    """How a solver learns all machines of many classes in the same passes.

    Attributes
    ----------
    train : callable
        Takes training data of many classes, the fit's settings, the machines' targets, and the number of classes whose
        pairs they are (0: each is one class against the rest); returns what it trained.
    suits : callable
        Whether it learns from such data in so many machines, of data, settings and scheme; else they are learned one
        after the other.
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
        Whether a store of some shape is read into memory, where it is small.
    spreads : callable
        Whether rows that come in memory go to the workers by a store, if there are workers.
    linear : bool
        For the linear kernel only, in the weights of its features, which it can start from.
    together : Together or None
        How all machines of many classes are learned at once; None: each as two classes are.
    at_once : callable
        How many machines that are learned so share their passes over a store, of data and settings.
    """

    train: Callable[[TrainingData, F], Trained]
    reads: Callable[[StoreShape, F], bool] = small
    spreads: Callable[[F], bool] = never
    linear: bool = False
    together: Together[F] | None = None
    at_once: Callable[[TrainingData, F], int] = one


@dataclass(frozen=True)
class Choice(Generic[F]):
    """The recipe that a fit goes by, its solver's name, and why it is that one."""

    solver: str
    why: str
    recipe: Recipe[F]

    def train(self, data: TrainingData, fit: F) -> Trained:
        """Train, with the choice in the first record of the history, if there is one."""
        return self._named(self.recipe.train(data, fit))

    def together(self, data: TrainingData, fit: F, machines: Sequence[OneOfMany], pairs: int) -> Trained:
        """As `train`, all machines of many classes."""
        assert self.recipe.together is not None
        return self._named(self.recipe.together.train(data, fit, machines, pairs))

    def _named(self, trained: Trained) -> Trained:
        for model in (trained, *trained.path):
            for record in model.history[:1]:
                record |= {"solver": self.solver, "why": self.why}
        return trained
