"""Family: one kind of problem with all recipes that learn it, as the base of all estimators is given it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic

from dask_odm.learning.machines import Attributes, Scheme, joined_attributes, require_few, train_machines
from dask_odm.learning.training.recipe import Choice, F, Trained
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.typing import Array


class Family(ABC, Generic[F]):
    """One kind of problem: which recipe learns it, and how many classes are learned.

    A fit calls `of_classes`, `choose` and `train`, in this order, with the settings ``fit``, a frozen dataclass that
    has the `FitRun` as ``run``.
    """

    by_machines: ClassVar[bool] = True  # whether more than two classes are learned by several machines of two

    def scheme(self, fit: F) -> Scheme:
        """Return how more than two classes are learned."""
        return "ovr"

    def of_classes(self, fit: F, classes: Array | None) -> F:
        """Return the settings of a fit of these classes, None for real targets; InputError if they are too many."""
        if classes is not None and self.by_machines:
            require_few(len(classes), self.scheme(fit))
        return fit

    @abstractmethod
    def choose(self, fit: F, rows: int, features: int) -> Choice[F]:
        """Return the recipe for a fit of ``rows`` rows and ``features`` features."""

    def train(self, choice: Choice[F], data: TrainingData, fit: F) -> Trained:
        """Train by the chosen recipe, a machine after another if there are more than two classes."""
        if len(data.class_weights) > 2 and self.by_machines:
            return train_machines(choice, data, fit, self.scheme(fit), lambda each: self.joined(fit, each))
        return choice.train(data, fit)

    def joined(self, fit: F, machines: Sequence[Attributes]) -> dict[str, Any]:
        """Merge the fitted attributes of several machines, except their support, into those of the whole model."""
        return joined_attributes(machines)


class OnlyRecipe(Family[F]):
    """A family of one recipe."""

    def __init__(self, choice: Choice[F], *, by_machines: bool = True) -> None:
        self._choice = choice
        self.by_machines = by_machines  # type: ignore[misc]

    def choose(self, fit: F, rows: int, features: int) -> Choice[F]:
        return self._choice
