"""Sources of dask and zarr arrays, dask frames and xarray objects. One partition is computed at a time.

The active Dask client computes them, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
import zarr

from dask_odm.data.cubes.tables import oriented, sample_dimension
from dask_odm.data.readers.sources import Reading, computed
from dask_odm.data.readers.table_source import Batch, TableSource, table_of
from dask_odm.data.readers.tables import ArrayTable, PandasTable, Table, label_values, require_matrix, weight_values
from dask_odm.errors import InputError


def lazy_source(
    X: Any,
    y: Any,
    reading: Reading,
    *,
    where: str | None = None,
    names: Sequence[str] | None = None,
    label_name: str | None = None,
    labels: str | None = None,
) -> TableSource:
    """Return the rows of a dask array (with the ``names`` of its columns), a zarr array or a dask frame as a source.

    Lengths of partitions need not be known. Labels ``y`` and weights may be lazy or in memory, and ``labels`` is the
    name of ``y``, if that has lost it.
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
    batches = partial(_batches, where, X)
    return table_of(
        where, names, X.shape[1], batches, y, reading, guess=False, label_name=label_name, size=size, labels=labels
    )


def xarray_source(source: xr.Dataset | xr.DataArray, y: Any, reading: Reading) -> TableSource:
    """Return the rows of a Dataset with ``X``, ``y`` and ``weight``, or of a DataArray X and perhaps y, as a source.

    X has two dimensions, in any order, see `sample_dimension`; the coordinate of the one of the features names them.
    Label and weight may name variables of a Dataset.
    """
    where = f"the {type(source).__name__}"
    label = reading.label
    weight = reading.weight
    is_set = isinstance(source, xr.Dataset)
    if isinstance(label, int | list | tuple if is_set else int | str | list | tuple) and not isinstance(label, bool):
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
    y = None if label is False else y
    labels = getattr(y, "name", None)
    label_name = f"'{name}'" if is_set and y is not None else None
    try:
        X, y, weight = oriented(X, y, weight, sample_dimension(X, y, weight))
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    rows, features = X.dims
    data = X.data if X.chunks is not None else X.chunk({rows: reading.block_rows(X.shape[1]), features: -1}).data
    names = [str(each) for each in X.coords[features].values] if features in X.coords else None
    reading = replace(reading, label=None, weight=weight)
    return lazy_source(data, y, reading, where=where, names=names, label_name=label_name, labels=labels)


def _variable(dataset: xr.Dataset, name: str, *, required: bool) -> Any:
    if name not in dataset and required:
        raise InputError(f"the Dataset has no variable '{name}'; it has {', '.join(sorted(map(str, dataset)))}.")
    return dataset.get(name)


def _batches(where: str, X: Any, y: Any, weight: Any) -> Iterator[Batch]:
    """Yield batches, computing one partition of X at a time, and with it those of y and weight that have its rows."""
    first = 0
    end = 0
    columns = {"y": _Column(y, label_values), "weight": _Column(weight, weight_values)}
    parts = _delayed(X)
    for i, part in enumerate(parts):
        rows, *found = computed(part, *(column.ahead() for column in columns.values()))
        for column, values in zip(columns.values(), found, strict=True):
            column.add(values)
        if isinstance(X, da.Array):
            table: Table = ArrayTable(rows)
            end += rows.shape[0] * rows.shape[1] * rows.dtype.itemsize
        else:
            table = PandasTable(rows)
            end += int(rows.memory_usage(index=False).sum())
        labels, weights = (column.take(table.rows) for column in columns.values())
        first += table.rows
        if any(each is not None and len(each) < table.rows for each in (labels, weights)):
            first += sum(computed(each)[0].shape[0] for each in parts[i + 1 :])
            break
        yield Batch(table, where, end, first - table.rows, labels, weights)
    for what, column in columns.items():
        column.require(where, what, first)


class _Column:
    """Labels or weights beside lazy rows, which may be cut at other rows: each partition is computed in its turn.

    ``values`` are in memory, or of Dask, or None.
    """

    def __init__(self, values: Any, plain: Callable[[Any], npt.NDArray[Any]]) -> None:
        self._exists = values is not None
        self._parts = _delayed(values) if hasattr(values, "dask") else [values][: self._exists]
        self._plain = plain
        self._held: list[npt.NDArray[Any]] = []
        self._count = 0  # of rows that are held
        self._taken = 0

    def ahead(self) -> Any:
        """Return the next partition if no rows are held, to be computed beside those of X; None if some are."""
        return self._parts.pop(0) if self._parts and not self._count else None

    def add(self, part: Any) -> None:
        """Hold a computed partition."""
        if part is not None:
            self._held.append(self._plain(part))
            self._count += len(self._held[-1])

    def take(self, rows: int) -> npt.NDArray[Any] | None:
        """Return the next ``rows`` rows, or all that are left."""
        if not self._exists:
            return None
        while self._count < rows and self._parts:
            self.add(computed(self._parts.pop(0))[0])
        held = self._held if len(self._held) == 1 else [_joined(self._held)]
        self._held = [held[0][rows:]]
        self._count = len(self._held[0])
        self._taken += min(rows, len(held[0]))
        return held[0][:rows]

    def require(self, where: str, what: str, rows: int) -> None:
        """Raise InputError unless ``rows`` rows were taken and none is left."""
        if self._exists:
            left = self._count + sum(len(computed(part)[0]) for part in self._parts)
            if left or self._taken != rows:
                raise InputError(f"{where}: {what} has {self._taken + left} rows where X has {rows}.")


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return arrays as one; numbers of different types become objects, since large ones would lose digits."""
    if not parts:
        return np.empty(0)
    same = len({part.dtype for part in parts if len(part)}) < 2
    return np.concatenate(parts if same else [part.astype(object) for part in parts])


def _delayed(lazy: Any) -> list[Any]:
    if isinstance(lazy, da.Array):  # optimising would rename what X and y share, and compute it twice
        whole = lazy.rechunk(dict.fromkeys(range(1, lazy.ndim), -1))
        return list(whole.to_delayed(optimize_graph=False).reshape(-1))
    return list(lazy.to_delayed())
