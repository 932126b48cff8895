"""Passes over a store by Dask: sums over rows are computed where the workers read the chunks, and only sums travel.

A pass is a few long tasks, one per worker thread, each over a run of chunks. Chunks belong to fixed groups, whose sums
are added pair by pair. This tree does not depend on the number of tasks, so the bits do not depend on the workers. A
task returns the sums of the nodes of the tree that it has whole. Those of many tasks are joined by the workers, a few
at a time, so that what meets in one place does not grow with the workers.
Nothing of a store is kept in Dask's memory: the page cache of the system serves as the cache.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any
from uuid import uuid4

import numpy as np
from dask.utils import funcname

from dask_odm.data.rows.scaling import COPIED_BYTES
from dask_odm.data.store.store import Buffer, Store, StoreBlock
from dask_odm.engine.client import while_wanted
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.futures import FEW_TASKS, JOINED, pickled, spread_task
from dask_odm.engine.tasks import worker_task
from dask_odm.events import Meter
from dask_odm.linalg.row_passes import PASS, Node, PassBytes, RowBlock, tree_nodes
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

CHUNK_GROUPS = 64  # the most groups of few chunks, up to four times as many; else there is a group for every one or two
SPARSE_GROUPS = CHUNK_GROUPS // 8  # groups that a store of sparse rows has in any case, if it has as many chunks
# the pieces of a run, about: runs are as long as others to one piece, and more nodes would be sent
RUN_PIECES = CHUNK_GROUPS // 2
RUN_NODES = 2 * RUN_PIECES.bit_length()  # of the tree of sums, that a run has at most, if it has no more pieces
SENT_BYTES = 8 * COPIED_BYTES  # the most bytes of questions that the scheduler sends with the tasks of a pass
CLIENT_TASKS = 4 * JOINED  # the most tasks whose sums the client adds up, even if they are small

Columns = Callable[[StoreBlock], tuple[Array, Array]]


def chunk_groups(n_chunks: int, most: int | None = None) -> list[range]:
    """Return the groups of chunks, a power of two in number, whose sums are added; they depend on the store alone."""
    if most is None:
        most = n_chunks if n_chunks >= 4 * CHUNK_GROUPS else CHUNK_GROUPS
    count = 1 << (min(n_chunks, most).bit_length() - 1)
    return [range(n_chunks * i // count, n_chunks * (i + 1) // count) for i in range(count)]


def groups_of(store: Store) -> list[range]:
    """Return the groups of chunks of a store, those of sparse rows with eight entries for each feature, or few."""
    entries = store.layout.entries
    if entries is None:
        return chunk_groups(store.n_chunks)
    # sums have a number for each feature, and adding them up takes as long as some entries
    enough = entries.total // (8 * store.features)
    return chunk_groups(store.n_chunks, min(CHUNK_GROUPS, max(SPARSE_GROUPS, enough)))


def group_runs(groups: int, threads: int, *, aligned: bool = False) -> list[range]:
    """Return the runs of groups that are summed by one task each, one per thread.

    Those of ``aligned`` runs are nodes of the tree of sums. If the number of threads is no power of two, there are four
    or more per thread then, so that no thread idles long.
    """
    count = min(groups, threads)
    if aligned:
        least = 1 << (threads - 1).bit_length()
        count = min(groups, least if least == threads else 4 * least)
    piece = 1 << max(0, (groups // count // RUN_PIECES).bit_length() - 1)  # groups that are not cut
    bounds = [groups // piece * i // count * piece for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]


@dataclass(frozen=True, eq=False)
class StorePasses:
    """`Passes` over the chunks of a store.

    ``columns`` takes a `StoreBlock` and returns its rows' targets and weights, each (rows,); empty weights mean that
    all are 1. Tasks carry it. By default, it returns the store's label codes and weights.
    """

    store: Store
    cluster: Cluster
    columns: Columns = StoreBlock.columns

    streamed = True

    @property
    def rows(self) -> int:
        return self.store.rows

    @property
    def groups(self) -> int:
        return len(groups_of(self.store))

    def task_bytes(self, needed: PassBytes) -> int:
        """Return the peak bytes of one task: of one that sums a run of chunks, or of one that joins others' sums."""
        groups = self.groups
        chunks = -(-groups // min(groups, self._tasks(needed.answer_row > 0))) * -(-self.store.n_chunks // groups)
        run = min(self.rows, chunks * self.store.chunk_rows)
        # one per level of the tree, and those of blocks; a drawn row is in one, and in two more while these are joined
        sums = max(10, groups.bit_length() + 3)
        summing = self.store.chunk_nbytes + needed.row * self.store.chunk_rows + needed.work
        summing += 2 * needed.answer_row * run  # those of the last task until they are fetched
        kept = 0
        if needed.kept_bits:  # of the last pass as well, with its nodes
            kept = 2 * needed.kept_bits * self.rows // (8 * self.cluster.slots) + needed.of_sums(RUN_NODES, self.rows)
        return kept + max(summing + needed.of_sums(sums, 3 * run), needed.of_sums(sums, 3 * self.rows))

    def _tasks(self, answers: bool) -> int:
        """Return the number of tasks that sum chunks; those with ``answers`` for single rows are many and short."""
        return max(self.cluster.slots, FEW_TASKS) if answers else self.cluster.slots

    def fits(self, needed: PassBytes) -> bool:
        """Return whether the tasks of such a pass fit the workers' memory."""
        available, _ = self.cluster.share(self.cluster.slots)
        return self.task_bytes(needed) <= available

    def require(self, needed: PassBytes, what: str = "A pass over the store", advice: tuple[str, ...] = ()) -> None:
        """Raise MemoryLimitError, as `Cluster.require` does, unless the tasks of such a pass fit."""
        self.cluster.require(self.task_bytes(needed), self.cluster.slots, what, advice)

    def run(
        self, query: Any, method: Callable[..., Any], *arguments: Any, of_groups: Any = (), nbytes: int | None = 0,
        kept: str | None = None,
    ) -> Any:  # fmt: skip
        """Return a sum over all rows, see `Passes.run`. Large answers are added up on the workers, by the same tree."""
        groups = groups_of(self.store)
        shared = self.store, query, method, arguments, self.columns
        with Meter(PASS, self.rows, "rows") as meter:
            if self.cluster.client is not None:
                return self._run_by_workers(shared, of_groups, self.levels(nbytes, kept=kept is not None), kept, meter)
            told = [(a.start, groups[a.start : a.stop], of_groups[a.start : a.stop]) for a in self.levels(nbytes)[0]]
            # threads report progress
            return _whole(run_threads(lambda a: sum_groups(*shared, *a, meter=meter), told, self.cluster.threads))

    def _run_by_workers(
        self, shared: tuple[Any, ...], of_groups: Any, levels: list[list[range]], kept: str | None, meter: Meter
    ) -> Any:
        """Return the sum that tasks make of the questions ``shared``, with futures of the values that are ``kept``.

        All tasks are one graph, and the question is pickled once, to an array, which Dask sends on without a copy: the
        scheduler takes longer for small parts of tasks than for many bytes. Values that are kept stay in the results of
        the tasks, beside their nodes, since tasks that took them out would take the scheduler as long again.
        """
        groups = groups_of(self.store)
        _, _, method, arguments, _ = shared
        summed = next(filter(callable, arguments), method)  # some methods sum what another one returns
        # two fits at the same time must not share tasks, though they ask for the same
        name = f"{PASS}-{funcname(summed).replace('_', '-')}-{uuid4().hex}"  # Dask groups tasks by words with dashes
        held = isinstance(of_groups, KeptValues)
        runs = of_groups.runs if held else levels[0]
        question: Any = np.frombuffer(pickled(shared), np.uint8)
        graph: dict[str, Any] = {}
        once = len(runs) * len(question) > SENT_BYTES  # it is sent once, and workers hand it on
        if once:
            graph[f"asked-{name}"] = question
            question = f"asked-{name}"
        keys = [f"{name}-{a.start}" for a in runs]
        for i, (key, a) in enumerate(zip(keys, runs, strict=True)):
            part = slice(a.start, a.stop)
            call = partial(_sum_asked, sum_groups, kept, a.start, groups[part], () if held else of_groups[part])
            if held:
                graph[key] = (call, question, of_groups.futures[i])
            else:
                graph[key] = spread_task(key, call, question) if once else (call, question)
        holding = [] if kept is None else keys
        for number in range(1, len(levels)):
            parts = _neighbours(keys)
            keys = [f"joined-{name}-{len(parts)}-{i}" for i in range(len(parts))]
            join = join_nodes if number > 1 or kept is None else _join_apart
            graph |= {key: (join, part) for key, part in zip(keys, parts, strict=True)}
        futures = self.cluster.started(graph, [*keys, *holding])
        with self.cluster.cancelled_on_error(futures):
            done = self.cluster.done(futures[: len(keys)])
            found = dict(meter.over(done, lambda _: self.rows // len(keys)))
        total = _whole([found[i] for i in range(len(keys))])
        return total if kept is None else replace(total, **{kept: KeptValues(runs, futures[len(keys) :])})

    def levels(self, nbytes: int | None, *, kept: bool = False) -> list[list[range]]:
        """Return the runs of groups that the tasks of a pass sum, and then of those that join sums of ``nbytes``.

        Runs are equal if their sums fit where they are joined. Sums are joined in any case if values are ``kept``.
        """
        available, _ = self.cluster.share(self.cluster.slots)
        groups = self.groups
        nodes = 2 * groups.bit_length()
        aligned = 4 * JOINED * nodes * (nbytes or 0) > available
        levels = [group_runs(groups, self._tasks(nbytes is None), aligned=aligned)]
        most = len(levels[0]) if nbytes is None else min(CLIENT_TASKS, max(1, COPIED_BYTES // max(1, nodes * nbytes)))
        while len(levels[-1]) > most or len(levels) == kept:
            levels.append([range(runs[0].start, runs[-1].stop) for runs in _neighbours(levels[-1])])
        return levels


@dataclass(frozen=True, eq=False)
class KeptValues:
    """Values of all groups that stay with the workers which found them, in the result of a future for each of ``runs``.

    They can only be handed back, as the ``of_groups`` of a later pass. If a worker is lost, they are found again.
    """

    runs: list[range]
    futures: list[Any]


def _neighbours(items: list[Any]) -> list[list[Any]]:
    """Return the items in lists of a few, which are joined."""
    return [items[i : i + JOINED] for i in range(0, len(items), JOINED)]


@worker_task
def join_nodes(runs: Sequence[list[Node]]) -> list[Node]:
    """Return the nodes of the tree of sums that neighbouring runs have together."""
    return tree_nodes(chain.from_iterable(runs))


def _join_apart(runs: Sequence[tuple[list[Node], Any]]) -> list[Node]:
    """Return `join_nodes` of runs that have kept values beside their nodes."""
    return join_nodes([nodes for nodes, _ in runs])


def _whole(runs: Sequence[list[Node]]) -> Any:
    """Return the sum of all groups, of the nodes of all runs in order."""
    ((_, _, total),) = tree_nodes(chain.from_iterable(runs))
    return total


@worker_task
def sum_groups(
    store: Store, query: Any, method: Callable[..., Any], arguments: Sequence[Any], columns: Columns, first: int,
    groups: Sequence[range], of_groups: Sequence[Any] = (), meter: Meter | None = None,
) -> list[Node]:  # fmt: skip
    """Sum ``method`` of ``query`` over a run of groups of chunks, from group ``first`` on; this is a task of a pass.

    Returns the nodes of the tree of sums that the run has whole.
    """
    buffer = store.buffer()
    piece_rows = getattr(query, "piece_rows", None)
    more: Sequence[tuple[Any, ...]] = [(argument,) for argument in of_groups] or [()] * len(groups)

    def blocks(group: range) -> Iterator[RowBlock]:
        wanted = while_wanted(_blocks(store, group, piece_rows, columns, buffer))
        return wanted if meter is None else meter.over(wanted, len)

    with single_threaded_blas:
        return tree_nodes(
            (0, first + i, method(query, blocks(group), *arguments, *argument))
            for i, (group, argument) in enumerate(zip(groups, more, strict=True))
        )


def _sum_asked(
    sums: Callable[..., list[Node]], kept: str | None, first: int, groups: Sequence[range], of_groups: Sequence[Any],
    question: Array, held: tuple[list[Node], Sequence[Any]] | tuple[()] = (),
) -> Any:  # fmt: skip
    """Call ``sums``, which is `sum_groups`, with the pickled ``question`` that all tasks of a pass are asked.

    ``held`` is what an earlier task of these groups returned, with values for each of them. Returns the nodes, or a
    pair of these and of the values of all groups that are to be ``kept``.
    """
    nodes = sums(*pickle.loads(question.data), first, groups, held[1] if held else of_groups)
    if kept is None:
        return nodes
    values = tuple(chain.from_iterable(getattr(total, kept) for _, _, total in nodes))
    return [(level, place, replace(total, **{kept: ()})) for level, place, total in nodes], values


def _blocks(
    store: Store, chunks: range, piece_rows: int | None, columns: Columns, buffer: Buffer
) -> Iterator[RowBlock]:
    """Yield the rows of ``chunks``: a chunk at a time, or up to ``piece_rows`` rows of it."""
    for i in chunks:
        if piece_rows is None:
            block = store.read(i, buffer)
            yield RowBlock(block.X, *columns(block), block.first)
            continue
        y, weight = columns(store.read_columns(i))
        first = store.chunk_slice(i).start
        at = 0
        for X in store.read_pieces(i, piece_rows):
            rows = slice(at, at + len(X))
            yield RowBlock(X, y[rows], weight[rows], first + at)
            at += len(X)
