"""Prediction, block by block and in memory for a block: what a fitted model is once it is only asked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.data.rows.finite import describe_not_finite
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.store.records import Record, RowSource, read_record
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError, StoreError
from dask_odm.kernels import from_parameters
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

TILE_ROWS = 1024
SUPPORT_BYTES = 16 << 20
HELD_BYTES = 64 << 20  # support rows up to this are kept by a worker; more are read again for every block


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


@dataclass(frozen=True, eq=False)
class Predictor:
    """The decision function ``f(x) = Σ_i coefficients_i κ(x_i, x) + intercept`` on raw rows.

    Attributes
    ----------
    kernel : Kernel
        Without bias.
    scaling : Scaling
    support : rows of shape (n_support, d)
        Raw; empty for the linear kernel.
    coefficients : ndarray of shape (n_machines, n_support)
    weights : ndarray of shape (n_machines, d) or None
        Of raw features, for the linear kernel.
    intercept : ndarray of shape (n_machines,)
    """

    kernel: Kernel
    scaling: Scaling
    support: RowSource
    coefficients: Array
    weights: Array | None
    intercept: Array

    def decision(self, X: Any, threads: int = 1) -> Array:
        """f of the first machine on raw rows ``X`` (n, d), dense or CSR, in their dtype; (n,).

        Computed in the wider of the rows' dtype and the model's. Sparse rows are made dense block by block.
        """
        if self.weights is not None:
            return np.asarray(X @ self.weights[0] + self.intercept[0]).astype(X.dtype)
        n, dtype = X.shape[0], np.result_type(X.dtype, self.support.dtype)
        scores = np.full(n, self.intercept[0])
        starts = range(0, n, TILE_ROWS)
        with single_threaded_blas:
            for right, coefficients in self._support_blocks(dtype):

                def add(start: int, right: Any = right, coefficients: Array = coefficients) -> None:
                    rows = slice(start, start + TILE_ROWS)
                    block = X[rows].toarray() if issparse(X) else X[rows]
                    left = self.kernel.pack_left(self.scaling(block.astype(dtype, copy=False)))
                    self.kernel.forward(left, right, coefficients, scores[rows])

                run_threads(add, starts, threads)
        return scores.astype(X.dtype)

    def _support_blocks(self, dtype: np.dtype[Any]) -> Any:
        """Scaled and packed support rows with their coefficients, a bounded number at a time."""
        n, d = self.support.shape
        step = max(1, min(4096, SUPPORT_BYTES // (d * dtype.itemsize)))
        for start in range(0, n, step):
            rows = self.support[start : start + step].astype(dtype, copy=False)
            yield self.kernel.pack_right(self.scaling(rows)), self.coefficients[0, start : start + step].astype(dtype)

    def arrays(self) -> dict[str, Any]:
        """Arrays of a model's record that `predictor_from` needs."""
        arrays: dict[str, Any] = {
            "shift": self.scaling.shift,
            "factor": self.scaling.factor,
            "support_vectors": self.support,
            "dual_coef": self.coefficients,
            "intercept": self.intercept,
        }
        return arrays if self.weights is None else {**arrays, "coef": self.weights}


def predictor_from(record: Record) -> Predictor:
    """The predictor of a model's record; large support stays on disk.

    Raises
    ------
    StoreError
        The record lacks what a model has, or is damaged.
    """
    try:
        kernel = from_parameters(record.attributes["kernel"])
    except (KeyError, TypeError) as error:
        raise StoreError(f"model '{record.path}' has a kernel that this dask_odm does not know: {error}.") from error
    support: RowSource = RecordRows(record, "support_vectors")
    if record.arrays["support_vectors"].chunk_nbytes * record.arrays["support_vectors"].n_chunks <= HELD_BYTES:
        support = record.array("support_vectors")
    weights = record.array("coef") if "coef" in record.arrays else None
    scaling = Scaling(record.array("shift"), record.array("factor"))
    return Predictor(kernel, scaling, support, record.array("dual_coef"), weights, record.array("intercept"))


@lru_cache(maxsize=2)
def _read_predictor(path: str, digest: str) -> Predictor:
    record = read_record(path, "model")
    if ModelFile.of(record).digest != digest:
        raise StoreError(f"model '{path}' was replaced since it was loaded; load it again.")
    return predictor_from(record)


@dataclass(frozen=True)
class ModelFile:
    """A saved model, by path: what tasks carry instead of the model itself. ``digest`` is of its content."""

    path: str
    digest: str

    @classmethod
    def of(cls, record: Record) -> ModelFile:
        return cls(record.path, hashlib.sha256(repr(sorted(record.entries.items())).encode()).hexdigest())

    def is_current(self) -> bool:
        """Whether the file is still there, and the same."""
        try:
            return ModelFile.of(read_record(self.path, "model")) == self
        except StoreError:
            return False

    def load(self) -> Predictor:
        """The model, read once a process."""
        return _read_predictor(self.path, self.digest)


def decide_chunk(model: Predictor | ModelFile, store: Store, i: int) -> Array:
    """Decision values of chunk ``i`` of a store: the task behind lazy predictions."""
    return decide_block(model, store.read_chunk(store.layout.X, i))


def count_chunk(model: Predictor, store: Store, i: int, classes: Array, threads: int) -> tuple[float, float]:
    """Weight of the rows of chunk ``i`` whose label is predicted, and of all with a label."""
    store.require_classes("score")
    block = store.read(i)
    assert block.y is not None
    weight = np.where(block.y < 0, 0.0, 1.0 if block.weight is None else block.weight)
    right = label_block(decide_block(model, block.X, threads), classes) == store.labels(block.y)
    return float(weight[right].sum()), float(weight.sum())


def decide_rows(model: Predictor | ModelFile, X: Array) -> Array:
    """As `decide_block`, of rows that nobody has checked."""
    complaint = describe_not_finite(X)
    if complaint is not None:
        raise InputError(f"in a block of rows, {complaint}")
    return decide_block(model, X)


def decide_block(model: Predictor | ModelFile, X: Array, threads: int = 1) -> Array:
    """Decision values of a block of raw rows (n, d)."""
    predictor = model.load() if isinstance(model, ModelFile) else model
    return finite_decisions(predictor.decision(np.ascontiguousarray(X), threads))


def finite_decisions(scores: Array) -> Array:
    """The scores; raises InputError if one is not finite."""
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise InputError(
            f"the kernel of {len(bad)} rows overflows {scores.dtype}, first in row {bad[0]} of those at hand: they are "
            "far larger than the rows trained on, or need rescaling (scale='minmax')."
        )
    return scores


def label_block(scores: Array, classes: Array) -> Array:
    """Class labels of decision values."""
    return classes[(scores > 0).astype(np.int64)]
