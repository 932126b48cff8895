"""SODM: a tree of partitions in memory or of a store, whose root is solved by all workers where it has many rows.

A root of up to `ROOT_ROWS` rows is one more node of the tree, one task. A larger one is a problem for Newton over all
rows (`dask_odm.solvers.exact`), which starts from the level below: its products are spread over all workers, no
λ slows it down, and its matrix need not fit anywhere. Rows and kernel alone decide, never the workers.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from dask.system import CPU_COUNT

from dask_odm.estimators.fitting.checkpoints import TreeCheckpoint, open_tree
from dask_odm.estimators.fitting.steps import report_step, rescaling_advised
from dask_odm.estimators.fitting.trained import Trained
from dask_odm.estimators.fitting.training_data import KernelData, PartitionedRows, Purpose, TrainingData
from dask_odm.estimators.odm.finishing import finish_kernel, finish_linear_kernel, unfinished
from dask_odm.estimators.odm.settings import ODMFit
from dask_odm.kernels.low_rank import is_low_rank
from dask_odm.problems.odm import Point, RowLosses
from dask_odm.problems.products import Products
from dask_odm.solvers.base import Solution
from dask_odm.solvers.exact import solve_exact
from dask_odm.solvers.exact import solver_bytes as exact_bytes
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


def train_tree(data: TrainingData, fit: ODMFit) -> Trained:
    """Train by partitions; equal rows in memory are made one first, unless more partitions are asked for."""
    data = _merged(data, fit)
    parts = partitions_for(data.rows, fit.n_partitions, fit.tree.fan_in, WHOLE_ROWS if data.in_memory else LEAF_ROWS)
    checkpoint = open_tree(lambda: f"{parts} {data.fingerprint()}", fit)
    seen = data.seen_by(fit.kernel)
    with seen.partitions(fit.partitioner(seen.kernel, parts)) as rows:
        job = TreeJob(rows.partitions, rows.scaling, seen.kernel, fit.odm, fit.solver)
        if checkpoint is not None:
            counts = job.partitions.counts
            checkpoint.require(fit.tree.levels(len(counts)), counts)
        if has_large_root(job, fit):
            result = _grow_to_root(job, rows, fit, checkpoint)
        elif parts == 1 and data.in_memory:
            start, on_level = (None, None) if checkpoint is None else (checkpoint.start, checkpoint.save)
            result = solve_whole(job, rows.cluster, resume=start, on_level=on_level)
        else:
            result = _grow(job, fit, rows, checkpoint)
        return _finish(seen, rows, job, result, fit)


def _merged(data: TrainingData, fit: ODMFit) -> TrainingData:
    """Equal rows made one, but where the kernel is the user's or as many partitions are asked for as rows came."""
    if not fit.kernel.is_named:
        return data
    merged = data.merged()
    return merged if fit.n_partitions is None or fit.n_partitions <= merged.rows else data


def _finish(seen: KernelData, rows: PartitionedRows, job: TreeJob, result: TreeResult, fit: ODMFit) -> Trained:
    count = len(job.partitions.counts)
    coefficients = job.partitions.labels(0, count)[0] * result.dual[0]
    attributes = {
        "dual_gap_": float(result.gap),
        "history_": result.history,
        "n_iter_": max(1, sum(entry["sweeps"] for entry in result.history)),
    }
    if job.kernel.name == "linear":
        trained = finish_linear_kernel(
            job.partitions, job.kernel, seen.scaling, job.scaling, coefficients, rows.chosen, attributes
        )
    else:
        numbers = job.partitions.row_numbers(0, count)
        trained = finish_kernel(job.kernel, seen.scaling, coefficients, numbers, rows.chosen, attributes)
    warning = unfinished(result.solutions, fit.solver.tol, fit.solver.max_iter)
    return Trained(trained.model, trained.attributes, warning)


def _grow(job: TreeJob, fit: ODMFit, rows: PartitionedRows, checkpoint: TreeCheckpoint | None) -> TreeResult:
    """Grow the tree, with checkpoints if they are asked for."""
    counts = job.partitions.counts
    logger.info("%d rows in %d partitions, %s; %s", sum(counts), len(counts), job.kernel, rows.cluster)
    if checkpoint is None:
        return grow_tree(job, fit.tree, rows.cluster)
    start, history = checkpoint.start, checkpoint.history
    return grow_tree(job, fit.tree, rows.cluster, resume=start, history=history, on_level=checkpoint.save)


def has_large_root(job: TreeJob, fit: ODMFit) -> bool:
    """Whether the tree ends with a root that is a problem for Newton over all rows."""
    counts = job.partitions.counts
    if job.kernel.name == "linear" or is_low_rank(job.kernel, job.partitions.features):
        return False
    return sum(counts) > ROOT_ROWS and len(fit.tree.levels(len(counts))[-1]) == 2


def _grow_to_root(job: TreeJob, rows: PartitionedRows, fit: ODMFit, checkpoint: TreeCheckpoint | None) -> TreeResult:
    """Grow the tree up to the level below the root, and solve the root from there.

    Its products are opened first, so that too little memory for the root is found before anything is solved.
    """
    levels = fit.tree.levels(len(job.partitions.counts))
    number = len(levels) - 1
    if checkpoint is not None and checkpoint.start is not None and checkpoint.start[0] == number:
        return combine(checkpoint.start[1], checkpoint.history)
    with rows.products(Purpose("The root of the tree", exact_bytes, advice_at_root(levels))) as products:
        start, history = None, []
        if number:
            below = replace(fit, tree=replace(fit.tree, stop_at=len(levels[-2]) - 1))
            result = _grow(job, below, rows, checkpoint)
            history = result.history
            if fit.tree.early_stop and len(history) > 1 and history[-1]["start_gap"] <= job.solver.tol:
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
