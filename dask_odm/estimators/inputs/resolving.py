"""The door for what users pass as X: the first kind of input that takes it says what becomes of it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pandas as pd

from dask_odm.data.readers.frames import as_pandas, surveyed_rows
from dask_odm.data.readers.sources import is_of
from dask_odm.data.readers.tables import is_arrow_frame
from dask_odm.data.readers.texts import is_texts, rows_of_texts
from dask_odm.data.storage.locations import is_address
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.dask_inputs import DaskArray, DaskFrame, in_memory, with_zeros
from dask_odm.estimators.inputs.frames import refuse_labels_among
from dask_odm.estimators.inputs.kind import Beside, InputKind
from dask_odm.estimators.inputs.resolved import Given, LazyArrays, LazyTable, Resolved, StoredRows, named
from dask_odm.learning.training.run import read_limit


class StoreInput(InputKind):
    """A store, by path or open."""

    @staticmethod
    def takes(X: Any, y: Any, model: Any) -> bool:
        return isinstance(X, str | os.PathLike | Store)

    @staticmethod
    def rows(X: Any, beside: Beside) -> StoredRows:
        if hasattr(beside.model, "text_recipe_") and isinstance(X, str) and not is_address(X) and not os.path.exists(X):
            raise InputError("X is a string, but there is no such path: pass a list of texts, such as [text].")
        beside.refuse("a store")
        return beside.of_store(X if isinstance(X, Store) else Store.open(X))


class Frame(InputKind):
    """A frame of pandas, polars, Arrow or any library with an Arrow stream."""

    @staticmethod
    def takes(X: Any, y: Any, model: Any) -> bool:
        return isinstance(X, pd.DataFrame) or is_of(X, "polars", "DataFrame", "LazyFrame") or is_arrow_frame(X)

    @staticmethod
    def rows(X: Any, beside: Beside) -> Given:
        frame = as_pandas(X)
        if hasattr(beside.model, "text_recipe_"):
            column = beside.model.text_recipe_.column
            if column in frame.columns or not all(map(pd.api.types.is_numeric_dtype, frame.dtypes)):
                shown = column if column in frame.columns else "…"
                raise InputError(f"X is a table, not a list of texts: pass its column of texts, X[{shown!r}].")
        X, y, weight, groups = beside.columns(frame, "frame" if frame is X else "frame.to_pandas()")
        return replace(Given.of(X, y, weight), groups=groups, is_table=True)


class Texts(InputKind):
    """Texts in memory, for a model that learned from texts."""

    @staticmethod
    def takes(X: Any, y: Any, model: Any) -> bool:
        return hasattr(model, "text_recipe_") and is_texts(X)

    @staticmethod
    def rows(X: Any, beside: Beside) -> Given:
        return Values.rows(rows_of_texts(X, beside.model.text_recipe_), beside)


class Values(InputKind):
    """Anything else that scikit-learn takes: arrays, sparse rows, lists."""

    @staticmethod
    def rows(X: Any, beside: Beside) -> Given:
        if is_of(X, "dask.delayed", "Delayed"):
            raise InputError(
                "X is a Delayed of Dask, of whose rows nothing is known: pass X.compute(), or what "
                "dask.array.from_delayed or dask.dataframe.from_delayed makes of it."
            )
        X, y, weight, _ = beside.columns(X)
        return Given.of(X, y, weight)


# Asked in this order.
KINDS: tuple[type[InputKind], ...] = (StoreInput, Frame, Texts, DaskFrame, DaskArray, Values)


def is_xarray(X: Any) -> bool:
    """Return whether ``X`` is an xarray object."""
    return is_of(X, "xarray", "Dataset", "DataArray")


def kind_of(X: Any, y: Any = None, model: Any = None) -> type[InputKind]:
    """Return the kind of input that X is, given labels or a fitted estimator, or both."""
    kinds = KINDS
    if is_xarray(X):  # which takes long to load
        from dask_odm.estimators.inputs import xarray_inputs

        kinds = xarray_inputs.KINDS
    return next(kind for kind in kinds if kind.takes(X, y, model))


def resolve(X: Any, y: Any = None, sample_weight: Any = None, **beside: Any) -> Resolved:
    """Return the store, the lazy arrays or the rows in memory behind the arguments of `fit`; more are of `Beside`.

    Unknown chunk sizes are computed if there are y or weights.

    Raises InputError if y or sample_weight are given besides a source that has its own, for input of a wrong kind, if
    lengths, dimensions or coordinates do not match, and in a fit if a frame without y seems to have labels among its
    columns; StoreError if the path is not a sound store; MemoryLimitError if a block of a lazy cube exceeds a worker's
    memory or ``memory_limit``.
    """
    known = Beside(y, sample_weight, **beside)
    found = kind_of(X, y, known.model).rows(X, known)
    recipe = known.column_recipe
    return found if recipe is None or found.column_recipe is not None else found.encoded(recipe)


def stored(X: Any) -> Store | None:
    """Return the store that X is, by path, open or as the whole Dataset of one; None if it is none."""
    found = resolve(X) if StoreInput.takes(X, None, None) or is_of(X, "xarray", "Dataset") else None
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
        own = {"groups": lazy.groups, "is_table": lazy.is_table}
        resolved = Given(named(held, lazy.called), labels, weight[0] if weight else None, lazy.feature_dimension, **own)
    if isinstance(resolved, Given):
        refuse_labels_among(resolved.X, resolved.y, y)
        if resolved.is_table and resolved.column_recipe is None:
            found = surveyed_rows(resolved.X, dtype)
            changes = {"is_plain": True} if found is None else {"X": found[0], "column_recipe": found[1]}
            return replace(resolved, **changes)
    return replace(resolved, dtype=dtype) if isinstance(resolved, LazyTable) else resolved
