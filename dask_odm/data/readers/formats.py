"""Opening any source as a stream of blocks of rows: it tells the format and picks the reader."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

from dask_odm.data.readers.csv_files import CsvSource
from dask_odm.data.readers.libsvm import LibsvmSource
from dask_odm.data.readers.lines import PipedText
from dask_odm.data.readers.missing import CompleteRows
from dask_odm.data.readers.numpy_files import NumpySource
from dask_odm.data.readers.paths import FORMATS, TEXT_FORMATS, detect_format, find_files
from dask_odm.data.readers.sources import BLOCK_BYTES, Source, SourceBlock
from dask_odm.data.readers.stores import StoreSource
from dask_odm.data.readers.tables import PandasSource
from dask_odm.data.storage.locations import MANIFEST, location_of
from dask_odm.data.storage.storage import resolved, storage_of
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError

__all__ = ["FORMATS", "Source", "SourceBlock", "detect_format", "open_source", "read_blocks"]


def open_source(
    source: Any,
    *,
    format: str | None = None,
    n_features: int | None = None,
    label: str | int | bool | None = None,
    weight: Any = None,
    header: bool | None = None,
    drop: str | int | Sequence[str | int] = (),
    dtype: str = "float32",
    block_bytes: int = BLOCK_BYTES,
    allow_large: bool = False,
) -> Source:
    """Find out what a source is, and open it for reading once.

    Parameters
    ----------
    source : path, folder, glob pattern, ``-`` for standard input, or list of paths of one format; store, by path
        or open; rows in memory or lazy, X or (X, y): NumPy array, SciPy sparse matrix, pandas DataFrame, Arrow
        table or stream, dask array or DataFrame, zarr array, xarray Dataset or DataArray
    format : ``libsvm``, ``csv``, ``numpy``, ``parquet`` or ``arrow``; by default told by the file's name, else by
        its first bytes or line
    n_features : number of features of LIBSVM text (spares a first pass); elsewhere only checked
    label : which column or array has the labels, False for none; see the sources
    weight : which column or array has the weights, or for arrays in memory the weights
    header : whether CSV text begins with column names
    drop : names or numbers of columns of CSV, Parquet or Arrow files that are left out
    dtype : ``float32`` or ``float64``
    block_bytes : bytes of text, and of rows, held at a time
    allow_large : whether rows may take far more bytes than their text, or than a compressed file

    Raises
    ------
    InputError
        No such file, an empty one, an unknown format, or an option that does not apply to the format.
    """
    if block_bytes < 1:
        raise InputError(f"block_bytes must be positive. Got {block_bytes} instead.")
    common: dict[str, Any] = {"n_features": n_features, "dtype": dtype, "block_bytes": block_bytes}
    held = _held(source)
    dropped = (drop,) if isinstance(drop, str | int) else tuple(drop)
    if held is not None:
        for name, given in (("format", format), ("header", header), ("drop", dropped or None)):
            if given is not None:
                way_out = "; leave columns out of a frame by frame.drop(columns=...)" if name == "drop" else ""
                raise InputError(f"{name} is for files, not for rows in memory{way_out}.")
        return held(weight, label=label, **common)
    if not isinstance(weight, str | int | None):
        raise InputError("weight as an array goes with arrays in memory; name a column of the file instead.")
    return _of_files(find_files(source), format, header, label, weight, dropped, allow_large, common)


def _of_files(
    paths: list[str],
    format: str | None,
    header: bool | None,
    label: str | int | bool | None,
    weight: str | int | None,
    dropped: tuple[str | int, ...],
    allow_large: bool,
    common: dict[str, Any],
) -> Source:
    kinds = {path: format or detect_format(path) for path in paths}
    if len(set(kinds.values())) > 1:
        raise InputError(f"files of different formats: {', '.join(f'{p} ({kind})' for p, kind in kinds.items())}.")
    kind = kinds[paths[0]]
    if header is not None and kind != "csv":
        raise InputError(f"header is for CSV text, not for {kind}.")
    piped = [path for path in paths if isinstance(path, PipedText)]
    if piped and kind in FORMATS and kind not in TEXT_FORMATS:
        raise InputError(f"{piped[0]}: must be LIBSVM or CSV text, not {kind}; save it to a file first.")
    if kind == "csv":
        more: dict[str, Any] = {"header": header, "drop": dropped, "allow_large": allow_large}
        return CsvSource(paths, label=label, weight=weight, **more, **common)
    if kind in ("parquet", "arrow"):
        from dask_odm.data.readers.arrow_files import ArrowFiles

        return ArrowFiles(paths, kind, label=label, weight=weight, drop=dropped, **common)
    if dropped:
        raise InputError(f"{paths[0]}: drop names columns of CSV text, Parquet or Arrow files, not of {kind}.")
    if kind == "numpy":
        return NumpySource.from_files(paths, label=label, weight=weight, **common)
    if kind != "libsvm":
        raise InputError(f"format must be one of {', '.join(FORMATS)}. Got {kind!r} instead.")
    if weight is not None or not isinstance(label, bool | None):
        raise InputError(f"{paths[0]}: LIBSVM text has its label first and no weights; leave label and weight out.")
    return LibsvmSource(paths, label=label is not False, allow_large=allow_large, **common)


def read_blocks(source: Any, *, drop_missing: bool = False, **options: Any) -> Iterator[SourceBlock]:
    """Yield the complete rows of a source; parameters and errors are those of `open_source` and `CompleteRows`."""
    yield from CompleteRows(open_source(source, **options), drop=drop_missing).blocks()


def _held(source: Any) -> Callable[..., Source] | None:
    """Return the opener, given weight and options, of rows that are not files; None for paths."""
    pair = isinstance(source, tuple) and len(source) == 2 and not all(isinstance(s, str | os.PathLike) for s in source)
    X, y = source if pair else (source, None)
    if isinstance(X, Store):
        return partial(_store, X, y)
    if isinstance(X, str | os.PathLike):
        found = not pair and _is_store(X)
        return partial(_store, Store.open(X), y) if found else None
    if isinstance(X, np.ndarray) or scipy.sparse.issparse(X):
        return partial(_arrays, X, y)
    if isinstance(X, pd.DataFrame):
        return partial(PandasSource, X, y)
    if _is_a(X, "dask.array", "Array") or _is_a(X, "dask.dataframe", "DataFrame"):
        from dask_odm.data.readers.lazy import lazy_source

        return partial(lazy_source, X, y)
    if _is_a(X, "zarr", "Array"):
        from dask_odm.data.readers.lazy import zarr_source

        return partial(zarr_source, X, y)
    if _is_a(X, "xarray", "Dataset") or _is_a(X, "xarray", "DataArray"):
        return partial(_xarray, X, y)
    if hasattr(X, "__arrow_c_stream__") and not isinstance(X, pd.Series):
        from dask_odm.data.readers.arrow_files import arrow_source

        return partial(arrow_source, X, y)
    return partial(_arrays, np.asarray(X), y) if pair and isinstance(X, list) else None


def _is_store(path: str | os.PathLike[str]) -> bool:
    return storage_of(resolved(location_of(path))).has(MANIFEST)


def _is_a(X: Any, module: str, name: str) -> bool:
    """Return whether X is of a library's class, without loading the library if nobody uses it."""
    found = sys.modules.get(module)
    return found is not None and isinstance(X, getattr(found, name))


def _arrays(X: Any, y: Any, weight: Any, *, label: str | int | bool | None, **common: Any) -> Source:
    if isinstance(label, str):
        raise InputError(f"label={label!r} names a column, but arrays have none; give its number, or (X, y).")
    return NumpySource.from_arrays(X, y, weight, label=label, **common)


def _store(store: Store, y: Any, weight: Any, *, label: str | int | bool | None, **common: Any) -> Source:
    if y is not None or weight is not None or not isinstance(label, bool | None):
        raise InputError(f"store '{store.path}' holds its own labels and weights; leave y, label and weight out.")
    return StoreSource(store, label=label is not False, **common)


def _xarray(X: Any, y: Any, weight: Any, *, label: str | int | bool | None, **common: Any) -> Source:
    from dask_odm.data.readers.lazy import xarray_source
    from dask_odm.data.store.interchange import as_store

    whole = y is None and weight is None and isinstance(label, bool | None)
    store = as_store(X) if whole and _is_a(X, "xarray", "Dataset") else None
    if store is not None:
        return StoreSource(store, label=label is not False, **common)
    return xarray_source(X, y, weight, label=label, **common)
