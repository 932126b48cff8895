"""Stores as xarray Datasets of dask arrays, and back to the store if the Dataset still is all of it."""

from __future__ import annotations

import os
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from dask.base import tokenize
from scipy.sparse import csr_array

from dask_odm.data.store.lazy_blocks import read_block_array
from dask_odm.data.store.store import Store
from dask_odm.errors import StoreError


def open_store(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open a store as a lazy Dataset.

    Parameters
    ----------
    path : folder made by `ingest`

    Returns
    -------
    xarray.Dataset
        ``X(sample, feature)``, and if the store has them ``y(sample)``, or ``y(sample, target)``, and
        ``weight(sample)``. y has labels; an unknown label is NaN among numbers, NaT among dates, else None. All are
        dask arrays with one dask chunk per store chunk, and their names depend only on the content of the store. The
        coordinate ``feature`` has the feature names. Rows of a cube have lazy coordinates of their places in it, such
        as ``at_y(sample)`` for the dimension y. The blocks of sparse rows are SciPy CSR arrays, which xarray cannot
        compute: use the dask array ``X.data``.

    Raises
    ------
    StoreError
        The folder is not a store, or the store is unfinished or damaged.
    """
    return to_dataset(Store.open(path))


def to_dataset(store: Store) -> xr.Dataset:
    """Return an open store as `open_store` does."""
    variables: dict[str, Any] = {"X": (("sample", "feature"), _lazy(store, "X", store.dtype))}
    if store.y_kind is not None:
        variables["y"] = (("sample", "target")[: 1 + bool(store.targets)], _lazy(store, "y", store.label_dtype))
    if store.has_weight:
        variables["weight"] = (("sample",), _lazy(store, "weight", np.dtype(np.float64)))
    names = store.feature_names
    coordinates: dict[str, Any] = {} if names is None else {"feature": np.array(names, dtype=object)}
    for name, kind in store.layout.coordinates:
        dtype = np.dtype(np.float64 if kind == "number" else "datetime64[ns]")
        coordinates[f"at_{name}"] = (("sample",), _lazy(store, f"at_{name}", dtype))
    dataset = xr.Dataset(variables, coords=coordinates, attrs={"source": store.source})
    dataset.encoding["source"] = store.path
    for variable in dataset.data_vars.values():
        variable.encoding["source"] = store.path
    return dataset


def as_store(dataset: xr.Dataset) -> Store | None:
    """Return the store from which a Dataset was opened, if it is still all of it and nothing else.

    None is returned if rows, columns, labels or weights were selected, changed, added or left out, if feature names
    differ, or if the store was replaced or moved. Then only the Dataset itself tells what it holds.
    """
    X = dataset.get("X")
    path = dataset.encoding.get("source") or (None if X is None else X.encoding.get("source"))
    if not isinstance(path, str):
        return None
    try:
        store = Store.open(path)
    except StoreError:
        return None
    expected = to_dataset(store)
    if set(dataset.data_vars) != set(expected.data_vars):
        return None
    for name, variable in expected.data_vars.items():
        found = dataset[name]
        if found.dims != variable.dims or getattr(found.data, "name", None) != variable.data.name:
            return None
    if store.feature_names is None:
        return None if "feature" in dataset.coords else store
    return store if "feature" in dataset.coords and dataset["feature"].equals(expected["feature"]) else None


def _lazy(store: Store, name: str, dtype: np.dtype[Any]) -> da.Array:
    """Return one array of the store, or one coordinate, as a dask array; nothing is read."""
    rows = tuple((s := store.chunk_slice(i)).stop - s.start for i in range(store.n_chunks))
    columns = {"X": store.features, "y": store.targets}.get(name, 0)
    chunks = (rows, (columns,)) if columns else (rows,)
    label = f"dask_odm-{name}-{tokenize(store)}"
    zeros = (0,) * (len(chunks) - 1)
    # A plain graph, since the tasks of da.map_blocks would import dask.array, and so pandas, on every worker.
    tasks = {(label, i, *zeros): (read_block_array, store, name, i) for i in range(store.n_chunks)}
    meta: Any = np.empty((0,) * len(chunks), dtype=dtype)
    if name == "X" and store.is_sparse:
        meta = csr_array((0, 0), dtype=dtype)
    return da.Array(tasks, label, chunks, meta=meta)
