"""Dense rows in memory that are scaled when read: a scaled copy of large data would double its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Scaling, expect_many
from dask_odm.typing import Array

COPIED_BYTES = 64 << 20  # rows up to this size are scaled once, as a copy, which saves time in every pass


class RowsOfMatrix:
    """Base class that takes shape and type of rows from a matrix ``X`` (n, d)."""

    X: Any

    @property
    def shape(self) -> tuple[int, int]:
        n, d = self.X.shape
        return int(n), int(d)

    @property
    def n(self) -> int:
        return self.shape[0]

    @property
    def d(self) -> int:
        return self.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.X.dtype)

    def __len__(self) -> int:
        return self.n


@dataclass(frozen=True, eq=False)
class ScaledRows(RowsOfMatrix):
    """Rows of a float32 or float64 array that are scaled when they are read. The bits are those of a scaled copy."""

    X: Array
    scaling: Scaling

    def __getitem__(self, rows: Any) -> Array:
        found = self.X[rows]
        return self.scaling(found, found if found.base is None else None)  # a gathered copy is scaled in place

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Return rows ``start:stop``, scaled."""
        return self[start:stop]

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
