"""Kernel products over all rows that count, in memory or of a store: by workers if there are any, or by threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster, active_client
from dask_odm.errors import InputError
from dask_odm.estimators.fitting.training import FitSettings, scratch_folder
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import Tiling
from dask_odm.problems.odm import RowLosses
from dask_odm.problems.products import Products, RowProducts
from dask_odm.strategies.gram import cluster_products, read_rows, write_rows
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
WORKER_ROWS = 8192  # in memory: more go to the workers, if there are any
ADVICE = "Use more memory, solver='landmark' without certify, or solver='sodm' with stop_at=."


@dataclass(frozen=True)
class Purpose:
    """What products are for: a few words, the bytes it holds here for n rows of d features, and if that is too much."""

    what: str
    nbytes: Callable[[int, int, int], int]  # of n, d and the bytes of an entry
    advice: str = ADVICE


@contextmanager
def row_products(kernel: Kernel, scaled: Any, settings: FitSettings, purpose: Purpose) -> Iterator[Products]:
    """Products over scaled rows in memory, an array or `SparseRows`; workers get many rows only, by a file."""
    named = isinstance(settings.kernel, str) and settings.kernel != "precomputed"
    if active_client() is None or not named or not isinstance(scaled, np.ndarray) or len(scaled) <= WORKER_ROWS:
        yield _here(kernel, scaled, settings, purpose, 0)
        return
    with scratch_folder(settings.scratch) as folder:
        write_rows(folder, scaled.shape, scaled.dtype, lambda out: np.copyto(out, scaled))
        with placed_products(kernel, folder, Cluster.current(settings.memory_limit), settings, purpose) as products:
            yield products


@contextmanager
def store_products(
    store: Store,
    labelling: TwoClasses,
    scaling: Scaling,
    kernel: Kernel,
    cluster: Cluster,
    settings: FitSettings,
    purpose: Purpose,
) -> Iterator[tuple[Products, RowLosses, Array]]:
    """Products over the rows of a store that count, from a file that workers map into memory.

    Yields
    ------
    products : Products
    losses : RowLosses
    kept : ndarray of shape (n,)
        Numbers of the rows in the store.
    """
    dtype = np.dtype(settings.dtype or store.dtype)
    require_memory((store.rows, store.features), dtype, settings, purpose, 0)  # before anything is read or written
    kept, y, weight = _labels(store, labelling)

    def fill(out: Array) -> None:
        done = 0
        for block in store.blocks():
            inside = kept[np.searchsorted(kept, block.first) : np.searchsorted(kept, block.first + len(block.X))]
            out[done : done + len(inside)] = scaling(block.X[inside - block.first].astype(dtype, copy=False))
            done += len(inside)

    with scratch_folder(settings.scratch) as folder:
        write_rows(folder, (len(kept), store.features), dtype, fill)
        with placed_products(kernel, folder, cluster, settings, purpose) as products:
            yield products, RowLosses(settings.odm, y, weight), kept


def _labels(store: Store, labelling: TwoClasses) -> tuple[Array, Array, Array]:
    """Numbers of the rows that count, their labels ±1 and weights."""
    found: list[tuple[Array, ...]] = []
    for block in store.column_blocks():
        keep, y, weight = labelling(block)
        found.append((block.first + np.flatnonzero(keep), y[keep], weight[keep]))
    kept, y, weight = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if not len(kept):
        raise InputError("no row has both a label and a positive weight.")
    return kept, y, weight


@contextmanager
def placed_products(
    kernel: Kernel, folder: str, cluster: Cluster, settings: FitSettings, purpose: Purpose
) -> Iterator[Products]:
    """Products over the rows in ``folder``: by the cluster's workers, or by threads of this process."""
    rows = read_rows(folder)
    logger.info("%d rows of %d features, %s; %s", *rows.shape, purpose.what, cluster)
    if cluster.client is None:
        yield _here(kernel, rows, settings, purpose, rows.nbytes)
        return
    require_memory(rows.shape, rows.dtype, settings, purpose, 0)
    with cluster_products(kernel, folder, cluster) as products:
        yield products


def _here(kernel: Kernel, source: Any, settings: FitSettings, purpose: Purpose, more: int) -> RowProducts:
    spare = require_memory(source.shape, source.dtype, settings, purpose, more)
    return RowProducts(kernel, source, spare, CPU_COUNT)


def require_memory(
    shape: tuple[int, int], dtype: np.dtype[Any], settings: FitSettings, purpose: Purpose, more: int
) -> int:
    """Bytes of this process that are left for tiles, ``more`` being taken; MemoryLimitError if less than none."""
    cluster = Cluster.local(settings.memory_limit)
    scratch = max(Tiling(*shape, size).scratch_bytes(CPU_COUNT) for size in (dtype.itemsize, 8))
    needed = more + scratch + purpose.nbytes(*shape, dtype.itemsize)
    cluster.require(needed, 1, f"{purpose.what} over {shape[0]} rows of {shape[1]} features", purpose.advice)
    return cluster.memory - needed
