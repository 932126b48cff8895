"""The formats of files: how each is told, which options of `ingest` apply to it, and what reads it.

Constraints, the option of the shell, help and errors are made from these. The command line lists them, so this module
loads no reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dask_odm.errors import InputError

_PAIR = rb"[^\s,;:|]+:[^\s,;:|]+"
_LIBSVM_LINE = re.compile(rb"\s*([^\s,;:|]+\s+)?" + _PAIR + rb"(\s+" + _PAIR + rb")*\s*(#.*)?")
_JSON_LINE = re.compile(rb"(?s)\s*(\{.*|\[\s*(\{.*)?)")  # an array of objects, too, which is refused
_CSV_LINE = re.compile(rb"(?s).*[,;\t|].*")
_COLUMNS = ("label", "weight", "drop", "text")  # options that name columns


@dataclass(frozen=True)
class FileFormat:
    """A format of files.

    ``reader`` names what takes paths and a `Reading` and returns a `TableSource`: a module of this folder, a colon, and
    a class or function. A text is told by its first ``line``, other files by their first bytes, ``magic``. ``options``
    are those of `ingest` that apply.
    """

    word: str
    title: str
    suffixes: tuple[str, ...]
    reader: str
    options: tuple[str, ...]
    line: re.Pattern[bytes] | None = None
    magic: bytes = b""

    @property
    def is_text(self) -> bool:
        """Whether files hold text, which may be packed or piped."""
        return self.line is not None

    def open(self, paths: Sequence[str], reading: Any) -> Any:
        """Return the rows of files as a source; raise InputError if pyarrow is needed and not installed."""
        module, _, name = self.reader.partition(":")
        try:
            found = import_module(f"dask_odm.data.readers.{module}")
        except ImportError as error:
            raise InputError(
                f"{paths[0]}: {self.title} files need pyarrow; pip install pyarrow, or dask-odm[parquet]."
            ) from error
        return getattr(found, name)(paths, reading)


# Told in this order: JSON has commas and colons, too.
FORMATS = {
    each.word: each
    for each in (
        FileFormat("jsonl", "JSON lines", (".jsonl", ".ndjson"), "json_lines:JsonLinesSource", _COLUMNS, _JSON_LINE),
        FileFormat(
            "libsvm", "LIBSVM", (".libsvm", ".svm", ".svmlight"), "libsvm:LibsvmSource", ("n_features",), _LIBSVM_LINE
        ),
        FileFormat("csv", "CSV", (".csv", ".tsv"), "csv_files:CsvSource", (*_COLUMNS, "header"), _CSV_LINE),
        FileFormat(
            "numpy", "NumPy", (".npy", ".npz"), "numpy_files:numpy_source", ("label", "weight"), magic=b"\x93NUMPY"
        ),
        FileFormat("parquet", "Parquet", (".parquet", ".pq"), "arrow_files:parquet_files", _COLUMNS, magic=b"PAR1"),
        FileFormat(
            "arrow",
            "Arrow",
            (".arrow", ".arrows", ".feather", ".ipc"),
            "arrow_files:ipc_files",
            _COLUMNS,
            magic=b"ARROW1",
        ),
    )
}


def titles(formats: Iterable[FileFormat]) -> str:
    """Return the names of formats for a message, as in ``CSV, JSON lines or Parquet``."""
    *others, last = (each.title for each in formats)
    return f"{', '.join(others)} or {last}" if others else last
