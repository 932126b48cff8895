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

from dask_odm.data.readers.columns import Columns
from dask_odm.data.readers.csv_files import CsvSource
from dask_odm.data.readers.libsvm import LibsvmSource
from dask_odm.data.readers.lines import PipedText
from dask_odm.data.readers.numpy_files import numpy_source
from dask_odm.data.readers.paths import FORMATS, TEXT_FORMATS, detect_format, find_files
from dask_odm.data.readers.sources import BLOCK_BYTES, Source
from dask_odm.data.readers.tables import ArrayTable, Batch, TableSource, held_source
from dask_odm.data.storage.locations import MANIFEST, location_of
from dask_odm.data.storage.storage import resolved, storage_of
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError


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
    """Find out what a source is, and open it for reading once; the options are those of `ingest`.

    Raises InputError if there is no such file or nothing in it, if its format is unknown, or if an option does not
    apply to it.
    """
    if block_bytes < 1:
        raise InputError(f"block_bytes must be positive. Got {block_bytes} instead.")
    common: dict[str, Any] = {"n_features": n_features, "dtype": dtype, "block_bytes": block_bytes}
    label = None if label is True else label
    held = _held(source)
    dropped = (drop,) if isinstance(drop, str | int) else tuple(drop)
    if held is not None:
        for name, given in (("format", format), ("header", header), ("drop", dropped or None)):
            if given is not None:
                way_out = "; leave columns out of a frame by frame.drop(columns=...)" if name == "drop" else ""
                raise InputError(f"{name} is for files, not for rows in memory{way_out}.")
        return held(weight=weight, label=label, **common)
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
        arrow = _arrow(f"{paths[0]}: {'a Parquet' if kind == 'parquet' else 'an Arrow'} file")
        return arrow.arrow_files(paths, kind, label=label, weight=weight, drop=dropped, **common)
    if dropped:
        raise InputError(f"{paths[0]}: drop names columns of CSV text, Parquet or Arrow files, not of {kind}.")
    if kind == "numpy":
        return numpy_source(paths, label=label, weight=weight, **common)
    if kind != "libsvm":
        raise InputError(f"format must be one of {', '.join(FORMATS)}. Got {kind!r} instead.")
    if weight is not None or not isinstance(label, bool | None):
        raise InputError(f"{paths[0]}: LIBSVM text has its label first and no weights; leave label and weight out.")
    return LibsvmSource(paths, label=label is not False, allow_large=allow_large, **common)


def _held(source: Any) -> Callable[..., Source] | None:
    """Return the opener, given weight and options, of rows that are not files; None for paths."""
    pair = isinstance(source, tuple) and len(source) == 2 and not all(isinstance(s, str | os.PathLike) for s in source)
    X, y = source if pair else (source, None)
    if isinstance(X, Store):
        return partial(_of_store, X, y)
    if isinstance(X, str | os.PathLike):
        found = not pair and storage_of(resolved(location_of(X))).has(MANIFEST)
        return partial(_of_store, Store.open(X), y) if found else None
    if pair and isinstance(X, list):
        X = np.asarray(X)
    if isinstance(X, np.ndarray | pd.DataFrame) or scipy.sparse.issparse(X):
        return partial(held_source, X, y)
    if _is_a(X, "dask.array", "Array") or _is_a(X, "dask.dataframe", "DataFrame") or _is_a(X, "zarr", "Array"):
        from dask_odm.data.readers.lazy import lazy_source

        return partial(lazy_source, X, y)
    if _is_a(X, "xarray", "Dataset") or _is_a(X, "xarray", "DataArray"):
        return partial(_of_xarray, X, y)
    if hasattr(X, "__arrow_c_stream__") and not isinstance(X, pd.Series):
        return partial(_arrow("an Arrow table").arrow_source, X, y)
    return None


def _is_a(X: Any, module: str, name: str) -> bool:
    """Return whether X is of a library's class, without loading the library if nobody uses it."""
    found = sys.modules.get(module)
    return found is not None and isinstance(X, getattr(found, name))


def _arrow(what: str) -> Any:
    """Return the reader of Arrow data; raise InputError if pyarrow is not installed."""
    try:
        from dask_odm.data.readers import arrow_files
    except ImportError as error:
        raise InputError(f"{what} needs pyarrow; pip install pyarrow, or dask-odm[parquet].") from error
    return arrow_files


def _of_store(store: Store, y: Any, *, weight: Any, label: str | int | bool | None, **options: Any) -> Source:
    """Return a store as a source, which is read to write it again with another type, chunking or split."""
    if y is not None or weight is not None or not isinstance(label, bool | None):
        raise InputError(f"store '{store.path}' holds its own labels and weights; leave y, label and weight out.")
    where = f"store '{store.path}'"
    row_bytes = store.features * store.dtype.itemsize
    labelled = label is not False and store.has_y

    def batches() -> Iterator[Batch]:
        for chunk in store.blocks():
            y = store.labels(chunk.y) if labelled and chunk.y is not None else None
            end = (chunk.first + len(chunk.X)) * row_bytes
            yield Batch(ArrayTable(chunk.X), where, end, chunk.first, y, chunk.weight)

    columns = Columns(store.feature_names, store.features, None, None)
    source = TableSource(where, columns, batches, size=store.rows * row_bytes, **options)
    if labelled:
        source.label_name = "y"
        source.y_kind = store.y_kind
    return source


def _of_xarray(X: Any, y: Any, *, weight: Any, label: str | int | bool | None, **options: Any) -> Source:
    from dask_odm.data.readers.lazy import xarray_source
    from dask_odm.data.store.interchange import as_store

    whole = y is None and weight is None and isinstance(label, bool | None)
    store = as_store(X) if whole and _is_a(X, "xarray", "Dataset") else None
    if store is not None:
        return _of_store(store, None, weight=None, label=label, **options)
    return xarray_source(X, y, weight, label=label, **options)
