"""Shards of a kernel model, which workers read and factor; if one is lost, others do it again, to the same bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import Partitions
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.methods.ridge.shard_systems import KernelSystem, factored_kernel


@dataclass(frozen=True)
class KernelShards:
    """The shards of a kernel model, before their matrices are computed; tasks carry it.

    ``partitions`` has all rows in the order of the shards, in memory or on disk; ``scaling`` makes them the rows that
    the kernel sees. ``stretch`` and ``pull`` are as in `KernelSystem`.
    """

    partitions: Partitions
    scaling: Scaling | StoredScaling
    kernel: Kernel
    lam: float
    stretch: float
    pull: float

    def factor_bytes(self, workers: int) -> int:
        """Return the bytes that a worker holds, if so many share the shards."""
        rows = max(self.partitions.counts)
        return -(-len(self.partitions.counts) // workers) * 8 * rows * (rows + self.partitions.features + 8)

    def hold(self, i: int, threads: int) -> KernelSystem:
        """Compute and factor the matrix of shard ``i``; raise InputError if it is not positive definite."""
        counts = self.partitions.counts
        rows, _ = self.partitions.rows(i, i + 1, self.scaling, 1 << 62)
        X = rows.read(0, rows.n).astype(np.float64)
        y, weight = self.partitions.labels(i, i + 1)
        shift = (self.lam * float(weight.sum()) / weight)[:, None]
        factor = factored_kernel(self.kernel, X, self.stretch, shift[:, 0], threads)
        if factor is None:
            raise InputError(
                f"the kernel matrix of {rows.n} rows with lam={self.lam:g} added is not positive definite, or "
                "overflows: choose a larger lam, or scale the features (scale='minmax')."
            )
        rest = max(1, len(counts) - 1)
        base = y.reshape(len(y), -1)
        return KernelSystem(factor, base, self.pull, rest, sum(counts[:i]), weight, shift, self.stretch)
