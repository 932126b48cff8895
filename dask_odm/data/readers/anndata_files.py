"""AnnData on disk, a ``.zarr`` folder or an ``.h5ad`` file: rows of X, with columns of obs as labels and weights.

Both have the same groups and attributes (AnnData's on-disk specification), so that one reader serves zarr and h5py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from scipy.sparse import csr_array

from dask_odm.data.readers.sources import LABEL_NAMES, Reading, choose_columns, explained
from dask_odm.data.readers.table_source import Batch, TableSource
from dask_odm.data.readers.tables import ArrayTable, label_values, require_matrix, weight_values
from dask_odm.data.storage.storage import storage_of
from dask_odm.data.store.layout import ROOT
from dask_odm.data.store.manifest import read_document
from dask_odm.errors import InputError, StoreError

_ENTRY_BYTES = np.dtype(np.float64).itemsize + np.dtype(np.int32).itemsize  # of a number and its column
_UNREADABLE = (OSError, EOFError, LookupError, ValueError, TypeError, AttributeError, RuntimeError)
_WRONG = "cannot be read; it is damaged or no AnnData of this version"
_explained = partial(explained, what=_WRONG, errors=_UNREADABLE)


def is_anndata(path: str) -> bool:
    """Return whether a path of this machine is AnnData: an ``.h5ad`` file by its name, a folder by its attributes."""
    if not os.path.isdir(path):
        return path.lower().endswith(".h5ad")
    storage = storage_of(path)
    for key in (ROOT, ".zattrs"):  # of zarr's formats 3 and 2
        with suppress(StoreError):
            document = read_document(storage, key)
            if document.get("attributes", document).get("encoding-type") == "anndata":
                return True
    return False


def anndata_source(path: str, reading: Reading) -> TableSource:
    """Return the rows of AnnData as a source; label and weight name columns of its obs."""
    with _explained(path):
        return _source(path, _opened(path), reading)


def _source(path: str, root: Any, reading: Reading) -> TableSource:
    X, obs = root["X"], root["obs"]
    kind = _kind(X)
    if kind not in ("csr_matrix", "array"):
        raise InputError(f"{path}: X is a {kind}, not rows; set adata.X = adata.X.tocsr(), and write it again.")
    shape = tuple(int(length) for length in (X.attrs["shape"] if kind == "csr_matrix" else X.shape))
    require_matrix(path, shape)
    columns = [str(name) for name in obs.attrs["column-order"]]
    label = reading.label
    if label is None:
        label = next((name for name in columns if name.lower() in LABEL_NAMES), False)
    named: dict[str, Any] = {}
    for what, column in (("label", label), ("weight", reading.weight)):
        if column is None or column is False:
            continue
        if column not in columns:
            raise InputError(f"{path}: no {what} column {column!r} in obs; the columns are {', '.join(columns[:20])}.")
        named[what] = _values(path, obs[column])
    names = _values(path, root["var"][root["var"].attrs["_index"]])
    y = label_values(named["label"]) if "label" in named else None
    weight = weight_values(named["weight"]) if "weight" in named else None
    read = _sparse_rows if kind == "csr_matrix" else _dense_rows

    def batches() -> Iterator[Batch]:
        found = read(path, X, shape, reading)
        while True:
            with _explained(path):
                first, rows, end = next(found, (0, None, 0))
            if rows is None:
                return
            part = slice(first, first + rows.shape[0])
            labels, weights = (None if each is None else each[part] for each in (y, weight))
            yield Batch(ArrayTable(rows), path, end, first, labels, weights)

    if len(names) != shape[1]:
        raise InputError(f"{path}: var has {len(names)} rows where X has {shape[1]} columns.")
    roles = choose_columns(path, names.tolist(), shape[1], False, None)
    size = _ENTRY_BYTES * X["data"].shape[0] if kind == "csr_matrix" else 8 * shape[0] * shape[1]
    return TableSource(path, roles, batches, reading, size=size, label_name=f"'{label}'" if y is not None else None)


def _opened(path: str) -> Any:
    """Return the root group of AnnData."""
    if os.path.isdir(path):
        return zarr.open_group(path, mode="r")
    try:
        import h5py
    except ImportError as error:
        raise InputError(f"{path}: an .h5ad file needs h5py; pip install h5py, or dask-odm[anndata].") from error
    root = h5py.File(path, "r")
    if _kind(root) != "anndata":
        root.close()
        raise InputError(f"{path}: is HDF5 but not AnnData; write its rows as .npy or LIBSVM text.")
    return root


def _kind(node: Any) -> str:
    return str(node.attrs.get("encoding-type", ""))


def _sparse_rows(path: str, X: Any, shape: tuple[int, ...], reading: Reading) -> Iterator[tuple[int, Any, int]]:
    """Yield the first row, CSR rows and the bytes so far, a block of entries at a time."""
    bounds = np.asarray(X["indptr"][:], np.int64)
    sound = len(bounds) == shape[0] + 1 and bounds[0] == 0 and (np.diff(bounds) >= 0).all()
    if not sound or bounds[-1] > min(X["data"].shape[0], X["indices"].shape[0]):
        raise InputError(f"{path}: X/indptr is damaged; write the file again.")
    first = 0
    while first < shape[0]:
        most = bounds[first] + max(1, reading.block_bytes // _ENTRY_BYTES)
        stop = max(first + 1, int(np.searchsorted(bounds, most, side="right")) - 1)
        begin, end = int(bounds[first]), int(bounds[stop])
        entries = (X["data"][begin:end], X["indices"][begin:end], bounds[first : stop + 1] - begin)
        yield first, csr_array(entries, shape=(stop - first, shape[1])), _ENTRY_BYTES * end
        first = stop


def _dense_rows(path: str, X: Any, shape: tuple[int, ...], reading: Reading) -> Iterator[tuple[int, Any, int]]:
    """Yield the first row, dense rows and the bytes so far, a block at a time."""
    step = reading.block_rows(shape[1])
    for first in range(0, shape[0], step):
        rows = np.asarray(X[first : first + step])
        yield first, rows, 8 * (first + len(rows)) * shape[1]


def _values(path: str, node: Any) -> npt.NDArray[Any]:
    """Return a column of obs or var; missing values are None or NaN."""
    kind = _kind(node)
    if kind == "categorical":
        categories = [*_values(path, node["categories"]).tolist(), None]
        return np.fromiter((categories[code] for code in node["codes"][:]), object)  # code -1 is None
    if kind.startswith("nullable-"):
        values = np.asarray(node["values"][:]).astype(object)
        values[np.asarray(node["mask"][:], bool)] = None
        return values
    if kind not in ("array", "string-array"):
        raise InputError(f"{path}: a column of obs or var is {kind or 'of an old version'}; write the file again.")
    values = np.asarray(node[:])
    if values.dtype.kind in "OST" or kind == "string-array":
        words = values.tolist()
        return np.array([word.decode() if isinstance(word, bytes) else word for word in words], dtype=object)
    return values
