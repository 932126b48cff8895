"""Sources of dask and zarr arrays, dask frames and xarray objects. One partition is computed at a time.

The active Dask client computes them, if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
import zarr
from dask.base import compute

from dask_odm.data.readers.columns import Columns, choose_columns
from dask_odm.data.readers.matrices import dense
from dask_odm.data.readers.sources import BLOCK_BYTES, block_rows
from dask_odm.data.readers.tables import (
    Batch,
    PandasTable,
    TableSource,
    beside_name,
    beside_rows,
    label_values,
    numbered,
)
from dask_odm.errors import InputError


class ArrayTable:
    """Rows of an array in memory, which may be dense, masked or sparse."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.rows = array.shape[0]

    def kind(self, column: int) -> tuple[str, str]:
        """See `Table`."""
        dtype = self._array.dtype
        kinds = {"i": "number", "u": "number", "f": "number", "b": "boolean", "U": "string", "M": "date", "m": "date"}
        return kinds.get(dtype.kind, "other"), str(dtype)

    def numbers(self, columns: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        """See `Table`."""
        rows = dense(self._array[start:stop])
        return rows if len(columns) == rows.shape[1] else rows[:, list(columns)]

    def labels(self, column: int) -> npt.NDArray[Any]:
        """See `Table`."""
        return label_values(dense(self._array[:, [column]]))


def lazy_source(
    X: Any, y: Any = None, weight: Any = None, *, label: str | int | bool | None = None, **options: Any
) -> TableSource:
    """Return the rows of a dask array or a dask frame as a source.

    Parameters
    ----------
    X : dask array of shape (rows, d), or dask DataFrame; lengths of partitions need not be known
    y : labels, shape (rows,), a dask array, a dask series or in memory; or None
    weight : name or number of a column, or numbers of shape (rows,), lazy or in memory; or None
    label : for a frame as for CSV text, for an array the number of a column; with ``y`` no column is taken
    options : n_features, dtype and block_bytes, as of `TableSource`; ``where``, the name of the rows in messages

    Raises
    ------
    InputError
        Shapes, lengths or options do not fit.
    """
    where = options.pop("where", "the dask array" if _is_array(X) else "the dask DataFrame")
    beside = not isinstance(weight, str | int | None)
    y = None if label is False else y
    wanted = False if y is not None else label
    at_weight = None if beside else weight
    if _is_array(X):
        _check_shape(where, X)
        columns = choose_columns(where, None, X.shape[1], wanted, at_weight, guess=False)
    else:
        columns = choose_columns(where, list(X.columns), len(X.columns), wanted, at_weight)
    size = 0 if not _is_array(X) or np.isnan(X.shape).any() else X.nbytes
    name = None if y is None else beside_name(y)
    extras = (y, weight if beside else None)
    return TableSource(where, columns, partial(_batches, where, X, extras), size=size, label_name=name, **options)


def zarr_source(X: Any, y: Any = None, weight: Any = None, **options: Any) -> TableSource:
    """Return the rows of a zarr array as a source, some chunks at a time.

    ``y`` and ``weight`` may be zarr arrays too.
    """
    lazy = (da.from_zarr(each) if isinstance(each, zarr.Array) else each for each in (X, y, weight))
    return lazy_source(*lazy, where="the zarr array", **options)


def xarray_source(
    source: xr.Dataset | xr.DataArray,
    y: Any = None,
    weight: Any = None,
    *,
    label: str | bool | int | None = None,
    block_bytes: int = BLOCK_BYTES,
    **options: Any,
) -> TableSource:
    """Return the rows of a Dataset with ``X``, ``y`` and ``weight``, or of a DataArray X and perhaps y, as a source.

    Parameters
    ----------
    source : X has two dimensions, in any order. Samples are along the dimension of y, else the one named ``sample``,
        else the first. The coordinate of the other one gives the features their names
    y : DataArray or other labels, with a DataArray X
    weight : name of the Dataset's variable, or numbers of shape (rows,)
    label : name of the Dataset's variable; False for none
    block_bytes, options : as of `TableSource`

    Raises
    ------
    InputError
        No such variable, or shapes do not fit.
    """
    where = "the Dataset" if isinstance(source, xr.Dataset) else "the DataArray"
    if isinstance(label, int) and not isinstance(label, bool):
        raise InputError(f"{where}: label={label}; name a variable of a Dataset, or give (X, y).")
    name = "y"
    if isinstance(source, xr.Dataset):
        name = label if isinstance(label, str) else "y"
        X = _required(source, "X")
        if y is None and label is not False:
            y = _required(source, name) if isinstance(label, str) else source.get(name)
        if isinstance(weight, str | None):
            weight = source.get("weight") if weight is None else _required(source, weight)
    else:
        X = source
        if isinstance(label, str):
            raise InputError(f"{where}: label={label!r}; name a variable of a Dataset, or give (X, y).")
    y = None if label is False else y
    if X.ndim != 2:
        raise InputError(f"{where}: X must have two dimensions. Got {X.dims} instead.")
    rows, features = _dimensions(X, y)
    X = X.transpose(rows, features)
    step = block_rows(X.shape[1], "float64", block_bytes)
    data = X.data if X.chunks is not None else X.chunk({rows: step, features: -1}).data
    _check_shape(where, data)
    names = [str(each) for each in X.coords[features].values] if features in X.coords else None
    extras = tuple(each.data if isinstance(each, xr.DataArray) else each for each in (y, weight))
    if extras[1] is not None and isinstance(extras[1], str | int):
        raise InputError(f"{where}: weight={extras[1]!r}; give the weights, or a Dataset with a variable of that name.")
    columns = Columns(choose_columns(where, names, X.shape[1], False, None).names, X.shape[1], None, None)
    label_name = None if y is None else f"'{name}'" if isinstance(source, xr.Dataset) else beside_name(y)
    return TableSource(where, columns, partial(_batches, where, data, extras), size=data.nbytes,
                       label_name=label_name, block_bytes=block_bytes, **options)  # fmt: skip


def _required(dataset: xr.Dataset, name: str) -> xr.DataArray:
    if name not in dataset:
        raise InputError(f"the Dataset has no variable '{name}'; it has {', '.join(sorted(map(str, dataset)))}.")
    return dataset[name]


def _dimensions(X: xr.DataArray, y: Any) -> tuple[Any, Any]:
    """Return the names of the sample dimension and the feature dimension."""
    first, second = X.dims
    if isinstance(y, xr.DataArray) and y.ndim == 1 and y.dims[0] in X.dims:
        rows = y.dims[0]
    else:
        rows = "sample" if "sample" in X.dims else first
    return rows, second if rows == first else first


def _batches(where: str, X: Any, extras: tuple[Any, Any]) -> Iterator[Batch]:
    """Yield batches, computing one partition of X, y and weight at a time."""
    array = _is_array(X)
    parts = _aligned(where, X, extras)
    first = position = 0
    for part in zip(*parts, strict=True):
        rows, y, weight = compute(*part)
        table = ArrayTable(rows) if array else PandasTable(rows)
        labels = None if y is None else label_values(y)
        weights = None if weight is None else beside_rows(weight)
        begin = position
        position = position + _nbytes(rows)
        yield Batch(table, partial(_row, where, first), begin, position, labels, weights)
        first += table.rows


def _aligned(where: str, X: Any, extras: tuple[Any, Any]) -> list[list[Any]]:
    """Return the partitions of X, y and weight (or Nones), split at the same rows as X."""
    if _is_array(X):
        X = X.rechunk({1: -1})
    parts = [_delayed(X)]
    lengths: tuple[int, ...] | None = None
    for what, column in zip(("y", "weight"), extras, strict=True):
        if column is None:
            parts.append([None] * len(parts[0]))
            continue
        if not _fits(X, column):
            lengths = lengths or _lengths(X)
            column = _as_array(column)
            if len(column) != sum(lengths):
                raise InputError(f"{where}: {what} has {len(column)} rows where X has {sum(lengths)}.")
            column = column.rechunk({0: lengths})
        parts.append(_delayed(column))
    return parts


def _fits(X: Any, column: Any) -> bool:
    """Return whether partitions of both have the same rows. If lengths are unknown, equal counts are taken for it."""
    if not hasattr(column, "dask") or getattr(X, "npartitions", 0) != getattr(column, "npartitions", -1):
        return False
    if _is_array(X) and _is_array(column):
        known = not np.isnan([*X.chunks[0], *column.chunks[0]]).any()
        return not known or X.chunks[0] == column.chunks[0]
    return True


def _lengths(X: Any) -> tuple[int, ...]:
    """Return the number of rows of each partition."""
    if _is_array(X):
        return tuple(map(int, (X.compute_chunk_sizes() if np.isnan(X.shape).any() else X).chunks[0]))
    return tuple(map(int, X.map_partitions(len).compute()))


def _as_array(column: Any) -> da.Array:
    """Return labels or weights as a dask array of known length."""
    if _is_array(column):
        return column.compute_chunk_sizes() if np.isnan(column.shape).any() else column
    if hasattr(column, "to_dask_array"):
        column = column if isinstance(column.dtype, np.dtype) else column.astype(object)
        return column.to_dask_array(lengths=True)
    return da.from_array(label_values(column))


def _delayed(lazy: Any) -> list[Any]:
    if _is_array(lazy):  # optimising would rename what X and y share, and compute it twice
        return list(lazy.to_delayed(optimize_graph=False).reshape(-1))
    return list(lazy.to_delayed())


def _check_shape(where: str, X: Any) -> None:
    if X.ndim != 2 or np.isnan(X.shape[1]) or X.shape[1] == 0:
        raise InputError(f"{where}: rows must have two dimensions and a feature. Got shape {X.shape} instead.")


def _is_array(X: Any) -> bool:
    return isinstance(X, da.Array)


def _nbytes(rows: Any) -> int:
    if hasattr(rows, "memory_usage"):
        return int(rows.memory_usage(index=False).sum())
    return rows.shape[0] * rows.shape[1] * rows.dtype.itemsize


def _row(where: str, first: int, row: int) -> str:
    return numbered(where, first + row)
