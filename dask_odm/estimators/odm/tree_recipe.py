"""SODM: a tree of partitions in memory or of a store, whose root is solved by all workers where it has many rows.

A root of up to `ROOT_ROWS` rows is one more node of the tree, one task. A larger one is a problem for Newton over all
rows (`dask_odm.solvers.exact`), which starts from the level below: its products are spread over all workers, no
λ slows it down, and its matrix need not fit anywhere. Rows and kernel alone decide, never the workers.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.scaling import StoredScaling
from dask_odm.data.rows.sparse import SparseRows, taken
from dask_odm.data.rows.stored import Labelling
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.estimators.fitting.checkpoints import Checkpoint, open_checkpoint
from dask_odm.estimators.fitting.training import (
    FitSettings,
    Trained,
    finish_precomputed,
    finish_tree,
    gather_rows,
    is_small,
    named_kernel,
    precomputed_kernel,
    read_store,
    scratch_folder,
    store_statistics,
)
from dask_odm.estimators.fitting.training_rows import TrainingRows
from dask_odm.estimators.odm.kernel_products import Purpose, placed_products, row_products
from dask_odm.estimators.odm.newton_recipe import report_step, rescaling_advised
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.given import Precomputed
from dask_odm.kernels.low_rank import is_low_rank
from dask_odm.problems.odm import Point, RowLosses
from dask_odm.problems.products import Products
from dask_odm.solvers.base import Solution
from dask_odm.solvers.exact import solve_exact
from dask_odm.solvers.exact import solver_bytes as exact_bytes
from dask_odm.strategies.gram import write_rows
from dask_odm.strategies.shuffle import landmarks_path, partition_arrays, partition_store
from dask_odm.strategies.tree import (
    TreeJob,
    TreeResult,
    advice_at_root,
    combine,
    end_at_root,
    grow_tree,
    partitions_for,
    solve_whole,
)
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
WHOLE_ROWS = 1 << 16  # up to so many rows in memory are one partition
LEAF_ROWS = 8192
ROOT_ROWS = 8192  # a root of more rows is solved by Newton over all of them
COPIED_ROWS = 8192  # read at a time on their way to the root's file


def train_arrays(
    X: Array, y: Array, weight: Array, class_weights: tuple[float, float], settings: FitSettings
) -> Trained:
    """Train on rows in memory.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Raw rows, float32 or float64.
    y, weight : ndarrays of shape (n,)
        Labels ±1 and weights; rows of weight zero are dropped.
    class_weights : tuple of float
        What a negative and a positive row's weight is multiplied by; scaling does not know of it.
    """
    rows = _merged(TrainingRows.of(X, y, weight, class_weights), settings)
    parts = partitions_for(rows.n, settings.n_partitions, settings.tree.fan_in, WHOLE_ROWS)
    checkpoint = open_checkpoint(lambda: f"{parts} {rows.fingerprint()}", settings)
    kernel, scaling, scaled = (precomputed_kernel if settings.kernel == "precomputed" else named_kernel)(
        X, rows, settings
    )
    partitions = _partitioned(scaled, rows.y, rows.total_weights, kernel, parts, settings)
    job, cluster = (
        TreeJob(partitions, scaling, kernel, settings.odm, settings.solver),
        Cluster.local(settings.memory_limit),
    )
    if has_large_root(job, settings):
        opened = row_products(kernel, partitions.X, settings, _purpose(job, settings))
        result = _grow_to_root(job, settings, cluster, checkpoint, opened)
    elif parts == 1:
        start, on_level = (None, None) if checkpoint is None else (checkpoint.start, checkpoint.save)
        result = solve_whole(job, cluster, resume=start, on_level=on_level)
    else:
        result = _grow(job, settings, cluster, checkpoint)
    if isinstance(kernel, Precomputed):
        return finish_precomputed(job, result, rows.kept, settings)
    return finish_tree(job, scaling, result, rows.raw, rows.kept, settings)


def _merged(rows: TrainingRows, settings: FitSettings) -> TrainingRows:
    """Equal rows made one, but where the kernel is the user's or as many partitions are asked for as rows came."""
    if callable(settings.kernel) or settings.kernel == "precomputed":
        return rows
    merged = rows.merged()
    return merged if settings.n_partitions is None or settings.n_partitions <= merged.n else rows


def _partitioned(
    scaled: Array | SparseRows, y: Array, weight: Array, kernel: Kernel, parts: int, settings: FitSettings
) -> MemoryPartitions:
    if parts > 1:
        return partition_arrays(scaled, y, weight, settings.partitioner(kernel, parts))
    # in random order, since descent goes block by block and rows often come sorted by class
    order = np.random.default_rng(settings.solver.seed).permutation(len(y))
    return MemoryPartitions(taken(scaled, order), y[order], weight[order], order, (len(y),))


def train_store(store: Store, labelling: Labelling, settings: FitSettings) -> Trained:
    """Train on a store: a small one in memory, any other through the shuffle and the tree, on Dask."""
    parts = partitions_for(store.rows, settings.n_partitions, settings.tree.fan_in, LEAF_ROWS)
    if settings.kernel == "precomputed":
        settings.require_named_kernel("a store")
    if store.rows <= WHOLE_ROWS and is_small(store) and settings.n_partitions in (None, 1):
        rows = read_store(store, labelling, settings)
        return train_arrays(*rows, replace(settings, n_partitions=1))
    settings.require_named_kernel("a store of this size")
    checkpoint = open_checkpoint(lambda: f"{parts} {store.digest} {labelling}", settings)
    cluster = Cluster.current(settings.memory_limit)
    statistics = store_statistics(store, labelling, cluster)
    scaling, kernel = settings.scaling(statistics), settings.make_kernel(statistics)
    with scratch_folder(settings.scratch) as folder:
        partitioner = settings.partitioner(kernel, parts)
        partitions = partition_store(store, labelling, scaling, partitioner, folder, cluster, settings.dtype)
        job = TreeJob(partitions, scaling, kernel, settings.odm, settings.solver)
        lean = replace(job, scaling=StoredScaling(landmarks_path(folder)))
        if has_large_root(job, settings):
            opened = _partition_products(job, folder, cluster, settings)
            result = _grow_to_root(lean, settings, cluster, checkpoint, opened)
        else:
            result = _grow(lean, settings, cluster, checkpoint)
        return finish_tree(job, scaling, result, lambda chosen: gather_rows(partitions, chosen), None, settings)


def _grow(job: TreeJob, settings: FitSettings, cluster: Cluster, checkpoint: Checkpoint | None) -> TreeResult:
    """Grow the tree, with checkpoints if they are asked for."""
    counts = job.partitions.counts
    logger.info("%d rows in %d partitions, %s; %s", sum(counts), len(counts), job.kernel, cluster)
    if checkpoint is None:
        return grow_tree(job, settings.tree, cluster)
    start, history = checkpoint.start, checkpoint.history
    return grow_tree(job, settings.tree, cluster, resume=start, history=history, on_level=checkpoint.save)


def has_large_root(job: TreeJob, settings: FitSettings) -> bool:
    """Whether the tree ends with a root that is a problem for Newton over all rows."""
    counts = job.partitions.counts
    if job.kernel.name == "linear" or is_low_rank(job.kernel, job.partitions.features):
        return False
    return sum(counts) > ROOT_ROWS and len(settings.tree.levels(len(counts))[-1]) == 2


def _purpose(job: TreeJob, settings: FitSettings) -> Purpose:
    levels = settings.tree.levels(len(job.partitions.counts))
    return Purpose("The root of the tree", exact_bytes, advice_at_root(levels))


@contextmanager
def _partition_products(job: TreeJob, folder: str, cluster: Cluster, settings: FitSettings) -> Iterator[Products]:
    """Products over all rows of partitions on disk, in their order, from a file below ``folder``."""
    rows, _ = job.partitions.rows(0, len(job.partitions.counts), job.scaling, 0)

    def fill(out: Array) -> None:
        for start in range(0, rows.n, COPIED_ROWS):
            stop = min(rows.n, start + COPIED_ROWS)
            rows.read(start, stop, out[start:stop])

    path = os.path.join(folder, "root")
    os.mkdir(path)
    write_rows(path, (rows.n, rows.d), rows.dtype, fill)
    with placed_products(job.kernel, path, cluster, settings, _purpose(job, settings)) as products:
        yield products


def _grow_to_root(
    job: TreeJob,
    settings: FitSettings,
    cluster: Cluster,
    checkpoint: Checkpoint | None,
    opened: AbstractContextManager[Products],
) -> TreeResult:
    """Grow the tree up to the level below the root, and solve the root from there by the products ``opened``.

    They are opened first, so that too little memory for the root is found before anything is solved.
    """
    levels = settings.tree.levels(len(job.partitions.counts))
    number = len(levels) - 1
    if checkpoint is not None and checkpoint.start is not None and checkpoint.start[0] == number:
        return combine(checkpoint.start[1], checkpoint.history)
    with opened as products:
        start, history = None, []
        if number:
            below = replace(settings, tree=replace(settings.tree, stop_at=len(levels[-2]) - 1))
            result = _grow(job, below, cluster, checkpoint)
            history = result.history
            if settings.tree.early_stop and len(history) > 1 and history[-1]["start_gap"] <= job.solver.tol:
                return result
            start = result.dual[0]
        solution = _solve_root(job, start, products)
    result = end_at_root(solution, history)
    if checkpoint is not None:
        checkpoint.save(number, lambda: [solution], result.history)
    return result


def _solve_root(job: TreeJob, start: Array | None, products: Products) -> Solution:
    """The root from dual variables ``start`` (n,), those of the level below; without, from a quarter of the rows."""
    began = time.perf_counter()
    y, weight = job.partitions.labels(0, len(job.partitions.counts))
    losses = RowLosses(job.odm, y, weight)
    with rescaling_advised():
        found = solve_exact(
            losses,
            products,
            job.solver,
            start=None if start is None else y * start,
            threads=CPU_COUNT,
            on_step=report_step,
        )
    primal, gap = found.history[0]["objective"], found.history[0]["gap"]
    return Solution(
        (y * found.coefficients)[None],
        losses.total_weight,
        len(y),
        Point(primal, primal * (1.0 - gap), gap),
        found.point,
        sweeps=len(found.history) - 1,
        converged=found.converged,
        seconds=time.perf_counter() - began,
    )
