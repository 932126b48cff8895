"""Spooling: rows that a fit needs as a store are written to one, for as long as the fit takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dask_odm.data.readers.labels import LabelEncoder
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.engine.cluster import computed
from dask_odm.estimators.inputs.checks import CheckedRows, as_input_error, require_finite
from dask_odm.estimators.inputs.input_types import LazyArrays
from dask_odm.events import Meter
from dask_odm.learning.training.scratch import scratch_folder
from dask_odm.typing import Array

BLOCK_BYTES = 16 << 20  # bytes of rows in memory that are written at a time


@contextmanager
def spooled(rows: Store | LazyArrays | CheckedRows, target: str) -> Iterator[Store]:
    """Provide rows as a store: itself, or a new one in the scratch folder, within the ``with`` block only.

    ``target`` says whether y becomes ``classes`` or stays ``real``.
    """
    if isinstance(rows, Store):
        yield rows
        return
    arrays = rows if isinstance(rows, LazyArrays) else _lazy(rows)
    with scratch_folder() as folder:
        yield _spool(arrays, os.path.join(folder, "spooled.zarr"), target)


def _lazy(rows: CheckedRows) -> LazyArrays:
    """Return rows, labels and weights in memory as dask arrays with equal row chunks."""
    import dask.array as da

    count = max(1, BLOCK_BYTES // rows.X[:1].nbytes)
    X = da.from_array(rows.X, chunks=(count, -1))
    return LazyArrays(X, da.from_array(rows.y, chunks=count), da.from_array(rows.weight, chunks=count), rows.names)


def _spool(arrays: LazyArrays, path: str, target: str) -> Store:
    """Write dask arrays to a store at ``path``, one block in this process's memory at a time."""
    dtype = arrays.X.dtype.name if arrays.X.dtype in (np.float32, np.float64) else "float64"
    columns = [arrays.X, arrays.y] if arrays.weight is None else [arrays.X, arrays.y, arrays.weight]
    blocks = zip(*[column.to_delayed().reshape(-1) for column in columns], strict=True)
    encoder = LabelEncoder(text=False, target=target)
    with StoreWriter(path, dtype=dtype) as writer, Meter("spool", len(arrays.X), "rows") as meter:
        for block in blocks:
            rows, y, *weight = computed(*block)
            X = np.asarray(rows).astype(dtype, copy=False)
            require_finite(X, arrays.feature_names, writer.rows)
            targets = encoder.encode(np.asarray(y), lambda i: f"y, row {writer.rows + i}")
            writer.append(X, targets, _numbers(weight[0]) if weight else None)
            meter.add(len(X))
        names = None if arrays.feature_names is None else [str(name) for name in arrays.feature_names]
        return writer.finish(encoder.classes() or None, feature_names=names, source="dask arrays")


def _numbers(weight: Any) -> Array:
    numbers: Array = as_input_error(lambda: np.asarray(weight, dtype=np.float64))
    return numbers
