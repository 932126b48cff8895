"""Columns of tables as values, of which a recipe makes features: the same, whatever holds the rows."""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from dask_odm.data.readers.lines import number_in
from dask_odm.data.readers.sources import shown
from dask_odm.data.store.column_recipe import LEFT_OUT, Column, ColumnRecipe
from dask_odm.errors import InputError
from dask_odm.printing import quoted
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")

MANY_ROWS = 10  # of unknown words alone, from which they are no chance
GAPS = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "<na>", "nat"})  # in small letters, without a sign
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?))? ?(Z|[+-]\d\d:?\d\d)?")
_TIME = re.compile(r"\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?")
_TRUTH = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "yes": 1.0, "no": 0.0}


class UnfitError(Exception):
    """A value is not of the kind that a column is read as."""

    def __init__(self, row: int, value: Any) -> None:
        super().__init__(row, value)
        self.row = row
        self.value = value


def spelled(value: Any) -> str | None:
    """Return a value as a word, without blanks around it; None for a gap. Whole numbers are spelled without a point.

    Raises TypeError for a complex number, and for several values in one.
    """
    if isinstance(value, str):
        word = value.strip()
        if word.endswith(".0") and word[:-2].lstrip("-").isdecimal():  # as files have those of a column with gaps
            return word[:-2]
        return None if word.lower().lstrip("+-") in GAPS else word
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, bytes):
        return spelled(value.decode("utf-8", "replace"))
    if types.is_scalar(value) and pd.isna(value):
        return None
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, pd.Timedelta | datetime.timedelta):
        return repr(value / datetime.timedelta(days=1))
    if isinstance(value, int) and value.bit_length() > 1024:  # Python does not spell the longest ones
        return "inf" if value > 0 else "-inf"
    if isinstance(value, complex | Iterable):
        raise TypeError(f"{type(value).__name__} is no number, word or date")
    isoformat = getattr(value, "isoformat", None)
    return str(value) if isoformat is None else str(isoformat())


def moment_in(word: str) -> tuple[float, bool] | None:
    """Return the seconds since 1970 of an ISO date, with or without time, or of a time of day; and whether of UTC."""
    found = _DATE.fullmatch(f"1970-01-01T{word}" if _TIME.fullmatch(word) else word)
    if found is None:
        return None
    day, time, zone = found.groups()
    try:
        moment = np.datetime64(f"{day}T{time or '00:00'}", "us").astype(np.int64) / 1e6
    except ValueError:  # such as 30 February
        return None
    if zone is None:
        return float(moment), False
    digits = zone.replace(":", "")
    offset = 0 if zone == "Z" else (60 * int(digits[1:3]) + int(digits[3:5])) * (-1 if digits[0] == "-" else 1)
    return float(moment - 60.0 * offset), True


def _distinct(column: pd.Series) -> tuple[Array, list[Any]]:
    """Return the code of every row, −1 for a gap, and the values that these are indices into."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy(), column.cat.categories.tolist()
    if types.is_object_dtype(column.dtype) and types.infer_dtype(column) in ("mixed", "mixed-integer"):
        column = pd.Series([word_in(value, i) for i, value in enumerate(column)], dtype=object)  # for True equals 1
    codes, values = pd.factorize(column)
    return codes, list(values)


def word_in(value: Any, row: int) -> str | None:
    """Return the value of a row as a word, see `spelled`; raise UnfitError if it is none."""
    try:
        return spelled(value)
    except TypeError as error:
        raise UnfitError(row, value) from error


def mapped(column: pd.Series, of_word: Callable[[str], float | None]) -> Array:
    """Return ``of_word`` of every row, NaN for gaps; raise UnfitError for the first row for which it is None."""
    codes, values = _distinct(column)
    table = np.full(len(values) + 1, np.nan)  # the last entry is that of gaps
    unfit = np.zeros(len(values) + 1, bool)
    for i, value in enumerate(values):
        try:
            word = spelled(value)
            found = np.nan if word is None else of_word(word)
        except TypeError:
            found = None
        unfit[i] = found is None
        table[i] = np.nan if found is None else found
    if unfit.any() and unfit[codes].any():  # a category may be in no row
        row = int(np.argmax(unfit[codes]))
        raise UnfitError(row, values[codes[row]])
    return table[codes]


def numbers_in(column: pd.Series, gap_words: Sequence[str] = ()) -> Array:
    """Return a column as numbers (spans of time are days), NaN for gaps and ``gap_words``; or raise UnfitError."""
    dtype = column.dtype
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    if types.is_timedelta64_dtype(dtype):
        return np.asarray(column / pd.Timedelta(days=1), dtype=np.float64)
    known = dict.fromkeys(gap_words, np.nan)
    return mapped(column, lambda word: known[word] if word in known else number_in(word))


def moments_in(column: pd.Series, *, zoned: bool) -> Array:
    """Return a column of dates as seconds since 1970, NaN for gaps; raise UnfitError for others, or a zone too many."""
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    if not types.is_datetime64_any_dtype(column.dtype):
        return mapped(column, lambda word: _moment(word, zoned))
    has_zone = getattr(column.dtype, "tz", None) is not None
    if has_zone != zoned and column.notna().any():
        row = int(np.argmax(column.notna()))
        raise UnfitError(row, column.iloc[row])
    if has_zone:
        column = column.dt.tz_convert(None)  # to UTC
    moments = column.to_numpy(dtype="datetime64[us]")
    return np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 1e6)


def _moment(word: str, zoned: bool) -> float | None:
    found = moment_in(word)
    return found[0] if found is not None and found[1] == zoned else None


def kind_in(column: pd.Series) -> str | None:
    """Return the kind of a column by its type, or if objects tell no type by its values; None for gaps alone."""
    dtype = column.dtype
    if bool(column.iloc[:1].isna().all() and column.isna().all()):
        return None
    if isinstance(dtype, pd.CategoricalDtype):
        return "words"
    if types.is_bool_dtype(dtype):
        return "boolean"
    if types.is_timedelta64_dtype(dtype):
        return "span"
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return "number"
    if types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype):
        return "date"
    if not types.is_object_dtype(dtype):
        return "words"
    held = types.infer_dtype(column, skipna=True)
    if held in ("integer", "floating", "mixed-integer-float", "decimal"):
        return "number"
    if held in ("timedelta", "timedelta64"):
        return "span"
    return "boolean" if held == "boolean" else "date" if held in ("date", "datetime", "datetime64", "time") else "words"


def values_by(recipe: ColumnRecipe, held: Iterable[Any], rows: int, place: Callable[[int], str]) -> Array:
    """Return the values (rows, columns) of the columns ``held`` by a recipe; those that it leaves out may be None.

    Raises InputError, with the ``place`` of the row, for a value that is not of its column's kind.
    """
    values = np.empty((rows, len(recipe.columns)), order="F")
    for j, (column, series) in enumerate(zip(recipe.columns, held, strict=True)):
        try:
            values[:, j] = _by(column, series)
        except UnfitError as error:
            kinds = {"number": "a number", "boolean": "True or False", "words": "a word", "span": "a span of time"}
            date = f"a date such as 2023-08-01{'T12:00Z, with' if column.zoned else ', without'} a time zone"
            raise InputError(
                f"{place(error.row)}, column {quoted(column.name)}: {shown(str(error.value))} is not "
                f"{kinds.get(column.kind, date)}, as in the rows that were learned; mend it, or leave the value out."
            ) from None
        if column.kind == "words" and rows >= MANY_ROWS and bool((values[:, j] == -1.0).all()):
            logger.warning(
                "%s and following: column %s has none of the words that the model learned, such as %s.",
                place(0), quoted(column.name), shown(column.levels[0])
            )  # fmt: skip
    return values


def _by(column: Column, held: Any) -> Any:
    if column.kind in LEFT_OUT:
        return np.nan
    if column.kind != "words":
        return read_as(column.kind, held, zoned=column.zoned, gap_words=column.gap_words)
    places = {level: float(k) for k, level in enumerate(column.levels)}
    return mapped(held, lambda word: places.get(word, -1.0))


def read_as(kind: str, column: pd.Series, *, zoned: bool, gap_words: Sequence[str] = ()) -> Array:
    """Return the values of a column of any kind but words; raise UnfitError for a value of another."""
    if kind in ("number", "span"):
        return numbers_in(column, gap_words)
    if kind != "boolean":
        return moments_in(column, zoned=zoned)
    if types.is_bool_dtype(column.dtype):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return mapped(column, lambda word: _TRUTH.get(word.lower()))
