"""CSV text, plain or compressed, block by block through pandas' reader.

The separator (comma, semicolon, tab or bar) and whether there is a header are told from the first line.
A field may be quoted, but may not hold a line break.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dask_odm.data.blocks import (
    BLOCK_BYTES,
    MAX_FEATURES,
    RowBlock,
    block_rows,
    check_finite,
    check_weight,
    narrow,
)
from dask_odm.data.lines import TextBlock, file_size, first_line, text_blocks
from dask_odm.errors import InputError

LABEL_NAMES = ("label", "y", "target", "class")
_SEPARATORS = ",;\t|"
_BLANK = " \t\r\n"
_MARK = b"\xef\xbb\xbf"
_BOOLEANS = (b"rue", b"RUE", b"alse", b"ALSE")
_MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}


@dataclass(frozen=True)
class _Columns:
    """Which column is what: positions, and names where there is a header."""

    names: tuple[str, ...] | None
    count: int
    separator: str
    label: int | None
    weight: int | None

    @property
    def features(self) -> list[int]:
        return [i for i in range(self.count) if i not in (self.label, self.weight)]

    def name(self, i: int) -> str:
        return f"column {i + 1}" if self.names is None else f"column '{self.names[i]}'"


class CsvSource:
    """Rows of one or more CSV files with the same columns.

    Parameters
    ----------
    paths : the files, read one after another; each has the header, or none has
    label : name or number (from 0; negative from the end) of the label column; False for none. By default
        the column named label, y, target or class (in any case), else the last
    weight : name or number of the weight column, or None
    header : whether the first line holds names; by default it does if no field of it is a number, or one
        is a name that tells the label column
    n_features : only checked
    dtype : ``float32`` or ``float64``
    block_bytes : bytes of text, and of rows, held at a time
    """

    labels_are_text = True

    def __init__(
        self,
        paths: Sequence[str],
        *,
        label: str | int | bool | None = None,
        weight: str | int | None = None,
        header: bool | None = None,
        n_features: int | None = None,
        dtype: str = "float32",
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._paths, self._dtype, self._block_bytes = tuple(paths), dtype, block_bytes
        self._sizes = [file_size(path) for path in self._paths]
        self.size = sum(self._sizes)
        self.description = ", ".join(self._paths)
        self._columns, self._header = _find_columns(self._paths[0], label, weight, header)
        self.n_features = len(self._columns.features)
        if n_features not in (None, self.n_features):
            raise InputError(f"{paths[0]}: {self.n_features} feature columns, but n_features is {n_features}.")
        names = self._columns.names
        self.feature_names = None if names is None else tuple(names[i] for i in self._columns.features)

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the rows."""
        before = 0
        for path, size in zip(self._paths, self._sizes, strict=True):
            skip = self._check_first_line(path)
            for text in text_blocks(path, self._block_bytes):
                body = _after_line(text, skip)
                if body.data.strip(_BLANK.encode()):
                    yield from self._rows(path, body, before + text.position)
            before += size

    def _check_first_line(self, path: str) -> int:
        """Return the number of the header line (0 without one), having checked it is as in the first file."""
        number, line = first_line(path)
        fields = _split(path, number, line, self._columns.separator)
        if self._header and fields != list(self._columns.names or ()):
            raise InputError(f"{path}, line {number}: the columns are not those of {self._paths[0]}.")
        return number if self._header else 0

    def _rows(self, path: str, text: TextBlock, position: int) -> Iterator[RowBlock]:
        frame = self._parse(path, text)
        columns = self._columns
        step = block_rows(self.n_features, "float64", self._block_bytes)
        for start in range(0, len(frame), step):
            part = frame.iloc[start : start + step]
            place = partial(_place, path, text, start)
            numbers = part[columns.features].to_numpy(dtype=np.float64)
            X = narrow(numbers, self._dtype)
            check_finite(X, numbers, place, self.feature_names)
            y = None if columns.label is None else part[columns.label].to_numpy(dtype=object)
            weight = None if columns.weight is None else part[columns.weight].to_numpy(dtype=np.float64)
            if weight is not None:
                check_weight(weight, place)
            yield RowBlock(X, y, weight, place, position)

    def _parse(self, path: str, text: TextBlock) -> pd.DataFrame:
        if _MARK in text.data:  # pandas would drop it, but only at the beginning of a block
            raise self._explain(path, text, ValueError("a byte order mark"))
        columns = self._columns
        types: dict[int, Any] = dict.fromkeys(range(columns.count), np.float64)
        if columns.label is not None:
            types[columns.label] = str
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = pd.read_csv(
                    io.BytesIO(text.data), sep=columns.separator, header=None, names=range(columns.count),
                    dtype=types, index_col=False, na_filter=False, engine="c",
                )  # fmt: skip
        except (ValueError, pd.errors.ParserError, pd.errors.ParserWarning) as error:
            raise self._explain(path, text, error) from error
        odd = b'"' in text.data or text.data.count(b"\r") != text.data.count(b"\r\n")
        if odd and len(frame) != text.count_lines(_BLANK.encode()):
            raise self._explain(path, text, ValueError("a line break within a line"))
        if columns.label is not None and bool((frame[columns.label] == "").any()):
            raise self._explain(path, text, ValueError("a label is missing"))
        if any(part in text.data for part in _BOOLEANS) and self._has_booleans(frame, text):
            raise self._explain(path, text, ValueError("booleans"))
        return frame

    def _has_booleans(self, frame: pd.DataFrame, text: TextBlock) -> bool:
        """Whether a numeric column held True and False only, which pandas reads as 1 and 0."""
        suspects = [i for i in range(self._columns.count) if i != self._columns.label and frame[i].isin([0, 1]).all()]
        if not suspects:
            return False
        words = pd.read_csv(
            io.BytesIO(text.data), sep=self._columns.separator, header=None, names=range(self._columns.count),
            dtype=str, index_col=False, na_filter=False, usecols=suspects,
        )  # fmt: skip
        return any(not words[i].map(_is_number).all() for i in suspects)

    def _explain(self, path: str, text: TextBlock, error: Exception) -> InputError:
        """Find the line the reader stumbled over and say what is wrong with it."""
        for number, line in text.lines():
            if not line.strip(_BLANK.encode()):
                continue
            if _MARK in line:
                return InputError(f"{path}, line {number}: a byte order mark; were files joined?")
            try:
                fields = _split(path, number, line, self._columns.separator)
            except InputError as unreadable:
                return unreadable
            complaint = self._complaint(fields)
            if complaint:
                return InputError(f"{path}, line {number}: {complaint}")
        return InputError(f"{path}, from line {text.first_line}: not CSV ({error}).")

    def _complaint(self, fields: list[str]) -> str | None:
        columns = self._columns
        if len(fields) != columns.count:
            return f"{len(fields)} fields, but there are {columns.count} columns."
        for i, field in enumerate(fields):
            if i == columns.label:
                if not field:
                    return "the label is missing."
            elif field.lower().lstrip("+-") in _MISSING:
                return f"{columns.name(i)}: missing value ({field!r}); drop the row or fill the value in."
            elif not _is_number(field):
                hint = "choose the label with label= (--label), or encode the column as numbers."
                return f"{columns.name(i)}: {field!r} is not a number; {hint}"
        return None


def _find_columns(
    path: str, label: str | int | bool | None, weight: str | int | None, header: bool | None
) -> tuple[_Columns, bool]:
    """Read the first line and tell separator, header, label and weight from it."""
    number, line = first_line(path)
    separator = max(_SEPARATORS, key=lambda candidate: line.count(candidate.encode()))
    fields = _split(path, number, line, separator)
    if header is None:
        words = [field for field in fields if not _is_number(field)]
        named = any(word.lower() in LABEL_NAMES or word in (label, weight) for word in words)
        header = named or len(words) == len(fields)
    names = tuple(fields) if header else None
    if names is not None and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}, line {number}: two columns are named '{twice}'.")
    if names is not None and "" in names:
        at = names.index("") + 1
        raise InputError(f"{path}, line {number}: column {at} has no name; if it is a row number, leave it out.")
    at_weight = None if weight is None else _position(path, "weight", weight, names, len(fields))
    at_label = _label_position(path, label, names, len(fields), at_weight)
    columns = _Columns(names, len(fields), separator, at_label, at_weight)
    if not 1 <= len(columns.features) <= MAX_FEATURES or at_label == at_weight is not None:
        raise InputError(f"{path}: no feature columns beside label and weight, or too many.")
    return columns, header


def _label_position(
    path: str, label: str | int | bool | None, names: tuple[str, ...] | None, count: int, weight: int | None
) -> int | None:
    if label is False:
        return None
    if label is not None and label is not True:
        return _position(path, "label", label, names, count)
    for wanted in LABEL_NAMES:
        for i, name in enumerate(names or ()):
            if name.lower() == wanted:
                return i
    return count - 1 if weight != count - 1 else count - 2


def _position(path: str, what: str, column: str | int, names: tuple[str, ...] | None, count: int) -> int:
    """Return the position of a column given by name or number."""
    if isinstance(column, str) and names is not None and column in names:
        return names.index(column)
    try:
        position = int(column)
    except ValueError:
        known = "the file has no header" if names is None else f"the columns are {', '.join(names[:20])}"
        raise InputError(f"{path}: no {what} column '{column}'; {known}.") from None
    if not -count <= position < count:
        raise InputError(f"{path}: no {what} column {position}; there are {count} columns.")
    return position % count


def _split(path: str, number: int, line: bytes, separator: str) -> list[str]:
    """Split one line into fields; InputError where it is not UTF-8 or a quotation does not end."""
    try:
        rows = list(csv.reader([line.decode("utf-8").rstrip("\r\n")], delimiter=separator, strict=True))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8 text; convert the file.") from error
    except csv.Error as error:
        raise InputError(f"{path}, line {number}: {error}; a field may not hold a line break.") from error
    return [field.strip(_BLANK) for field in rows[0]] if rows else []


def _after_line(text: TextBlock, number: int) -> TextBlock:
    """Return the block without its lines up to ``number``."""
    skip = number - text.first_line + 1
    if skip <= 0:
        return text
    parts = text.data.split(b"\n", skip)
    return TextBlock(parts[-1] if len(parts) > skip else b"", number + 1, text.position)


def _place(path: str, text: TextBlock, start: int, row: int) -> str:
    """Name the line of row ``start + row`` of the block."""
    filled = (number for number, line in text.lines() if line.strip(_BLANK.encode()))
    number = next(number for i, number in enumerate(filled) if i == start + row)
    return f"{path}, line {number}"


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field and field.isascii()
