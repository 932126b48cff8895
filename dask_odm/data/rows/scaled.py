"""Dense rows in memory that are scaled when read: a scaled copy of large data would double its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask_odm.data.rows.scaling import Scaling, expect_many
from dask_odm.linalg.rows import RowsOfMatrix
from dask_odm.typing import Array

COPIED_BYTES = 64 << 20  # rows up to this size are scaled once, as a copy, which saves time in every pass


@dataclass(frozen=True, eq=False)
class ScaledRows(RowsOfMatrix):
    """Rows of a float32 or float64 array that are scaled when they are read. The bits are those of a scaled copy."""

    X: Array
    scaling: Scaling

    def __getitem__(self, rows: Any) -> Array:
        found = self.X[rows]
        return self.scaling(found, found if found.base is None else None)  # a gathered copy is scaled in place

    def take(self, order: Array) -> Array:
        """Return a scaled copy of the rows at ``order``."""
        return self[order]


def are_few(X: Array) -> bool:
    """Return whether rows ``X`` take so little memory that a scaled copy is made of them."""
    return X.nbytes <= COPIED_BYTES


def scaled_rows(X: Array, scaling: Scaling) -> Array | ScaledRows:
    """Return scaled rows of ``X`` (n, d): a copy if they are small, else rows that are scaled when they are read."""
    if are_few(X):
        return scaling(X)
    expect_many()
    return ScaledRows(X, scaling)
