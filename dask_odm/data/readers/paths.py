"""Files to read, and their format, from what a user names: a file, a folder, a pattern or standard input."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from dask_odm.data.readers.lines import PipedText, first_bytes, first_line
from dask_odm.data.storage.locations import is_address, location_of
from dask_odm.data.storage.object_files import objects_at
from dask_odm.data.store.manifest import other_zarr
from dask_odm.errors import InputError

TEXT_FORMATS = ("libsvm", "csv")
_SUFFIXES = {
    "libsvm": (".libsvm", ".svm", ".svmlight"),
    "csv": (".csv", ".tsv"),
    "numpy": (".npy", ".npz"),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".arrows", ".feather", ".ipc"),
}
FORMATS = tuple(_SUFFIXES)
_MAGIC = ((b"\x93NUMPY", "numpy"), (b"PK\x03\x04", "numpy"), (b"PAR1", "parquet"), (b"ARROW1", "arrow"))
_COMPRESSED = (".gz", ".bz2", ".xz")
_SHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
_NOT_DATA = (".crc", ".md5", ".sha1", ".sha256", ".sha512")
_PAIR = rb"[^\s,;:|]+:[^\s,;:|]+"
_LIBSVM_LINE = re.compile(rb"\s*([^\s,;:|]+\s+)?" + _PAIR + rb"(\s+" + _PAIR + rb")*\s*(#.*)?")


def find_files(source: Any) -> list[str]:
    """Return the files of a path, a folder, a glob pattern, ``-`` or a list of these.

    Files of a folder or pattern are in the order of their names, with numbers in them by value. Hidden files, those
    that begin with ``_`` (``_SUCCESS``, ``_metadata``) and checksums are left out. Raises InputError if ``source`` is
    no path or nothing is found.
    """
    items: Sequence[Any] = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(items, list | tuple) or not items:
        raise InputError(
            f"cannot ingest {type(source).__name__}; give a path, a list of paths, X or (X, y): NumPy, SciPy sparse, "
            "pandas, Arrow, dask, zarr or xarray."
        )
    if not all(isinstance(item, str | os.PathLike) for item in items):
        raise InputError("a list must hold paths; give rows in memory as a NumPy array, or as a tuple (X, y).")
    return [file for item in items for file in _expanded(item)]


def detect_format(path: str) -> str:
    """Return the format of a file by its name, else by its first line; raise InputError if neither tells."""
    if not isinstance(path, PipedText):
        stem, suffix = os.path.splitext(path.lower())
        if suffix in _SHEETS and os.path.exists(path):
            raise InputError(f"{path}: is a spreadsheet; save it as CSV.")
        if suffix in _COMPRESSED:
            suffix = os.path.splitext(stem)[1]
        for kind, suffixes in _SUFFIXES.items():
            if suffix in suffixes:
                return kind
    head = first_bytes(path)
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    _, line = first_line(path)
    if _LIBSVM_LINE.fullmatch(line):
        return "libsvm"
    if any(separator in line for separator in (b",", b";", b"\t", b"|")):
        return "csv"
    raise InputError(f"{path}: neither name nor first line tells the format; give format= (--format).")


def _expanded(item: str | os.PathLike[str]) -> list[str]:
    if isinstance(item, PipedText):
        return [item]
    path = os.fspath(item)
    if is_address(path):
        path = location_of(path)
        if is_address(path):
            return _objects(path)
    if path == "-":
        return [PipedText(sys.stdin.buffer)]
    zarr = other_zarr(path)
    if zarr is not None:
        raise InputError(f"{path}: {zarr}.")
    if os.path.isdir(path):
        return _folder(path)
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]
    found = sorted(filter(_is_data, glob.glob(path, recursive=True)), key=_order)
    files = [file for each in found for file in (_folder(each) if os.path.isdir(each) else [each])]
    if not files:
        raise InputError(f"{path}: no file matches.")
    return files


def _folder(path: str) -> list[str]:
    try:
        names = sorted(filter(_is_data, os.listdir(path)), key=_order)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.") from error
    if not names:
        raise InputError(f"{path}: is a folder without data files.")
    files = [os.path.join(path, name) for name in names]
    inner = [file for file in files if os.path.isdir(file)]
    if inner:
        pattern = os.path.join(path, "**", "*.csv")
        raise InputError(f"{path}: holds the folder {inner[0]}; name the files by a pattern such as '{pattern}'.")
    return files


def _objects(location: str) -> list[str]:
    """Return an object, or the objects directly below an address, in the order of files of a folder."""
    if glob.has_magic(location):
        raise InputError(f"{location}: patterns are of this machine's files only; name the objects, or what is above.")
    found = objects_at(location)
    files = found if found == [location] else sorted(filter(_is_data, found), key=_order)
    if not files:
        raise InputError(f"{location}: there is no such object, and none below it that holds data.")
    return files


def _is_data(path: str) -> bool:
    name = os.path.basename(os.path.normpath(path))
    return not name.startswith((".", "_")) and not name.lower().endswith(_NOT_DATA)


def _order(path: str) -> list[tuple[int, str]]:
    """Return the sort key that puts ``part-10`` behind ``part-9``."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"([0-9]+)", path)]
