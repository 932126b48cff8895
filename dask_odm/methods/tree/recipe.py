"""A tree of partitions in memory or of a store, SODM's or a rival's; a large root is solved by all workers.

A root of up to `ROOT_ROWS` rows is one more node of the tree, one task. A larger one is a problem for Newton over all
rows (`dask_odm.methods.exact.solver`), which starts from the level below: its products are spread over all workers, no
λ slows it down, and its matrix need not fit anywhere. Rows and kernel alone decide, never the workers. The root of a
cascade has the rows that were passed up and stays one task; how far its model is from the optimum of all rows takes one
pass over the kernel of all rows and those.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

from dask.system import CPU_COUNT

from dask_odm.kernels.low_rank import is_low_rank
from dask_odm.learning.problem.bounds import own_gap
from dask_odm.learning.problem.odm import Point, RowLosses
from dask_odm.learning.problem.products import Products, scores_of
from dask_odm.learning.solution import Solution
from dask_odm.learning.training.checkpoints import TreeCheckpoint, open_tree
from dask_odm.learning.training.model_building import finish_kernel, finish_linear_kernel, linear_scores, unfinished
from dask_odm.learning.training.steps import report_step, rescaling_advised
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import KernelData, PartitionedRows, Purpose, TrainingData
from dask_odm.methods.as_predicted import Claim, held_as_predicted
from dask_odm.methods.exact.solver import solve_exact
from dask_odm.methods.exact.solver import solver_bytes as exact_bytes
from dask_odm.methods.settings import ODMFit
from dask_odm.methods.tree.merge_rule import pass_all
from dask_odm.methods.tree.regroup_workers import Reclustering
from dask_odm.methods.tree.rules import LEAF_ROWS, SODM, TreeRule
from dask_odm.methods.tree.workers import (
    Regroup,
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
GAP = ("gap",)  # of the records of a tree, what is of the model itself: their objective is the dual's
ROOT_ROWS = 8192  # a root of more rows is solved by Newton over all of them


def train_tree(data: TrainingData, fit: ODMFit, rule: TreeRule = SODM) -> Trained:
    """Train by partitions; equal rows in memory are made one first, unless more partitions are asked for."""
    data = _merged(data, fit)
    most = rule.whole_rows if data.in_memory else LEAF_ROWS
    parts = partitions_for(data.rows, fit.n_partitions, fit.tree.fan_in, most)
    _warn_of_one(parts, data.rows, fit)
    checkpoint = open_tree(lambda: f"{'' if rule is SODM else rule.name} {parts} {data.fingerprint()}".strip(), fit)
    seen = data.seen_by(fit.kernel)
    with seen.partitions(rule.partitioner(fit, seen.kernel, parts, fit.run.seed)) as rows:
        job = TreeJob(rows.partitions, rows.scaling, seen.kernel, fit.odm, fit.solver, rule.pass_up, rule.begin)
        regroup = _regroup(job, rows, fit, rule)
        if checkpoint is not None:
            _check(checkpoint, job, fit, regroup)
        if rule.newton_root and has_large_root(job, fit):
            result = _grow_to_root(job, rows, fit, checkpoint, regroup)
        elif len(job.partitions.counts) == 1 and data.in_memory:
            start, on_level = (None, None) if checkpoint is None else (checkpoint.start, checkpoint.save)
            result = solve_whole(job, rows.cluster, resume=start, on_level=on_level)
        else:
            result = _grow(job, fit, rows, checkpoint, regroup)
        return _finish(seen, rows, job, result, fit, rule)


def _warn_of_one(parts: int, rows: int, fit: ODMFit) -> None:
    """Say of parameters of a tree that they change nothing, where the number of partitions was left to it."""
    asked = [f"stop_at={fit.tree.stop_at}"] * (fit.tree.stop_at > 1) + ["early_stop=True"] * fit.tree.early_stop
    if parts == 1 and fit.n_partitions is None and asked:
        change = "change" if len(asked) > 1 else "changes"
        logger.warning(
            "%s %s nothing: %d rows make one partition, and no tree. Give solver=SODM(n_partitions=…), or leave "
            "%s out.", " and ".join(asked), change, rows, " and ".join(asked)
        )  # fmt: skip


def _regroup(job: TreeJob, rows: PartitionedRows, fit: ODMFit, rule: TreeRule) -> Regroup | None:
    """What makes the nodes of every level anew, where the rule has them so."""
    if not rule.recluster:
        return None
    nodes = [len(bounds) - 1 for bounds in fit.tree.levels(len(job.partitions.counts))]
    partitioner = partial(rule.partitioner, fit, job.kernel)
    return Reclustering(job.partitions, job.scaling, nodes, partitioner, fit.run.seed, rows.cluster)


def _check(checkpoint: TreeCheckpoint, job: TreeJob, fit: ODMFit, regroup: Regroup | None) -> None:
    """Raise StoreError unless the level that a fit goes on from is one of its tree."""
    counts = job.partitions.counts
    levels = fit.tree.levels(len(counts))

    def sizes(number: int) -> list[int]:
        given = None if regroup is None or number == 0 else regroup(number)
        if given is not None:
            return [node.size(counts) for node in given]
        return [sum(counts[a:b]) for a, b in pairwise(levels[number])]

    checkpoint.require(len(levels), sizes, all_rows=job.pass_up is pass_all)


def _merged(data: TrainingData, fit: ODMFit) -> TrainingData:
    """Equal rows made one, but where the kernel is the user's or as many partitions are asked for as rows came."""
    if not fit.kernel.is_named:
        return data
    merged = data.merged()
    return merged if fit.n_partitions is None or fit.n_partitions <= merged.rows else data


def _finish(
    seen: KernelData, rows: PartitionedRows, job: TreeJob, result: TreeResult, fit: ODMFit, rule: TreeRule
) -> Trained:
    count = len(job.partitions.counts)
    coefficients = job.partitions.labels(0, count)[0] * result.dual[0]
    point = _whole_point(job, rows, result, coefficients)
    gap = float(result.gap) if point is None else point.gap
    attributes = {
        "dual_gap_": gap,
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
    if gap > fit.solver.tol and (warning is None or rule.pass_up is not pass_all):
        warning = _left_behind(rule, gap, fit.solver.tol)
    trained = replace(trained, warning=warning)
    if point is None or job.kernel.name == "linear":
        return trained
    claim = Claim(point.primal, point.primal * (1.0 - point.gap))
    return held_as_predicted(trained, claim, job.kernel, seen.data, fit, GAP)


def _left_behind(rule: TreeRule, gap: float, tol: float) -> str:
    """Return the warning of a tree whose partitions left behind rows that are missed at the root."""
    return (
        f"solver={rule.name!r} ended at a relative gap of {gap:.1e} over all rows, above tol={tol:g}: it leaves rows "
        "behind that a partition does without, and the whole does not. Use solver='sodm', which keeps all rows, or a "
        "smaller n_partitions."
    )


def _whole_point(job: TreeJob, rows: PartitionedRows, result: TreeResult, coefficients: Array) -> Point | None:
    """P and gap over all rows: those of the root, unless rows were left behind below it; None if there is no root."""
    n = len(coefficients)
    if len(result.solutions) > 1:
        return None
    if result.solutions[0].rows == n:
        return result.solutions[0].point
    losses = RowLosses(job.odm, *job.partitions.labels(0, len(job.partitions.counts)))
    if job.kernel.name == "linear":
        return own_gap(losses, coefficients, linear_scores(job.partitions, job.kernel, job.scaling, coefficients))
    purpose = Purpose("The gap over all rows", lambda n, d, itemsize: 10 * 8 * n, "Use more memory, or solver='sodm'.")
    with rows.products(purpose) as products:
        return own_gap(losses, coefficients, scores_of(products, coefficients, double_precision=True))


def _grow(
    job: TreeJob, fit: ODMFit, rows: PartitionedRows, checkpoint: TreeCheckpoint | None, regroup: Regroup | None
) -> TreeResult:
    """Grow the tree, with checkpoints if they are asked for."""
    counts = job.partitions.counts
    logger.info("%d rows in %d partitions, %s; %s", sum(counts), len(counts), job.kernel, rows.cluster)
    if checkpoint is None:
        return grow_tree(job, fit.tree, rows.cluster, regroup=regroup)
    start = checkpoint.start
    history = checkpoint.history
    save = checkpoint.save
    return grow_tree(job, fit.tree, rows.cluster, resume=start, history=history, on_level=save, regroup=regroup)


def has_large_root(job: TreeJob, fit: ODMFit) -> bool:
    """Whether the tree ends with a root that is a problem for Newton over all rows."""
    counts = job.partitions.counts
    if job.pass_up is not pass_all or job.kernel.name == "linear" or is_low_rank(job.kernel, job.partitions.features):
        return False
    return sum(counts) > ROOT_ROWS and len(fit.tree.levels(len(counts))[-1]) == 2


def _grow_to_root(
    job: TreeJob, rows: PartitionedRows, fit: ODMFit, checkpoint: TreeCheckpoint | None, regroup: Regroup | None
) -> TreeResult:
    """Grow the tree up to the level below the root, and solve the root from there.

    Its products are opened first, so that too little memory for the root is found before anything is solved.
    """
    levels = fit.tree.levels(len(job.partitions.counts))
    number = len(levels) - 1
    if checkpoint is not None and checkpoint.start is not None and checkpoint.start[0] == number:
        return combine(checkpoint.start[1], checkpoint.history)
    with rows.products(Purpose("The root of the tree", exact_bytes, advice_at_root(levels))) as products:
        start = None
        history = []
        if number:
            below = replace(fit, tree=replace(fit.tree, stop_at=len(levels[-2]) - 1))
            result = _grow(job, below, rows, checkpoint, regroup)
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
    primal = found.history[0]["objective"]
    gap = found.history[0]["gap"]
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
