"""Groups of rows by the nearest mean in a kernel's space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_odm.kernels.base import Kernel
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of rows by the nearest mean in a kernel's space.

    A mean is one of ``rows`` (m, d), or that of the rows with one of the ``labels`` (m,). ``norms`` (count,) are
    ‖mean‖² of every group. If there is only one group, nobody asks for the groups of rows.
    """

    kernel: Kernel
    rows: Any  # an array or `CSRRows`
    norms: Array
    labels: Array | None = None

    @property
    def count(self) -> int:
        return len(self.norms)

    def __call__(self, X: Any) -> NDArray[np.int32]:
        """Return the group of each scaled row of X (n, d), int32 (n,)."""
        dtype = np.result_type(X.dtype, self.rows.dtype)
        means = self.rows
        if isinstance(means, CSRRows) != isinstance(X, CSRRows):
            means = np.asarray(means)
            X = np.asarray(X)
        right = self.kernel.pack_right(means.astype(dtype))
        members = None if self.labels is None else members_of(self.labels)
        found = np.empty(len(X), np.int32)
        step = 1024  # rows of a block
        with single_threaded_blas:
            for i in range(0, len(X), step):
                left = self.kernel.pack_left(X[i : i + step].astype(dtype, copy=False))
                similarity = self.kernel.tile_packed(left, right).astype(np.float64)
                if members is not None:
                    similarity = similarity @ members
                found[i : i + step] = np.argmin(self.norms - 2.0 * similarity, axis=1)
        return found


def members_of(labels: Array) -> Array:
    """Return (m, count): 1 / (size of the cluster) for a row and its cluster, else 0."""
    inside = np.equal.outer(labels, np.arange(labels.max() + 1))
    return inside / inside.sum(axis=0)
