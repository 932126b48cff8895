"""Resolving what users pass to `fit` or `predict` to rows in memory, dask arrays or a store."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import computed
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.frames import (
    column_by_name,
    dask_labels,
    dask_rows,
    labels_of,
    refuse_arrow,
    refuse_labels_inside,
    warn_column,
)
from dask_odm.estimators.inputs.input_types import (
    Features,
    Given,
    LazyArrays,
    Resolved,
    is_dask_array,
    is_dask_frame,
    is_of,
    is_xarray,
)
from dask_odm.learning.training.run import read_limit


def resolve(
    X: Any, y: Any = None, sample_weight: Any = None, *, features: Features | None = None, lengths: bool = True
) -> Resolved:
    """Return the store, the dask arrays or the rows in memory behind the arguments of `fit`.

    ``features`` are those of a model; they identify the dimensions of an xarray X. Unknown chunk sizes are computed,
    without ``lengths`` only if there are y or weights. Raises InputError if y or sample_weight are given besides a
    source that has its own, for input of a wrong kind, and if lengths, dimensions or coordinates do not match;
    StoreError if the path is not a sound store.
    """
    if isinstance(X, str | os.PathLike | Store):
        _no_extras(y, sample_weight, "a store")
        return X if isinstance(X, Store) else Store.open(X)
    if is_of(X, "xarray", "Dataset"):
        _no_extras(y, sample_weight, "a Dataset")
    refuse_arrow(X)
    if y is None and features is None:
        refuse_labels_inside(X)
    if isinstance(y, str):
        X, y = column_by_name(X, y, "y")
    if isinstance(sample_weight, str):
        X, sample_weight = column_by_name(X, sample_weight, "sample_weight")
    if is_xarray(X):
        return _of_xarray(X, y, sample_weight, features)
    if is_dask_frame(X):
        rows, names = dask_rows(X)
        return replace(_aligned(rows, y, sample_weight, lengths), feature_names=names)
    if is_dask_array(X):
        return _aligned(X, y, sample_weight, lengths)
    return Given(X, y, sample_weight)


def resolve_training(X: Any, y: Any, sample_weight: Any) -> tuple[Resolved, str | None]:
    """Return the training data behind ``X``, as `resolve` does, and the feature dimension's name of an xarray X.

    Lazy arrays of few bytes are read into memory.
    """
    resolved = resolve(X, y, sample_weight)
    if isinstance(resolved, LazyArrays):
        if resolved.y is None:
            raise InputError("fit needs labels, but y is None.")
        if resolved.X.nbytes <= read_limit():
            resolved = to_memory(resolved)
    return resolved, dimension_of_features(X, y, sample_weight)


def _no_extras(y: Any, sample_weight: Any, what: str) -> None:
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise InputError(f"{name} must be None when X is {what}, which holds its own. Got {type(value).__name__}.")


def dimension_of_features(X: Any, y: Any, sample_weight: Any) -> str | None:
    """Return the name of the feature dimension if ``X``, as given to `fit`, is an xarray object; else None."""
    if not is_xarray(X):
        return None
    from dask_odm.estimators.inputs.xarray_inputs import feature_dimension

    return feature_dimension(X, y, sample_weight)


def _of_xarray(X: Any, y: Any, weight: Any, features: Features | None) -> Resolved:
    from dask_odm.data.store.interchange import as_store
    from dask_odm.estimators.inputs.xarray_inputs import columns_of, feature_names, in_memory, is_lazy, oriented

    store = as_store(X) if is_of(X, "xarray", "Dataset") else None
    if store is not None:
        return store
    rows, y, weight = oriented(*columns_of(X, y, weight), features)
    if not is_lazy(rows):
        return Given(in_memory(rows), y, weight)
    lazy = rows if rows.chunks is not None else rows.chunk()
    return replace(_aligned(lazy.data, y, weight), feature_names=feature_names(rows))


def _aligned(X: Any, y: Any, weight: Any, lengths: bool = True) -> LazyArrays:
    """Compute unknown chunk sizes, and give all arrays the row chunks of X. Single rows are not split."""
    if X.ndim != 2:
        raise InputError(f"X must have two dimensions. Got shape {X.shape} instead. Reshape your data.")
    y = _lazy_column(y)
    weight = _lazy_column(weight)
    if y is None and weight is None and not lengths:
        return LazyArrays(X.rechunk({1: -1}), None)
    if weight is not None and weight.dtype.kind not in "biufO":
        raise InputError(f"sample_weight must be numbers. Got dtype {weight.dtype} instead.")
    X = _known(X).rechunk({1: -1})
    return LazyArrays(X, _beside(X, y, "y"), _beside(X, weight, "sample_weight"))


def _lazy_column(column: Any) -> Any:
    """Return labels or weights of any form as a dask array; None stays None."""
    import dask.array as da

    if is_xarray(column):
        column = column.data
    if is_of(column, "dask.dataframe", "DataFrame", "Series"):
        column = dask_labels(column)
    return column if column is None or is_dask_array(column) else da.from_array(labels_of(column), chunks=-1)


def _known(array: Any) -> Any:
    """Return the array with known chunk sizes, computing them if needed."""
    return array.copy().compute_chunk_sizes() if np.isnan(array.shape).any() else array


def _beside(X: Any, column: Any, name: str) -> Any:
    if column is None:
        return None
    column = _known(column)
    if column.ndim == 2 and column.shape[1] == 1:
        warn_column()
        column = column[:, 0]
    if column.shape != (len(X),):
        raise InputError(f"{name} must have shape ({len(X)},) as X has rows. Got {column.shape} instead.")
    return column.rechunk((X.chunks[0],))


def to_memory(arrays: LazyArrays) -> Given:
    """Compute dask arrays together. Rows with feature names become a frame."""
    values = computed(*[a for a in (arrays.X, arrays.y, arrays.weight) if a is not None])
    rest = iter(values[1:])
    y, weight = (None if a is None else next(rest) for a in (arrays.y, arrays.weight))
    names = arrays.feature_names
    return Given(values[0] if names is None else pd.DataFrame(values[0], columns=names, copy=False), y, weight)
