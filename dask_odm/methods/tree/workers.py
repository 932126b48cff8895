"""SODM's merging tree: partitions are solved, merged and solved again from their children's solutions.

Source: SODM, algorithm 1. Every level is a set of `dask.delayed` tasks whose inputs are the tasks of the level
below, so warm starts pass from worker to worker and the tree runs on any scheduler. The client receives only
figures (gaps, sweeps, seconds), and decides level by level whether to go on.

A node is a set of rows. SODM merges partitions in their order; a caller may also regroup all rows for a level. A merge
rule says which rows go up to the parent: all of them (SODM), or those with dual variables other than zero (a cascade:
Graf et al., *Parallel support vector machines: the cascade SVM*, NIPS 2004).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed, delayed

from dask_odm.data.rows.memory import Partitions
from dask_odm.data.rows.row_sets import RowSet, merged_span, overlaps, require_each_once
from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.engine.cluster import ADVICE, Cluster, return_free_memory
from dask_odm.engine.partition.base import require_rows
from dask_odm.events import LevelFinished, Meter, PartitionSolved, report
from dask_odm.kernels.base import Kernel
from dask_odm.learning.problem.odm import ODMSettings, Point, RowLosses
from dask_odm.learning.solution import Solution, SolverSettings
from dask_odm.methods.exact.limits import NODE_LIMITS, ExactLimits
from dask_odm.methods.tree.partition_solver import Resources, solve_partition, solver_bytes
from dask_odm.typing import Array

OnLevel = Callable[[int, Callable[[], list[Solution]], list[dict[str, Any]]], None] | None
Regroup = Callable[[int], Sequence[RowSet] | None]
PassUp = Callable[[Solution], Array | None]
Begin = Callable[[Solution, float], Array]
NUMBER_BYTES = 48  # bytes a row of a node given by row numbers: its own, its children's, and sorting both


def pass_all(solution: Solution) -> None:
    """Pass up all rows of a node, as SODM does: return None for "no mask"."""


def pass_support(solution: Solution) -> Array:
    """Pass up the rows whose dual variables are not all zero, as a cascade does."""
    return np.asarray(solution.dual.any(axis=0))


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
        Stop at the first level whose merged starts all meet the tolerance.
    """

    fan_in: int = 4
    stop_at: int = 1
    early_stop: bool = False

    def depth(self, n_partitions: int) -> int:
        """Return how many merges lead from a level of ``n_partitions`` to the root, which is level 0."""
        depth = 0
        while n_partitions > 1:
            n_partitions = -(-n_partitions // self.fan_in)
            depth = depth + 1
        return depth

    def levels(self, n_partitions: int) -> list[list[int]]:
        """Return the bounds of every level, leaves first: node i has leaf partitions ``bounds[i]:bounds[i + 1]``."""
        levels = [list(range(n_partitions + 1))]
        while len(levels[-1]) - 1 > self.stop_at and len(levels[-1]) > 2:
            bounds = levels[-1]
            levels.append([*bounds[:-1][:: self.fan_in], bounds[-1]])
        return levels


@dataclass(frozen=True, eq=False)
class TreeJob:
    """The arguments that all tasks of a tree share.

    Parameters
    ----------
    partitions : Partitions
    scaling : Scaling or StoredScaling
    kernel : Kernel
    odm : ODMSettings
    solver : SolverSettings
    pass_up : callable
        ``pass_up(solution)`` returns a mask of the rows of a node that its parent gets, or None for all. A row that
        was left out once stays out, with dual variables of zero. The others keep the weight they have among all
        rows of the node. So a node ends at its optimum if its dual variables are zero there for the rows left out.
    begin : callable
        ``begin(child, weight)`` returns the dual variables of a child's rows that a node of total ``weight`` starts
        from.
    limits : ExactLimits
        Sizes up to which a node is solved in one way or another.
    """

    partitions: Partitions
    scaling: Scaling | StoredScaling
    kernel: Kernel
    odm: ODMSettings
    solver: SolverSettings
    pass_up: PassUp = pass_all
    begin: Begin = Solution.rescaled
    limits: ExactLimits = NODE_LIMITS


@dataclass(frozen=True, eq=False)
class TreeResult:
    """The solution that a tree ends with, its rows in the order of the partitions.

    Attributes
    ----------
    dual : ndarray of shape (n_machines, n)
        Signed dual variables of the whole problem.
    gap : float
        Relative gap of the root: of the whole problem, or only of the rows passed up. It is nan if the tree ended
        with several partitions.
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
    """Return the fewest bytes in which a task can solve a node: rows are read from disk, kernel tiles recomputed."""
    d = job.partitions.features
    itemsize = job.partitions.dtype.itemsize
    needed = solver_bytes(rows, d, itemsize, threads, certify=certify, kernel=job.kernel)
    return needed + threads * job.partitions.reading_bytes


def solve_node(
    job: TreeJob,
    node: RowSet,
    seed: int,
    memory: int,
    threads: int,
    certify: bool,
    below: Sequence[RowSet],
    children: Sequence[Solution],
) -> Solution:
    """Solve a node from the solutions ``children`` of the nodes ``below`` it, or from zero if there are none.

    The solution has dual variables for all rows of the node; they are zero for rows that were not passed up.
    """
    dual, passed = _start(job, node, below, children)
    active = node
    total = None
    if passed is not None:
        active = RowSet.at(node.positions(job.partitions.counts)[passed], job.partitions.counts)
        total = float(node.labels(job.partitions)[1].sum())
    if total is not None and not active.pieces:
        nothing = Point(0.0, 0.0, 0.0)
        return Solution(np.zeros((len(children[0].dual), node.size(job.partitions.counts))), total, 0, nothing, nothing)
    y, weight = active.labels(job.partitions)
    losses = RowLosses(_weighted(job.odm, weight, total), y, weight)
    total = losses.total_weight if total is None else total
    spare = memory - projected_bytes(job, len(y), threads, certify=certify)
    # half of the memory may hold rows; the rest is for the solver and its tiles
    rows, held = active.rows(job.partitions, job.scaling, max(0, min(spare, memory // 2)))
    settings = SolverSettings(job.solver.tol, job.solver.max_iter, seed)
    resources = Resources(memory - held, threads)
    solution = solve_partition(
        job.kernel, rows, losses, dual(total), settings, resources, certify=certify, limits=job.limits
    )
    del rows
    return_free_memory()
    if passed is None:
        return solution
    whole = np.zeros((len(solution.dual), len(passed)))
    whole[:, passed] = solution.dual
    return replace(solution, dual=whole, weight=total)


def _weighted(odm: ODMSettings, weight: Array, total: float | None) -> ODMSettings:
    """Scale λ so that rows of ``weight`` keep the losses they have among rows of ``total`` weight."""
    return odm if total is None else replace(odm, lam=odm.lam * (float(weight.sum()) / total))


def _start(
    job: TreeJob, node: RowSet, below: Sequence[RowSet], children: Sequence[Solution]
) -> tuple[Callable[[float], Array], Array | None]:
    """Return a function of the total weight that makes a node's start, and the mask of the rows passed up to it.

    The mask is None if all rows were.
    """
    counts = job.partitions.counts
    if not children:
        n = node.size(counts)
        return lambda weight: np.zeros(n), None
    masks = [job.pass_up(child) for child in children]
    if node.span is not None and node.span == merged_span(below) and all(mask is None for mask in masks):
        return lambda weight: np.concatenate([job.begin(child, weight)[0] for child in children]), None
    own = node.positions(counts)
    passed = np.zeros(len(own), bool)
    where = []
    for rows, mask in zip(below, masks, strict=True):
        positions = rows.positions(counts)
        _, mine, theirs = np.intersect1d(own, positions, assume_unique=True, return_indices=True)
        passed[mine] = True if mask is None else mask[theirs]
        where.append((mine, theirs))

    def start(weight: float) -> Array:
        dual = np.zeros(len(own))
        for (mine, theirs), child in zip(where, children, strict=True):
            dual[mine] = job.begin(child, weight)[0][theirs]
        return dual[passed]

    return start, None if passed.all() else passed


def grow_tree(
    job: TreeJob,
    tree: TreeSettings,
    cluster: Cluster,
    *,
    resume: tuple[int, Sequence[Solution]] | None = None,
    history: Sequence[dict[str, Any]] = (),
    on_level: OnLevel = None,
    regroup: Regroup | None = None,
) -> TreeResult:
    """Train on all partitions, level by level. Levels are numbered from the leaves at 0.

    ``resume`` is a finished level to go on after, with its solutions; ``history`` has the entries up to there.
    ``on_level`` is called after every level with its number, a function that fetches its solutions, and the history.
    ``regroup(number)`` returns the nodes of a level above the leaves, or None to merge as ``tree`` says. It is called
    when the level below is done.

    Raises
    ------
    MemoryLimitError
        A level's tasks would not fit their workers. All levels are checked before any task runs. A level whose rows
        depend on the solutions below is checked when those are known.
    InputError
        The nodes of a level do not hold each row once.
    """
    counts = job.partitions.counts
    levels = tree.levels(len(counts))
    known = job.pass_up is pass_all and regroup is None
    _check_memory(job, levels if known else levels[:1], cluster)
    done, states = (-1, []) if resume is None else (resume[0], [delayed(s, traverse=False) for s in resume[1]])
    history = list(history)
    ended = tree.early_stop and done > 0 and history and history[-1]["start_gap"] <= job.solver.tol
    nodes = [] if done < 0 else _nodes(levels, done, counts, regroup)
    passed = [] if resume is None else [read_figures(job.pass_up, solution)[1] for solution in resume[1]]
    with cluster.cancelled_on_error(states):  # the list always holds the level that is kept on the workers
        for number in () if ended else range(done + 1, len(levels)):
            below = nodes
            nodes = _nodes(levels, number, counts, regroup)
            if not known and number:
                numbered = sum(counts) if regroup is not None else max(node.size(counts) for node in nodes)
                most = _most_rows(nodes, below, passed, counts)
                _check_level(job, levels, most, len(nodes), cluster, NUMBER_BYTES * numbered)
            depth = tree.depth(len(nodes))
            states[:], solutions, passed = _run_level(job, nodes, below, number, depth, states, cluster)
            event = _summary(solutions, depth)
            history.append(asdict(event))
            if on_level is not None:
                on_level(number, partial(_fetch, states, cluster), history)
            report(event)  # after the checkpoint was saved
            if tree.early_stop and number > 0 and event.start_gap <= job.solver.tol:
                break
        final = _fetch(states, cluster)
    order = (
        None if merged_span(nodes) == (0, len(counts)) else np.concatenate([node.positions(counts) for node in nodes])
    )
    return combine(final, history, order)


def solve_whole(
    job: TreeJob, cluster: Cluster, *, resume: tuple[int, Sequence[Solution]] | None = None, on_level: OnLevel = None
) -> TreeResult:
    """Solve the tree of one partition in this process, without a task graph. `grow_tree` explains the arguments."""
    _check_memory(job, [[0, 1]], cluster)
    if resume is not None:
        (solution,) = resume[1]
    else:
        solution = solve_node(job, RowSet.whole(0, 1), job.solver.seed, *cluster.share(1), True, [], [])
        report(_solved(0, 0, solution))
    event = _summary([solution], 0)
    if on_level is not None and resume is None:
        on_level(0, lambda: [solution], [asdict(event)])
    report(event)
    return combine([solution], [asdict(event)])


def _nodes(levels: list[list[int]], number: int, counts: Sequence[int], regroup: Regroup | None) -> list[RowSet]:
    """Return the nodes of a level: those of ``regroup``, or merged partitions."""
    given = None if regroup is None or number == 0 else regroup(number)
    if given is None:
        return [RowSet.whole(*span) for span in pairwise(levels[number])]
    require_each_once(given, counts, f"level {number}")
    return list(given)


def _run_level(
    job: TreeJob,
    nodes: Sequence[RowSet],
    below: Sequence[RowSet],
    number: int,
    depth: int,
    states: list[Delayed],
    cluster: Cluster,
) -> tuple[list[Delayed], list[Solution], list[int]]:
    """Run the tasks of one level, which start from the ``states`` of the nodes ``below``.

    Returns the solutions, which stay on the workers, their figures without dual variables, and how many rows each node
    passes up.
    """
    memory, threads = cluster.share(len(nodes))
    certify = len(nodes) == 1
    solve = delayed(solve_node, pure=False)
    tasks = []
    for i, (node, children) in enumerate(zip(nodes, overlaps(nodes, below), strict=True)):
        seed = int(np.random.SeedSequence([job.solver.seed, number, i]).generate_state(1)[0])
        # the dashboard groups by what is before the first dash
        name = f"solve_{len(nodes)}_partitions-{tokenize(job.solver, job.odm, number, i)}-{_serial()}"
        rows = [below[c] for c in children]
        started = [states[c] for c in children]
        tasks.append(solve(job, node, seed, memory, threads, certify, rows, started, dask_key_name=name))
    with Meter(f"level {depth}", len(nodes), "partitions") as meter:
        solved = cluster.persist(tasks, meter.add)
        figures: list[Any] = [None] * len(solved)
        passed = [0] * len(solved)
        with cluster.cancelled_on_error(solved):
            looks = [delayed(read_figures, pure=False)(job.pass_up, s) for s in solved]
            for i, (solution, rows_up) in cluster.results(looks):
                figures[i], passed[i] = solution, rows_up
                meter.add(cluster.client is not None)  # without a client they were counted when they were solved
                report(_solved(depth, i, solution))
    return solved, figures, passed


def read_figures(pass_up: PassUp, solution: Solution) -> tuple[Solution, int]:
    """Return a solution without its dual variables, and how many rows of the node are passed up."""
    mask = pass_up(solution)
    return solution.without_dual(), solution.dual.shape[1] if mask is None else int(np.count_nonzero(mask))


def _most_rows(nodes: Sequence[RowSet], below: Sequence[RowSet], passed: Sequence[int], counts: Sequence[int]) -> int:
    """Return a bound on the rows of any node of a level, given how many rows the nodes below passed up."""
    children = overlaps(nodes, below)
    return max(min(node.size(counts), sum(passed[c] for c in own)) for node, own in zip(nodes, children, strict=True))


def _serial() -> str:
    return f"{time.time_ns():x}"


def _fetch(states: Sequence[Delayed], cluster: Cluster) -> list[Solution]:
    return [solution for _, solution in sorted(cluster.results(list(states)), key=lambda pair: pair[0])]


def _check_memory(job: TreeJob, levels: list[list[int]], cluster: Cluster) -> None:
    for bounds in levels:
        rows = max(sum(job.partitions.counts[a:b]) for a, b in pairwise(bounds))
        _check_level(job, levels, rows, len(bounds) - 1, cluster)


def _check_level(
    job: TreeJob, levels: list[list[int]], rows: int, tasks: int, cluster: Cluster, numbers: int = 0
) -> None:
    """Raise MemoryLimitError if tasks of so many rows do not fit; ``numbers`` are bytes of row numbers on top."""
    _, threads = cluster.share(tasks)
    what = f"Solving {tasks} partition{'s' * (tasks > 1)} of up to {rows} rows of {job.partitions.features} features"
    advice = advice_at_root(levels) if tasks == 1 else ADVICE
    cluster.require(projected_bytes(job, rows, threads, certify=tasks == 1) + numbers, tasks, what, advice)


def advice_at_root(levels: list[list[int]]) -> str:
    """Return the advice of the error for a root that does not fit; more partitions alone would not help."""
    if len(levels) == 1:
        return "Use more memory, or solver=SODM(n_partitions=…, stop_at=…) to end with smaller partitions."
    return f"Use more memory, or end the tree at smaller partitions by stop_at={len(levels[-2]) - 1}."


def _solved(level: int, partition: int, s: Solution) -> PartitionSolved:
    return PartitionSolved(level, partition, s.rows, s.sweeps + s.steps, s.point.gap, s.point.dual, s.seconds)


def _summary(solutions: Sequence[Solution], level: int) -> LevelFinished:
    """Return the figures of a level: the worst gaps, and the weighted mean of the dual objectives."""
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
    """Report a root that was solved outside the tree, and return the result.

    ``history`` is that of the levels below.
    """
    report(_solved(0, 0, solution))
    event = _summary([solution], 0)
    report(event)
    return combine([solution], [*history, asdict(event)])


def combine(solutions: list[Solution], history: list[dict[str, Any]], order: Array | None = None) -> TreeResult:
    """Join the solutions of a level into one of the whole problem, rescaled as for a merger of them all.

    ``order`` gives the position, in the order of the partitions, of each row of the joined solutions. None means that
    they are in that order.
    """
    weight = math.fsum(s.weight for s in solutions)
    dual = np.concatenate([s.rescaled(weight) for s in solutions], axis=1)
    if order is not None:
        dual = dual[:, np.argsort(order)]
    gap = solutions[0].point.gap if len(solutions) == 1 else math.nan
    return TreeResult(dual, gap, history, [s.without_dual() for s in solutions])


def partitions_for(rows: int, n_partitions: int | None, fan_in: int, leaf_rows: int) -> int:
    """Return the number of leaf partitions.

    It is ``n_partitions``, or the least power of ``fan_in`` that leaves at most ``leaf_rows`` rows in each. Raises
    InputError if ``n_partitions`` exceeds the rows.
    """
    if n_partitions is None:
        n_partitions = 1
        while rows / n_partitions > leaf_rows:
            n_partitions *= fan_in
    require_rows(rows, n_partitions)
    return n_partitions
