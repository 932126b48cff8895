"""CSV text, plain or compressed, read block by block by pandas.

The first lines tell the separator (comma, semicolon, tab, bar or blanks), whether there is a header, and whether
numbers have a decimal comma. A field may be quoted, but may not contain a line break. Comments begin with ``#``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd

from dask_odm.data.readers.column_values import UnfitError, numbers_in, spelled
from dask_odm.data.readers.lines import MARK, TextBlock, blocks_of_files, file_size, is_number, opening_lines
from dask_odm.data.readers.partitions import FolderColumns
from dask_odm.data.readers.sources import LABEL_NAMES, Columns, Reading, columns_of_file, describe, shown
from dask_odm.data.readers.table_source import Batch, FrameSource
from dask_odm.errors import InputError

_SEPARATORS = ",;\t|"
_NAMED_SEPARATOR = re.compile(rb'"?sep=([^\w\s]|\t)"?', re.IGNORECASE)  # Excel reads and writes such a first line
MOST_COLUMNS = 100_000  # pandas takes some 0.1 ms for each column of each block
_DECIMAL = re.compile(r"([+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?)")  # a number with a decimal comma
_COMMA_NUMBER = rf"^(\s*){_DECIMAL.pattern}(\s*)$"
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")  # whose comma may also be between thousands
_BLANK = " \t\r\n"
_SPELLINGS = ["", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "NULL", "null", "None", "none", "?"]


class CsvSource(FrameSource):
    """Rows of one or more CSV files with the same columns, read one after another.

    Either each file has the header, or none has. By default (``header`` None) the first line has names if no field of
    it is a number, or if one is a name that tells the label column.
    """

    labels_are_text = True

    def __init__(self, paths: Sequence[str], reading: Reading) -> None:
        size = sum(map(file_size, paths))
        self._paths = tuple(paths)
        self._words_first = "0" in map(str, (reading.label, reading.text_column, *reading.drop))
        opening = _opening(paths[0], blanks=reading.text is None, words_first=self._words_first)
        self._separator = opening.separator
        self._names = opening.fields
        self._count = len(opening.fields)  # columns that the lines hold; those of folders come after them
        self._header = _has_header(opening, reading)
        known = opening.fields if self._header else [str(i) for i in range(self._count)]
        self._folders = FolderColumns(paths, known)
        columns = _find_columns(opening, [*known, *self._folders.names], self._header, reading)
        self._decimal = "," if opening.has_decimal_commas(set(columns.dropped), header=self._header) else "."
        # a missing value was met; until then fields are not compared with its spellings, which takes memory
        self._with_gaps = False
        super().__init__(describe(paths), columns, self._read_all, reading, size=size)

    def _read_all(self) -> Iterator[Batch]:
        """Yield the blocks of text that have rows beside header and comments."""
        before = {path: self._check_first_line(path) for path in self._paths}
        for text in blocks_of_files(self._paths, self._reading):
            body = self._without_comments(_after_line(text, before[text.path]))
            if _content(body.data[:1000]) or _content(body.data):
                frame = self._parse(body)
                line = partial(body.line_of, content=_content)
                yield Batch(self._folders.beside(frame, body.path), body.path, body.position, line=line)
                del frame  # before the next text is parsed

    def _check_first_line(self, path: str) -> int:
        """Check that the header is that of the first file, and return the number of the last line before the rows."""
        found = _opening(path, self._separator, words_first=self._words_first)
        if self._header and found.fields != self._names:
            raise InputError(f"{path}, line {found.number}: the columns are not those of {self._paths[0]}.")
        return found.number if self._header else found.number - 1

    def _without_comments(self, text: TextBlock) -> TextBlock:
        """Return the block with lines left blank that begin with ``#``, unless rows may begin with words."""
        begins = b"#" in text.data and (text.data.startswith(b"#") or b"\n#" in text.data)
        if not begins or 0 in self.roles.texts:
            return text
        lines = (b"" if line.startswith(b"#") else line for line in text.data.split(b"\n"))
        return replace(text, data=b"\n".join(lines))

    def _parse(self, text: TextBlock) -> pd.DataFrame:
        """Return the fields of a block.

        Bytes are looked for one at a time before several are, which takes as long as the rest of the reading.
        """
        if MARK[:1] in text.data and MARK in text.data:  # pandas would drop it, but only at the beginning of a block
            raise self._explain(text, ValueError("a byte order mark"))
        separator = self._separator
        _, first = next(text.lines(_content))
        if first.count(separator.encode()) >= self._count and len(_loose_fields(first, separator)) > self._count:
            raise self._explain(text, ValueError("too many fields"))  # pandas would make a column of each
        try:
            frame = self._read(text, self._words())
        except (ValueError, pd.errors.ParserError) as error:
            raise self._explain(text, error) from error
        odd = b"\r" in text.data and text.data.count(b"\r") != text.data.count(b"\r\n")
        if (odd or b'"' in text.data) and len(frame) != sum(1 for _ in text.lines(_content)):
            raise self._explain(text, ValueError("a line break within a line"))
        self._check_short_lines(text, frame)
        return frame

    def _check_short_lines(self, text: TextBlock, frame: pd.DataFrame) -> None:
        """Raise InputError if a line has too few fields, which pandas takes for missing values."""
        last = frame[self._count - 1]
        suspects = set(np.flatnonzero((last.isna() | (last == "")).to_numpy()).tolist())
        for row, (number, line) in enumerate(text.lines(_content) if suspects else ()):
            if row in suspects and len(_split(text.path, number, line, self._separator)) < self._count:
                raise self._explain(text, ValueError("too few fields"))

    def _words(self) -> set[int]:
        """Return the places of the features that are known to hold other than numbers."""
        known = self.survey or self.columns
        columns: Sequence[Any] = () if known is None else known.columns
        told = zip(self._features, columns, strict=False)
        return {i for i, column in told if 0 <= i < self._count and column.kind not in ("number", None)}

    def _read(self, text: TextBlock, words: set[int]) -> pd.DataFrame:
        """Return the fields: labels and words as they are spelled, columns of numbers as these, NaN if missing."""
        spelled = words | self.roles.texts
        plain = [i for i in range(self._count) if i not in spelled]
        missing = {"keep_default_na": False, "na_values": dict.fromkeys(plain, _SPELLINGS)}
        frame = pd.read_csv(
            io.BytesIO(text.data), sep=r"\s+" if self._separator == " " else self._separator, header=None,
            names=range(self._count), index_col=False, engine="c", decimal=self._decimal, low_memory=False,
            dtype={i: object for i in spelled if i < self._count},
            **missing if self._with_gaps else {"na_filter": False},
        )  # fmt: skip
        kinds = frame.dtypes.to_numpy()
        others = {i for i in plain if kinds[i].kind not in "iuf"}
        if not others:
            with_commas = {*words, self.roles.label} & set(frame) if self._decimal == "," else ()
            for i in with_commas:
                frame[i] = frame[i].str.replace(_COMMA_NUMBER, r"\1\2.\3\4", regex=True)
            return frame
        if not self._with_gaps:
            self._with_gaps = True
            return self._read(text, words)
        frame = self._read(text, words | others)
        for i in others:
            with suppress(UnfitError):  # words stay such, but not numbers beside rare spellings of gaps
                frame[i] = numbers_in(frame[i])
        return frame

    def _explain(self, text: TextBlock, error: Exception) -> InputError:
        """Find the first bad line, and return the error that says what is wrong with it."""
        for number, line in text.lines(_content):
            if MARK in line:
                return InputError(f"{text.path}, line {number}: a byte order mark; were files joined?")
            try:
                fields = _split(text.path, number, line, self._separator)
            except InputError as unreadable:
                return unreadable
            if len(fields) != self._count:
                held = f"{len(fields)} field{'s' * (len(fields) > 1)}"
                return InputError(f"{text.path}, line {number}: {held}, but there are {self._count} columns.")
        return InputError(f"{text.path}, from line {text.first_line}: not CSV ({error}).")


@dataclass(frozen=True)
class _Opening:
    """The first lines of a file: the fields of the first that is a header or a row, and the lines after it."""

    path: str
    number: int  # of the first line with fields
    fields: list[str]
    rest: list[bytes]
    separator: str

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.number}"

    def is_number(self, field: str) -> bool:
        """Return whether a field is a number, perhaps with a decimal comma."""
        return is_number(field) or (self.separator != "," and _DECIMAL.fullmatch(field) is not None)

    def has_decimal_commas(self, dropped: set[int], *, header: bool) -> bool:
        """Return whether numbers have a decimal comma: one has, none has a point, and not all may have thousands."""
        if self.separator == ",":
            return False
        rows = [] if header else [self.fields]
        rows += [[field.strip(_BLANK) for field in _loose_fields(line, self.separator)] for line in self.rest]
        commas: set[str] = set()
        for i in set(range(len(self.fields))) - dropped:
            column = [row[i] for row in rows if i < len(row)]
            if all(spelled(field) is None or self.is_number(field) for field in column):
                if any("." in field for field in column):
                    return False
                commas.update(field for field in column if _DECIMAL.fullmatch(field))
        return not all(map(_THOUSANDS.fullmatch, commas))


def _opening(path: str, separator: str | None = None, *, blanks: bool = True, words_first: bool = False) -> _Opening:
    """Read the first lines of a file, whose ``separator`` they tell; ``blanks`` says whether blanks may separate.

    A comment right before the rows has the names of the columns if it has as many fields, none of them a number. With
    numbers it is a row, if the first column may hold words (``words_first``).
    """
    lines = list(opening_lines(path))
    told = _NAMED_SEPARATOR.fullmatch(lines[0][1].strip(b" "))
    if told and len(lines) > 1:
        separator = separator or told[1].decode()
        lines = lines[1:]
    comments = list(takewhile(lambda line: line[1].startswith(b"#"), lines))
    lines = lines[len(comments) :] or lines
    number, first = lines[0]
    rest = [line for _, line in lines[1:] if not line.startswith(b"#")]
    separator = separator or _find_separator([first, *rest], blanks)
    fields = _split(path, number, first, separator)
    while comments and comments[-1][0] < number:
        above, line = comments.pop()
        names = [field.strip(_BLANK) for field in _loose_fields(line.lstrip(b"# "), separator)]
        has_numbers = any(map(is_number, names))
        if len(names) == len(fields) > 1 and not has_numbers and any(map(is_number, fields)):
            return _Opening(path, above, names, [first, *rest], separator)
        if not (words_first and has_numbers and len(names) == len(fields)):
            break
        rest = [first, *rest]
        number, first, fields = above, line, _split(path, above, line, separator)
    return _Opening(path, number, fields, rest, separator)


def _find_separator(lines: Sequence[bytes], blanks: bool) -> str:
    """Return the separator that the first lines tell: the most frequent one of the first line.

    Commas are none if another one is in all lines, and leaves them in numbers only. Blanks are if nothing else is, and
    all lines have as many words.
    """
    first, *rest = (line.decode("utf-8", "replace") for line in lines)
    for separator in sorted(_SEPARATORS[1:], key=first.count, reverse=True):
        if separator in first and all(_leaves_commas_in_numbers(line, separator) for line in rest or [first]):
            return separator
    found = max(_SEPARATORS, key=first.count)
    words = {len(line.split(None, MOST_COLUMNS)) for line in (first, *rest)}
    return " " if blanks and found not in first and len(words) == 1 and 1 < min(words) <= MOST_COLUMNS else found


def _leaves_commas_in_numbers(line: str, separator: str) -> bool:
    if not 0 < line.count(separator) < MOST_COLUMNS:
        return False
    fields = (field.strip(f'{_BLANK}"') for field in line.split(separator))
    return all("," not in field or _DECIMAL.fullmatch(field) for field in fields)


def _has_header(opening: _Opening, reading: Reading) -> bool:
    """Return whether the first line has the names of the columns; raise InputError for more than `MOST_COLUMNS`."""
    if len(opening.fields) > MOST_COLUMNS:
        raise InputError(
            f"{opening.where}: {len(opening.fields)} columns; at most {MOST_COLUMNS} can be read as CSV. "
            "Write wider rows as .npy or as LIBSVM text."
        )
    if reading.header is not None:
        return reading.header
    words = [field for field in opening.fields if not opening.is_number(field)]
    named = any(word.lower() in LABEL_NAMES or word in reading.asked for word in words)
    return named or len(words) == len(opening.fields)


def _find_columns(opening: _Opening, known: Sequence[str], header: bool, reading: Reading) -> Columns:
    """Return the roles of the columns, ``known`` by name, which are those of the lines and of folders."""
    if len(known) == 1 and reading.label is not False:
        raise InputError(
            f"{opening.where}: {shown(opening.fields[0])} is one column; columns are separated by a comma, semicolon, "
            "tab or bar, or by blanks if all lines have as many words. Read the file by pandas.read_csv(path, sep=...) "
            "and pass the frame."
        )
    names = known if header or len(known) > len(opening.fields) else None
    return columns_of_file(opening.where, names, len(known), reading)


def _split(path: str, number: int, line: bytes, separator: str) -> list[str]:
    """Split one line into fields; raise InputError if it is not UTF-8 or a quotation does not end."""
    try:
        fields = _fields(line.decode("utf-8"), separator, strict=True)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8 text; convert the file.") from error
    except csv.Error as error:
        if "expected after" in str(error):
            raise InputError(
                f"{path}, line {number}: a quotation mark within a field; separators of columns are {shown(separator)} "
                "here. Write a mark within quotations twice, or read the file by pandas.read_csv(path, sep=...) and "
                "pass the frame."
            ) from error
        why = "a carriage return" if b"\r" in line.rstrip(b"\r\n") else shown(str(error))[1:-1]
        raise InputError(f"{path}, line {number}: {why}; fields hold no line breaks; use pandas.read_csv.") from error
    return [field.strip(_BLANK) for field in fields]


def _loose_fields(line: bytes, separator: str) -> list[str]:
    """Split one line into fields, as forgiving as pandas, whatever block the line is in."""
    try:
        return _fields(line.decode("utf-8", "replace"), separator, strict=False)
    except csv.Error:  # a very long field, which pandas takes
        return []


def _fields(line: str, separator: str, *, strict: bool) -> list[str]:
    line = line.strip(_BLANK) if separator == " " else line.rstrip("\r\n")
    read = csv.reader([line], delimiter=separator, strict=strict, skipinitialspace=separator == " ")
    return next(read, [])


def _content(line: bytes) -> bytes:
    return line.strip(_BLANK.encode())


def _after_line(text: TextBlock, number: int) -> TextBlock:
    """Return the block without its lines up to ``number``."""
    skip = number - text.first_line + 1
    if skip <= 0:
        return text
    parts = text.data.split(b"\n", skip)
    return replace(text, data=parts[-1] if len(parts) > skip else b"", first_line=number + 1)
