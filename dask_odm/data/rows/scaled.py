"""Dense rows in memory that are scaled as they are read: a scaled copy of many would take as much memory as they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Scaling, expect_many
from dask_odm.typing import Array

COPIED_BYTES = 64 << 20  # rows up to this are copied, scaled, once: to scale them in every pass takes longer


class RowsOfMatrix:
    """Rows of a matrix ``X`` (n, d) that are read some at a time: what their shape is."""

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
    """Rows of an array as a kernel sees them, block by block; the bits are those of a scaled copy.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Raw rows, float32 or float64.
    scaling : Scaling
    """

    X: Array
    scaling: Scaling

    def __getitem__(self, rows: Any) -> Array:
        found = self.X[rows]
        return self.scaling(found, found if found.base is None else None)  # what was gathered is nobody else's

    def read(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Rows ``start:stop``, scaled."""
        return self[start:stop]

    def take(self, order: Array) -> Array:
        """A scaled copy of the rows at ``order``."""
        return self[order]


def are_few(X: Array) -> bool:
    """Whether rows ``X`` are copied to be scaled."""
    return X.nbytes <= COPIED_BYTES


def scaled_rows(X: Array, scaling: Scaling) -> Array | ScaledRows:
    """``X`` (n, d) as a kernel sees it: a copy of few rows, or many that are scaled as they are read."""
    if are_few(X):
        return scaling(X)
    expect_many()
    return ScaledRows(X, scaling)
