"""JSON lines, plain or compressed, read block by block: a line is an object, whose keys are the columns.

The columns are the keys of the first line, in its order. A key that a line lacks is a missing value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_odm.data.readers.lines import TextBlock, blocks_of_files, file_size, first_line
from dask_odm.data.readers.partitions import FolderColumns
from dask_odm.data.readers.sources import Columns, Reading, columns_of_file, describe, shown
from dask_odm.data.readers.table_source import Batch, FrameSource
from dask_odm.data.readers.tables import other_type
from dask_odm.errors import InputError

_BLANK = b" \t\r\n"


class JsonLinesSource(FrameSource):
    """Rows of one or more files of JSON lines, read one after another."""

    def __init__(self, paths: Sequence[str], reading: Reading) -> None:
        self._paths = tuple(paths)
        number, line = first_line(paths[0])
        where = f"{paths[0]}, line {number}"
        held = list(_record(where, line))
        self._count = len(held)  # columns that the lines hold
        self._folders = FolderColumns(paths, held)
        names = [*held, *self._folders.names]
        columns = columns_of_file(where, names, len(names), reading)
        self.labels_are_text = self._folders.has(columns.label)
        super().__init__(describe(paths), columns, self._read_all, reading, size=sum(map(file_size, paths)))

    def _read_all(self) -> Iterator[Batch]:
        for text in blocks_of_files(self._paths, self._reading):
            table = JsonTable(text, self._columns, self._count)
            if table.rows:
                line = partial(text.line_of, content=_content)
                yield Batch(self._folders.beside(table, text.path), text.path, text.position, line=line)
            del table  # before the next text is parsed


class JsonTable:
    """`Table` of a block of JSON lines, which hold the first ``count`` columns. Those that are not dropped are held."""

    csr = None

    def __init__(self, text: TextBlock, columns: Columns, count: int) -> None:
        names = (columns.names or ())[:count]
        self._names = names
        self._place = partial(_place, text)
        self._values: dict[int, list[Any]] = {i: [] for i in range(count) if i not in set(columns.dropped)}
        known = set(names)
        self.rows = 0
        for number, line in text.lines(_content):
            where = f"{text.path}, line {number}"
            record = _record(where, line)
            if columns.text is None and not known.issuperset(record):
                new = next(name for name in record if name not in known)
                raise InputError(f"{where}: {shown(new)} is no column of the first line, which names all columns.")
            for i, values in self._values.items():
                values.append(record.get(names[i]))
            self.rows += 1

    def other_type(self, i: int) -> str | None:
        return other_type(self.column(i, 0, self.rows))

    def numbers(self, wanted: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        found = np.empty((stop - start, len(wanted)))
        for k, i in enumerate(wanted):
            try:
                found[:, k] = np.array(self._values[i][start:stop], dtype=np.float64)  # None becomes NaN
            except OverflowError as error:
                raise InputError(f"{self._place(start)} or below: a number is too large.") from error
        return found

    def labels(self, column: int) -> npt.NDArray[Any]:
        return np.fromiter(self._values[column], dtype=object, count=self.rows)

    def column(self, i: int, start: int, stop: int) -> pd.Series:
        return pd.Series(self._values[i][start:stop], dtype=object, name=self._names[i])


def _record(where: str, line: bytes) -> dict[str, Any]:
    """Return the object that a line holds; raise InputError if it holds none."""
    try:
        record = json.loads(line)
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text; convert the file.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not a JSON object ({error}); each line must hold one.") from error
    if not isinstance(record, dict):
        raise InputError(f"{where}: not a JSON object but {shown(line)}; each line must hold one.")
    return record


def _content(line: bytes) -> bytes:
    return line.strip(_BLANK)


def _place(text: TextBlock, row: int) -> str:
    return f"{text.path}, line {text.line_of(row, _content)}"
