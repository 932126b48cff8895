"""Recipe of SODM and its rivals: partition the rows, grow the tree, solve its root, and build the model.

A `TreeRule` says how rows are dealt to partitions, which rows are passed up, and what a merger starts from. Sources:
SODM (IJCAI-23) and the methods it is compared with there, each applied to ODM's objective. These are the cascade (Graf
et al., *Parallel support vector machines: the cascade SVM*, NIPS 2004), DiP (Singh, Roy and Mohan, *DiP-SVM*, 2017) and
DC (Hsieh, Si and Dhillon, *A divide-and-conquer solver for kernel support vector machines*, ICML 2014).

A root of up to `NODE_ROWS` rows is one more node of the tree, one task. Newton over all rows
(`dask_odm.methods.exact.solver`) solves a larger root, starting from the level below. Its products are spread over all
workers, a large λ does not slow it down, and its kernel matrix need not fit anywhere. The number of rows and the kernel
decide between the two, never the workers. The root of a cascade has only the rows that were passed up and stays one
task. Its gap over all rows then takes one pass over the kernel values between all rows and those passed up.

A tree that ends above the root predicts by the mean of its models. With DC's clusters, it predicts a row by the model
of the nearest cluster, which Hsieh, Si and Dhillon call early prediction.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.memory import taken
from dask_odm.engine.partitioners import (
    ClusterPartitioner,
    GroupedPartitioner,
    MeansPartitioner,
    Partitioner,
    RandomPartitioner,
)
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.groups import Groups
from dask_odm.kernels.shape import Shape
from dask_odm.kernels.user_kernels import Precomputed
from dask_odm.learning.problem.losses import Point, RowLosses, own_gap
from dask_odm.learning.problem.products import CHUNK_BYTES, Purpose, scores_of
from dask_odm.learning.solution import Solution
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.recipe import (
    Machines,
    Recipe,
    Trained,
    finish_kernel,
    finish_linear_kernel,
    linear_scores,
    report_step,
    require_finite_solution,
    rescaling_advised,
    unfinished,
    with_coefficients,
)
from dask_odm.learning.training.training_data import KernelData, PartitionedRows, TrainingData
from dask_odm.methods.as_predicted import Claim, held_as_predicted, require_prediction
from dask_odm.methods.exact.memory import solve_bytes
from dask_odm.methods.exact.solver import solve_exact
from dask_odm.methods.odm_fit import ODMFit, has_partitions
from dask_odm.models.cell_model import ClusterModel
from dask_odm.models.kernel_model import predicting_bytes
from dask_odm.papers.sodm.node_workers import Begin, PassUp, Reclustering, TreeJob, pass_all, pass_support
from dask_odm.papers.sodm.partition_solver import exact_result
from dask_odm.papers.sodm.workers import (
    LevelState,
    Save,
    TreeResult,
    TreeSettings,
    advice_at_root,
    combine,
    end_at_root,
    grow_tree,
    nodes_of,
    partitions_for,
)
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
# rows of a leaf, at most, if the user does not choose the number of partitions; of a root, at most, that is a node
NODE_ROWS = 8192
MODEL_ADVICE = "Use more memory, or a store of the rows (odm.ingest)."


@dataclass(frozen=True)
class TreeRule:
    """A method that solves partitions and merges them.

    ``partitioner(fit, kernel, n_partitions, seed)`` makes the partitioner that deals rows to the leaves. ``pass_up``
    and ``begin`` are the merge rule, as in `dask_odm.papers.sodm.node_workers.TreeJob`.
    """

    name: str
    partitioner: Callable[[ODMFit, Kernel, int, int], Partitioner]
    pass_up: PassUp = pass_all
    begin: Begin = Solution.rescaled
    recluster: bool = False  # whether rows are grouped anew for every level, instead of merging partitions
    whole_rows: int = NODE_ROWS  # most rows in memory that are one partition, if the user does not choose their number
    newton_root: bool = True  # whether Newton over all rows solves a large root, which is one more node otherwise


def by_strata(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Deal each stratum evenly to the partitions. Strata are formed by landmarks of the kernel."""
    return fit.partitioner(kernel, n_partitions)


def at_random(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Deal rows at random."""
    return RandomPartitioner(n_partitions, seed)


def by_means(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Deal each k-means cluster of the features evenly to the partitions; InputError for a precomputed kernel."""
    if isinstance(kernel, Precomputed):
        raise InputError("solver='dip' groups rows by their features, which kernel='precomputed' has none of.")
    return MeansPartitioner(fit.own.n_clusters, n_partitions, seed)


def by_clusters(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Make each cluster in the kernel's feature space a partition. The bias moves all rows alike.

    Raises InputError for a precomputed kernel, if the tree may end early.
    """
    if isinstance(kernel, Precomputed) and n_partitions > 1 and (fit.own.stop_at > 1 or fit.own.early_stop):
        raise InputError(
            "solver='dc' with stop_at or early_stop predicts by the nearest cluster of rows, which "
            "kernel='precomputed' has none of. Leave both out."
        )
    return ClusterPartitioner(replace(kernel, bias=0.0), n_partitions, seed)


SODM = TreeRule("sodm", by_strata, whole_rows=8 * NODE_ROWS)
CASCADE = TreeRule("cascade", at_random, pass_support, newton_root=False)
DIP = TreeRule("dip", by_means, pass_support, newton_root=False)
DC = TreeRule("dc", by_clusters, recluster=True)


def train_tree(data: TrainingData, fit: ODMFit, rule: TreeRule) -> Trained:
    """Train by a tree of partitions.

    Equal rows in memory are merged first, unless the user brings the kernel, or asks for more partitions than there are
    distinct rows.
    """
    if fit.kernel.is_named:
        merged = data.merged()
        data = merged if fit.own.n_partitions is None or fit.own.n_partitions <= merged.rows else data
    most = rule.whole_rows if data.in_memory else NODE_ROWS
    parts = partitions_for(data.rows, fit.own.n_partitions, fit.own.fan_in, most)
    _warn_of_one(parts, data.rows, fit)
    resume, save_level = open_steps(f"{rule.name} {parts}", data.fingerprint, fit, LevelState)
    save = save_level if fit.run.checkpoint is not None else None  # else solutions need not be fetched
    seen = data.seen_by(fit.kernel)
    dealt = rule.partitioner(fit, seen.kernel, parts, fit.run.seed)
    leaves = _clusters_of(seen, dealt, fit) if rule.recluster and parts > 1 else None
    if leaves is not None:
        dealt = GroupedPartitioner(leaves, leaves.count, fit.run.seed, skip_empty=True)
    with seen.partitions(dealt) as rows:
        if data.in_memory and seen.kernel.name != "linear":
            shape = Shape(seen.kernel, data.rows, data.features, data.dtype.itemsize, CPU_COUNT)
            freed = min(CHUNK_BYTES, shape.rows)  # by the solve before
            needed = shape.rows + predicting_bytes(shape, data.rows) + freed
            rows.cluster.require(needed, 1, f"A model of up to {data.rows} rows", MODEL_ADVICE)
        job = TreeJob(rows.partitions, rows.scaling, seen.kernel, fit.odm, fit.solver, rule.pass_up, rule.begin)
        counts = job.partitions.counts
        tree = TreeSettings(fit.own.fan_in, fit.own.stop_at, fit.own.early_stop)
        levels = tree.levels(len(counts))
        has_root = len(levels[-1]) == 2
        if has_root and seen.kernel.name != "linear":
            require_prediction(seen.kernel, data)
        regroup = None
        if rule.recluster:
            nodes = [len(bounds) - 1 for bounds in levels]
            partitioner = partial(rule.partitioner, fit, job.kernel)
            regroup = Reclustering(job.partitions, job.scaling, nodes, partitioner, fit.run.seed, rows.cluster, leaves)
        if resume is not None:

            def sizes(number: int) -> list[int]:
                return [node.size(counts) for node in nodes_of(levels, number, regroup)]

            require_state(fit, resume.is_level(len(levels), sizes, all_rows=rule.pass_up is pass_all))
        logger.info("%d rows in %d partitions, %s; %s", sum(counts), len(counts), job.kernel, rows.cluster)
        grow = partial(grow_tree, job, cluster=rows.cluster, resume=resume, save=save, regroup=regroup)
        if resume is not None and resume.level == len(levels) - 1 and has_root:
            result = combine(resume.solutions(), resume.history)
        elif rule.newton_root and has_root and sum(counts) > NODE_ROWS and job.kernel.name != "linear":
            result = _grow_to_root(job, rows, tree, grow, save)
        else:
            result = grow(tree)
        if regroup is not None and regroup.groups is not None and len(result.solutions) > 1:
            return _finish_clusters(seen, rows, job, result, regroup.groups, fit)
        return _finish(seen, rows, job, result, fit, rule)


def _clusters_of(seen: KernelData, dealt: Partitioner, fit: ODMFit) -> Groups:
    """Return the clusters that are the leaves of a tree, found on a sample of the rows."""
    data = seen.data
    sample = data.sample(dealt.sample_rows(data.features, data.dtype.itemsize), fit.run.seed).seen_by(fit.kernel).scaled
    return dealt.groups(sample[np.arange(len(sample))])


def _warn_of_one(parts: int, rows: int, fit: ODMFit) -> None:
    """Log a warning if the rows make one partition, so that ``stop_at`` and ``early_stop`` change nothing.

    There is no warning if the user chose the number of partitions.
    """
    asked = [f"stop_at={fit.own.stop_at}"] * (fit.own.stop_at > 1) + ["early_stop=True"] * fit.own.early_stop
    if parts == 1 and fit.own.n_partitions is None and asked:
        change = "change" if len(asked) > 1 else "changes"
        logger.warning(
            "%s %s nothing: %d rows make one partition, and no tree. Give solver=SODM(n_partitions=…), or leave "
            "%s out.", " and ".join(asked), change, rows, " and ".join(asked)
        )  # fmt: skip


def _finish_clusters(
    seen: KernelData, rows: PartitionedRows, job: TreeJob, result: TreeResult, groups: Groups, fit: ODMFit
) -> Trained:
    """Build the model of a tree that ended with several clusters: a row is predicted by that of the nearest one."""
    if groups.count > len(result.nodes):  # a group is the nearest of no row
        raise InputError(f"some of the {groups.count} clusters differ by rounding alone: scale the features, with "
                         "scale='minmax', or use fewer clusters.")  # fmt: skip
    counts = job.partitions.counts
    numbers = job.partitions.row_numbers(0, len(counts))
    averaged = job.partitions.labels(0, len(counts))[0] * result.dual[0]  # coefficients of the mean of the models
    total = math.fsum(solution.weight for solution in result.solutions)
    own = []
    for node, solution in zip(result.nodes, result.solutions, strict=True):
        at = node.positions(counts)
        own.append(with_coefficients(averaged[at] * (total / solution.weight), numbers[at]))
    coefficients = np.concatenate([a for a, _ in own], axis=1)
    intercept = job.kernel.bias * np.array([a.sum(axis=1) for a, _ in own])
    require_finite_solution(coefficients, intercept)
    support = np.concatenate([of_cluster for _, of_cluster in own])
    order = np.argsort(support)
    raw, kept = rows.chosen(support[order])
    back = np.argsort(order)
    kernel = replace(job.kernel, bias=0.0)
    starts = np.cumsum([0, *(len(of_cluster) for _, of_cluster in own)])
    model = ClusterModel(kernel, seen.scaling, taken(raw, back), coefficients, intercept, starts=starts, groups=groups)
    warning = unfinished(result.solutions, fit.solver.tol, fit.solver.max_iter)
    return Trained(model, {"support_": kept[back]} | _attributes(result, math.nan), warning)


def _attributes(result: TreeResult, gap: float) -> dict[str, Any]:
    return {
        "dual_gap_": gap,
        "history_": result.history,
        "n_iter_": max(1, sum(entry["sweeps"] for entry in result.history)),
    }


def _finish(
    seen: KernelData, rows: PartitionedRows, job: TreeJob, result: TreeResult, fit: ODMFit, rule: TreeRule
) -> Trained:
    count = len(job.partitions.counts)
    coefficients = job.partitions.labels(0, count)[0] * result.dual[0]
    whole = _whole_point(job, rows, result, coefficients)
    gap = float(result.gap) if whole is None else whole[0].gap
    attributes = _attributes(result, gap)
    if job.kernel.name == "linear":
        trained = finish_linear_kernel(
            job.partitions, job.kernel, seen.scaling, job.scaling, coefficients, rows.chosen, attributes
        )
    else:
        numbers = job.partitions.row_numbers(0, count)
        trained = finish_kernel(job.kernel, seen.scaling, coefficients, numbers, rows.chosen, attributes)
    warning = unfinished(result.solutions, fit.solver.tol, fit.solver.max_iter)
    if gap > fit.solver.tol and (warning is None or rule.pass_up is not pass_all):
        warning = (
            f"solver={rule.name!r} ended at a relative gap of {gap:.1e} over all rows, above tol={fit.solver.tol:g}: "
            "it leaves rows behind that a partition does without, and the whole does not. Use solver='sodm', which "
            "keeps all rows, or a smaller n_partitions."
        )
    trained = replace(trained, warning=warning)
    if whole is None or job.kernel.name == "linear":
        return trained
    point, half_norm = whole
    claim = Claim(point.primal, point.primal * (1.0 - point.gap), half_norm if half_norm >= 0 else None)
    # the objective of a tree's records is the dual's
    return held_as_predicted(trained, claim, job.kernel, seen.data, fit, ("gap",))


def _whole_point(
    job: TreeJob, rows: PartitionedRows, result: TreeResult, coefficients: Array
) -> tuple[Point, float] | None:
    """Return P and the gap over all rows, and ½‖w‖² or −1 if uncertified; None if the tree stopped above one partition.

    They are the root's own figures if it has all rows. Else they are computed over all rows.
    """
    n = len(coefficients)
    if len(result.solutions) > 1:
        return None
    root = result.solutions[0]
    if root.rows == n:
        return root.point, root.half_norm
    losses = RowLosses(job.odm, *job.partitions.labels(0, len(job.partitions.counts)))
    if job.kernel.name == "linear":
        scores = linear_scores(job.partitions, job.kernel, job.scaling, coefficients)
    else:
        advice = "Use more memory, or solver='sodm'."
        purpose = Purpose.of_products("The gap over all rows", 10 * 8, advice)
        with rows.products(purpose) as products:
            scores = scores_of(products, coefficients, double_precision=True)
    return own_gap(losses, coefficients, scores), 0.5 * float(coefficients @ scores)


def _grow_to_root(
    job: TreeJob, rows: PartitionedRows, tree: TreeSettings, grow: Callable[[TreeSettings], TreeResult], save: Save
) -> TreeResult:
    """Grow the tree by ``grow`` up to the level below the root, and solve the root from there.

    The root's products are opened first, so that too little memory for them is an error before anything is solved.
    """
    parts = len(job.partitions.counts)
    levels = tree.levels(parts)
    number = len(levels) - 1
    with rows.products(Purpose("The root of the tree", solve_bytes, advice_at_root(levels))) as products:
        losses = RowLosses(job.odm, *job.partitions.labels(0, parts))
        start = None  # Newton then begins with a quarter of the rows
        history = []
        if number:
            result = grow(replace(tree, stop_at=len(levels[-2]) - 1))
            history = result.history
            if tree.early_stop and len(history) > 1 and history[-1]["start_gap"] <= job.solver.tol:
                return result
            start = losses.y * result.dual[0]
        began = time.perf_counter()
        with rescaling_advised():
            found = solve_exact(losses, products, job.solver, start=start, threads=CPU_COUNT, on_step=report_step)
    return end_at_root(exact_result(losses, found, began), number, history, save)


class TreeRecipe(Recipe[ODMFit]):
    """A tree that merges by a rule."""

    def __init__(self, rule: TreeRule) -> None:
        self.rule = rule

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_tree(data, fit, self.rule)

    def train_machines(self, data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> None:
        if self.rule.recluster and (fit.own.stop_at > 1 or fit.own.early_stop):
            raise InputError(
                f"solver=DC(stop_at=…) and early_stop are for two classes. Got {len(data.class_weights)} classes "
                "instead; use solver='cells', or grow the whole tree."
            )

    def reads(self, store: TrainingData, fit: ODMFit) -> bool:
        return super().reads(store, fit) and store.rows <= self.rule.whole_rows and fit.own.n_partitions in (None, 1)

    def spreads(self, fit: ODMFit) -> bool:
        return has_partitions(fit)


RECIPES = {rule.name: TreeRecipe(rule) for rule in (SODM, CASCADE, DIP, DC)}
