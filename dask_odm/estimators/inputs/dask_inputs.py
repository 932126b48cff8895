"""Inputs of Dask: arrays and frames, as arrays with equal row chunks, or read into memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, chain
from typing import Any

import numpy as np
from pandas.api.extensions import ExtensionDtype
from sklearn.utils.validation import _get_feature_names

from dask_odm.data.readers.frames import is_dask_frame
from dask_odm.data.readers.labels import labels_of
from dask_odm.data.readers.sources import is_of
from dask_odm.engine.client import active_client
from dask_odm.engine.lazy import computed_once
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.estimators.inputs.frames import dask_rows, filled, refuse_labels_among, rows_of, warn_column
from dask_odm.estimators.inputs.kind import Beside, InputKind
from dask_odm.estimators.inputs.resolved import BLOCK_BYTES, LazyArrays, LazyTable, Resolved
from dask_odm.linalg.rows import numbers_of_objects, unmasked


class DaskArray(InputKind):
    """A dask array."""

    @staticmethod
    def takes(X: Any, y: Any, model: Any) -> bool:
        return is_of(X, "dask.array", "Array")

    @staticmethod
    def rows(X: Any, beside: Beside) -> LazyArrays:
        X, y, weight, _ = beside.columns(X)
        return aligned(X, y, weight)


class DaskFrame(InputKind):
    """A dask DataFrame."""

    @staticmethod
    def takes(X: Any, y: Any, model: Any) -> bool:
        return is_dask_frame(X)

    @staticmethod
    def rows(X: Any, beside: Beside) -> Resolved:
        if beside.model is None and not isinstance(beside.y, str | int):
            refuse_labels_among(X, beside.y, beside.y)
        X, y, weight, groups = beside.columns(X)
        recipe = beside.column_recipe
        if recipe is not None:
            return replace(aligned(dask_rows(X, recipe), y, weight), column_recipe=recipe, groups=groups)
        if beside.model is None and not all(getattr(dtype, "kind", "O") in "iuf" for dtype in X.dtypes):
            return LazyTable(X, y, weight, groups)
        names = as_input_error(lambda: _get_feature_names(X._meta))
        numbers = X.columns.tolist() if names is None else None
        own = {"feature_names": names, "numbers": numbers, "groups": groups, "is_table": True}
        return replace(aligned(filled(dask_rows(X), beside.model), y, weight), **own)


def aligned(X: Any, y: Any, weight: Any) -> LazyArrays:
    """Compute unknown chunk sizes, and give all arrays the row chunks of X. Single rows are not split.

    Objects and strings become the numbers that they are, block by block. Raises InputError for other types.
    """
    if X.ndim != 2:
        raise InputError(f"X must have two dimensions. Got shape {X.shape} instead. Reshape your data.")
    rows_of(np.empty((0, 1), X.dtype))  # refuses times and complex numbers
    if X.dtype.kind in "OUST":
        X = X.map_blocks(numbers_of_objects, dtype=np.float64, meta=np.empty((0, 0)))
    elif X.dtype.kind not in "biuf":
        raise InputError(f"X must be numbers. Got dtype {X.dtype} instead.")
    if y is None and weight is None:
        return LazyArrays(X.rechunk({1: -1}), None)
    X = _known(X).rechunk({1: -1})
    weight = _beside(X, weight, "sample_weight")
    if weight is not None and weight.dtype.kind not in "biufO":
        raise InputError(f"sample_weight must be numbers. Got dtype {weight.dtype} instead.")
    return LazyArrays(X, _beside(X, y, "y"), weight)


def with_zeros(lazy: LazyArrays) -> LazyArrays:
    """Return lazy arrays with zeros for y."""
    import dask.array as da

    rows = _known(lazy.X)
    return replace(lazy, X=rows, y=da.zeros(len(rows), chunks=rows.chunks[:1]))


def _known(array: Any) -> Any:
    """Return the array with known chunk sizes, computing them if needed."""
    if not np.isnan(array.shape).any():
        return array
    active_client()  # says what to do about an asynchronous one, of which Dask only says that it is
    return array.copy().compute_chunk_sizes()


def _beside(X: Any, column: Any, name: str) -> Any:
    """Return labels or weights of any form as a dask array with the row chunks of X; None stays None."""
    import dask.array as da

    if column is None:
        return None
    if is_of(column, "xarray", "DataArray"):
        column = column.data
    if is_of(column, "dask.dataframe", "DataFrame", "Series"):
        types = column.dtypes if is_dask_frame(column) else [column.dtype]
        plain = column.astype(object) if any(isinstance(each, ExtensionDtype) for each in types) else column
        column = plain.to_dask_array()
    if is_of(column, "dask.array", "Array"):
        meta = np.empty((0,) * column.ndim, column.dtype)
        column = _known(column.map_blocks(unmasked, labels=name == "y", dtype=column.dtype, meta=meta))
    else:
        column = da.from_array(labels_of(column), chunks=-1)
    if column.ndim == 2 and column.shape[1] == 1:
        warn_column()
        column = column[:, 0]
    if column.shape[0] != len(X) or column.ndim > 1 + (name == "y"):
        raise InputError(f"{name} must have shape ({len(X)},) as X has rows. Got {column.shape} instead.")
    return column.rechunk((X.chunks[0], *column.shape[1:]))


def in_memory(lazy: LazyArrays) -> list[Any]:
    """Compute the columns of lazy arrays; workers keep their blocks until these are copied, a few at a time."""
    from dask.array.dispatch import concatenate_lookup

    parts = list(zip(*[column.to_delayed().reshape(-1) for column in lazy.columns], strict=True))
    together = max(1, BLOCK_BYTES // max(1, lazy.X.nbytes // len(parts)))
    values = computed_once(list(chain.from_iterable(parts)), together * len(lazy.columns))
    blocks: list[list[Any]] = [[] for _ in lazy.columns]
    rows: Any = None  # of all blocks, if these are plain arrays
    for first in accumulate(lazy.X.chunks[0][:-1], initial=0):
        for column in blocks:
            column.append(next(values))
        if first == 0 and type(blocks[0][0]) is np.ndarray:
            own = blocks[0][0].dtype
            rows = np.empty(lazy.X.shape, np.result_type(own, lazy.dtype) if own.kind in "biuf" else own)
        if rows is not None:
            X = blocks[0].pop()
            if type(X) is np.ndarray:
                with np.errstate(all="ignore"):  # rows to come are any bytes yet
                    rows = rows.astype(np.result_type(rows, X), copy=False)
                rows[first : first + len(X)] = X
            else:
                blocks[0], rows = [rows[:first], X], None
    joined = [concatenate_lookup.dispatch(type(max(each, key=_priority)))(each) for each in blocks if each]
    return joined if rows is None else [rows, *joined]


def _priority(block: Any) -> float:
    """Return NumPy's priority of a block's type, which is that of blocks of several types."""
    return float(getattr(block, "__array_priority__", 0.0))
