"""From what users pass to `fit` or `predict` to rows in memory, lazy arrays or a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from dask_odm.data.readers.labels import LabelEncoder
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.engine.cluster import computed
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import CheckedRows, as_input_error, require_finite
from dask_odm.estimators.inputs.frames import (
    column_by_name,
    dask_labels,
    dask_rows,
    is_dask_frame,
    is_of,
    labels_of,
    refuse_arrow,
    refuse_labels_inside,
    warn_column,
)
from dask_odm.events import Meter
from dask_odm.learning.training.run import read_limit
from dask_odm.learning.training.scratch import scratch_folder
from dask_odm.typing import Array

BLOCK_BYTES = 16 << 20  # bytes of rows in memory that are written to a store at a time


@dataclass(frozen=True, eq=False)
class Given:
    """Rows in memory with labels and weights as they came, which scikit-learn has yet to validate."""

    X: Any
    y: Any = None
    weight: Any = None


@dataclass(frozen=True, eq=False)
class LazyArrays:
    """Dask arrays with aligned row chunks: X (n, d), y (n,) or None, weight (n,) or None.

    Chunk sizes are known, except those of an X without y and weight if they were not asked for.
    """

    X: Any
    y: Any
    weight: Any = None
    feature_names: Array | None = None


Resolved = Store | LazyArrays | Given


def is_xarray(X: Any) -> bool:
    """Return whether ``X`` is an xarray object."""
    return is_of(X, "xarray", "Dataset", "DataArray")


def is_dask_array(X: Any) -> bool:
    """Return whether ``X`` is a dask array."""
    return is_of(X, "dask.array", "Array")


def resolve(X: Any, y: Any = None, sample_weight: Any = None, *, model: Any = None, lengths: bool = True) -> Resolved:
    """Return the store, the dask arrays or the rows in memory behind the arguments of `fit`.

    ``model`` is a fitted estimator, whose features identify the dimensions of an xarray X. Unknown chunk sizes are
    computed, without ``lengths`` only if there are y or weights. Raises InputError if y or sample_weight are given
    besides a source that has its own, for input of a wrong kind, and if lengths, dimensions or coordinates do not
    match; StoreError if the path is not a sound store.
    """
    if isinstance(X, str | os.PathLike | Store):
        _no_extras(y, sample_weight, "a store")
        return X if isinstance(X, Store) else Store.open(X)
    if is_of(X, "xarray", "Dataset"):
        _no_extras(y, sample_weight, "a Dataset")
    refuse_arrow(X)
    if y is None and model is None:
        refuse_labels_inside(X)
    if isinstance(y, str):
        X, y = column_by_name(X, y, "y")
    if isinstance(sample_weight, str):
        X, sample_weight = column_by_name(X, sample_weight, "sample_weight")
    if is_xarray(X):
        return _of_xarray(X, y, sample_weight, model)
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


def _of_xarray(X: Any, y: Any, weight: Any, model: Any) -> Resolved:
    from dask_odm.data.store.interchange import as_store
    from dask_odm.estimators.inputs.xarray_inputs import columns_of, feature_names, in_memory, is_lazy, oriented

    store = as_store(X) if is_of(X, "xarray", "Dataset") else None
    if store is not None:
        return store
    rows, y, weight = oriented(*columns_of(X, y, weight), model)
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


@contextmanager
def spooled(rows: Store | LazyArrays | CheckedRows, target: str) -> Iterator[Store]:
    """Provide rows as a store: itself, or a new one in the scratch folder, within the ``with`` block only.

    ``target`` says whether y becomes ``classes`` or stays ``real``.
    """
    if isinstance(rows, Store):
        yield rows
        return
    arrays = rows if isinstance(rows, LazyArrays) else _lazy(rows)
    with scratch_folder() as folder:
        yield _spool(arrays, os.path.join(folder, "spooled.zarr"), target)


def _lazy(rows: CheckedRows) -> LazyArrays:
    """Return rows, labels and weights in memory as dask arrays with equal row chunks."""
    import dask.array as da

    count = max(1, BLOCK_BYTES // rows.X[:1].nbytes)
    X = da.from_array(rows.X, chunks=(count, -1))
    return LazyArrays(X, da.from_array(rows.y, chunks=count), da.from_array(rows.weight, chunks=count), rows.names)


def _spool(arrays: LazyArrays, path: str, target: str) -> Store:
    """Write dask arrays to a store at ``path``, one block in this process's memory at a time."""
    dtype = arrays.X.dtype.name if arrays.X.dtype in (np.float32, np.float64) else "float64"
    columns = [arrays.X, arrays.y] if arrays.weight is None else [arrays.X, arrays.y, arrays.weight]
    blocks = zip(*[column.to_delayed().reshape(-1) for column in columns], strict=True)
    encoder = LabelEncoder(text=False, target=target)
    with StoreWriter(path, dtype=dtype) as writer, Meter("spool", len(arrays.X), "rows") as meter:
        for block in blocks:
            rows, y, *weight = computed(*block)
            X = np.asarray(rows).astype(dtype, copy=False)
            require_finite(X, arrays.feature_names, writer.rows)
            targets = encoder.encode(np.asarray(y), lambda i: f"y, row {writer.rows + i}")
            writer.append(X, targets, _numbers(weight[0]) if weight else None)
            meter.add(len(X))
        names = None if arrays.feature_names is None else [str(name) for name in arrays.feature_names]
        return writer.finish(encoder.classes() or None, feature_names=names, source="dask arrays")


def _numbers(weight: Any) -> Array:
    numbers: Array = as_input_error(lambda: np.asarray(weight, dtype=np.float64))
    return numbers
