"""Rows in the order of their partitions, in memory; `stored` has them on disk, with the same methods.

Partitions ``first:last`` are consecutive rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.sparse import SparseRows
from dask_odm.linalg.row_passes import rows_between
from dask_odm.linalg.rows import ArrayRows, Rows
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class MemoryPartitions:
    """Partitions of arrays in memory.

    ``X`` (n, d) holds scaled rows in the order of the partitions. Sparse rows are made dense at once if they fit into
    the memory of a task, else block by block. ``y`` (±1), ``weight`` and ``numbers`` (each row's original index) have
    shape (n,), and ``counts`` are the rows of each partition.
    """

    X: Array | SparseRows
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
        sparse = self.X.between(span.start, span.stop)
        nbytes = sparse.n * sparse.d * sparse.dtype.itemsize
        return (ArrayRows(sparse.read(0, sparse.n)), nbytes) if nbytes <= memory else (sparse, 0)

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
            step = self.X.rows_at_a_time
            for start in range(span.start, span.stop, step):
                stop = min(start + step, span.stop)
                yield self.X.read(start, stop), self.y[start:stop], self.weight[start:stop]
