"""Opening any source as a stream of blocks of rows: it finds the files, tells their format and picks the reader."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

from dask_odm.data.readers.file_formats import FORMATS, titles
from dask_odm.data.readers.lines import COMPRESSIONS, ZIP, PipedText, first_bytes, names_in_zip, opening_lines
from dask_odm.data.readers.partitions import FoundFile, is_partition
from dask_odm.data.readers.sources import MAX_FEATURES, Columns, Reading, is_of
from dask_odm.data.readers.table_source import Batch, TableSource, held_source
from dask_odm.data.readers.tables import ArrayTable, is_arrow_frame, refuse_unreadable_frame
from dask_odm.data.storage.locations import MANIFEST, is_address, location_of, objects_at
from dask_odm.data.storage.storage import current_storage
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.manifest import other_zarr
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError
from dask_odm.linalg.csr_rows import sparse_rows
from dask_odm.linalg.rows import unmasked

_SHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
_NOT_DATA = (".crc", ".md5", ".sha1", ".sha256", ".sha512")


def open_source(source: Any, *, drop: str | int | Sequence[str | int] = (), **options: Any) -> TableSource:
    """Find out what a source is, and open it for reading once; the options are those of `Reading`.

    Raises InputError if there is no such file or nothing in it, if its format is unknown, or if an option does not
    apply to it.
    """
    reading = Reading(drop=(drop,) if isinstance(drop, str | int) else tuple(drop), **options)
    if reading.label is True:
        reading = replace(reading, label=None)
    if isinstance(reading.label, list | tuple) and len(reading.label) < 2:
        reading = replace(reading, label=reading.label[0] if reading.label else False)
    draws = [name for name in ("per_class", "fraction") if getattr(reading, name) is not None]
    if len(draws) == 2:
        raise InputError("per_class and fraction are given both; choose one.")
    if not isinstance(reading.columns, ColumnRecipe | None):
        kind = type(reading.columns).__name__
        raise InputError(f"columns must be store.column_recipe or model.column_recipe_. Got {kind} instead.")
    if reading.text is not None and not 1 <= reading.hash_size <= MAX_FEATURES:
        raise InputError(f"n_features must be between 1 and {MAX_FEATURES}. Got {reading.n_features} instead.")
    cube = _cube(source, reading)
    if cube is not None:
        return cube
    if draws:
        raise InputError(f"{draws[0]} draws from cubes: an xarray Dataset or DataArray with labels, (X, y).")
    held = _anndata(source) or _held(source)
    if held is not None:
        for name, given in (("format", reading.format), ("header", reading.header), ("drop", reading.drop or None)):
            if given is not None:
                way_out = "; leave columns out of a frame by frame.drop(columns=...)" if name == "drop" else ""
                raise InputError(f"{name} is for files, not for rows in memory{way_out}.")
        return held(reading)
    if not isinstance(reading.weight, str | int | None):
        raise InputError("weight as an array goes with arrays in memory; name a column of the file instead.")
    return _of_files(find_files(source), reading)


def _cube(source: Any, reading: Reading) -> TableSource | None:
    """Return the labelled rows of an xarray cube as a source; None if ``source`` is none."""
    pair = isinstance(source, tuple) and len(source) == 2
    X, y = source if pair else (source, reading.label)
    if not is_of(X, "xarray", "Dataset", "DataArray"):
        return None
    from dask_odm.data.cubes.beside import is_labelled_cube
    from dask_odm.data.readers.cubes import cube_source

    return cube_source(X, y, reading) if is_labelled_cube(X, y) else None


def _anndata(source: Any) -> Callable[..., TableSource] | None:
    """Return the opener of AnnData on disk, which takes a `Reading`; None if ``source`` is none."""
    if not isinstance(source, str | os.PathLike) or is_address(os.fspath(source)):
        return None
    path = os.fspath(source)
    if not (os.path.isdir(path) or path.lower().endswith(".h5ad")):  # the reader imports zarr, which takes long
        return None
    from dask_odm.data.readers.anndata_files import anndata_source, is_anndata

    return partial(anndata_source, path) if is_anndata(path) else None


def _of_files(paths: list[str], reading: Reading) -> TableSource:
    words = {path: reading.format or detect_format(path) for path in paths}
    if len(set(words.values())) > 1:
        raise InputError(f"files of different formats: {', '.join(f'{p} ({word})' for p, word in words.items())}.")
    word = words[paths[0]]
    if word not in FORMATS:
        raise InputError(f"format must be one of {', '.join(FORMATS)}. Got {word!r} instead.")
    kind = FORMATS[word]
    for option, given, what in (
        ("header", reading.header is not None, "is for"),
        ("drop", reading.drop, "is for columns of"),
    ):
        if given and option not in kind.options:
            others = titles(each for each in FORMATS.values() if option in each.options)
            raise InputError(f"{paths[0]}: {option} {what} {others}, not {kind.title}.")
    piped = [path for path in paths if isinstance(path, PipedText)]
    if piped and not kind.is_text:
        texts = titles(each for each in FORMATS.values() if each.is_text)
        raise InputError(f"{piped[0]}: must be {texts}, not {word}; save it to a file first.")
    return kind.open(paths, reading)


def _held(source: Any) -> Callable[..., TableSource] | None:
    """Return the opener, which takes a `Reading`, of rows that are not files; None for paths."""
    pair = isinstance(source, tuple) and len(source) == 2 and not all(isinstance(s, str | os.PathLike) for s in source)
    X, y = source if pair else (source, None)
    X = sparse_rows(X)
    if isinstance(X, Store):
        return partial(_of_store, X, y)
    if isinstance(X, str | os.PathLike):
        found = not pair and current_storage(location_of(X)).has(MANIFEST)
        return partial(_of_store, Store.open(X), y) if found else None
    if pair and isinstance(X, list):
        X = np.asarray(unmasked(X))
    if isinstance(X, np.ndarray | pd.DataFrame) or scipy.sparse.issparse(X):
        return partial(held_source, X, y)
    if is_of(X, "dask.array", "Array") or is_of(X, "dask.dataframe", "DataFrame") or is_of(X, "zarr", "Array"):
        from dask_odm.data.readers.lazy import lazy_source

        return partial(lazy_source, X, y)
    if is_of(X, "xarray", "Dataset", "DataArray"):
        return partial(_of_xarray, X, y)
    refuse_unreadable_frame(X)
    if is_arrow_frame(X):
        try:
            from dask_odm.data.readers.arrow_files import arrow_source
        except ImportError as error:
            raise InputError("an Arrow table needs pyarrow; pip install pyarrow, or dask-odm[parquet].") from error
        return partial(arrow_source, X, y)
    return None


def _of_store(store: Store, y: Any, reading: Reading) -> TableSource:
    """Return a store as a source, which is read to write it again with another type, chunking or split."""
    if y is not None or reading.weight is not None or not isinstance(reading.label, bool | None):
        raise InputError(f"store '{store.path}' holds its own labels and weights; leave y, label and weight out.")
    if reading.sparse is None:
        reading = replace(reading, sparse=store.is_sparse)
    where = f"store '{store.path}'"
    row_bytes = store.features * store.dtype.itemsize
    labelled = reading.label is not False and store.y_kind is not None

    def batches() -> Iterator[Batch]:
        for i, chunk in enumerate(store.blocks()):
            y = store.labels(chunk.y) if labelled and chunk.y is not None else None
            end = (chunk.first + chunk.X.shape[0]) * row_bytes
            coordinates = store.read_coordinates(i)
            yield Batch(ArrayTable(chunk.X), where, end, chunk.first, y, chunk.weight, coordinates=coordinates)

    columns = Columns(store.feature_names, store.features, None, None)
    size = store.rows * row_bytes
    source = TableSource(where, columns, batches, reading, size=size, label_name="y" if labelled else None)
    source.y_kind = store.y_kind if labelled else None
    source.coordinates = store.layout.coordinates
    source.text, source.columns = store.text_recipe, store.column_recipe
    return source


def _of_xarray(X: Any, y: Any, reading: Reading) -> TableSource:
    from dask_odm.data.readers.lazy import xarray_source
    from dask_odm.data.store.interchange import as_store

    whole = y is None and reading.weight is None and isinstance(reading.label, bool | None)
    store = as_store(X) if whole and is_of(X, "xarray", "Dataset") else None
    if store is not None:
        return _of_store(store, None, reading)
    return xarray_source(X, y, reading)


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
    files = [file for item in items for file in _expanded(item)]
    above = [
        os.path.abspath(file.folder if isinstance(file, FoundFile) else os.path.dirname(file) or os.curdir)
        for file in files
        if not isinstance(file, PipedText)
    ]
    if len(items) < 2 or not above:
        return files
    folder = os.path.commonpath(above)  # so that lists of folders and of patterns tell columns as lists of files do
    return [file if isinstance(file, PipedText) else FoundFile(file, folder) for file in files]


def detect_format(path: str) -> str:
    """Return the format of a file by its name, else by its first line; raise InputError if neither tells."""
    kind = _told_by_name(path)
    if kind is not None:
        return kind
    head = first_bytes(path)
    if head.startswith(ZIP):
        names = names_in_zip(path)
        if any(name.endswith(".npy") for name in names):
            return "numpy"
        kind = _of_suffix(names[0].lower()) if len(names) == 1 else None
        if kind is not None:
            _require_text(path, kind)
            return kind
    for each in FORMATS.values():
        if each.magic and head.startswith(each.magic):
            return each.word
    _, line = next(opening_lines(path))
    for each in FORMATS.values():
        if each.line is not None and each.line.fullmatch(line):
            return each.word
    raise InputError(
        f"{path}: neither name nor first line tells the format; give format= (--format). Texts are lines of JSON, such "
        'as {"text": "…"}.'
    )


def _told_by_name(path: str) -> str | None:
    """Return the format that the name of a file tells."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix in _SHEETS and os.path.exists(path):
        raise InputError(f"{path}: is a spreadsheet; save it as CSV.")
    if suffix == ".zip":
        return None  # what is in it tells
    kind = _of_suffix(stem.removesuffix(".tar") if suffix in COMPRESSIONS or suffix == ".tar" else path.lower())
    if suffix in COMPRESSIONS:
        _require_text(path, kind)
    return kind


def _of_suffix(name: str) -> str | None:
    suffix = os.path.splitext(name)[1]
    return next((each.word for each in FORMATS.values() if suffix in each.suffixes), None)


def _require_text(path: str, kind: str | None) -> None:
    """Raise InputError if a file that is packed holds a format that is not text."""
    if kind is not None and not FORMATS[kind].is_text:
        raise InputError(f"{path}: only text is read from a packed file, not {kind}; unpack it first.")


def _expanded(item: str | os.PathLike[str]) -> list[str]:
    if isinstance(item, PipedText | FoundFile):
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
    folder = path
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return [FoundFile(file, folder) for file in dict.fromkeys(files)]  # a pattern may match a folder and what it holds


def _folder(path: str) -> list[str]:
    """Return the files of a folder, and of the folders in it whose names tell columns."""
    try:
        files = list(_files_below(path, path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.") from error
    if not files:
        raise InputError(f"{path}: is a folder without data files.")
    return [FoundFile(file, path) for file in files]


def _files_below(path: str, top: str) -> Iterator[str]:
    for name in sorted(filter(_is_data, os.listdir(path)), key=_order):
        file = os.path.join(path, name)
        if not os.path.isdir(file):
            yield file
        elif is_partition(name):
            yield from _files_below(file, top)
        else:
            inner = (each for _, _, names in os.walk(file) for each in sorted(filter(_is_data, names)))
            suffix = os.path.splitext(next(inner, ".csv"))[1] or ".csv"
            pattern = os.path.join(glob.escape(top), "**", f"*{suffix}")
            raise InputError(f"{path}: holds the folder {file}; name the files by a pattern such as '{pattern}'.")


def _objects(location: str) -> list[str]:
    """Return an object, or the objects below an address, in the order of files of a folder."""
    if glob.has_magic(location):
        raise InputError(f"{location}: patterns are of this machine's files only; name the objects, or what is above.")
    found = objects_at(location, is_partition)
    files = found if found == [location] else sorted(filter(_is_data, found), key=_order)
    if not files:
        raise InputError(f"{location}: there is no such object, and none below it that holds data.")
    return [FoundFile(file, location) for file in files]


def _is_data(path: str) -> bool:
    name = os.path.basename(os.path.normpath(path))
    return not name.startswith((".", "_")) and not name.lower().endswith(_NOT_DATA)


def _order(path: str) -> list[tuple[int, str]]:
    """Return the sort key that puts ``part-10`` behind ``part-9``."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"([0-9]+)", path)]
