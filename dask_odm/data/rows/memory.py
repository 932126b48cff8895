"""Rows in memory: sparse rows, partitions, equal rows that are merged, and values that are missing or infinite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from dask_odm.data.rows.scaling import ScaledRows, Scaling, StoredScaling
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.linalg.row_passes import rows_between
from dask_odm.linalg.rows import ArrayRows, Rows, RowsOfMatrix
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class SparseRows(RowsOfMatrix):
    """Rows of a CSR array, float32 or float64, which are scaled and made dense when they are read.

    Without a ``scaling`` they stay raw. `CSRRows` are not made dense.
    """

    X: Any
    scaling: Scaling | None = None

    def __getitem__(self, rows: Any) -> Array:
        dense = np.ascontiguousarray(self.X[rows].toarray())
        return dense if self.scaling is None else self.scaling(dense, dense)

    def take(self, order: Array | slice) -> SparseRows:
        """Return the rows at ``order``, still sparse."""
        return SparseRows(self.X[order], self.scaling)


def taken(rows: Array | SparseRows | CSRRows | ScaledRows, order: Array) -> Any:
    """Return a copy of the rows at ``order``. Sparse rows stay sparse."""
    if isinstance(rows, np.ndarray):
        return rows.take(order, axis=0)  # takes a quarter of the time of rows[order]
    return rows.take(order) if isinstance(rows, SparseRows) else rows[order]


@dataclass(frozen=True, eq=False)
class MemoryPartitions:
    """Partitions of arrays in memory; `StoredPartitions` are on disk, with the same methods.

    Partitions ``first:last`` are consecutive rows.
    ``X`` (n, d) holds scaled rows in the order of the partitions. Sparse rows are made dense at once if they fit into
    the memory of a task, else block by block. ``y`` (±1), ``weight`` and ``numbers`` (each row's original index) have
    shape (n,), and ``counts`` are the rows of each partition.
    """

    X: Array | SparseRows | CSRRows
    y: Array
    weight: Array
    numbers: Array
    counts: tuple[int, ...]

    @property
    def features(self) -> int:
        return int(self.X.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.X.dtype

    @property
    def is_sparse(self) -> bool:
        return not isinstance(self.X, np.ndarray)

    @property
    def reading_bytes(self) -> int:
        """Bytes that a thread holds besides the rows it asked for."""
        return 0

    def _span(self, first: int, last: int) -> slice:
        return slice(sum(self.counts[:first]), sum(self.counts[:last]))

    def rows(self, first: int, last: int, scaling: Scaling | StoredScaling, memory: int) -> tuple[Rows, int]:
        """Return scaled rows, made dense if they then take at most ``memory`` bytes, and the bytes that were taken."""
        span = self._span(first, last)
        if not isinstance(self.X, SparseRows):
            return ArrayRows(self.X[span]), 0
        return held_if_small(self.X.take(span), memory)

    def matrix(self, k: int) -> Any:
        """Return the rows of partition ``k``: scaled dense rows, or CSR rows that are `left_to_scale`."""
        span = self._span(k, k + 1)
        if isinstance(self.X, SparseRows):
            return rows_between(self.X.X, span.start, span.stop)
        return self.X[span].matrix() if isinstance(self.X, CSRRows) else self.X[span]

    @property
    def left_to_scale(self) -> Scaling | None:
        """Scaling of the rows that `matrix` returns, None if dense ones are scaled already."""
        if isinstance(self.X, CSRRows):
            d = self.features
            return Scaling(np.zeros(d) if self.X.shift is None else self.X.shift, np.ones(d))
        return self.X.scaling if isinstance(self.X, SparseRows) else None

    def labels(self, first: int, last: int) -> tuple[Array, Array]:
        span = self._span(first, last)
        return self.y[span], self.weight[span]

    def row_numbers(self, first: int, last: int) -> Array:
        return self.numbers[self._span(first, last)]

    def blocks(self, k: int, scaling: Scaling | StoredScaling | None) -> Iterator[tuple[Any, Array, Array]]:
        """Yield the scaled rows of partition ``k`` with labels and weights; a block is valid until the next one."""
        span = self._span(k, k + 1)
        if not isinstance(self.X, SparseRows):
            yield self.X[span], self.y[span], self.weight[span]
        elif self.X.scaling is None:  # as CSR
            yield rows_between(self.X.X, span.start, span.stop), self.y[span], self.weight[span]
        else:
            step = max(1, (4 << 20) // max(1, self.features * self.dtype.itemsize))  # rows of 4 MB
            for start in range(span.start, span.stop, step):
                stop = min(start + step, span.stop)
                yield self.X.read(start, stop), self.y[start:stop], self.weight[start:stop]


def held_if_small(rows: Rows, memory: int) -> tuple[Rows, int]:
    """Return rows, read at once if they then take at most ``memory`` bytes, and the bytes that were taken."""
    nbytes = rows.n * rows.d * rows.dtype.itemsize
    return (ArrayRows(rows.read(0, rows.n)), nbytes) if nbytes <= memory else (rows, 0)


def merge_equal(X: Array, y: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first of each group of equal rows, ascending, and for every row the index of its group.

    Rows of ``X`` (n, d) are equal if all their bits and their ``y`` (n,) are. No rows are merged if two different rows
    have the same hash.
    """
    rows = np.ascontiguousarray(X)
    words = rows.view(np.uint32 if rows.itemsize == 4 else np.uint64)
    odd = np.random.default_rng(0).integers(0, 1 << 63, X.shape[1], np.uint64) * np.uint64(2) + np.uint64(1)
    hashes = np.array(y, np.float64).view(np.uint64)
    _hash_rows(words, odd, hashes)
    ordered = np.sort(hashes)
    alone = np.arange(len(y))
    if (ordered[1:] != ordered[:-1]).all():  # no duplicates, as in most data; `unique` would take longer
        return alone, alone
    _, first, of = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    first = first[order]
    of = np.argsort(order)[of]
    again = np.flatnonzero(first[of] != alone)
    steps = (again[i : i + 4096] for i in range(0, len(again), 4096))  # comparing copies the rows
    if not all((words[first[of[i]]] == words[i]).all() and (y[first[of[i]]] == y[i]).all() for i in steps):
        return alone, alone  # different rows with equal hashes: very rare, or on purpose
    return first, of


def _hash_rows(words: Array, odd: Array, out: Array, cached: int = 1 << 15) -> None:
    """Add a hash of every row of ``words`` (n, d), modulo 2**64, to ``out`` (n,), for ``cached`` words at a time.

    Each word is mixed with its column.
    """
    columns = np.arange(words.shape[1], dtype=np.uint64)
    step = max(1, cached // max(1, words.shape[1]))
    for start in range(0, len(words), step):
        mixed = words[start : start + step] + columns
        mixed *= odd
        mixed ^= mixed >> np.uint64(31)
        mixed *= odd[::-1]
        mixed ^= mixed >> np.uint64(29)
        out[start : start + step] += mixed.sum(axis=1, dtype=np.uint64)


def describe_not_finite(X: Any, names: Sequence[Any] | Array | None = None, first: int = 0) -> str | None:
    """Return a sentence that says where X is missing or infinite, and what to do; None if all of X is finite.

    Columns are called by ``names``, or numbered from 0. ``first`` is the number of the first row of X. Of CSR rows, the
    first column that is not finite is described.
    """
    if issparse(X):
        bad = ~np.isfinite(X.data)
        if not bad.any():
            return None
        column = int(X.indices[bad].min())
        X = X[:, [column]].toarray()
        names = [column if names is None else names[column]]
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(X.sum(dtype=np.float64)):
            return None
    kinds = (
        ("missing values (NaN)", np.isnan, "fill the values in (fillna, scikit-learn's SimpleImputer)"),
        ("infinity", np.isinf, "put numbers in its place"),
    )
    for what, is_bad, otherwise in kinds:
        bad = is_bad(X)
        if bad.any():
            drop = "drop these rows, and their labels if they have any"
            return f"X holds {what} in {_places(bad, names, first)}; {drop}, or {otherwise}."
    return None


def _places(bad: Array, names: Sequence[Any] | Array | None, first: int, most: int = 5) -> str:
    counts = bad.sum(axis=0)
    columns = np.flatnonzero(counts).tolist()
    words = []
    for j in columns[:most]:
        name = j if names is None else names[j]
        shown = name if isinstance(name, int) else repr(str(name))
        words.append(f"column {shown} ({counts[j]} row{'s' if counts[j] > 1 else ''})")
    if len(columns) > most:
        words.append(f"{len(columns) - most} more")
    return f"{', '.join(words)}, first in row {first + int(np.argmax(bad.any(axis=1)))}"
