"""From whatever a user passes to `fit` or `predict` to rows in memory or a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.base import compute
from numpy.typing import NDArray

from dask_odm.data.labels import LabelEncoder
from dask_odm.data.store import Store
from dask_odm.data.writer import StoreWriter
from dask_odm.errors import InputError

Array = NDArray[Any]


@dataclass(frozen=True)
class LazyArrays:
    """Dask arrays, row chunks aligned: X (n, d), y (n,) or None, weight (n,) or None."""

    X: Any
    y: Any
    weight: Any = None
    feature_names: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of X in memory."""
        return int(self.X.nbytes)


def is_dataset(X: Any) -> bool:
    """Whether ``X`` is an xarray Dataset, without importing xarray for those who do not use it."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(X, xarray.Dataset)


def is_dask_array(X: Any) -> bool:
    """Whether ``X`` is a dask array."""
    array = sys.modules.get("dask.array")
    return array is not None and isinstance(X, array.Array)


def resolve(X: Any, y: Any = None, sample_weight: Any = None) -> Store | LazyArrays | None:
    """The store or the dask arrays behind ``X``; None for anything else, which is for scikit-learn to validate.

    Raises
    ------
    InputError
        y or sample_weight given besides a source that has its own, or a Dataset without ``X``.
    StoreError
        A path that is no sound store.
    """
    if isinstance(X, str | os.PathLike):
        _no_extras(y, sample_weight, "a store")
        return Store.open(X)
    if is_dataset(X):
        _no_extras(y, sample_weight, "a Dataset")
        return _of_dataset(X)
    if is_dask_array(X):
        return _aligned(X, y, sample_weight)
    return None


def _no_extras(y: Any, sample_weight: Any, what: str) -> None:
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise InputError(f"{name} must be None when X is {what}, which holds its own. Got {type(value).__name__}.")


def _of_dataset(dataset: Any) -> Store | LazyArrays:
    from dask_odm.data.interchange import as_store

    store = as_store(dataset)
    if store is not None:
        return store
    if "X" not in dataset:
        raise InputError(f"the Dataset has no variable 'X' (sample, feature); it has {sorted(map(str, dataset))}.")
    X = dataset["X"]
    if {"sample", "feature"} == set(X.dims):
        X = X.transpose("sample", "feature")
    columns = [dataset[name].chunk().data if name in dataset else None for name in ("y", "weight")]
    names = X.coords["feature"].values if "feature" in X.coords else None
    return replace(_aligned(X.chunk().data, *columns), feature_names=names)


def _aligned(X: Any, y: Any, weight: Any) -> LazyArrays:
    """Resolve unknown chunk sizes, and give all arrays the row chunks of X, whose rows are not split."""
    import dask.array as da

    if X.ndim != 2:
        raise InputError(f"X must have two dimensions. Got shape {X.shape} instead. Reshape your data.")
    columns = [None if v is None else v if is_dask_array(v) else da.from_array(np.asarray(v)) for v in (y, weight)]
    known = [a if not np.isnan(a.shape).any() else a.compute_chunk_sizes() for a in (X, *columns) if a is not None]
    X, rest = known[0].rechunk({1: -1}), iter(known[1:])
    aligned = []
    for name, column in zip(("y", "sample_weight"), columns, strict=True):
        column = None if column is None else next(rest)
        if column is not None and column.shape != (len(X),):
            raise InputError(f"{name} must have shape ({len(X)},) as X has rows. Got {column.shape} instead.")
        aligned.append(None if column is None else column.rechunk((X.chunks[0],)))
    return LazyArrays(X, *aligned)


def to_memory(arrays: LazyArrays) -> tuple[Array, Array | None, Array | None]:
    """Compute dask arrays together."""
    values = compute(*[a for a in (arrays.X, arrays.y, arrays.weight) if a is not None])
    rest = iter(values[1:])
    return values[0], *(None if a is None else next(rest) for a in (arrays.y, arrays.weight))


def spool(arrays: LazyArrays, path: str) -> Store:
    """Write dask arrays to a store at ``path``, one block in this process's memory at a time."""
    dtype = arrays.X.dtype.name if arrays.X.dtype in (np.float32, np.float64) else "float64"
    present = [a for a in (arrays.X, arrays.y, arrays.weight) if a is not None]
    blocks = zip(*[a.to_delayed().reshape(-1) for a in present], strict=True)
    encoder = None if arrays.y is None else LabelEncoder(text=False)
    with StoreWriter(path, dtype=dtype) as writer:
        for block in blocks:
            values = iter(compute(*block))
            X = np.asarray(next(values))
            codes = None if encoder is None else encoder.encode(np.asarray(next(values)), _place(writer.rows))
            writer.append(X, codes, None if arrays.weight is None else next(values))
        names = None if arrays.feature_names is None else [str(name) for name in arrays.feature_names]
        classes = None if encoder is None else encoder.classes()
        return writer.finish(classes, feature_names=names, source="dask arrays")


def _place(first: int) -> Callable[[int], str]:
    return lambda i: f"y, row {first + i}"


def require_two(classes: Array) -> None:
    """Raise InputError unless there are two classes."""
    if len(classes) < 2:
        raise InputError(f"the data hold one class only, {classes.tolist()}; a classifier needs two.")
    if len(classes) > 2:
        raise InputError(
            f"Only binary classification is supported. The labels have {len(classes)} values: "
            f"{classes[:10].tolist()}{' …' if len(classes) > 10 else ''}."
        )


def as_dask(X: Array, y: Array, weight: Array) -> tuple[Any, Any, Any]:
    """Rows, labels and weights in memory as dask arrays with the same row chunks."""
    import dask.array as da

    rows = max(1, (16 << 20) // X[:1].nbytes)
    return da.from_array(X, chunks=(rows, -1)), da.from_array(y, chunks=rows), da.from_array(weight, chunks=rows)


def weight_per_class(store: Store) -> Array:
    """Sum of row weights of every class of a store that has labels and weights."""
    y, weight = store.read_y(), store.read_weight()
    if y is None or weight is None or store.classes is None:
        raise InputError(f"store '{store.path}' has no labels or no weights.")
    return np.bincount(y[y >= 0], weights=weight[y >= 0], minlength=len(store.classes))
