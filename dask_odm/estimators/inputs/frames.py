"""Rows and labels of pandas and dask frames and series, with numeric columns and their names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types
from sklearn.exceptions import DataConversionWarning

from dask_odm.data.readers.sources import LABEL_NAMES, is_of
from dask_odm.data.readers.tables import pandas_kind, refuse_kinds
from dask_odm.errors import InputError
from dask_odm.linalg.csr_rows import sparse_rows
from dask_odm.typing import Array

_NUMBERS = frozenset({"integer", "floating", "mixed-integer-float", "decimal", "empty"})
_PLAIN = frozenset({"integer", "floating", "boolean"})  # types of labels that need no object dtype


def is_dask_frame(X: Any) -> bool:
    """Return whether ``X`` is a dask DataFrame."""
    return is_of(X, "dask.dataframe", "DataFrame")


def is_frame(X: Any) -> bool:
    """Return whether ``X`` is a pandas or dask DataFrame."""
    return isinstance(X, pd.DataFrame) or is_dask_frame(X)


def rows_of(X: Any, known: Sequence[str] = ()) -> Any:
    """Return a frame with numeric columns, sparse rows as a canonical CSR array, or rows of another kind as they are.

    Raises InputError for columns without numbers, and for sparse rows with entries beyond their shape. The names of the
    features of a model, ``known``, tell which columns to encode for it, and which to leave out.
    """
    if not isinstance(X, pd.DataFrame):
        return sparse_rows(X)
    _require_numbers(X, known)
    return X.astype(np.float64) if any(map(types.is_object_dtype, X.dtypes)) else X


def labels_of(y: Any) -> Array | None:
    """Return labels in memory as an ndarray, of dtype object only if they need it; None stays None."""
    if y is None:
        return None
    if isinstance(y, pd.Series) and isinstance(y.dtype, pd.api.extensions.ExtensionDtype):
        y = y.to_numpy(dtype=object)
    values = np.asarray(y)
    if values.dtype.kind == "O" and types.infer_dtype(values.reshape(-1), skipna=False) in _PLAIN:
        return np.array(values.tolist())
    return values


def require_labels(y: Array | None) -> None:
    """Raise InputError if labels are missing: NaN, None or NA."""
    if y is None or y.dtype.kind not in "OfcmM":
        return
    missing = pd.isna(y)
    if missing.any():
        row = int(np.argmax(missing.reshape(len(missing), -1).any(axis=1)))
        count = int(missing.sum())
        raise InputError(
            f"y holds missing labels (NaN or None) in {count} row{'s' if count > 1 else ''}, first in row {row}; drop "
            "these rows."
        )


def refuse_labels_inside(X: Any) -> None:
    """Raise InputError if a frame without y has a column named like labels, or just one column without numbers."""
    if not is_frame(X):
        return
    named = [name for name in X.columns if isinstance(name, str) and name.lower() in LABEL_NAMES]
    meta = X if isinstance(X, pd.DataFrame) else X._meta
    likely = named or [meta.columns[j] for j in _without_numbers(meta)]
    if named or len(likely) == 1:
        name = likely[0]
        raise InputError(
            f"y is missing. Did you mean fit(frame, {name!r}), or fit(frame.drop(columns={name!r}), frame[{name!r}])?"
        )


def column_by_name(X: Any, name: str, what: str) -> tuple[Any, Any]:
    """Split the column ``name`` off the frame ``X``; raise InputError unless there is just one."""
    if not is_frame(X):
        raise InputError(
            f"{what} may name a column of a frame, but X is {type(X).__name__}. Got {what}={name!r}; pass the values."
        )
    found = list(X.columns).count(name)
    if found != 1:
        columns = ", ".join(map(repr, X.columns[:8])) + (" …" if len(X.columns) > 8 else "")
        many = "has no column" if not found else f"has {found} columns"
        raise InputError(f"X {many} {name!r}, which {what} names. Its columns are {columns}.")
    return X.drop(columns=name), X[name]


def dask_rows(frame: Any, known: Sequence[str] = ()) -> Any:
    """Return a dask DataFrame of numbers as a dask array of floats, with chunk sizes if the frame knows them.

    ``known`` are as in `rows_of`.
    """
    _require_numbers(frame._meta, known)
    single = all(dtype == np.float32 for dtype in frame.dtypes)
    return frame.astype(np.float32 if single else np.float64).to_dask_array(lengths=_known_lengths(frame))


def _known_lengths(frame: Any) -> list[int] | None:
    """Return the rows of every partition of a dask DataFrame if it was made of rows in memory, without computing any.

    Dask has no public way to ask. If the private one fails, lengths are unknown: None.
    """
    with suppress(ImportError, AttributeError, TypeError, ValueError):
        from dask.dataframe.dask_expr._expr import Lengths, Literal
        from dask.dataframe.dask_expr.io import FromPandas

        if all(isinstance(each, FromPandas) for each in frame.expr.walk() if not each.dependencies()):
            found = Lengths(frame.expr).optimize(fuse=False)
            return list(found.value) if isinstance(found, Literal) else None
    return None


def dask_labels(y: Any) -> Any:
    """Return a dask Series, or a frame of one column, as a dask array of plain values with unknown chunk sizes."""
    if is_dask_frame(y):
        if y.shape[1] != 1:
            raise InputError(f"y should be a 1d array. Got a frame of {y.shape[1]} columns instead.")
        warn_column()
        y = y[y.columns[0]]
    if isinstance(y.dtype, pd.api.extensions.ExtensionDtype):
        y = y.astype(object)
    return y.to_dask_array()


def warn_column() -> None:
    """Warn, as scikit-learn does, that a column was taken for a vector."""
    warnings.warn(
        "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples, ), "
        "for example using ravel().",
        DataConversionWarning,
        stacklevel=4,
    )


def _require_numbers(frame: pd.DataFrame, known: Sequence[str] = ()) -> None:
    """Raise InputError, as `ingest` does, for columns without numbers."""
    kinds = []
    for j in _without_numbers(frame):
        name = frame.columns[j]
        kind, dtype = pandas_kind(frame.iloc[:, j])
        if len(known) and name not in known:
            kind = "feature" if any(each.startswith(f"{name}_") for each in known) else "stranger"
        kinds.append((f"column {name!r}", kind, dtype))
    refuse_kinds("X", kinds, otherwise="")


def _without_numbers(frame: pd.DataFrame) -> list[int]:
    """Return the places of the columns without numbers. Numbers in object columns are accepted."""
    return [j for j in range(frame.shape[1]) if not _are_numbers(frame.iloc[:, j])]


def _are_numbers(column: pd.Series[Any]) -> bool:
    if not types.is_object_dtype(column.dtype):
        return column.dtype.kind in "iuf"
    return len(column) > 0 and types.infer_dtype(column, skipna=True) in _NUMBERS
