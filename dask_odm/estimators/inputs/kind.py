"""A kind of input: which X it takes, what becomes of it, and how its answers look."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from dask_odm.data.readers.frames import is_frame
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.frames import column_by_name, labels_by_name, refuse_labels_inside
from dask_odm.estimators.inputs.resolved import Resolved, StoredRows
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Beside:
    """What a user hands over beside X, and what is known of X.

    ``model`` is a fitted estimator, whose features tell those of X. ``groups`` matter to cubes, or name a
    column.
    """

    y: Any = None
    weight: Any = None
    groups: Any = None
    model: Any = None
    memory_limit: int | str | None = None
    needs_labels: bool = True  # whether a fit learns from y
    recipe: ColumnRecipe | None = None  # by which columns become features; None leaves it to a fit to find it

    @property
    def column_recipe(self) -> ColumnRecipe | None:
        """The recipe by which the columns of a table become features, if it is known."""
        return getattr(self.model, "column_recipe_", self.recipe)

    def refuse(self, what: str) -> None:
        """Raise InputError if there are labels or weights, since ``what`` X is has its own."""
        for name, value in (("y", self.y), ("sample_weight", self.weight)):
            if value is not None:
                raise InputError(
                    f"{name} must be None when X is {what}, which holds its own. Got {type(value).__name__}."
                )

    def of_store(self, store: Store) -> StoredRows:
        """Return the rows of a store, with the features in the order in which a model knows them."""
        return StoredRows(store.of_features(map(str, getattr(self.model, "feature_names_in_", ()))))

    def columns(self, X: Any, called: str = "frame") -> tuple[Any, Any, Any, Any]:
        """Return X, y, weight and groups, those of a frame that are columns of it; X is without these columns.

        Raises InputError if no label is named in a fit, but a column seems to hold them; messages call X ``called``.
        """
        y, weight, groups = self.y, self.weight, None
        if isinstance(self.groups, str) and is_frame(X):
            X, groups = column_by_name(X, self.groups, "groups")
        if y is None and self.model is None and self.needs_labels:
            refuse_labels_inside(X, called)
        X, y = labels_by_name(X, y)
        if isinstance(weight, str) or (isinstance(weight, Integral) and is_frame(X) and weight in X):
            X, weight = column_by_name(X, weight if isinstance(weight, str) else int(weight), "sample_weight")
        return X, y, weight, groups


class InputKind(ABC):
    """One kind of what `fit`, `predict` and `score` take as X."""

    @staticmethod
    def takes(X: Any, y: Any, model: Any) -> bool:
        """Return whether X is of this kind, given labels or a fitted estimator, or both; the last kind takes all."""
        return True

    @staticmethod
    @abstractmethod
    def rows(X: Any, beside: Beside) -> Resolved:
        """Return the store, the lazy arrays or the rows in memory that X and what is beside it are.

        Raises InputError if they do not match.
        """

    @staticmethod
    def cube(X: Any, model: Any) -> Any:
        """Return X as a cube of the features of a fitted estimator; None if it is no cube."""
        return None

    @staticmethod
    def like(X: Any, values: Any, name: str, model: Any, classes: Array | None = None) -> Any:
        """Return values of all rows, (n,) or (n, k), in the form of X; with ``classes``, a column belongs to each."""
        return values
