"""CSV text, plain or compressed, read block by block by pandas.

The first line tells the separator (comma, semicolon, tab or bar) and whether there is a header. A field may be quoted,
but may not contain a line break.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dask_odm.data.readers.lines import MARK, TextBlock, blocks_of_files, file_size, first_line, is_number
from dask_odm.data.readers.sources import LABEL_NAMES, Columns, Reading, choose_columns, describe, shown
from dask_odm.data.readers.tables import Batch, PandasTable, TableSource
from dask_odm.errors import InputError

_SEPARATORS = ",;\t|"
_BLANK = " \t\r\n"
_BOOLEANS = (b"rue", b"RUE", b"alse", b"ALSE")
_MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
_SPELLINGS = ["", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "NULL", "null", "None", "none", "?"]
_UNREADABLE = (ValueError, pd.errors.ParserError, pd.errors.ParserWarning)
_ENCODE = (
    "choose the label with label= (--label), leave the column out with drop= (--drop), or encode it as numbers: words "
    "as by pandas.get_dummies(…, dtype=int), booleans as 0 and 1."
)


class CsvSource(TableSource):
    """Rows of one or more CSV files with the same columns, read one after another.

    Either each file has the header, or none has. By default (``header`` None) the first line has names if no field of
    it is a number, or if one is a name that tells the label column.
    """

    labels_are_text = True

    def __init__(self, paths: Sequence[str], reading: Reading) -> None:
        size = sum(map(file_size, paths))
        self._paths = tuple(paths)
        columns, self._header, self._separator = _find_columns(paths[0], reading)
        self._with_gaps = False  # a missing value was met; until then fields are not compared with its spellings
        super().__init__(describe(paths), columns, self._read_all, reading, size=size)

    def _read_all(self) -> Iterator[Batch]:
        headers = {path: self._check_first_line(path) for path in self._paths}
        for text in blocks_of_files(self._paths, self._reading):
            body = _after_line(text, headers[text.path])
            if _content(body.data):
                line = partial(body.line_of, content=_content)
                yield Batch(PandasTable(self._parse(body)), body.path, body.position, line=line)

    def _check_first_line(self, path: str) -> int:
        """Check that the header is that of the first file, and return its line number; 0 if there is no header."""
        number, line = first_line(path)
        fields = _split(path, number, line, self._separator)
        if self._header and fields != list(self._columns.names or ()):
            raise InputError(f"{path}, line {number}: the columns are not those of {self._paths[0]}.")
        return number if self._header else 0

    def _parse(self, text: TextBlock) -> pd.DataFrame:
        if MARK in text.data:  # pandas would drop it, but only at the beginning of a block
            raise self._explain(text, ValueError("a byte order mark"))
        if self._begins_too_wide(text):
            raise self._explain(text, ValueError("too many fields"))
        frame = self._read(text)
        odd = b'"' in text.data or text.data.count(b"\r") != text.data.count(b"\r\n")
        if odd and len(frame) != sum(1 for _ in text.lines(_content)):
            raise self._explain(text, ValueError("a line break within a line"))
        self._check_short_lines(text, frame)
        if any(part in text.data for part in _BOOLEANS) and self._has_booleans(frame, text):
            raise self._explain(text, ValueError("booleans"))
        return frame

    def _check_short_lines(self, text: TextBlock, frame: pd.DataFrame) -> None:
        """Raise InputError if a line has too few fields, which pandas takes for missing values."""
        last = frame[self._columns.count - 1]
        suspects = set(np.flatnonzero((last.isna() | (last == "")).to_numpy()).tolist())
        for row, (number, line) in enumerate(text.lines(_content) if suspects else ()):
            if row in suspects and len(_split(text.path, number, line, self._separator)) < self._columns.count:
                raise self._explain(text, ValueError("too few fields"))

    def _begins_too_wide(self, text: TextBlock) -> bool:
        """Return whether the first line has more fields than there are columns; pandas would make a column of each."""
        _, first = next(text.lines(_content))
        if first.count(self._separator.encode()) < self._columns.count:
            return False
        # as forgiving as pandas, whatever block the line is in
        words = first.decode("utf-8", "replace").rstrip("\r\n")
        try:
            return len(next(csv.reader([words], delimiter=self._separator))) > self._columns.count
        except csv.Error:  # a very long field, which pandas takes
            return False

    def _read(self, text: TextBlock) -> pd.DataFrame:
        """Return the fields, with labels as strings and all else as numbers, NaN if missing."""
        columns = self._columns
        types: dict[int, Any] = {i: str if i in columns.texts else np.float64 for i in range(columns.count)}
        words = {i: _SPELLINGS for i in range(columns.count) if i not in columns.texts}
        try:
            if not self._with_gaps:
                with suppress(*_UNREADABLE):
                    return self._table(text, dtype=types, na_filter=False)
            with suppress(*_UNREADABLE):
                frame = self._table(text, dtype=types, keep_default_na=False, na_values=words)
                self._with_gaps = True
                return frame
            return self._read_words(text)
        except _UNREADABLE as error:
            raise self._explain(text, error) from error

    def _read_words(self, text: TextBlock) -> pd.DataFrame:
        """Return the fields of a block in which missing values have blanks around them or rare spellings."""
        words = self._table(text, dtype=str, na_filter=False)
        texts = self._columns.texts
        places = [i for i in range(self._columns.count) if i not in texts]
        fields = pd.Series(words[places].to_numpy(dtype=object).ravel()).str.strip(_BLANK)
        missing = fields.str.lower().str.lstrip("+-").isin(_MISSING)
        column = io.StringIO("\n".join(fields.mask(missing, "nan")))  # one column, since pandas is slow with many
        numbers = pd.read_csv(column, header=None, dtype=np.float64, na_values=["nan"], sep="\x1f", quoting=3)
        values = numbers[0].to_numpy().reshape(len(words), len(places))  # parsed as before, so the bits are the same
        frame = pd.DataFrame(values, columns=places)
        return pd.concat([frame, words[sorted(texts)]], axis=1).sort_index(axis=1) if texts else frame

    def _table(self, text: TextBlock, **options: Any) -> pd.DataFrame:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return pd.read_csv(
                io.BytesIO(text.data), sep=self._separator, header=None, names=range(self._columns.count),
                index_col=False, engine="c", **options,
            )  # fmt: skip

    def _has_booleans(self, frame: pd.DataFrame, text: TextBlock) -> bool:
        """Return whether a numeric column has True and False only, which pandas reads as 1 and 0."""
        suspects = [
            i
            for i in range(self._columns.count)
            if i not in self._columns.texts and frame[i].isin([0, 1, np.nan]).all()
        ]
        if not suspects:
            return False
        words = self._table(text, dtype=str, na_filter=False, usecols=suspects)
        return any(not words[i].map(_is_number_or_missing).all() for i in suspects)

    def _explain(self, text: TextBlock, error: Exception) -> InputError:
        """Find the first bad line, and return the error that says what is wrong with it."""
        for number, line in text.lines(_content):
            if MARK in line:
                return InputError(f"{text.path}, line {number}: a byte order mark; were files joined?")
            try:
                fields = _split(text.path, number, line, self._separator)
            except InputError as unreadable:
                return unreadable
            complaint = self._complaint(fields)
            if complaint:
                return InputError(f"{text.path}, line {number}: {complaint}")
        return InputError(f"{text.path}, from line {text.first_line}: not CSV ({error}).")

    def _complaint(self, fields: list[str], most: int = 3) -> str | None:
        """Return what is wrong with a line, by ``most`` of its columns that are not numbers."""
        columns = self._columns
        if len(fields) != columns.count:
            return f"{len(fields)} fields, but there are {columns.count} columns."
        bad = [i for i, field in enumerate(fields) if i not in columns.texts and not _is_number_or_missing(field)]
        if not bad:
            return None
        named = [f"{columns.name(i)}: {shown(fields[i])}" for i in bad[:most]]
        more = f" and {len(bad) - most} more columns" if len(bad) > most else ""
        return f"{', '.join(named)}{more} {'is not a number' if len(bad) == 1 else 'are not numbers'}; {_ENCODE}"


def _find_columns(path: str, reading: Reading, most: int = 100_000) -> tuple[Columns, bool, str]:
    """Return the roles of the columns, whether there is a header, and the separator, by the first line.

    There may be at ``most`` so many columns: pandas takes some 0.1 ms for each column of each block.
    """
    number, line = first_line(path)
    separator = max(_SEPARATORS, key=lambda candidate: line.count(candidate.encode()))
    fields = _split(path, number, line, separator)
    if len(fields) > most:
        raise InputError(
            f"{path}, line {number}: {len(fields)} columns; at most {most} can be read as CSV. Write wider rows as "
            ".npy or as LIBSVM text."
        )
    header = reading.header
    if header is None:
        words = [field for field in fields if not is_number(field)]
        named = any(
            word.lower() in LABEL_NAMES or word in (reading.label, reading.weight, reading.text_column, *reading.drop)
            for word in words
        )
        header = named or len(words) == len(fields)
    names = tuple(fields) if header else None
    where = f"{path}, line {number}"
    columns = choose_columns(
        where, names, len(fields), reading.label, reading.weight, drop=reading.drop, text=reading.text_column
    )
    return columns, header, separator


def _split(path: str, number: int, line: bytes, separator: str) -> list[str]:
    """Split one line into fields; raise InputError if it is not UTF-8 or a quotation does not end."""
    try:
        rows = list(csv.reader([line.decode("utf-8").rstrip("\r\n")], delimiter=separator, strict=True))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8 text; convert the file.") from error
    except csv.Error as error:
        raise InputError(
            f"{path}, line {number}: {shown(str(error))[1:-1]}; a field may not hold a line break."
        ) from error
    return [field.strip(_BLANK) for field in rows[0]] if rows else []


def _content(line: bytes) -> bytes:
    return line.strip(_BLANK.encode())


def _after_line(text: TextBlock, number: int) -> TextBlock:
    """Return the block without its lines up to ``number``."""
    skip = number - text.first_line + 1
    if skip <= 0:
        return text
    parts = text.data.split(b"\n", skip)
    return replace(text, data=parts[-1] if len(parts) > skip else b"", first_line=number + 1)


def _is_number_or_missing(field: str) -> bool:
    return field.strip(_BLANK).lower().lstrip("+-") in _MISSING or is_number(field)
