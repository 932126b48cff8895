"""From whatever a user has to a stream of row blocks: tells the format and picks its reader."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dask_odm.data.blocks import BLOCK_BYTES, RowBlock, Source
from dask_odm.data.csv_files import CsvSource
from dask_odm.data.libsvm import LibsvmSource
from dask_odm.data.lines import first_line
from dask_odm.data.numpy_files import NumpySource
from dask_odm.errors import InputError

__all__ = ["FORMATS", "RowBlock", "Source", "detect_format", "open_source", "read_blocks"]

FORMATS = ("libsvm", "csv", "numpy")
_SUFFIXES = {
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".svmlight": "libsvm",
    ".csv": "csv",
    ".tsv": "csv",
    ".npy": "numpy",
    ".npz": "numpy",
}
_COMPRESSED = (".gz", ".bz2", ".xz")
_LIBSVM_LINE = re.compile(rb"\s*[^\s,;:|]+(\s+[^\s,;:|]+:[^\s,;:|]+)+\s*(#.*)?")


def open_source(
    source: Any,
    *,
    format: str | None = None,
    n_features: int | None = None,
    label: str | int | bool | None = None,
    weight: Any = None,
    header: bool | None = None,
    dtype: str = "float32",
    block_bytes: int = BLOCK_BYTES,
) -> Source:
    """Find out what a source is, and open it for reading once.

    Parameters
    ----------
    source : path, list of paths of one format, array X of shape (rows, d), or tuple (X, y)
    format : ``libsvm``, ``csv`` or ``numpy``; by default told by the file's name, else by its first line
    n_features : number of features of LIBSVM text (spares a first pass); elsewhere only checked
    label : which column or array holds the labels, False for none; see `CsvSource` and `NumpySource`
    weight : which column or array holds the weights, or for arrays in memory the weights
    header : whether CSV text begins with column names
    dtype : ``float32`` or ``float64``
    block_bytes : bytes of text, and of rows, held at a time

    Raises
    ------
    InputError
        No such file, an empty one, an unknown format, or an option the format has no use for.
    """
    if block_bytes < 1:
        raise InputError(f"block_bytes must be positive. Got {block_bytes} instead.")
    common: dict[str, Any] = {"n_features": n_features, "dtype": dtype, "block_bytes": block_bytes}
    if _is_arrays(source):
        X, y = source if isinstance(source, tuple) else (source, None)
        return NumpySource.from_arrays(X, y, weight, label=_column_number(label), **common)
    paths = _paths(source)
    kinds = {path: format or detect_format(path) for path in paths}
    if len(set(kinds.values())) > 1:
        raise InputError(f"files of different formats: {', '.join(f'{p} ({kind})' for p, kind in kinds.items())}.")
    kind = kinds[paths[0]]
    if header is not None and kind != "csv":
        raise InputError(f"header is for CSV text, not for {kind}.")
    if not isinstance(weight, str | int | None):
        raise InputError("weight as an array goes with arrays in memory; name a column of the file instead.")
    if kind == "csv":
        return CsvSource(paths, label=label, weight=weight, header=header, **common)
    if kind == "numpy":
        return NumpySource.from_files(paths, label=label, weight=weight, **common)
    if kind != "libsvm":
        raise InputError(f"format must be one of {', '.join(FORMATS)}. Got {kind!r} instead.")
    if weight is not None or not isinstance(label, bool | None):
        raise InputError(f"{paths[0]}: LIBSVM text has its label first and no weights; leave label and weight out.")
    return LibsvmSource(paths, label=label is not False, **common)


def read_blocks(source: Any, **options: Any) -> Iterator[RowBlock]:
    """Yield the rows of a source as `RowBlock`; parameters and errors as `open_source`."""
    yield from open_source(source, **options).blocks()


def detect_format(path: str) -> str:
    """Tell the format of a file by its name, else by its first line; InputError where neither tells."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix in _COMPRESSED:
        suffix = os.path.splitext(stem)[1]
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    _, line = first_line(path)
    if line.startswith((b"\x93NUMPY", b"PK\x03\x04")):
        return "numpy"
    if _LIBSVM_LINE.fullmatch(line):
        return "libsvm"
    if any(separator in line for separator in (b",", b";", b"\t", b"|")):
        return "csv"
    raise InputError(f"{path}: neither name nor first line tells the format; give format= (--format).")


def _is_arrays(source: Any) -> bool:
    if isinstance(source, tuple) and len(source) == 2:
        return not all(isinstance(item, str | os.PathLike) for item in source)
    return isinstance(source, np.ndarray)


def _paths(source: Any) -> list[str]:
    items: Sequence[Any] = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(items, list | tuple) or not items:
        raise InputError(f"cannot ingest {type(source).__name__}; give a path, a list of paths, X or (X, y).")
    if not all(isinstance(item, str | os.PathLike) for item in items):
        raise InputError("a list must hold paths; give rows in memory as a NumPy array, or as a tuple (X, y).")
    return [os.fspath(item) for item in items]


def _column_number(label: str | int | bool | None) -> int | bool | None:
    if isinstance(label, str):
        raise InputError(f"label={label!r} names a column, but arrays have none; give its number, or (X, y).")
    return label
