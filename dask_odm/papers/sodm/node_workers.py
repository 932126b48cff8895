"""Solve one node of a tree: a set of rows, from the solutions of the nodes below it.

A merge rule says which rows go up to the parent: all of them (SODM), or those with dual variables other than zero (a
cascade: Graf et al., *Parallel support vector machines: the cascade SVM*, NIPS 2004). `Reclustering` makes the nodes of
a level clusters of all rows instead, found anew (DC: Hsieh, Si and Dhillon, *A divide-and-conquer solver for kernel
support vector machines*, ICML 2014, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dask_odm.data.rows.row_sets import RowSet, merged_span
from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import Partitions
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import Partitioner
from dask_odm.engine.tasks import worker_task
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.groups import Groups
from dask_odm.kernels.shape import Shape
from dask_odm.learning.problem.losses import ODMSettings, Point, RowLosses
from dask_odm.learning.solution import Solution, SolverSettings
from dask_odm.linalg.rows import slabs
from dask_odm.papers.sodm.partition_solver import partition_bytes, solve_partition
from dask_odm.typing import Array

PassUp = Callable[[Solution], Array | None]
Begin = Callable[[Solution, float], Array]
READ_ROWS = 1024  # rows of a block that is read and assigned to clusters at a time


def pass_all(solution: Solution) -> None:
    """Pass up all rows of a node, as SODM does: return None for "no mask"."""


def pass_support(solution: Solution) -> Array:
    """Pass up the rows whose dual variables are not all zero, as a cascade does."""
    return np.asarray(solution.dual.any(axis=0))


@dataclass(frozen=True, eq=False)
class TreeJob:
    """The arguments that all tasks of a tree share.

    ``pass_up(solution)`` returns a mask of the rows of a node that its parent gets, or None for all. A row that was
    left out once stays out, with dual variables of zero. The others keep the weight they have among all rows of the
    node. So a node ends at its optimum if its dual variables are zero there for the rows left out. ``begin(child,
    weight)`` returns the dual variables of a child's rows that a node of total ``weight`` starts from.
    """

    partitions: Partitions
    scaling: Scaling | StoredScaling
    kernel: Kernel
    odm: ODMSettings
    solver: SolverSettings
    pass_up: PassUp = pass_all
    begin: Begin = Solution.rescaled


def projected_bytes(job: TreeJob, rows: int, threads: int, *, certify: bool) -> int:
    """Return the fewest bytes in which a task can solve a node: rows are read from disk, kernel tiles recomputed."""
    shape = Shape(job.kernel, rows, job.partitions.features, job.partitions.dtype.itemsize, threads)
    return partition_bytes(shape, certify=certify) + threads * job.partitions.reading_bytes


@worker_task
def solve_node(
    job: TreeJob,
    node: RowSet,
    seed: int,
    memory: int,
    threads: int,
    certify: bool,
    below: Sequence[RowSet],
    *children: Solution,
) -> Solution:
    """Solve a node from the solutions ``children`` of the nodes ``below`` it, or from zero if there are none.

    The solution has dual variables for all rows of the node; they are zero for rows that were not passed up. The others
    keep the losses that they have among all rows.
    """
    counts = job.partitions.counts
    y, weight = node.labels(job.partitions)
    total = float(weight.sum())
    start, passed = _start(job, node, below, children, total)
    rows = node
    odm = job.odm
    if passed is not None:
        if not passed.any():
            nothing = Point(0.0, 0.0, 0.0)
            return Solution(np.zeros((len(children[0].dual), len(passed))), total, 0, nothing, nothing)
        rows = RowSet.at(node.positions(counts)[passed], counts)
        y = y[passed]
        weight = weight[passed]
        odm = replace(odm, lam=odm.lam * (float(weight.sum()) / total))
    spare = memory - projected_bytes(job, len(y), threads, certify=certify)
    # half of the memory may hold rows; the rest is for the solver and its tiles
    read, held = rows.rows(job.partitions, job.scaling, max(0, min(spare, memory // 2)))
    solution = solve_partition(
        job.kernel,
        read,
        RowLosses(odm, y, weight),
        start,
        replace(job.solver, seed=seed),
        memory=memory - held,
        threads=threads,
        certify=certify,
    )
    if passed is None:
        return solution
    dual = np.zeros((len(solution.dual), len(passed)))
    dual[:, passed] = solution.dual
    return replace(solution, dual=dual, weight=total)


def _start(
    job: TreeJob, node: RowSet, below: Sequence[RowSet], children: Sequence[Solution], total: float
) -> tuple[Array, Array | None]:
    """Return the dual variables that a node of ``total`` weight starts from, and the mask of the rows passed up to it.

    The mask is None if all rows were. The dual variables are those of the rows passed up.
    """
    counts = job.partitions.counts
    if not children:
        return np.zeros(node.size(counts)), None
    masks = [job.pass_up(child) for child in children]
    starts = [job.begin(child, total)[0] for child in children]
    if node.span is not None and node.span == merged_span(below) and all(mask is None for mask in masks):
        return np.concatenate(starts), None
    own = node.positions(counts)
    passed = np.zeros(len(own), bool)
    dual = np.zeros(len(own))
    for rows, mask, start in zip(below, masks, starts, strict=True):
        _, mine, theirs = np.intersect1d(own, rows.positions(counts), assume_unique=True, return_indices=True)
        passed[mine] = True if mask is None else mask[theirs]
        dual[mine] = start[theirs]
    return dual[passed], None if passed.all() else passed


@dataclass(eq=False)
class Reclustering:
    """Clusters of all rows, found anew for each level above the leaves; they are its nodes.

    The client finds the clusters on a sample of rows. Tasks then assign every row to its cluster. The client holds only
    row numbers. ``nodes`` has the most nodes of every level, leaves first; empty clusters are left out.
    ``partitioner(count, seed)`` makes a partitioner of ``count`` groups. ``groups`` are the clusters of the level that
    was asked for last; they begin with the leaves'.
    """

    partitions: Partitions
    scaling: Scaling | StoredScaling
    nodes: Sequence[int]
    partitioner: Callable[[int, int], Partitioner]
    seed: int
    cluster: Cluster
    groups: Groups | None = None

    def __call__(self, number: int) -> list[RowSet] | None:
        """Return the clusters of level ``number``, counted from the leaves at 0; None for one node.

        Raises MemoryLimitError unless the sample's kernel matrix fits here, and a block's kernel values fit every task.
        """
        if self.nodes[number] == 1:
            return None
        counts = self.partitions.counts
        d = self.partitions.features
        itemsize = self.partitions.dtype.itemsize
        level_seed = int(np.random.SeedSequence([self.seed, 3, number]).generate_state(1)[0] >> 1)
        level = self.partitioner(self.nodes[number], level_seed)
        count = min(sum(counts), level.sample_rows(d, itemsize))
        what = f"Finding clusters by {count} rows"
        self.cluster.require(8 * count * (count + 2 * d), 1, what)
        block = READ_ROWS * (2 * d * itemsize + (8 + itemsize) * count)
        self.cluster.require(3 * 8 * count * d + block + self.partitions.reading_bytes, len(counts), what)
        rng = np.random.default_rng(np.random.SeedSequence(level_seed, spawn_key=(0,)))
        chosen = RowSet.at(np.sort(rng.choice(sum(counts), count, replace=False)), counts)
        groups = level.groups(np.concatenate(list(slabs(chosen.rows(self.partitions, self.scaling, 0)[0]))))
        numbers = [(k,) for k in range(len(counts))]
        shared = self.partitions, self.scaling, groups
        of_row = np.concatenate(self.cluster.map_chunks(groups_of_partition, numbers, "clusters", *shared))
        found = (np.flatnonzero(of_row == g) for g in range(groups.count))
        self.groups = groups
        return [RowSet.at(positions, counts) for positions in found if len(positions)]


def groups_of_partition(partitions: Partitions, scaling: Scaling | StoredScaling, groups: Groups, number: int) -> Array:
    """Return the group of every row of a partition, int32 (n,)."""
    return np.concatenate([groups(X) for X in slabs(partitions.rows(number, number + 1, scaling, 0)[0], READ_ROWS)])
