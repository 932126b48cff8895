"""Prediction as tasks: a model's values for a chunk of a store or a block of rows, and class labels from them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from dask_odm.data.rows.finite import describe_not_finite
from dask_odm.data.storage.storage import storage_of
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError, StoreError
from dask_odm.models.base import Model
from dask_odm.models.saved import ModelFile
from dask_odm.typing import Array


def values_of_chunk(model: Model | ModelFile, store: Store, i: int) -> Array:
    """Return a model's values of chunk ``i`` of a store, as `values_of_block` does: a task of lazy predictions."""
    with _store_seen_from_here(store):
        X = store.read_chunk(store.layout.X, i)
    return values_of_block(model, X)


def values_of_rows(model: Model | ModelFile, X: Array) -> Array:
    """Return a model's values of raw rows that nobody has checked; raise InputError if any entry is not finite."""
    complaint = describe_not_finite(X)
    if complaint is not None:
        raise InputError(f"in a block of rows, {complaint}")
    return values_of_block(model, X)


def values_of_block(model: Model | ModelFile, X: Array, threads: int = 1) -> Array:
    """Return a model's values of finite raw rows (n, d): (n,) for one output, else (n, outputs)."""
    if isinstance(model, ModelFile):
        way_out = (
            "Choose a folder (Dask's temporary-directory) that every worker sees, or save the model to one and load it "
            "from there"
        )
        with _seen_from_here(f"model '{model.path}'", model.path, way_out):
            model = model.load()
    return finite_values(model.values(np.ascontiguousarray(X), threads))


def _store_seen_from_here(store: Store) -> AbstractContextManager[None]:
    return _seen_from_here(f"store '{store.path}'", store.path, "Put it where every worker sees it under this path")


@contextmanager
def _seen_from_here(what: str, path: str, way_out: str) -> Iterator[None]:
    """Tell a file that this process cannot see, perhaps on another machine's worker, from a damaged one."""
    try:
        yield
    except StoreError as error:
        if storage_of(path).exists():
            raise
        raise StoreError(
            f"{what} is not there for the process that predicts, on host {socket.gethostname()}. {way_out}, and "
            "predict again."
        ) from error


def finite_values(values: Array) -> Array:
    """Return values (n, outputs), or (n,) for one output; raise InputError if one is not finite."""
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise InputError(
            f"the kernel of {len(bad)} rows overflows {values.dtype}, first in row {bad[0]} of those at hand: they are "
            "far larger than the rows trained on, or need rescaling (scale='minmax')."
        )
    return values[:, 0] if values.shape[1] == 1 else values


def label_block(scores: Array, classes: Array) -> Array:
    """Return class labels from scores: by the sign for one score per row, else by the largest."""
    return classes[(scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)]


def count_chunk(model: Model | ModelFile, store: Store, i: int, classes: Array, threads: int) -> tuple[float, float]:
    """Return the weight of correctly predicted rows of chunk ``i``, and that of all its rows with a label."""
    store.require_classes("score")
    with _store_seen_from_here(store):
        block = store.read(i)
    assert block.y is not None
    weight = np.where(block.y < 0, 0.0, 1.0 if block.weight is None else block.weight)
    right = label_block(values_of_block(model, block.X, threads), classes) == store.labels(block.y)
    return float(weight[right].sum()), float(weight.sum())
