"""The door for what users pass as X: its kind says what becomes of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import pandas as pd

from dask_odm.data.readers.sources import is_of
from dask_odm.data.readers.tables import is_arrow_frame
from dask_odm.data.readers.texts import is_texts, rows_of_texts
from dask_odm.data.storage.locations import is_address
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError
from dask_odm.estimators.inputs import frames
from dask_odm.estimators.inputs.dask_inputs import aligned, in_memory, rows_of_dask_frame, with_zeros
from dask_odm.estimators.inputs.resolved import Given, LazyArrays, LazyTable, Resolved, StoredRows, named
from dask_odm.learning.training.run import read_limit
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Beside:
    """What a user hands over beside X, and what is known of X.

    ``model`` is a fitted estimator, whose features tell those of X. ``groups`` matter to cubes alone.
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

    def columns(self, X: Any, called: str = "frame") -> tuple[Any, Any, Any]:
        """Return X, y and weight, without the columns of a frame that y and weight name.

        Raises InputError if no label is named in a fit, but a column seems to hold them; messages call X ``called``.
        """
        y, weight = self.y, self.weight
        if y is None and self.model is None and self.needs_labels:
            frames.refuse_labels_inside(X, called)
        X, y = frames.labels_by_name(X, y)
        if isinstance(weight, str) or (isinstance(weight, Integral) and frames.is_frame(X) and weight in X):
            X, weight = frames.column_by_name(X, weight if isinstance(weight, str) else int(weight), "sample_weight")
        return X, y, weight


def is_xarray(X: Any) -> bool:
    """Return whether ``X`` is an xarray object."""
    return is_of(X, "xarray", "Dataset", "DataArray")


def _is_store(X: Any) -> bool:
    return isinstance(X, str | os.PathLike | Store)


def _is_frame(X: Any) -> bool:
    """Return whether ``X`` is a frame of pandas, polars, Arrow or any library with an Arrow stream."""
    return isinstance(X, pd.DataFrame) or is_of(X, "polars", "DataFrame", "LazyFrame") or is_arrow_frame(X)


def cube_of_input(X: Any, model: Any) -> Any:
    """Return X as a cube of the features of a fitted estimator; None if it is no cube."""
    if not is_xarray(X):
        return None
    from dask_odm.estimators.inputs.cubes import cube_to_predict  # here, since xarray takes long to load
    from dask_odm.estimators.inputs.xarray_inputs import is_cube

    return cube_to_predict(X, model) if is_cube(X, None, model) else None


def like_input(X: Any, values: Any, name: str, model: Any, classes: Array | None = None) -> Any:
    """Return values of all rows, (n,) or (n, k), in the form of X; with ``classes``, a column belongs to each."""
    if not is_xarray(X):
        return values
    from dask_odm.estimators.inputs.xarray_inputs import like_table

    return like_table(X, values, name, model, classes)


def _rows_of(X: Any, beside: Beside) -> Resolved:
    """Return the store, the lazy arrays or the rows in memory that X and what is beside it are, by the kind of X.

    Raises InputError if they do not match.
    """
    if is_xarray(X):
        from dask_odm.estimators.inputs.xarray_inputs import rows_of_xarray

        return rows_of_xarray(X, beside)
    recipe = getattr(beside.model, "text_recipe_", None)
    if _is_store(X):
        if recipe is not None and isinstance(X, str) and not is_address(X) and not os.path.exists(X):
            raise InputError("X is a string, but there is no such path: pass a list of texts, such as [text].")
        beside.refuse("a store")
        return beside.of_store(X if isinstance(X, Store) else Store.open(X))
    if _is_frame(X):
        frame = frames.as_pandas(X)
        if recipe is not None:
            there = recipe.column in frame.columns
            if there or not all(map(pd.api.types.is_numeric_dtype, frame.dtypes)):
                shown = recipe.column if there else "…"
                raise InputError(f"X is a table, not a list of texts: pass its column of texts, X[{shown!r}].")
        return Given.of(*beside.columns(frame, "frame" if frame is X else "frame.to_pandas()"))
    if recipe is not None and is_texts(X):
        return Given.of(*beside.columns(rows_of_texts(X, recipe)))
    if frames.is_dask_frame(X):
        return rows_of_dask_frame(X, beside)
    if is_of(X, "dask.array", "Array"):
        return aligned(*beside.columns(X))
    if is_of(X, "dask.delayed", "Delayed"):
        raise InputError(
            "X is a Delayed of Dask, of whose rows nothing is known: pass X.compute(), or what "
            "dask.array.from_delayed or dask.dataframe.from_delayed makes of it."
        )
    return Given.of(*beside.columns(X))  # anything else that scikit-learn takes


def resolve(X: Any, y: Any = None, sample_weight: Any = None, **beside: Any) -> Resolved:
    """Return the store, the lazy arrays or the rows in memory behind the arguments of `fit`; more are of `Beside`.

    Unknown chunk sizes are computed if there are y or weights.

    Raises InputError if y or sample_weight are given besides a source that has its own, for input of a wrong kind, if
    lengths, dimensions or coordinates do not match, and in a fit if a frame without y seems to have labels among its
    columns; StoreError if the path is not a sound store; MemoryLimitError if a block of a lazy cube exceeds a worker's
    memory or ``memory_limit``.
    """
    known = Beside(y, sample_weight, **beside)
    found = _rows_of(X, known)
    recipe = known.column_recipe
    return found if recipe is None or found.column_recipe is not None else found.encoded(recipe)


def stored(X: Any) -> Store | None:
    """Return the store that X is, by path, open or as the whole Dataset of one; None if it is none."""
    found = resolve(X) if _is_store(X) or is_of(X, "xarray", "Dataset") else None
    return found.source if isinstance(found, StoredRows) else None


def resolve_training(
    X: Any, y: Any, sample_weight: Any, groups: Any = None, memory_limit: int | str | None = None, *,
    needs_labels: bool = True, recipe: ColumnRecipe | None = None, dtype: str | None = None,
) -> Resolved:  # fmt: skip
    """Return the training data behind ``X``, as `resolve` does; lazy arrays of few bytes are read into memory.

    The y of lazy arrays is zeros unless ``needs_labels``. The columns of a frame become features by a ``recipe``, by
    default the one that its rows tell, of a ``dtype``.
    """
    beside = {"groups": groups, "memory_limit": memory_limit, "needs_labels": needs_labels, "recipe": recipe}
    resolved = resolve(X, y, sample_weight, **beside)
    if isinstance(resolved, LazyArrays | LazyTable) and resolved.y is None and needs_labels:
        raise InputError("fit needs labels, but y is None.")
    if isinstance(resolved, LazyArrays):
        lazy = resolved if needs_labels else with_zeros(resolved)
        if lazy.nbytes > read_limit():
            return lazy
        held, labels, *weight = in_memory(lazy)
        resolved = Given(named(held, lazy.called), labels, weight[0] if weight else None, lazy.feature_dimension)
    if isinstance(resolved, Given):
        frames.refuse_labels_among(resolved.X, resolved.y, y)
        is_table = _is_frame(X) or frames.is_dask_frame(X)  # whose columns may be of any kind
        if isinstance(resolved.X, pd.DataFrame) and resolved.column_recipe is None and is_table:
            found = frames.surveyed_rows(resolved.X, dtype)
            changes = {"is_plain": True} if found is None else {"X": found[0], "column_recipe": found[1]}
            return replace(resolved, **changes)
    return replace(resolved, dtype=dtype) if isinstance(resolved, LazyTable) else resolved
