"""Tables in columns: pandas frames, and the source that turns batches of any table into blocks of rows.

Columns without numbers (strings, categories, booleans, dates) are refused, with a hint on how to encode them. Which
encoding is right is a decision about the data, not about their format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dask_odm.data.readers.columns import Columns, choose_columns
from dask_odm.data.readers.missing import CompleteRows, MissingValuesError
from dask_odm.data.readers.sources import (
    Source,
    SourceBlock,
    block_rows,
    check_count,
    check_finite,
    check_weight,
    joined,
    narrow,
)
from dask_odm.errors import InputError

_SHOWN_COLUMNS = 5
_OTHERWISE = "; or name the label by label= (--label)"
_KINDS = ("string", "boolean", "date", "other")


class Table(Protocol):
    """Some rows of a table in memory."""

    rows: int

    def kind(self, column: int) -> tuple[str, str]:
        """Return what a column has (``number``, string, boolean, date or other), and the name of its type."""

    def numbers(self, columns: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of numeric columns, shape (stop − start, columns), with NaN for missing values."""

    def labels(self, column: int) -> npt.NDArray[Any]:
        """Return a column as labels, shape (rows,); raise NotImplementedError if its type has none."""


@dataclass(frozen=True)
class Batch:
    """Rows of a table that are in memory together.

    Parameters
    ----------
    table : the rows
    place : returns the place of row ``i`` of the table in words
    begin, end : bytes of the source read before the batch, and including it
    y, weight : shape (rows,), if they are not columns of the table
    """

    table: Table
    place: Callable[[int], str]
    begin: int
    end: int
    y: npt.NDArray[Any] | None = None
    weight: npt.NDArray[Any] | None = None


class TableSource(Source):
    """Rows of tables that come batch by batch.

    Parameters
    ----------
    description : file or object, for messages
    columns : the roles of the columns
    batches : yields the rows, in order
    size : bytes, in the unit of the batches; 0 if unknown
    label_name : name of the labels if they are not a column
    n_features : only checked
    dtype : ``float32`` or ``float64``
    block_bytes : bytes of rows held at a time, besides the batch itself
    """

    def __init__(
        self,
        description: str,
        columns: Columns,
        batches: Callable[[], Iterator[Batch]],
        *,
        size: int = 0,
        label_name: str | None = None,
        n_features: int | None = None,
        dtype: str = "float32",
        block_bytes: int,
    ) -> None:
        self.description = description
        self.size = size
        self._columns = columns
        self._batches = batches
        self._dtype = dtype
        self._block_bytes = block_bytes
        self.n_features = len(columns.features)
        self.feature_names = columns.feature_names
        self.label_name = columns.label_name or label_name
        self.label_is_guessed = columns.guessed
        check_count(description, self.n_features, n_features)

    def blocks(self) -> Iterator[SourceBlock]:
        """Yield the rows."""
        columns = self._columns
        for batch in self._batches():
            self._check(batch)
            y = batch.y if columns.label is None else self._labels(batch, columns.label)
            weight = batch.weight
            if columns.weight is not None:
                weight = batch.table.numbers([columns.weight], 0, batch.table.rows)[:, 0]
            weight = None if weight is None else np.asarray(weight, dtype=np.float64).reshape(-1)
            yield from self._cut(replace(batch, y=y, weight=weight))

    def _labels(self, batch: Batch, column: int) -> npt.NDArray[Any]:
        """Return the label column of a batch; raise InputError if its type cannot be labels."""
        try:
            return batch.table.labels(column)
        except NotImplementedError:
            name = self._columns.name(column)
            raise InputError(
                f"{self._where(batch)}: {name} ({batch.table.kind(column)[1]}) holds no labels, which are numbers, "
                "strings or booleans; choose another column with label= (--label), or make strings of this one first."
            ) from None

    def _where(self, batch: Batch) -> str:
        """Return the name of a batch's file or object, for messages."""
        return self.description if batch.table.rows == 0 else batch.place(0).rpartition(", ")[0]

    def _cut(self, batch: Batch) -> Iterator[SourceBlock]:
        table = batch.table
        features = self._columns.features
        step = block_rows(len(features), "float64", self._block_bytes)
        for start in range(0, table.rows, step):
            stop = min(start + step, table.rows)
            place = partial(_place, batch.place, start)
            numbers = table.numbers(features, start, stop)
            X = narrow(numbers, self._dtype)
            check_finite(X, numbers, place, self.feature_names)
            y, weight = (None if each is None else each[start:stop] for each in (batch.y, batch.weight))
            if weight is not None:
                check_weight(weight, place)
            position = batch.begin + (batch.end - batch.begin) * stop // table.rows
            yield SourceBlock(X, y, weight, place, position)

    def _check(self, batch: Batch) -> None:
        """Raise InputError if a batch is not rows of numbers."""
        columns = self._columns
        table = batch.table
        wanted = columns.features + ([] if columns.weight is None else [columns.weight])
        kinds = [(columns.name(i), *table.kind(i)) for i in wanted]
        where = self._where(batch)
        refuse_kinds(where, kinds)
        for what, column in (("y", batch.y), ("weight", batch.weight)):
            if column is not None and len(column) != table.rows:
                raise InputError(f"{where}: {what} has {len(column)} rows where X has {table.rows}.")


class PandasTable:
    """Rows of a pandas frame."""

    def __init__(self, frame: Any) -> None:
        self._frame, self.rows = frame, len(frame)

    def kind(self, column: int) -> tuple[str, str]:
        """See `Table`."""
        return _pandas_kind(self._frame.iloc[:, column])

    def numbers(self, columns: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        """See `Table`."""
        part = self._frame.iloc[start:stop, list(columns)]
        if all(isinstance(dtype, np.dtype) for dtype in part.dtypes):
            return np.asarray(part.to_numpy())
        return np.asarray(part.to_numpy(dtype=np.float64, na_value=np.nan))

    def labels(self, column: int) -> npt.NDArray[Any]:
        """See `Table`."""
        return label_values(self._frame.iloc[:, column])


class PandasSource(TableSource):
    """A pandas frame in memory, whose labels and weights are columns of it or are given beside it.

    With ``y``, no column is taken for the labels. ``weight`` is a column's name or number, or an array.
    """

    def __init__(
        self, frame: Any, y: Any = None, weight: Any = None, *, label: str | int | bool | None = None, **options: Any
    ) -> None:
        where = "the DataFrame"
        rows = len(frame)
        beside = not isinstance(weight, str | int | None)
        columns = choose_columns(
            where, list(frame.columns), frame.shape[1], False if y is not None else label, None if beside else weight
        )
        labels = None if y is None or label is False else label_values(y)
        weights = beside_rows(weight) if beside else None
        batch = Batch(PandasTable(frame), partial(numbered, where), 0, 8 * frame.size, labels, weights)
        super().__init__(where, columns, lambda: iter([batch] if rows else []), size=8 * frame.size,
                         label_name=None if labels is None else beside_name(y), **options)  # fmt: skip


def frame_rows(frame: Any, dtype: str = "float64", where: str = "X") -> tuple[npt.NDArray[Any], tuple[str, ...] | None]:
    """Return the rows (n, d) of a pandas frame whose columns are all features, and their names (None if only numbered).

    ``where`` is the frame's name in messages. Raises the InputErrors of `ingest`, such as for a column without numbers,
    or a missing or infinite value.
    """
    columns = choose_columns(where, list(frame.columns), frame.shape[1], False, None)
    batch = Batch(PandasTable(frame), partial(numbered, where), 0, 0)
    source = TableSource(where, columns, lambda: iter([batch]), dtype=dtype, block_bytes=max(1, 8 * frame.size))
    try:
        blocks = [block.X for block in CompleteRows(source).blocks()]
    except MissingValuesError as error:
        raise InputError(f"{error.found}; fill them in, or drop those rows.") from None
    X = np.concatenate(blocks) if blocks else np.empty((0, source.n_features), dtype=dtype)
    return X, columns.names


def refuse_kinds(where: str, columns: Sequence[tuple[str, str, str]], otherwise: str = _OTHERWISE) -> None:
    """Raise InputError if columns (name, kind, type) have no numbers, and say which, and how to encode them."""
    bad = [each for each in columns if each[1] != "number"]
    if not bad:
        return
    shown = [f"{name} ({dtype})" for name, _, dtype in bad[:_SHOWN_COLUMNS]]
    if len(bad) > _SHOWN_COLUMNS:
        shown.append(f"{len(bad) - _SHOWN_COLUMNS} more columns")
    hints = [_hint(kind, [name for name, other, _ in bad if other == kind]) for kind in _KINDS]
    many = "hold" if len(bad) > 1 else "holds"
    text = "; ".join(hint for hint in hints if hint)
    raise InputError(f"{where}: {joined(shown)} {many} no numbers; {text}{otherwise}.")


def _hint(kind: str, columns: list[str]) -> str:
    if not columns:
        return ""
    names = [name.removeprefix("column ") for name in columns[:_SHOWN_COLUMNS]]
    first = names[0]
    if kind == "string":
        shown = ", ".join(names)
        return (
            f"leave labels out, as by frame.drop(columns=[{shown}]), and encode features that are strings or "
            f"categories, as by pandas.get_dummies(frame, columns=[{shown}]) with dtype=float"
        )
    if kind == "boolean":
        return f"make booleans 0 and 1, as by frame[{first}].astype('float32') or get_dummies(..., dtype=float)"
    if kind == "date":
        return f"make dates numbers, as by (frame[{first}] - frame[{first}].min()) / pandas.Timedelta('1D')"
    return f"convert other types, as by pandas.to_numeric(frame[{first}]), or leave them out"


def label_values(y: Any) -> npt.NDArray[Any]:
    """Return labels of any array-like as an array of shape (rows,). Missing ones are None, NaN or NA."""
    if np.ma.is_masked(y):
        mask = np.ma.getmaskarray(y)
        y = np.array(y.data, dtype=object)
        y[mask] = None
    dtype = getattr(y, "dtype", None)
    if hasattr(y, "to_numpy") and dtype is not None and not isinstance(dtype, np.dtype):
        y = y.to_numpy(dtype=object)
    values = np.asarray(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(f"y has shape {values.shape}; labels must have shape (rows,).")
    return values


def beside_name(y: Any) -> str:
    """Return the name, for messages, of labels that are given beside the rows."""
    name = getattr(y, "name", None)
    return f"'{name}'" if isinstance(name, str) and name and not hasattr(y, "dask") else "y"


def beside_rows(weight: Any) -> npt.NDArray[np.float64]:
    """Return the weights that are given beside the rows, shape (rows,)."""
    try:
        if hasattr(weight, "to_numpy") and hasattr(weight, "index"):
            return np.asarray(weight.to_numpy(dtype=np.float64, na_value=np.nan))
        return np.asarray(weight, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InputError(f"weight must be numbers ({error}).") from error


def _pandas_kind(column: Any) -> tuple[str, str]:
    import pandas
    from pandas.api import types

    dtype = column.dtype
    if types.is_bool_dtype(dtype):
        return "boolean", str(dtype)
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return "number", str(dtype)
    if types.is_datetime64_any_dtype(dtype) or types.is_timedelta64_dtype(dtype):
        return "date", str(dtype)
    if types.is_object_dtype(dtype):
        found = types.infer_dtype(column, skipna=True)
        known = {"string": "string", "boolean": "boolean", "datetime": "date", "date": "date", "timedelta": "date"}
        return known.get(found, "other"), f"object, {found}"
    return ("string" if isinstance(dtype, pandas.CategoricalDtype) or types.is_string_dtype(dtype) else "other"), str(
        dtype
    )


def _place(place: Callable[[int], str], start: int, row: int) -> str:
    return place(start + row)


def numbered(where: str, row: int) -> str:
    return f"{where}, row {row}"
