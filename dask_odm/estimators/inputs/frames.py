"""Rows and labels of frames and series of pandas, Dask, polars and Arrow, with numeric columns and their names."""

from __future__ import annotations

import warnings
from contextlib import suppress
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types
from sklearn.exceptions import DataConversionWarning

from dask_odm.data.readers import tables
from dask_odm.data.readers.frames import is_dask_frame, is_frame, rows_by, without_numbers
from dask_odm.data.readers.labels import are_same, plain_labels
from dask_odm.data.readers.sources import LABEL_NAMES
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.errors import InputError
from dask_odm.linalg.csr_rows import sparse_rows
from dask_odm.linalg.rows import unmasked
from dask_odm.printing import quoted
from dask_odm.typing import Array


def rows_of(X: Any) -> Any:
    """Return a frame with numeric columns, a canonical CSR array, an array without a mask, or other rows as they are.

    Raises InputError for columns without numbers, and for sparse rows with entries beyond their shape.
    """
    if not isinstance(X, pd.DataFrame):
        X = sparse_rows(unmasked(X))
        kind = X.dtype.kind if isinstance(X, np.ndarray) else ""
        if kind in ("m", "M"):  # scikit-learn would take ticks of their unit, and a missing one for a large number
            raise InputError(f"X must be numbers. Got {X.dtype} instead; pass a frame, whose columns may hold dates.")
        if kind == "c":  # scikit-learn would show the array
            raise InputError(f"Complex data not supported: X must be real numbers. Got {X.dtype} instead.")
        return np.where(pd.isna(X), np.nan, X) if kind == "O" else X  # NumPy makes no number of pandas.NA
    if not X.size:
        return np.empty(X.shape)  # of which scikit-learn says what is wrong
    require_numbers(X)
    if all(isinstance(dtype, pd.SparseDtype) and dtype.fill_value != 0 for dtype in X.dtypes):
        return X.sparse.to_dense()  # of which scikit-learn makes no sparse rows
    if not any(map(types.is_object_dtype, X.dtypes)):
        return X
    return pd.DataFrame(tables.numbers_of(X), X.index, X.columns)


def medians_of(X: Array, rows: int = 1 << 15) -> Array:
    """Return the lower median of each column of X (n, d), of up to twice as many ``rows``, evenly spaced; float64."""
    some = X[:: max(1, len(X) // rows)]
    middle = (len(some) - 1) // 2
    return np.array([np.partition(column, middle)[middle] for column in some.T], np.float64)


def filled(X: Any, model: Any) -> Any:
    """Return rows of a frame (n, d), of NumPy or Dask, whose gaps are the medians of a fitted estimator that has them.

    Others stay, and so do rows of another number of columns.
    """
    medians = None if model is None else model._schema.medians
    if medians is None or X.shape[1] != len(medians):
        return X
    gaps = np.isnan(X)
    return np.where(gaps, medians.astype(X.dtype), X) if not isinstance(X, np.ndarray) or gaps.any() else X


def weights_of(weight: Any) -> Any:
    """Return row weights without a mask; what is missing, also among objects, is NaN."""
    weight = unmasked(weight)
    return real_targets(weight) if getattr(getattr(weight, "dtype", None), "kind", None) == "O" else weight


def real_targets(y: Any) -> Array:
    """Return real targets of any array-like as float64; missing ones are NaN."""
    values = plain_labels(y)
    return np.where(pd.isna(values), np.nan, values).astype(np.float64)


def require_labels(y: Array | None) -> None:
    """Raise InputError if labels are missing, NaN, None or NA, or infinite."""
    if y is None or y.dtype.kind not in "OfcmM":
        return
    infinite = np.isinf(y) if y.dtype.kind == "f" else np.zeros(y.shape, bool)
    for what, bad in (("missing labels (NaN or None)", pd.isna(y)), ("infinity", infinite)):
        if bad.any():
            row = int(np.argmax(bad.reshape(len(bad), -1).any(axis=1)))
            count = int(bad.sum())
            raise InputError(
                f"y holds {what} in {count} row{'s' if count > 1 else ''}, first in row {row}; drop these rows of X "
                "and y."
            )


def refuse_labels_inside(X: Any, frame: str = "frame") -> None:
    """Raise InputError if a frame without y has a column named like labels, or just one column without numbers.

    The message calls it ``frame``.
    """
    if not is_frame(X):
        return
    named = [name for name in X.columns if isinstance(name, str) and name.lower() in LABEL_NAMES]
    meta = X if isinstance(X, pd.DataFrame) else X._meta
    likely = named or [meta.columns[j] for j in without_numbers(meta)]
    if named or len(likely) == 1:
        name = likely[0]
        raise InputError(
            f"y is missing. Did you mean fit(frame, {name!r}), or fit({frame}.drop(columns={name!r}), frame[{name!r}])?"
        )


def labels_by_name(X: Any, y: Any) -> tuple[Any, Any]:
    """Split ``y`` off the frame ``X`` if it is a column's name or number, see `column_by_name`, or a list of names."""
    if isinstance(y, list) and is_frame(X) and len({*map(str, y)} & {*X.columns}) == len(y) > 0:
        if len(y) > 1:
            return X.drop(columns=y), X[y]
        y = y[0]
    if isinstance(y, str) or (isinstance(y, Integral) and not isinstance(y, bool) and is_frame(X)):
        return column_by_name(X, y if isinstance(y, str) else int(y), "y")
    return X, y


def column_by_name(X: Any, name: str | int, what: str) -> tuple[Any, Any]:
    """Split the column ``name`` off the frame ``X``; raise InputError unless there is just one.

    A number that is no name is the column's place, as in `ingest`.
    """
    if not is_frame(X):
        raise InputError(
            f"{what} may name a column of a frame, but X is {type(X).__name__}. Got {what}={name!r}; pass the values."
        )
    names = list(X.columns)
    if isinstance(name, int) and name not in names and -len(names) <= name < len(names):
        name = names[name]
    found = names.count(name)
    if found != 1:
        columns = ", ".join(map(repr, X.columns[:8])) + (" …" if len(X.columns) > 8 else "")
        many = "has no column" if not found else f"has {found} columns"
        raise InputError(f"X {many} {name!r}, which {what} names. Its columns are {columns}.")
    return X.drop(columns=name), X[name]


def refuse_labels_among(X: Any, y: Any, given: Any) -> None:
    """Raise InputError if a frame ``X`` has a column with the values of the labels ``y``, and the name of those given.

    Those are a Series, a frame of one column, or a DataArray.
    """
    name = given.columns[0] if is_frame(given) and len(given.columns) == 1 else getattr(given, "name", None)
    if name is None or not is_frame(X) or list(X.columns).count(name) != 1:
        return
    if is_dask_frame(X):
        same = getattr(y, "_name", None) in (X[name]._name, X[[name]]._name)  # by what they are made of
    else:
        labels = plain_labels(y)
        labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        same = labels.ndim == 1 and len(X) > 0 and are_same(plain_labels(X[name]), labels)
    if same:
        raise InputError(tables.label_among("X", f"column {quoted(name)}"))


def dask_rows(frame: Any, recipe: ColumnRecipe | None = None) -> Any:
    """Return a dask DataFrame as a dask array of floats, with chunk sizes if the frame knows them.

    Its columns are numbers, unless a recipe makes features of them.
    """
    if recipe is not None:
        meta = pd.DataFrame(np.empty((0, recipe.n_features), recipe.dtype))
        rows_by(frame._meta, recipe)  # says now which columns are missing
        where = "in a block of rows, X"
        encoded = frame.map_partitions(lambda part: pd.DataFrame(rows_by(part, recipe, where)), meta=meta)
        return encoded.to_dask_array(lengths=_known_lengths(frame))
    require_numbers(frame._meta)
    single = all(dtype == np.float32 for dtype in frame.dtypes)
    return frame.astype(np.float32 if single else np.float64).to_dask_array(lengths=_known_lengths(frame))


def _known_lengths(frame: Any) -> list[int] | None:
    """Return the rows of every partition of a dask DataFrame if it was made of rows in memory, without computing any.

    Dask has no public way to ask. If the private one fails, lengths are unknown: None. It is wrong for some partitions
    of a frame.
    """
    with suppress(ImportError, AttributeError, TypeError, ValueError):
        from dask.dataframe.dask_expr._expr import Lengths, Literal, Partitions
        from dask.dataframe.dask_expr.io import FromPandas

        steps = list(frame.expr.walk())
        if any(isinstance(each, Partitions) for each in steps):
            return None
        if all(isinstance(each, FromPandas) for each in steps if not each.dependencies()):
            found = Lengths(frame.expr).optimize(fuse=False)
            return list(found.value) if isinstance(found, Literal) else None
    return None


def warn_column() -> None:
    """Warn, as scikit-learn does, that a column was taken for a vector."""
    warnings.warn(
        "A column-vector y was passed when a 1d array was expected. Please change the shape of y to (n_samples, ), "
        "for example using ravel().",
        DataConversionWarning,
        stacklevel=4,
    )


def require_numbers(frame: pd.DataFrame) -> None:
    """Raise InputError for columns without numbers."""
    names = frame.columns.tolist()
    others = [(f"column {quoted(names[j])}", tables.other_type(frame.iloc[:, j])) for j in without_numbers(frame)]
    if others:
        way_out = "give numbers, leave out what is no feature of it, or fit it to a table with such columns"
        raise tables.no_numbers("X", others, f"the model learned from numbers: {way_out}")
