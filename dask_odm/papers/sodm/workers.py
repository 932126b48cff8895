"""SODM's merging tree: partitions are solved, merged and solved again from their children's solutions.

Source: SODM, algorithm 1. Every level is a set of tasks whose inputs are the tasks of the level below, so warm starts
pass from worker to worker. The client receives only figures (gaps, sweeps, seconds), and decides level by level
whether to go on.

A node is a set of rows (`dask_odm.papers.sodm.node_workers`). SODM merges partitions in their order; a caller may also
regroup all rows for a level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import uuid4

import numpy as np

from dask_odm.data.rows.row_sets import RowSet, merged_span, overlaps
from dask_odm.engine.cluster import MORE_PARTITIONS, Cluster
from dask_odm.engine.partitioners import require_rows
from dask_odm.events import LevelFinished, Meter, PartitionSolved, report
from dask_odm.learning.problem.losses import Point
from dask_odm.learning.solution import Solution
from dask_odm.linalg.threads import run_threads
from dask_odm.papers.sodm.node_workers import PassUp, TreeJob, pass_all, projected_bytes, solve_node
from dask_odm.typing import Array

History = list[dict[str, Any]]
Regroup = Callable[[int], Sequence[RowSet] | None]


@dataclass(frozen=True, eq=False)
class LevelState:
    """A finished level of a tree, as a checkpoint has it."""

    level: int
    dual: Array  # dual variables of all nodes, one node after the other, (n_machines, n)
    # of every node: its number of dual variables, weight, rows, sweeps, steps, convergence and seconds, then its points
    # at the start and at the solution, and ½‖w‖², (nodes, 14)
    figures: Array
    history: History  # records of the levels up to this one

    @classmethod
    def of(cls, level: int, solutions: list[Solution], history: History) -> LevelState:
        figures = []
        for s in solutions:
            counts = s.dual.shape[1], s.weight, s.rows, s.sweeps, s.steps, s.converged, s.seconds
            figures.append([*counts, *astuple(s.start), *astuple(s.point), s.half_norm])
        dual = np.concatenate([s.dual for s in solutions], axis=1)
        return cls(level, dual, np.array(figures, dtype=np.float64), list(history))

    def solutions(self) -> list[Solution]:
        ends = np.cumsum(self.figures[:-1, 0]).astype(np.int64)
        found = []
        for dual, figures in zip(np.split(self.dual, ends, axis=1), self.figures.tolist(), strict=True):
            _, weight, rows, sweeps, steps, converged, seconds, *points, half_norm = figures
            counts = int(sweeps), int(steps), bool(converged)
            start, point = Point(*points[:3]), Point(*points[3:])
            found.append(Solution(dual.copy(), weight, int(rows), start, point, *counts, seconds, half_norm))
        return found

    def is_level(self, levels: int, sizes: Callable[[int], list[int]], *, all_rows: bool) -> bool:
        """Return whether this is a level of a tree of ``levels`` levels.

        ``sizes(number)`` returns the rows of every node of a level. Without ``all_rows``, lower levels may have dropped
        some.
        """
        if not 0 <= self.level < levels or len(self.history) != self.level + 1:
            return False
        rows = sizes(self.level)
        if self.figures.shape != (len(rows), 8 + 2 * len(fields(Point))) or self.dual.ndim != 2 or not len(self.dual):
            return False
        columns = slice(0, 3, 2) if all_rows else slice(0, 1)
        same = (self.figures[:, columns] == np.array(rows)[:, None]).all() and self.dual.shape[1] == sum(rows)
        return bool(same and (self.figures[:, 2] <= rows).all() and (self.figures[:, :7] >= 0).all())


Save = Callable[[LevelState], object] | None


@dataclass(frozen=True)
class TreeSettings:
    """Shape of a tree: ``fan_in`` ≥ 2 partitions are merged into one, up to the first level of at most ``stop_at``.

    With ``early_stop``, the tree ends at the first level whose merged starts all meet the tolerance.
    """

    fan_in: int = 4
    stop_at: int = 1
    early_stop: bool = False

    def levels(self, n_partitions: int) -> list[list[int]]:
        """Return the bounds of every level, leaves first: node i has leaf partitions ``bounds[i]:bounds[i + 1]``."""
        levels = [list(range(n_partitions + 1))]
        while len(levels[-1]) - 1 > self.stop_at and len(levels[-1]) > 2:
            bounds = levels[-1]
            levels.append([*bounds[:-1][:: self.fan_in], bounds[-1]])
        return levels


@dataclass(frozen=True, eq=False)
class TreeResult:
    """The solution that a tree ends with, its rows in the order of the partitions."""

    dual: Array  # signed dual variables of the whole problem, (n_machines, n)
    gap: float  # of the root over the rows passed up to it; nan if the tree ended with several partitions
    history: History  # one record a level, with the fields of `LevelFinished`
    solutions: list[Solution]  # figures of the last level's nodes
    nodes: Sequence[RowSet] = ()  # the last level's nodes, if `grow_tree` solved them


def grow_tree(
    job: TreeJob,
    tree: TreeSettings,
    cluster: Cluster,
    *,
    resume: LevelState | None = None,
    save: Save = None,
    regroup: Regroup | None = None,
) -> TreeResult:
    """Train on all partitions, level by level. Levels are numbered from the leaves at 0.

    ``resume`` is a finished level to go on after. ``save`` is called with every finished level; without it no solution
    is fetched before the last level's. ``regroup(number)`` returns the nodes of a level above the leaves, or
    None to merge as ``tree`` says. It is called when the level below is done.

    Raises MemoryLimitError if a level's tasks would not fit their workers. All levels are checked before any task runs;
    a level whose rows depend on the solutions below is checked when those are known.
    """
    counts = job.partitions.counts
    levels = tree.levels(len(counts))
    known = job.pass_up is pass_all and regroup is None
    check_memory(job, levels if known else levels[:1], cluster)
    done = -1
    states: list[Any] = []  # solutions of a level, or futures of them
    history: History = []
    nodes: list[RowSet] = []
    if resume is not None:
        done = resume.level
        states = resume.solutions()
        history = list(resume.history)
        nodes = nodes_of(levels, done, regroup)
    passed = [read_figures(job.pass_up, solution)[1] for solution in states]
    with cluster.cancelled_on_error(states):  # the list always holds the level that is kept on the workers
        for number in range(done + 1, len(levels)):
            if tree.early_stop and number > 1 and history[-1]["start_gap"] <= job.solver.tol:
                break
            below = nodes
            nodes = nodes_of(levels, number, regroup)
            if not known and number:
                numbered = sum(counts) if regroup is not None else max(node.size(counts) for node in nodes)
                sets = zip(nodes, overlaps(nodes, below), strict=True)
                most = max(min(node.size(counts), sum(passed[c] for c in children)) for node, children in sets)
                # row numbers take 48 bytes a row: those of the node, of its children, and sorting both
                _check_level(job, levels, most, len(nodes), cluster, 48 * numbered)
            depth = len(TreeSettings(tree.fan_in).levels(len(nodes))) - 1  # merges that lead to the root
            states[:], solutions, passed = _run_level(job, nodes, below, number, depth, states, cluster)
            finished = _finished(solutions, depth, history)
            if save is not None:
                save(LevelState.of(number, _fetch(states, cluster), history))
            report(finished)  # after it was saved: a listener may end the fit
        final = _fetch(states, cluster)
    ordered = merged_span(nodes) == (0, len(counts))
    order = None if ordered else np.concatenate([node.positions(counts) for node in nodes])
    return replace(combine(final, history, order), nodes=nodes)


def nodes_of(levels: list[list[int]], number: int, regroup: Regroup | None) -> list[RowSet]:
    """Return the nodes of a level: those of ``regroup``, or merged partitions."""
    given = None if regroup is None or number == 0 else regroup(number)
    return [RowSet.whole(*span) for span in pairwise(levels[number])] if given is None else list(given)


def _run_level(
    job: TreeJob,
    nodes: Sequence[RowSet],
    below: Sequence[RowSet],
    number: int,
    depth: int,
    states: list[Any],
    cluster: Cluster,
) -> tuple[list[Any], list[Solution], list[int]]:
    """Run the tasks of one level, which start from the ``states`` of the nodes ``below``.

    Returns the solutions, or futures of those that stay on the workers, their figures without dual variables, and how
    many rows each node passes up.
    """
    memory, threads = cluster.share(len(nodes))
    certify = len(nodes) == 1
    tasks: list[tuple[Any, ...]] = []
    for i, (node, children) in enumerate(zip(nodes, overlaps(nodes, below), strict=True)):
        seed = int(np.random.SeedSequence([job.solver.seed, number, i]).generate_state(1)[0])
        call = partial(solve_node, job, node, seed, memory, threads, certify, [below[c] for c in children])
        tasks.append((call, *(states[c] for c in children)))
    look = partial(read_figures, job.pass_up)
    found: dict[int, tuple[Solution, int]] = {}
    if cluster.client is None:
        solved = run_threads(lambda task: task[0](*task[1:]), tasks, cluster.threads, f"level {depth}")
        for i, solution in enumerate(solved):
            found[i] = look(solution)
            report(_solved(depth, i, found[i][0]))
    else:
        # the dashboard groups by what is before the first dash
        serial = f"{len(nodes)}_partitions-{uuid4().hex}"
        graph = {f"solve_{serial}-{i}": task for i, task in enumerate(tasks)}
        solved = cluster.started(graph, list(graph))
        with Meter(f"level {depth}", len(nodes), "partitions") as meter, cluster.cancelled_on_error(solved):
            looks = {f"gaps_of_{serial}-{i}": (look, solution) for i, solution in enumerate(solved)}
            for i, figures in meter.over(cluster.done(cluster.started(looks, list(looks)))):
                found[i] = figures
                report(_solved(depth, i, figures[0]))
    solutions, passed = zip(*(found[i] for i in range(len(nodes))), strict=True)
    return solved, list(solutions), list(passed)


def read_figures(pass_up: PassUp, solution: Solution) -> tuple[Solution, int]:
    """Return a solution without its dual variables, and how many rows of the node are passed up."""
    mask = pass_up(solution)
    return solution.without_dual(), solution.dual.shape[1] if mask is None else int(np.count_nonzero(mask))


def _fetch(states: Sequence[Any], cluster: Cluster) -> list[Solution]:
    futures = [state for state in states if not isinstance(state, Solution)]
    return cluster.gather(futures, [future.key for future in futures]) if futures else list(states)


def check_memory(job: TreeJob, levels: list[list[int]], cluster: Cluster) -> None:
    """Raise MemoryLimitError unless the tasks of all ``levels`` fit their workers."""
    for bounds in levels:
        rows = max(sum(job.partitions.counts[a:b]) for a, b in pairwise(bounds))
        _check_level(job, levels, rows, len(bounds) - 1, cluster)


def _check_level(
    job: TreeJob, levels: list[list[int]], rows: int, tasks: int, cluster: Cluster, numbers: int = 0
) -> None:
    """Raise MemoryLimitError if tasks of ``rows`` rows do not fit; ``numbers`` are bytes of row numbers on top."""
    _, threads = cluster.share(tasks)
    what = f"Solving {tasks} partition{'s' * (tasks > 1)} of up to {rows} rows of {job.partitions.features} features"
    advice = advice_at_root(levels) if tasks == 1 else MORE_PARTITIONS
    cluster.require(projected_bytes(job, rows, threads, certify=tasks == 1) + numbers, tasks, what, advice)


def advice_at_root(levels: list[list[int]]) -> str:
    """Return the advice of the error for a root that does not fit; more partitions alone would not help."""
    if len(levels) == 1:
        return (
            "Use more memory, solver='landmark', or solver=SODM(n_partitions=…, stop_at=…), to end with smaller "
            "partitions."
        )
    return f"Use more memory, or end the tree at smaller partitions by stop_at={len(levels[-2]) - 1}."


def _solved(level: int, partition: int, s: Solution) -> PartitionSolved:
    return PartitionSolved(level, partition, s.rows, s.sweeps + s.steps, s.point.gap, s.point.dual, s.seconds)


def _finished(solutions: Sequence[Solution], level: int, history: History) -> LevelFinished:
    """Return the event of a finished level, and add its record to ``history``.

    It has the worst gaps, and the weighted mean of the dual objectives.
    """
    weight = math.fsum(s.weight for s in solutions)
    event = LevelFinished(
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
    history.append(asdict(event))
    return event


def end_at_root(solution: Solution, number: int, history: History, save: Save) -> TreeResult:
    """Save and report a root, level ``number``, that was solved outside the tree, and return the result.

    ``history`` is that of the levels below.
    """
    report(_solved(0, 0, solution))
    finished = _finished([solution], 0, history)
    if save is not None:
        save(LevelState.of(number, [solution], history))
    report(finished)
    return combine([solution], history)


def combine(solutions: list[Solution], history: History, order: Array | None = None) -> TreeResult:
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
