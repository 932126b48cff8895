"""Sources of dask and zarr arrays, dask frames and xarray objects. One partition is computed at a time.

The active Dask client computes them, if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
import zarr
from dask.base import compute

from dask_odm.data.readers.sources import Reading
from dask_odm.data.readers.tables import (
    ArrayTable,
    Batch,
    PandasTable,
    Table,
    TableSource,
    label_values,
    require_matrix,
    table_of,
    weight_values,
)
from dask_odm.errors import InputError


def lazy_source(
    X: Any,
    y: Any,
    reading: Reading,
    *,
    where: str | None = None,
    names: Sequence[str] | None = None,
    label_name: str | None = None,
) -> TableSource:
    """Return the rows of a dask array (with the ``names`` of its columns), a zarr array or a dask frame as a source.

    Lengths of partitions need not be known. Labels ``y`` and weights may be lazy or in memory.
    """
    where = "the zarr array" if isinstance(X, zarr.Array) else where
    arrays = (X, y, reading.weight)
    X, y, weight = (da.from_zarr(each) if isinstance(each, zarr.Array) else each for each in arrays)
    reading = replace(reading, weight=weight)
    if not isinstance(X, da.Array):
        where = "the dask DataFrame"
        columns = list(X.columns)
        return table_of(where, columns, len(columns), partial(_batches, where, X), y, reading)
    where = where or "the dask array"
    require_matrix(where, X.shape)
    size = 0 if np.isnan(X.shape).any() else int(X.nbytes)
    batches = partial(_batches, where, X.rechunk({1: -1}))
    return table_of(where, names, X.shape[1], batches, y, reading, guess=False, label_name=label_name, size=size)


def xarray_source(source: xr.Dataset | xr.DataArray, y: Any, reading: Reading) -> TableSource:
    """Return the rows of a Dataset with ``X``, ``y`` and ``weight``, or of a DataArray X and perhaps y, as a source.

    X has two dimensions, in any order. Samples are along the dimension of y, else the one named ``sample``, else the
    first; the coordinate of the other one names the features. Label and weight may name variables of a Dataset.
    """
    where = f"the {type(source).__name__}"
    label = reading.label
    weight = reading.weight
    is_set = isinstance(source, xr.Dataset)
    if isinstance(label, int if is_set else int | str) and not isinstance(label, bool):
        raise InputError(f"{where}: label={label!r}; name a variable of a Dataset, or give (X, y).")
    name = label if isinstance(label, str) else "y"
    if isinstance(source, xr.Dataset):
        X = _variable(source, "X", required=True)
        if y is None and label is not False:
            y = _variable(source, name, required=isinstance(label, str))
        if isinstance(weight, str | None):
            weight = _variable(source, weight or "weight", required=weight is not None)
    else:
        X = source
    if isinstance(weight, str | int):
        raise InputError(f"{where}: weight={weight!r}; give the weights, or a Dataset with a variable of that name.")
    if X.ndim != 2:
        raise InputError(f"{where}: X must have two dimensions. Got {X.dims} instead.")
    y = None if label is False else y
    rows = "sample" if "sample" in X.dims else X.dims[0]
    if isinstance(y, xr.DataArray) and y.ndim == 1 and y.dims[0] in X.dims:
        rows = y.dims[0]
    X = X.transpose(rows, ...)
    features = X.dims[1]
    step = reading.block_rows(X.shape[1])
    data = X.data if X.chunks is not None else X.chunk({rows: step, features: -1}).data
    names = [str(each) for each in X.coords[features].values] if features in X.coords else None
    label_name = f"'{name}'" if is_set and y is not None else None
    y, weight = (each.data if isinstance(each, xr.DataArray) else each for each in (y, weight))
    reading = replace(reading, label=None, weight=weight)
    return lazy_source(data, y, reading, where=where, names=names, label_name=label_name)


def _variable(dataset: xr.Dataset, name: str, *, required: bool) -> Any:
    if name not in dataset and required:
        raise InputError(f"the Dataset has no variable '{name}'; it has {', '.join(sorted(map(str, dataset)))}.")
    return dataset.get(name)


def _batches(where: str, X: Any, y: Any, weight: Any) -> Iterator[Batch]:
    """Yield batches, computing one partition of X, y and weight at a time."""
    first = 0
    end = 0
    for part in zip(_delayed(X), _aligned(where, X, "y", y), _aligned(where, X, "weight", weight), strict=True):
        rows, labels, weights = compute(*part)
        if isinstance(X, da.Array):
            table: Table = ArrayTable(rows)
            end += rows.shape[0] * rows.shape[1] * rows.dtype.itemsize
        else:
            table = PandasTable(rows)
            end += int(rows.memory_usage(index=False).sum())
        labels = None if labels is None else label_values(labels)
        weights = None if weights is None else weight_values(weights)
        yield Batch(table, where, end, first, labels, weights)
        first += table.rows


def _aligned(where: str, X: Any, what: str, column: Any) -> list[Any]:
    """Return the partitions of labels or weights (or Nones), split at the same rows as X."""
    if column is None:
        return [None] * len(_delayed(X))
    if _fits(X, column):
        return _delayed(column)
    if isinstance(X, da.Array):
        lengths = (X.compute_chunk_sizes() if np.isnan(X.shape).any() else X).chunks[0]
    else:
        lengths = tuple(X.map_partitions(len).compute())
    if hasattr(column, "to_dask_array"):
        column = column if isinstance(column.dtype, np.dtype) else column.astype(object)
        column = column.to_dask_array(lengths=True)
    elif not isinstance(column, da.Array):
        column = da.from_array(column)
    elif np.isnan(column.shape).any():
        column = column.compute_chunk_sizes()
    if len(column) != sum(lengths):
        raise InputError(f"{where}: {what} has {len(column)} rows where X has {sum(lengths)}.")
    return _delayed(column.rechunk({0: lengths}))


def _fits(X: Any, column: Any) -> bool:
    """Return whether partitions of both have the same rows. If lengths are unknown, equal counts are taken for it."""
    if not hasattr(column, "dask") or getattr(X, "npartitions", 0) != getattr(column, "npartitions", -1):
        return False
    if isinstance(X, da.Array) and isinstance(column, da.Array):
        known = not np.isnan([*X.chunks[0], *column.chunks[0]]).any()
        return not known or X.chunks[0] == column.chunks[0]
    return True


def _delayed(lazy: Any) -> list[Any]:
    if isinstance(lazy, da.Array):  # optimising would rename what X and y share, and compute it twice
        return list(lazy.to_delayed(optimize_graph=False).reshape(-1))
    return list(lazy.to_delayed())
