"""Prediction as tasks: a model's values for a chunk of a store or a block of rows, and class labels from them.

Tasks carry a model, or the path of its file if it is large. A model is read back with the same bits; large support rows
stay on disk.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.data.rows.memory import describe_not_finite
from dask_odm.data.rows.ranks import Ranks
from dask_odm.data.rows.scaling import MATRIX
from dask_odm.data.storage.storage import storage_of
from dask_odm.data.store.layout import STORE_CHUNK_BYTES
from dask_odm.data.store.records import Record, read_record
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError, StoreError
from dask_odm.linalg.csr_rows import sparse_rows
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.linalg.rows import unmasked
from dask_odm.models.cell_model import CellModel, ClusterModel
from dask_odm.models.kernel_model import BY_METRIC, ON_RANKS, KernelModel
from dask_odm.models.linear_model import LinearModel
from dask_odm.models.model import Model
from dask_odm.models.pair_model import PairModel
from dask_odm.typing import Array

HELD_BYTES = 64 << 20  # most bytes of an array of a model in memory; larger support rows are read for every block
_KINDS: dict[str, type[KernelModel] | type[LinearModel]] = {
    each.kind: each for each in (KernelModel, PairModel, LinearModel, CellModel, ClusterModel)
}


@dataclass(frozen=True, eq=False)
class RecordRows:
    """Rows of an array of a record, read when sliced."""

    record: Record
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.record.arrays[self.name].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.record.arrays[self.name].dtype)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        return self.record.rows(self.name, start, stop)


def model_from(record: Record) -> Model:
    """Build the model that a record holds; large support rows stay on disk.

    Raises StoreError if the record lacks a part of its model, is damaged, or names an unknown kind or kernel.
    """
    description = record.attributes.get("model")
    kind = description.get("kind") if isinstance(description, dict) else None
    plain = kind.removesuffix(BY_METRIC).removesuffix(ON_RANKS) if isinstance(kind, str) else ""
    if not isinstance(description, dict) or plain not in _KINDS:
        raise StoreError(f"model '{record.path}' is of a kind that this dask_odm does not know: {kind!r}; upgrade it.")
    marks = str(kind).removeprefix(plain)
    names = [*_KINDS[plain].parts, *(Ranks.parts if ON_RANKS in marks else ()), *([MATRIX] * (BY_METRIC in marks))]
    arrays: dict[str, Any] = {}
    for name in names:
        layout = record.arrays.get(name)
        large = layout is not None and layout.chunk_nbytes * layout.n_chunks > HELD_BYTES
        arrays[name] = RecordRows(record, name) if large and name == "support_vectors" else record.array(name)
    try:
        return _KINDS[plain].from_parts(description, arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"model '{record.path}' does not hold a {kind} model ({error}); restore this file or fit again."
        ) from error


@dataclass(frozen=True)
class ModelFile:
    """A saved model, by its path and the ``digest`` of its content; tasks carry it instead of the model."""

    path: str
    digest: str

    @classmethod
    def of(cls, record: Record) -> ModelFile:
        return cls(record.path, record.digest)

    def is_current(self) -> bool:
        """Return whether the file still exists, with the same content."""
        try:
            return ModelFile.of(read_record(self.path, "model")) == self
        except StoreError:
            return False

    @lru_cache(maxsize=2)  # noqa: B019  (a path and a digest are all that it keeps alive, and two models)
    def load(self) -> Model:
        """Return the model, which is read once a process."""
        record = read_record(self.path, "model")
        if record.digest != self.digest:
            raise record.replaced()
        return model_from(record)


def chunk_runs(store: Store, outputs: int, slots: int, fewest: int) -> list[range]:
    """Return runs of a store's chunks, one for each task of a prediction; ``slots`` tasks run at the same time.

    All slots have as many runs, and there are ``fewest`` or more; the values of a run take a chunk's bytes at most.
    Runs are equally long except for the last, as zarr wants chunks to be.
    """
    values = 8 * outputs * store.rows
    count = slots * -(-max(fewest, values // STORE_CHUNK_BYTES) // slots)
    each = -(-store.n_chunks // count)
    return [range(i, min(i + each, store.n_chunks)) for i in range(0, store.n_chunks, each)]


def values_of_chunks(model: Model | ModelFile, store: Store, chunks: range) -> Array:
    """Return a model's values of a run of chunks, as `values_of_block` does: a task of lazy predictions."""
    found = []
    for i in chunks:
        with store_seen_from_here(store):
            X = store.read_features(i)
        found.append(values_of_block(model, X))
    return np.concatenate(found)


def values_of_rows(model: Model | ModelFile, X: Array) -> Array:
    """Return a model's values of raw rows that nobody has checked; raise InputError if any entry is not finite."""
    X = sparse_rows(unmasked(X))
    complaint = describe_not_finite(X)
    if complaint is not None:
        raise InputError(f"in a block of rows, {complaint}")
    return values_of_block(model, X)


def values_of_block(model: Model | ModelFile, X: Any, threads: int = 1) -> Array:
    """Return a model's values of finite raw rows (n, d), dense or CSR: (n,) for one output, else (n, outputs)."""
    if isinstance(model, ModelFile):
        way_out = (
            "Choose a folder (Dask's temporary-directory) that every worker sees, or save the model to one and load it "
            "from there"
        )
        with _seen_from_here(f"model '{model.path}'", model.path, way_out):
            model = model.load()
    rows = X if issparse(X) else np.require(X, requirements=["C", "A"])
    return finite_values(model.values(rows, threads))


def answers_of_rows(X: Array, model: Model | ModelFile, threads: int, then: Callable[[Array], Array] | None) -> Array:
    """Return a model's values of finite raw rows, or what ``then(values)`` makes of them."""
    values = values_of_block(model, X, threads)
    return values if then is None else then(values)


def store_seen_from_here(store: Store) -> AbstractContextManager[None]:
    return _seen_from_here(f"store '{store.path}'", store.path, "Put it where every worker sees it under this path")


@contextmanager
def _seen_from_here(what: str, path: str, way_out: str) -> Iterator[None]:
    """Replace the error of a missing file: this process cannot see it, perhaps on another machine's worker."""
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
    return classes[code_block(scores)]


def labels_block(scores: Array, dtype: Any = np.int64) -> Array:
    """Return a 0/1 matrix of labels from scores (n, labels), by their signs."""
    return (scores > 0).astype(dtype)


def code_block(scores: Array) -> Array:
    """Return the place of each row's class among the classes, see `label_block`."""
    return (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)


@dataclass(frozen=True, eq=False)
class ScoreQuery:
    """Weights of the rows of a labelled store that a model predicts right, and of all with a label. Tasks carry it.

    ``codes`` (labels of the store,) are the places of its labels among the model's classes, -1 for others.
    """

    model: Model | ModelFile
    store: Store
    codes: Array

    def score(self, blocks: Iterable[RowBlock], threads: int) -> Array:
        """Return both weights of the rows of blocks, (2,)."""
        found = np.zeros(2)
        with store_seen_from_here(self.store):
            for block in blocks:
                counted = np.where(block.y < 0, 0.0, block.weight if block.weight.size else 1.0)
                right = code_block(values_of_block(self.model, block.X, threads)) == self.codes[block.y]
                found += counted[right].sum(), counted.sum()
        return found
