"""Kernel products over rows in memory or in a file, by workers if there are any, or by threads of this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.memory import SparseRows
from dask_odm.engine.cluster import Cluster, active_client
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import Tiling
from dask_odm.learning.distributed_products import cluster_products, copied, read_rows, write_rows
from dask_odm.learning.problem.products import Products, RowProducts
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.scratch import scratch_folder
from dask_odm.learning.training.training_data import Purpose

logger = logging.getLogger("dask_odm")
WORKER_ROWS = 8192  # rows in memory beyond which workers compute, if there are any


@contextmanager
def products_in_memory(
    kernel: Kernel, scaled: Any, run: FitRun, purpose: Purpose, held: int, *, named: bool
) -> Iterator[Products]:
    """Yield products over scaled rows in memory; the fit holds ``held`` bytes of them.

    Workers compute if there are many rows and the kernel is ``named``. They read the rows from a file.
    """
    if active_client() is None or not named or isinstance(scaled, SparseRows) or len(scaled) <= WORKER_ROWS:
        yield _here(kernel, scaled, run, purpose, held)
        return

    with scratch_folder() as folder:
        write_rows(folder, scaled.shape, scaled.dtype, copied(lambda start, stop: scaled[start:stop]))
        with products_of_file(kernel, folder, run.cluster(), run, purpose) as products:
            yield products


@contextmanager
def products_of_file(
    kernel: Kernel, folder: str, cluster: Cluster, run: FitRun, purpose: Purpose
) -> Iterator[Products]:
    """Yield products over the scaled rows that `write_rows` left in ``folder``."""
    rows = read_rows(folder)
    logger.info("%d rows of %d features, %s; %s", *rows.shape, purpose.what, cluster)
    if cluster.client is None:
        yield _here(kernel, rows, run, purpose, rows.nbytes)
        return
    spare = require_memory(rows.shape, rows.dtype, run, purpose, 0)
    with cluster_products(kernel, folder, cluster, max(0, spare - rows.nbytes)) as products:
        yield products


def _here(kernel: Kernel, source: Any, run: FitRun, purpose: Purpose, more: int) -> RowProducts:
    spare = require_memory(source.shape, source.dtype, run, purpose, more)
    return RowProducts(kernel, source, spare, CPU_COUNT)


def require_memory(shape: tuple[int, int], dtype: np.dtype[Any], run: FitRun, purpose: Purpose, more: int) -> int:
    """Return the bytes of this process that are left for tiles when ``more`` bytes are taken.

    Raises MemoryLimitError if the products themselves do not fit.
    """
    cluster = Cluster.local(run.memory_limit)
    scratch = max(Tiling(*shape, size).scratch_bytes(CPU_COUNT) for size in (dtype.itemsize, 8))
    needed = more + scratch + purpose.nbytes(*shape, dtype.itemsize)
    cluster.require(needed, 1, f"{purpose.what} over {shape[0]} rows of {shape[1]} features", purpose.advice)
    return cluster.memory - needed
