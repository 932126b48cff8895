"""Sparse rows in memory (CSR), which are scaled and made dense a block at a time, and their statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dask_odm.data.rows.scaling import ScaledRows, Scaling
from dask_odm.data.store.statistics import Statistics
from dask_odm.linalg.rows import RowsOfMatrix
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class SparseRows(RowsOfMatrix):
    """Rows of a CSR array, float32 or float64, which are scaled and made dense when they are read.

    Without a ``scaling`` they stay raw.
    """

    X: Any
    scaling: Scaling | None = None

    def __getitem__(self, rows: Any) -> Array:
        dense = np.ascontiguousarray(self.X[rows].toarray())
        return dense if self.scaling is None else self.scaling(dense, dense)

    @property
    def rows_at_a_time(self) -> int:
        """Number of rows that take 4 MB when they are made dense."""
        return max(1, (4 << 20) // max(1, self.d * self.dtype.itemsize))

    def take(self, order: Array) -> SparseRows:
        """Return the rows at ``order``, still sparse."""
        return SparseRows(self.X[order], self.scaling)

    def between(self, start: int, stop: int) -> SparseRows:
        """Return rows ``start:stop``, still sparse."""
        return SparseRows(self.X[start:stop], self.scaling)


def sparse_statistics(X: csr_array, weight: Array) -> Statistics:
    """Return weighted statistics of the features of CSR rows (n, d). Zeros that are not stored count as values.

    The ``weight`` (n,) must be positive.
    """
    n, d = X.shape
    values = X.data.astype(np.float64)
    columns = X.indices
    weights = np.repeat(weight, np.diff(X.indptr))
    total = float(weight.sum())
    present = np.bincount(columns, weights, minlength=d)
    mean = np.bincount(columns, weights * values, minlength=d) / total
    squares = np.bincount(columns, weights * (values - mean[columns]) ** 2, minlength=d).astype(np.float64)
    squares += np.maximum(total - present, 0.0) * mean**2
    full = np.bincount(columns, minlength=d) == n
    low = np.where(full, np.inf, 0.0)
    high = np.where(full, -np.inf, 0.0)
    np.minimum.at(low, columns, values)
    np.maximum.at(high, columns, values)
    return Statistics(low, high, np.clip(mean, low, high), np.where(low == high, 0.0, squares / total))


def taken(rows: Array | SparseRows | ScaledRows, order: Array) -> Any:
    """Return a copy of the rows at ``order``. Sparse rows stay sparse."""
    # takes a quarter of the time of rows[order] for an array
    return rows.take(order, axis=0) if isinstance(rows, np.ndarray) else rows.take(order)
