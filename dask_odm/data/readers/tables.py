"""Tables of rows in columns, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse
from pandas.api import types

from dask_odm.data.readers.column_values import numbers_in
from dask_odm.data.readers.labels import plain_labels
from dask_odm.data.readers.sources import is_of, joined, shown
from dask_odm.errors import InputError
from dask_odm.linalg.csr_rows import sparse_rows
from dask_odm.linalg.rows import unmasked
from dask_odm.printing import quoted

_NUMBERS = frozenset({"integer", "floating", "mixed-integer-float", "decimal", "empty"})  # held as objects


class ArrayTable:
    """Rows in memory, of an array: dense, masked or sparse. Of sparse formats but canonical CSR, a copy is held.

    ``csr`` are the rows if they are sparse, else None.
    """

    def __init__(self, array: Any) -> None:
        if getattr(getattr(array, "dtype", None), "kind", "") == "O":
            frame = pd.DataFrame(array)
            if all(other_type(frame[j]) is None for j in frame):
                array = numbers_of(frame)
        self._array = sparse_rows(array)
        self.csr = self._array if scipy.sparse.issparse(self._array) else None
        self.rows = array.shape[0]

    def other_type(self, i: int) -> str | None:
        """Return the name of the type of a column that holds no numbers; None if it does, or nobody knows."""
        return None if self._array.dtype.kind in "iuf" else str(self._array.dtype)

    def numbers(self, wanted: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of numeric columns, shape (stop − start, wanted), with NaN for missing values."""
        rows = self._array[start:stop]
        whole = wanted == range(rows.shape[1])
        return dense(rows if whole else rows[:, list(wanted)])  # a few columns of sparse rows

    def labels(self, column: int) -> npt.NDArray[Any]:
        """Return a column as labels, shape (rows,)."""
        return label_values(dense(self._array[:, [column]]))

    def column(self, i: int, start: int, stop: int) -> pd.Series:
        """Return rows of a column as they are, or of text as words."""
        return pd.Series(dense(self._array[start:stop, [i]])[:, 0])


class PandasTable:
    """Rows of a frame in memory, as `ArrayTable`. The columns of ``words`` repeat one word each, or a gap."""

    csr = None

    def __init__(self, frame: pd.DataFrame, words: Mapping[int, str | None] | None = None) -> None:
        self._frame = frame
        self._words = words or {}
        self.rows = len(frame)
        dtypes = frame.dtypes.to_numpy()  # asking for each block takes as long as reading thousands of columns
        self._plain = [isinstance(dtype, np.dtype) and dtype.kind in "iuf" for dtype in dtypes]

    def other_type(self, i: int) -> str | None:
        if self._plain[i] or not self.rows:
            return None
        if i in self._words:
            return f"names of folders, such as {shown(self._words[i] or '')}"
        return other_type(self._frame.iloc[:, i])

    def numbers(self, wanted: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        part = self._frame.iloc[start:stop, list(wanted)]
        return np.asarray(part.to_numpy()) if all(self._plain[i] for i in wanted) else numbers_of(part)

    def labels(self, column: int) -> npt.NDArray[Any]:
        if column in self._words:
            return np.full(self.rows, self._words[column], dtype=object)
        return label_values(self._frame.iloc[:, column])

    def column(self, i: int, start: int, stop: int) -> pd.Series:
        if i in self._words:
            return pd.Series([self._words[i]] * (stop - start), dtype=object)
        held = self._frame.iloc[start:stop, i]
        is_number = types.is_numeric_dtype(held.dtype)
        if isinstance(held.dtype, pd.ArrowDtype) and held.dtype.kind in "OmM" and not is_number:
            return pd.Series(held.array.__arrow_array__().to_pandas(), name=held.name)
        return held


Table = ArrayTable | PandasTable


def numbers_of(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return the numbers of columns of any type that holds such, NaN for missing ones."""
    if not any(map(types.is_object_dtype, frame.dtypes)):
        return np.asarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))
    values = frame.to_numpy(dtype=object)
    values = np.where(pd.isna(values), np.nan, values)
    try:
        return values.astype(np.float64)
    except OverflowError:  # readers look for infinity
        return np.column_stack([numbers_in(frame.iloc[:, j]) for j in range(frame.shape[1])])


def other_type(column: Any) -> str | None:
    """Return the name of the type of a column that holds no numbers; None if it does.

    An object column has what its values are; without rows, nobody knows.
    """
    dtype = column.dtype
    if types.is_object_dtype(dtype):
        found = types.infer_dtype(column, skipna=True)
        return None if len(column) and found in _NUMBERS else f"object, {found}"
    is_number = types.is_numeric_dtype(dtype) and not types.is_bool_dtype(dtype) and not types.is_complex_dtype(dtype)
    return None if is_number else str(dtype)


def no_numbers(where: str, columns: Sequence[tuple[str, str | None]], way_out: str, most: int = 5) -> InputError:
    """Return the error that says which columns (name, type) hold no numbers, and ends with a ``way_out``."""
    bad = [f"{name} ({dtype})" for name, dtype in columns]
    some = [*bad[:most], *([f"{len(bad) - most} more columns"] if len(bad) > most else [])]
    return InputError(f"{where}: {joined(some)} hold{'s' * (len(bad) == 1)} no numbers; {way_out}.")


def label_among(where: str, column: str) -> str:
    """Return the message for labels that also are a ``column`` of the features, called as `column_name` does."""
    return (
        f"{where}: the labels are also a feature, {column}, which a model would copy; name that column in place of the "
        "labels, or leave it out of the rows."
    )


def is_arrow_frame(X: Any) -> bool:
    """Return whether ``X`` is known by its Arrow stream alone, as tables of pyarrow or polars are."""
    columns = is_of(X, "polars", "Series") or is_of(X, "pyarrow", "ChunkedArray")
    others = isinstance(X, pd.DataFrame | pd.Series) or hasattr(X, "dask") or is_of(X, "xarray", "Dataset", "DataArray")
    return hasattr(X, "__arrow_c_stream__") and not columns and not others


def refuse_unreadable_frame(X: Any) -> None:
    """Raise InputError for a lazy frame of polars, which has no rows yet, or one of integers that Arrow lacks."""
    if is_of(X, "polars", "LazyFrame"):
        raise InputError(
            "a LazyFrame of polars has no rows yet: pass frame.collect(), or, if these are too large for memory, write "
            "them by frame.sink_parquet('rows.parquet') and ingest this file."
        )
    if is_of(X, "polars", "DataFrame"):
        for name, dtype in X.schema.items():
            if str(dtype) in ("Int128", "UInt128"):
                raise InputError(
                    f"column {quoted(name)} ({dtype}) holds integers of 128 bits, which cannot be read; make them "
                    f"floats, as by frame.cast({{{name!r}: polars.Float64}})."
                )


def require_matrix(where: str, shape: tuple[Any, ...]) -> None:
    """Raise InputError unless ``shape`` is that of rows with a known number of features."""
    if len(shape) != 2 or np.isnan(shape[1]) or shape[1] == 0:
        raise InputError(f"{where}: rows must have two dimensions and a feature. Got shape {shape} instead.")


def dense(rows: Any) -> npt.NDArray[Any]:
    """Return rows as a plain array.

    Sparse rows are filled with zeros; masked entries become NaN (and the dtype a float).
    """
    if scipy.sparse.issparse(rows):
        return np.asarray(rows.toarray())
    return np.asarray(unmasked(rows))


def label_values(y: Any) -> npt.NDArray[Any]:
    """Return labels of any array-like as an array of shape (rows,), or (rows, targets), see `plain_labels`."""
    values = plain_labels(y.toarray() if scipy.sparse.issparse(y) else y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2):
        raise InputError(f"y has shape {values.shape}; labels must have shape (rows,), or (rows, targets).")
    return values


def weight_values(weight: Any) -> npt.NDArray[np.float64]:
    """Return weights of any array-like as float64 of shape (rows,). Missing ones are NaN."""
    try:
        if hasattr(weight, "to_numpy") and hasattr(weight, "index"):
            return np.asarray(weight.to_numpy(dtype=np.float64, na_value=np.nan))
        values = dense(weight)
        if values.dtype.kind == "O":  # NumPy makes no number of pandas.NA
            values = np.where(pd.isna(values), np.nan, values)
        return values.astype(np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InputError(f"weight must be numbers ({error}).") from error
