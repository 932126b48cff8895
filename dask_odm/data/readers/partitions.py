"""Hive-partitioned folders: columns whose values are in the names of folders, as in ``data/year=2024/label=yes/``.

Spark, Dask (``partition_on``), pandas and pyarrow (``partition_cols``) write them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_odm.data.readers.lines import is_number
from dask_odm.data.readers.sources import shown
from dask_odm.data.readers.tables import Table
from dask_odm.errors import InputError

_MISSING = ("__HIVE_DEFAULT_PARTITION__", "")


class FoundFile(str):
    """Path of a file found below a ``folder``; ``in_folders`` has the columns in the names of those between."""

    folder: str
    in_folders: dict[str, str | None]

    def __new__(cls, path: str, folder: str) -> FoundFile:
        """Make the path, and read the names of the folders on the way from ``folder``."""
        found = super().__new__(cls, path)
        found.folder = folder
        between = os.path.dirname(os.path.relpath(path, folder)).split(os.sep)
        pairs = (name.partition("=") for name in between if is_partition(name))
        found.in_folders = {_unquoted(key): None if value in _MISSING else _unquoted(value) for key, _, value in pairs}
        return found


def _unquoted(name: str) -> str:
    return unquote(name, errors="surrogateescape")  # bytes that are no text stay apart, and are refused as labels


def is_partition(name: str) -> bool:
    """Return whether the name of a folder tells a column and its value."""
    return name.find("=") > 0


class FolderColumns:
    """The columns that the folders of some files tell, which come after the ``known`` ones that the files hold.

    Raises InputError if the folders of files tell different columns.
    """

    def __init__(self, paths: Sequence[str], known: Sequence[str]) -> None:
        values = [getattr(path, "in_folders", {}) for path in paths]
        for path, each in zip(paths, values, strict=True):
            if set(each) != set(values[0]):
                raise InputError(f"{path}: the folders on its way do not name the columns that those of {paths[0]} do.")
        self.names = tuple(name for name in values[0] if name not in known)
        self._begin = len(known)

    def has(self, column: int | None) -> bool:
        """Return whether a column is one of these."""
        return column is not None and column >= self._begin

    def beside(self, table: Table, path: str) -> Table:
        """Return the rows of a file as a table with these columns, too."""
        if not self.names:
            return table
        found: dict[str, str | None] = getattr(path, "in_folders", {})
        return _WithFolders(table, self._begin, [found[name] for name in self.names])


class _WithFolders:
    """`Table` of rows of one file, with columns that its folders tell, one value each, from number ``begin`` on."""

    csr = None

    def __init__(self, table: Table, begin: int, values: Sequence[str | None]) -> None:
        self._table = table
        self._begin = begin
        self._values = values
        self.rows = table.rows

    def other_type(self, i: int) -> str | None:
        if i < self._begin:
            return self._table.other_type(i)
        value = self._values[i - self._begin]
        return None if value is None or is_number(value) else f"names of folders, such as {shown(value)}"

    def numbers(self, wanted: Sequence[int], start: int, stop: int) -> npt.NDArray[np.float64]:
        inner = [k for k, i in enumerate(wanted) if i < self._begin]
        found = np.empty((stop - start, len(wanted)))
        found[:, inner] = self._table.numbers([wanted[k] for k in inner], start, stop)
        for k, i in enumerate(wanted):
            if i >= self._begin:
                value = self._values[i - self._begin]
                found[:, k] = np.nan if value is None else float(value)
        return found

    def labels(self, column: int) -> npt.NDArray[np.object_]:
        if column < self._begin:
            return self._table.labels(column)
        return np.full(self.rows, self._values[column - self._begin], dtype=object)

    def column(self, i: int, start: int, stop: int) -> pd.Series:
        if i < self._begin:
            return self._table.column(i, start, stop)
        return pd.Series([self._values[i - self._begin]] * (stop - start), dtype=object)
