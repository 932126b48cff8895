"""Tables of rows in columns, in memory.

Columns without numbers (strings, categories, booleans, dates) are refused, with a hint on how to encode them. Which
encoding is right is a decision about the data, not about their format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse
from pandas.api import types

from dask_odm.data.readers.labels import plain_labels
from dask_odm.data.readers.sources import (
    Columns,
    is_of,
    joined,
)
from dask_odm.errors import InputError
from dask_odm.linalg.csr_rows import sparse_rows
from dask_odm.linalg.rows import unmasked
from dask_odm.printing import quoted

# how columns of a kind become numbers, or are left out
_HINTS = {
    "string": "leave labels out, as by {frame}.drop(columns=[{names}]), and encode features that are strings or "
    "categories, as by {encode}, columns=[{names}], dtype=float)",
    "boolean": "make booleans 0 and 1, as by {frame}.astype(dict.fromkeys([{names}], 'Float32'))",  # knows NA
    "date": "make dates numbers, as by ({library}.to_datetime({frame}[{first}], utc=True) - pandas.Timestamp('2000', "
    "tz='UTC')) / pandas.Timedelta('1D')",
    "span": "make time spans numbers, as by {library}.to_timedelta({frame}[{first}]) / pandas.Timedelta('1D')",
    "time": "make times of day numbers, as by {library}.to_timedelta({frame}[{first}].astype(str)"
    ".str.replace('[+-].*', '', regex=True), errors='coerce') / pandas.Timedelta('1D')",  # without the zone
    "feature": "encode strings and categories as for the fit, as by {encode}, columns=[{names}], dtype=float)",
    "learned": "make them numbers, as those that were learned, as by {frame}.astype(dict.fromkeys([{names}], float))",
    "stranger": "leave out what is no feature of the model, as by {frame}.drop(columns=[{names}])",
    "other": "convert other types to numbers, or leave them out, as by {frame}.drop(columns=[{names}])",
}
# by the library of a frame, how a call begins that encodes its words; Dask's has to know all of them
_ENCODE = {
    "pandas": "pandas.get_dummies(frame",
    "dask": "dask.dataframe.get_dummies(frame.categorize(columns=[{names}])",
    "arrow": "pandas.get_dummies(frame.to_pandas()",
}
_NUMBERS = frozenset({"integer", "floating", "mixed-integer-float", "decimal", "empty"})  # held as objects


class Table(Protocol):
    """Some rows of a table in memory."""

    rows: int
    csr: Any  # the rows if they are sparse, else None

    def require_numbers(self, where: str, columns: Columns, wanted: Sequence[int]) -> None:
        """Raise InputError, with ``where`` and a hint, if a wanted column has no numbers."""

    def numbers(self, wanted: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of numeric columns, shape (stop − start, wanted), with NaN for missing values."""

    def labels(self, column: int) -> npt.NDArray[Any]:
        """Return a column as labels, shape (rows,)."""

    def column(self, i: int, start: int, stop: int) -> pd.Series:
        """Return rows of a column as they are, or of text as words."""


class ArrayTable:
    """`Table` of an array in memory: dense, masked or sparse. Of sparse formats but canonical CSR, a copy is held."""

    def __init__(self, array: Any) -> None:
        if getattr(getattr(array, "dtype", None), "kind", "") == "O":
            frame = pd.DataFrame(array)
            if all(pandas_kind(frame[j])[0] == "number" for j in frame):
                array = numbers_of(frame)
        self._array = sparse_rows(array)
        self.csr = self._array if scipy.sparse.issparse(self._array) else None
        self.rows = array.shape[0]

    def require_numbers(self, where: str, columns: Columns, wanted: Sequence[int]) -> None:
        dtype = self._array.dtype
        if dtype.kind not in "iuf":
            hint = "convert it with astype(float), or encode text as numbers"
            raise InputError(f"{where}: features must be integers or floats. Got {dtype} instead; {hint}.")

    def numbers(self, wanted: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        rows = self._array[start:stop]
        whole = wanted == range(rows.shape[1])
        return dense(rows if whole else rows[:, list(wanted)])  # a few columns of sparse rows

    def labels(self, column: int) -> npt.NDArray[Any]:
        return label_values(dense(self._array[:, [column]]))

    def column(self, i: int, start: int, stop: int) -> pd.Series:
        return pd.Series(dense(self._array[start:stop, [i]])[:, 0])


class PandasTable:
    """`Table` of a pandas frame, or of a partition of a frame of another ``library``."""

    csr = None

    def __init__(self, frame: pd.DataFrame, library: str = "pandas") -> None:
        self._frame = frame
        self._library = library
        self.rows = len(frame)
        dtypes = frame.dtypes.to_numpy()  # asking for each block takes as long as reading thousands of columns
        self._plain = [isinstance(dtype, np.dtype) and dtype.kind in "iuf" for dtype in dtypes]

    def require_numbers(self, where: str, columns: Columns, wanted: Sequence[int]) -> None:
        held = [i for i in wanted if self.rows and not self._plain[i]]
        names = self._frame.columns.tolist() if held else []
        kinds = [(f"column {quoted(names[i])}", *pandas_kind(self._frame.iloc[:, i])) for i in held]
        refuse_kinds(where, kinds, columns.other_label, library=self._library)

    def numbers(self, wanted: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        part = self._frame.iloc[start:stop, list(wanted)]
        return np.asarray(part.to_numpy()) if all(self._plain[i] for i in wanted) else numbers_of(part)

    def labels(self, column: int) -> npt.NDArray[Any]:
        return label_values(self._frame.iloc[:, column])

    def column(self, i: int, start: int, stop: int) -> pd.Series:
        held = self._frame.iloc[start:stop, i]
        if isinstance(held.dtype, pd.ArrowDtype) and not types.is_numeric_dtype(held.dtype):
            return pd.Series(held.array.__arrow_array__().to_pandas(), name=held.name)  # as the files of Arrow have it
        return held


def numbers_of(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Return the numbers of columns of any type that holds such, NaN for missing ones."""
    if not any(map(types.is_object_dtype, frame.dtypes)):
        return np.asarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))
    values = frame.to_numpy(dtype=object)
    values = np.where(pd.isna(values), np.nan, values)
    try:
        return values.astype(np.float64)
    except OverflowError:  # readers look for infinity
        return np.frompyfunc(_float, 1, 1)(values).astype(np.float64)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def pandas_kind(column: Any) -> tuple[str, str]:
    """Return the kind of a column (``number``, string, boolean, date, span, time or other), and the name of its type.

    An object column has what its values are; without rows, nobody knows.
    """
    dtype = column.dtype
    if types.is_object_dtype(dtype):
        found = types.infer_dtype(column, skipna=True)
        known = {each: each for each in ("string", "boolean", "date", "time")}
        known |= {"datetime": "date", "datetime64": "date", "timedelta": "span", "timedelta64": "span"}
        if len(column):
            known |= dict.fromkeys(_NUMBERS, "number")
        return known.get(found, "other"), f"object, {found}"
    kind = "other"
    if types.is_bool_dtype(dtype):
        kind = "boolean"
    elif types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        kind = "number"
    elif types.is_datetime64_any_dtype(dtype):
        kind = "date"
    elif types.is_timedelta64_dtype(dtype):
        kind = "span"
    elif isinstance(dtype, pd.CategoricalDtype) or types.is_string_dtype(dtype):
        kind = "string"
    return kind, str(dtype)


def refuse_kinds(
    where: str,
    columns: Sequence[tuple[str, str, str]],
    otherwise: str,
    most: int = 5,
    library: str = "pandas",
) -> None:
    """Raise InputError if columns (name, kind, type) have no numbers, and say which, and how to encode them.

    ``library`` is that of the frame: pandas, dask or arrow.
    """
    bad = [each for each in columns if each[1] != "number"]
    if not bad:
        return
    shown = [f"{name} ({dtype})" for name, _, dtype in bad[:most]]
    if len(bad) > most:
        shown.append(f"{len(bad) - most} more columns")
    hints = []
    for kind, hint in _HINTS.items():
        names = [name.removeprefix("column ") for name, other, _ in bad if other == kind]
        if names:
            held = ", ".join(names[:most])
            encode = _ENCODE[library].format(names=held)
            frame = "frame.to_pandas()" if library == "arrow" else "frame"
            module = "dask.dataframe" if library == "dask" else "pandas"
            hints.append(hint.format(names=held, first=names[0], encode=encode, frame=frame, library=module))
    many = "hold" if len(bad) > 1 else "holds"
    raise InputError(f"{where}: {joined(shown)} {many} no numbers; {'; '.join(hints)}{otherwise}.")


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
    """Return labels of any array-like as an array of shape (rows,), see `plain_labels`."""
    values = plain_labels(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(f"y has shape {values.shape}; labels must have shape (rows,).")
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
