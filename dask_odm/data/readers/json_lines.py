"""JSON lines, plain or compressed, read block by block: a line is an object, whose keys are the columns.

The columns are the keys of the first line, in its order. A key that a line lacks is a missing value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd

from dask_odm.data.readers.lines import TextBlock, blocks_of_files, file_size, opening_lines
from dask_odm.data.readers.partitions import FolderColumns
from dask_odm.data.readers.sources import Reading, columns_of_file, describe, shown
from dask_odm.data.readers.table_source import Batch, FrameSource
from dask_odm.errors import InputError

_BLANK = b" \t\r\n"


class JsonLinesSource(FrameSource):
    """Rows of one or more files of JSON lines, read one after another."""

    def __init__(self, paths: Sequence[str], reading: Reading) -> None:
        self._paths = tuple(paths)
        number, line = next(opening_lines(paths[0]))
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
            frame = self._frame(text)
            if len(frame):
                line = partial(text.line_of, content=_content)
                yield Batch(self._folders.beside(frame, text.path), text.path, text.position, line=line)
            del frame  # before the next text is parsed

    def _frame(self, text: TextBlock) -> pd.DataFrame:
        """Return the values of a block of lines; columns that are dropped are empty."""
        columns = self.roles
        names = (columns.names or ())[: self._count]
        values: dict[int, list[Any]] = {i: [] for i in range(self._count) if i not in set(columns.dropped)}
        known = set(names)
        for number, line in text.lines(_content):
            where = f"{text.path}, line {number}"
            record = _record(where, line)
            if columns.text is None and not known.issuperset(record):
                new = next(name for name in record if name not in known)
                raise InputError(f"{where}: {shown(new)} is no column of the first line, which names all columns.")
            for i, held in values.items():
                held.append(record.get(names[i]))
        return pd.DataFrame(values, dtype=object).reindex(columns=range(self._count))


def _record(where: str, line: bytes) -> dict[str, Any]:
    """Return the object that a line holds; raise InputError if it holds none."""
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError(shown(line))
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text; convert the file.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not a JSON object ({error}); each line holds one; use pandas.read_json.") from error
    return record


def _content(line: bytes) -> bytes:
    return line.strip(_BLANK)
