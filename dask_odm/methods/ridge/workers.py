"""Shards of a kernel model, which workers read and factor; if one is lost, others do it again, to the same bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import Partitions
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.linalg.systems import factored
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.ridge.fixed_point import KernelSystem
from dask_odm.typing import Array


@dataclass(frozen=True)
class KernelShards:
    """The shards of a kernel model, before their matrices are computed; tasks carry it.

    ``partitions`` has all rows in the order of the shards, in memory or on disk; ``scaling`` makes them the rows that
    the kernel sees. ``stretch`` and ``pull`` are as in `KernelSystem`; ``threads`` factor a matrix.
    """

    partitions: Partitions
    scaling: Scaling | StoredScaling
    kernel: Kernel
    lam: float
    stretch: float
    pull: float
    threads: int

    def factor_bytes(self, workers: int) -> int:
        """Return the bytes that a worker holds, if so many share the shards."""
        rows = max(self.partitions.counts)
        return -(-len(self.partitions.counts) // workers) * 8 * rows * (rows + self.partitions.features + 8)

    def hold(self, i: int) -> KernelSystem:
        """Compute and factor the matrix of shard ``i``; raise InputError if it is not positive definite."""
        counts = self.partitions.counts
        rows, _ = self.partitions.rows(i, i + 1, self.scaling, 1 << 62)
        X = rows.read(0, rows.n).astype(np.float64)
        y, weight = self.partitions.labels(i, i + 1)
        shift = (self.lam * float(weight.sum()) / weight)[:, None]
        factor = self._factor(X, shift[:, 0])
        if factor is None:
            raise InputError(
                f"the kernel matrix of {rows.n} rows with lam={self.lam:g} added is not positive definite, or "
                "overflows: choose a larger lam, or scale the features (scale='minmax')."
            )
        rest = max(1, len(counts) - 1)
        base = y.reshape(len(y), -1)
        return KernelSystem(factor, base, self.pull, rest, sum(counts[:i]), 1.0, weight, shift, self.stretch)

    def _factor(self, X: Array, shift: Array) -> Array | None:
        """Return the lower Cholesky factor of ``stretch K + diag(shift)``, or None if that is not positive definite.

        The matrix of the float64 rows ``X`` is made and factored in one array, whose upper half is no part of the
        factor.
        """
        matrix = np.empty((len(X), len(X)))
        right = self.kernel.pack_right(X)

        def fill(start: int) -> None:
            rows = slice(start, start + 512)
            self.kernel.tile_packed(self.kernel.pack_left(X[rows]), right, matrix[rows])

        run_threads(fill, range(0, len(X), 512), self.threads)
        if self.stretch != 1.0:
            matrix *= self.stretch
        matrix[np.diag_indices(len(X))] += shift
        return matrix if factored(matrix, self.threads) else None
