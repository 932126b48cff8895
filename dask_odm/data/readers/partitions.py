"""Hive-partitioned folders: columns whose values are in the names of folders, as in ``data/year=2024/label=yes/``.

Spark, Dask (``partition_on``), pandas and pyarrow (``partition_cols``) write them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import unquote

import numpy as np
import pandas as pd

from dask_odm.data.readers.lines import is_number
from dask_odm.data.readers.tables import PandasTable
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

    def beside(self, frame: pd.DataFrame, path: str) -> PandasTable:
        """Return the rows of a file, a frame whose columns are numbered, as a table with these columns, too."""
        found: dict[str, str | None] = getattr(path, "in_folders", {})
        words = {self._begin + k: found[name] for k, name in enumerate(self.names)}
        for i, word in words.items():
            frame[i] = np.nan if word is None else float(word) if is_number(word) else False  # which is no number
        return PandasTable(frame, words)
