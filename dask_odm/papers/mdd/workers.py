"""Shards of a kernel model, which workers read and factor; if one is lost, others do it again, to the same bits."""

from __future__ import annotations

import numpy as np

from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import Partitions
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.linalg.systems import factored
from dask_odm.linalg.threads import run_threads
from dask_odm.papers.mdd.fixed_point import KernelSystem


def hold_shard(
    partitions: Partitions,
    scaling: Scaling | StoredScaling,
    kernel: Kernel,
    lam: float,
    stretch: float,
    pull: float,
    threads: int,
    i: int,
) -> KernelSystem:
    """Compute and factor the matrix of shard ``i``; raise InputError if it is not positive definite.

    ``partitions`` has all rows in the order of the shards, in memory or on disk; ``scaling`` makes them the rows that
    the kernel sees. ``stretch`` and ``pull`` are as in `KernelSystem`; ``threads`` factor a matrix. It is made and
    factored in one float64 array, whose upper half is no part of the factor.
    """
    counts = partitions.counts
    rows, _ = partitions.rows(i, i + 1, scaling, 1 << 62)
    X = rows.read(0, rows.n).astype(np.float64)
    y, weight = partitions.labels(i, i + 1)
    shift = (lam * float(weight.sum()) / weight)[:, None]
    matrix = np.empty((len(X), len(X)))
    right = kernel.pack_right(X)

    def fill(start: int) -> None:
        some = slice(start, start + 512)
        kernel.tile_packed(kernel.pack_left(X[some]), right, matrix[some])

    run_threads(fill, range(0, len(X), 512), threads)
    if stretch != 1.0:
        matrix *= stretch
    matrix[np.diag_indices(len(X))] += shift[:, 0]
    if not factored(matrix, threads):
        raise InputError(
            f"the kernel matrix of {rows.n} rows with lam={lam:g} added is not positive definite, or "
            "overflows: choose a larger lam, or scale the features (scale='minmax')."
        )
    rest = max(1, len(counts) - 1)
    return KernelSystem(matrix, y.reshape(len(y), -1), pull, rest, sum(counts[:i]), 1.0, weight, shift, stretch)
