"""SODM's merging tree: partitions are solved, merged and solved again from their children's solutions.

Source: SODM, algorithm 1. Every level is a set of `dask.delayed` tasks whose inputs are the tasks of the level
below, so warm starts pass from worker to worker and the tree runs on any scheduler. The client only hears
figures, and decides level by level whether to go on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed, delayed

from dask_odm.data.rows.memory import Partitions
from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.engine.cluster import ADVICE, Cluster, return_free_memory
from dask_odm.errors import InputError
from dask_odm.events import LevelFinished, PartitionSolved, report
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.low_rank import is_low_rank
from dask_odm.problems.odm import ODMSettings, RowLosses
from dask_odm.solvers.base import Solution, SolverSettings
from dask_odm.solvers.dual import Resources, solve_partition, solver_bytes
from dask_odm.typing import Array

OnLevel = Callable[[int, Callable[[], list[Solution]], list[dict[str, Any]]], None] | None
ROWS_SHARE = 0.5  # of a task's memory for rows held in it; the rest is for the solver and its tiles


@dataclass(frozen=True)
class TreeSettings:
    """Shape of the tree.

    Parameters
    ----------
    fan_in : int
        Partitions merged into one, p ≥ 2.
    stop_at : int
        Stop at the first level of at most so many partitions; 1 is the root.
    early_stop : bool
        Stop at the first level where every merged start had converged.
    """

    fan_in: int = 4
    stop_at: int = 1
    early_stop: bool = False

    def depth(self, n_partitions: int) -> int:
        """Merges from a level of ``n_partitions`` to the root, which is level 0."""
        depth = 0
        while n_partitions > 1:
            n_partitions, depth = -(-n_partitions // self.fan_in), depth + 1
        return depth

    def levels(self, n_partitions: int) -> list[list[int]]:
        """Boundaries of every level in leaf partitions: node i of a level spans ``bounds[i]:bounds[i + 1]``."""
        levels = [list(range(n_partitions + 1))]
        while len(levels[-1]) - 1 > self.stop_at and len(levels[-1]) > 2:
            bounds = levels[-1]
            levels.append([*bounds[:-1][:: self.fan_in], bounds[-1]])
        return levels


@dataclass(frozen=True, eq=False)
class TreeJob:
    """What every task of a tree is told."""

    partitions: Partitions
    scaling: Scaling | StoredScaling
    kernel: Kernel
    odm: ODMSettings
    solver: SolverSettings


@dataclass(frozen=True, eq=False)
class TreeResult:
    """The model a tree ends with, in the order of the partitions.

    Attributes
    ----------
    dual : ndarray of shape (n_machines, n)
        Signed dual variables of the whole problem.
    gap : float
        Relative gap of the whole problem; nan where the tree ended above one partition.
    history : list of dict
        One entry a level, the fields of `LevelFinished`.
    solutions : list of Solution
        Figures of the last level's partitions.
    """

    dual: Array
    gap: float
    history: list[dict[str, Any]]
    solutions: list[Solution]


def projected_bytes(job: TreeJob, rows: int, threads: int, *, certify: bool) -> int:
    """Least bytes a task needs to solve a node of ``rows`` rows: rows read from disk, tiles recomputed."""
    d, itemsize = job.partitions.features, job.partitions.dtype.itemsize
    low_rank = is_low_rank(job.kernel, d)
    needed = solver_bytes(rows, d, itemsize, threads, certify=certify, low_rank=low_rank, kernel=job.kernel)
    return needed + threads * job.partitions.reading_bytes


def solve_node(
    job: TreeJob,
    span: tuple[int, int],
    seed: int,
    memory: int,
    threads: int,
    certify: bool,
    children: Sequence[Solution],
) -> Solution:
    """Solve the merger of leaf partitions ``span`` from its children's solutions (none: from zero)."""
    y, weight = job.partitions.labels(*span)
    losses = RowLosses(job.odm, y, weight)
    spare = memory - projected_bytes(job, len(y), threads, certify=certify)
    rows, held = job.partitions.rows(*span, job.scaling, max(0, min(spare, int(memory * ROWS_SHARE))))
    dual = np.zeros(len(y))
    if children:
        dual = np.concatenate([child.rescaled(losses.total_weight)[0] for child in children])
    settings = SolverSettings(job.solver.tol, job.solver.max_iter, seed)
    resources = Resources(memory - held, threads)
    solution = solve_partition(job.kernel, rows, losses, dual, settings, resources, certify=certify)
    del rows
    return_free_memory()
    return solution


def grow_tree(
    job: TreeJob,
    tree: TreeSettings,
    cluster: Cluster,
    *,
    resume: tuple[int, Sequence[Solution]] | None = None,
    history: Sequence[dict[str, Any]] = (),
    on_level: OnLevel = None,
) -> TreeResult:
    """Train on all partitions, level by level.

    Parameters
    ----------
    job : TreeJob
    tree : TreeSettings
    cluster : Cluster
    resume : (level number, solutions), optional
        Go on after that finished level, counted from the leaves at 0.
    history : sequence of dict
        Entries of the levels before.
    on_level : callable, optional
        Called after every level with its number, a function that fetches its solutions, and the history.

    Raises
    ------
    MemoryLimitError
        A level's tasks would not fit their workers, found out before any of them runs.
    """
    levels = tree.levels(len(job.partitions.counts))
    _check_memory(job, levels, cluster)
    done, states = (-1, []) if resume is None else (resume[0], [delayed(s, traverse=False) for s in resume[1]])
    history = list(history)
    ended = tree.early_stop and done > 0 and history and history[-1]["start_gap"] <= job.solver.tol
    for number in () if ended else range(done + 1, len(levels)):
        depth = tree.depth(len(levels[number]) - 1)
        states, solutions = _run_level(job, levels, number, depth, states, cluster)
        event = _summary(solutions, depth)
        history.append(asdict(event))
        with cluster.cancelled_on_error(states):
            report(event)
            if on_level is not None:
                on_level(number, partial(_fetch, states, cluster), history)
        if tree.early_stop and number > 0 and event.start_gap <= job.solver.tol:
            break
    final = _fetch(states, cluster)
    return combine(final, history)


def solve_whole(
    job: TreeJob, cluster: Cluster, *, resume: tuple[int, Sequence[Solution]] | None = None, on_level: OnLevel = None
) -> TreeResult:
    """The tree of one partition, solved here and now: no graph. For the rest see `grow_tree`."""
    _check_memory(job, [[0, 1]], cluster)
    if resume is not None:
        (solution,) = resume[1]
    else:
        solution = solve_node(job, (0, 1), job.solver.seed, *cluster.share(1), True, [])
        report(_solved(0, 0, solution))
    event = _summary([solution], 0)
    report(event)
    if on_level is not None and resume is None:
        on_level(0, lambda: [solution], [asdict(event)])
    return combine([solution], [asdict(event)])


def _run_level(
    job: TreeJob,
    levels: list[list[int]],
    number: int,
    depth: int,
    below: list[Delayed],
    cluster: Cluster,
) -> tuple[list[Delayed], list[Solution]]:
    """Start the tasks of one level and wait for their figures; the solutions stay on the workers."""
    bounds = levels[number]
    memory, threads = cluster.share(len(bounds) - 1)
    certify = len(bounds) == 2
    solve = delayed(solve_node, pure=False)
    tasks = []
    for i, span in enumerate(pairwise(bounds)):
        children = [] if number == 0 else [below[c] for c in _children(levels[number - 1], span)]
        seed = int(np.random.SeedSequence([job.solver.seed, number, i]).generate_state(1)[0])
        # the dashboard groups by what is before the first dash
        name = f"solve_{len(bounds) - 1}_partitions-{tokenize(job.solver, job.odm, span)}-{_serial()}"
        tasks.append(solve(job, span, seed, memory, threads, certify, children, dask_key_name=name))
    with cluster.cancelled_on_error(below):
        states = cluster.persist(tasks)
    figures: list[Any] = [None] * len(states)
    with cluster.cancelled_on_error([*states, *below]):
        for i, solution in cluster.results([delayed(read_figures, pure=False)(s) for s in states]):
            figures[i] = solution
            report(_solved(depth, i, solution))
    return states, figures


def read_figures(solution: Solution) -> Solution:
    return solution.without_dual()


def _serial() -> str:
    return f"{time.time_ns():x}"


def _children(bounds: list[int], span: tuple[int, int]) -> range:
    return range(bounds.index(span[0]), bounds.index(span[1]))


def _fetch(states: Sequence[Delayed], cluster: Cluster) -> list[Solution]:
    return [solution for _, solution in sorted(cluster.results(list(states)), key=lambda pair: pair[0])]


def _check_memory(job: TreeJob, levels: list[list[int]], cluster: Cluster) -> None:
    for bounds in levels:
        tasks = len(bounds) - 1
        _, threads = cluster.share(tasks)
        rows = max(sum(job.partitions.counts[a:b]) for a, b in pairwise(bounds))
        what = (
            f"Solving {tasks} partition{'s' * (tasks > 1)} of up to {rows} rows of {job.partitions.features} features"
        )
        advice = advice_at_root(levels) if tasks == 1 else ADVICE
        cluster.require(projected_bytes(job, rows, threads, certify=tasks == 1), tasks, what, advice)


def advice_at_root(levels: list[list[int]]) -> str:
    """What to do where all rows do not fit together, for which more partitions alone are no help."""
    if len(levels) == 1:
        return "Use more memory, or n_partitions= and stop_at= to end with smaller partitions."
    return f"Use more memory, or end the tree at smaller partitions by stop_at={len(levels[-2]) - 1}."


def _solved(level: int, partition: int, s: Solution) -> PartitionSolved:
    return PartitionSolved(level, partition, s.rows, s.sweeps + s.steps, s.point.gap, s.point.dual, s.seconds)


def _summary(solutions: Sequence[Solution], level: int) -> LevelFinished:
    """Figures of a level: the worst gaps, the mean of the dual objectives by weight."""
    weight = math.fsum(s.weight for s in solutions)
    return LevelFinished(
        level=level,
        partitions=len(solutions),
        rows=sum(s.rows for s in solutions),
        sweeps=max(s.sweeps + s.steps for s in solutions),
        converged=sum(s.converged for s in solutions),
        start_gap=max(s.start.gap for s in solutions),
        gap=max(s.point.gap for s in solutions),
        objective=math.fsum(s.weight / weight * s.point.dual for s in solutions),
        seconds=max(s.seconds for s in solutions),
    )


def end_at_root(solution: Solution, history: Sequence[dict[str, Any]]) -> TreeResult:
    """What a tree ends with whose root was solved elsewhere; ``history`` is that of the levels below."""
    report(_solved(0, 0, solution))
    event = _summary([solution], 0)
    report(event)
    return combine([solution], [*history, asdict(event)])


def combine(solutions: list[Solution], history: list[dict[str, Any]]) -> TreeResult:
    """The model of a level: its solutions as the start of a merger of them all."""
    weight = math.fsum(s.weight for s in solutions)
    dual = np.concatenate([s.rescaled(weight) for s in solutions], axis=1)
    gap = solutions[0].point.gap if len(solutions) == 1 else math.nan
    return TreeResult(dual, gap, history, [s.without_dual() for s in solutions])


def partitions_for(rows: int, n_partitions: int | None, fan_in: int, leaf_rows: int) -> int:
    """Leaf partitions: as asked for, or a power of ``fan_in`` that leaves at most ``leaf_rows`` rows in each."""
    if n_partitions is None:
        n_partitions = 1
        while rows / n_partitions > leaf_rows:
            n_partitions *= fan_in
    if n_partitions > rows:
        raise InputError(f"n_partitions must be at most the number of rows, {rows}. Got {n_partitions} instead.")
    return n_partitions
