"""Passes over a store by Dask: sums over rows are computed where the workers read the chunks, and only sums travel.

A pass is a few long tasks, about one per worker thread, each over a run of chunks. Chunks belong to fixed groups, whose
sums are added pair by pair. This tree does not depend on the number of tasks, so the bits do not depend on the workers.
Nothing of a store is kept in Dask's memory: the page cache of the system serves as the cache.

Landmarks are chosen by a pass of bounded memory for every block of proposals. A task runs the race of `kernels.pivots`
over a run of chunks, and returns keys and numbers of its first rows. Random numbers depend on seed, turn and chunk, and
the first rows of all are the same however chunks are grouped. So landmarks do not depend on the workers, and equal
those of rows in memory that are cut into the same chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import uuid4

import numpy as np
from dask.delayed import delayed

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.targets import Targets
from dask_odm.data.store.store import Buffer, Store, StoreBlock
from dask_odm.engine.cluster import Cluster, while_wanted
from dask_odm.engine.tasks import worker_task
from dask_odm.events import Meter
from dask_odm.kernels.base import BLOCK
from dask_odm.kernels.pivots import READS_ROWS, Proposals, Race, most_proposals
from dask_odm.linalg.row_passes import PASS, PassBytes, RowBlock, tree_sum
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

CHUNK_GROUPS = 64  # the most groups of chunks
SPARSE_GROUPS = 8  # groups that a store of sparse rows has in any case, if it has as many chunks
CLIENT_BYTES = 64 << 20  # the most bytes of tasks' sums that the client adds up; more are added up by the workers

Columns = Callable[[StoreBlock], tuple[Array, Array]]


def chunk_groups(n_chunks: int, most: int = CHUNK_GROUPS) -> list[range]:
    """Return the groups of chunks, a power of two in number, whose sums are added; they depend on the store alone."""
    count = 1 << (min(n_chunks, most).bit_length() - 1)
    bounds = [n_chunks * g // count for g in range(count + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]


def groups_of(store: Store) -> list[range]:
    """Return the groups of chunks of a store, those of sparse rows with eight entries for each feature, or few."""
    entries = store.layout.entries
    if entries is None:
        return chunk_groups(store.n_chunks)
    # sums have a number for each feature, and adding them up takes as long as some entries
    enough = entries.total // (8 * store.features)
    return chunk_groups(store.n_chunks, min(CHUNK_GROUPS, max(SPARSE_GROUPS, enough)))


def task_count(groups: int, threads: int) -> int:
    """Return the number of tasks of a pass, a power of two.

    There is one per thread if the number of threads is a power of two, else four or more, so that no thread idles long.
    """
    count = 1 << (threads - 1).bit_length()
    return min(groups, count if count == threads else 4 * count)


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
        """Return the peak bytes of one task: a chunk with its columns, sums, and the query's buffers."""
        sums = 10 * needed.sums  # one per level of the tree of groups, and those of blocks
        return self.store.chunk_nbytes + sums + needed.row * self.store.chunk_rows + needed.work

    def fits(self, needed: PassBytes) -> bool:
        """Return whether the tasks of such a pass fit the workers' memory."""
        available, _ = self.cluster.share(self.cluster.slots)
        return self.task_bytes(needed) <= available

    def require(self, needed: PassBytes, what: str = "A pass over the store") -> None:
        """Raise MemoryLimitError, with both figures, unless the tasks of such a pass fit."""
        self.cluster.require(self.task_bytes(needed), self.cluster.slots, what)

    def run(
        self, query: Any, method: Callable[..., Any], *arguments: Any, of_groups: Sequence[Any] = (), nbytes: int = 0
    ) -> Any:
        """Return a sum over all rows, see `Passes.run`. Large answers are added up on the workers, by the same tree."""
        groups = groups_of(self.store)
        each = len(groups) // task_count(len(groups), self.cluster.slots)
        runs = [slice(i, i + each) for i in range(0, len(groups), each)]
        told: list[tuple[Any, ...]] = [
            (self.store, groups[run], query, method, arguments, of_groups[run], self.columns) for run in runs
        ]
        with Meter(PASS, self.rows, "rows") as meter:
            if self.cluster.client is None:  # threads report progress
                here: Callable[..., Any] = partial(sum_groups, meter=meter)
                return tree_sum(run_threads(lambda a: here(*a), told, self.cluster.threads))
            serial = uuid4().hex  # two fits at the same time must not share tasks, though they ask for the same
            name = f"{type(query).__name__.lower()}-{method.__name__}-{serial}"
            keys = [f"{name}-{run.start}" for run in runs]
            if len(runs) * nbytes > CLIENT_BYTES:  # the question may be as large: it is sent once, workers hand it on
                shared = self.store, query, method, arguments, self.columns
                asked = delayed(shared, name=f"{name}-asked", traverse=False)
                calls = [delayed(partial(_sum_asked, sum_groups, a[1], a[5]), pure=False, traverse=False) for a in told]
                sums = [call(asked, dask_key_name=key) for key, call in zip(keys, calls, strict=True)]
                tasks = [tree_sum(sums)]
            else:
                calls = [delayed(partial(sum_groups, *a), pure=False, traverse=False) for a in told]
                tasks = [call(dask_key_name=key) for key, call in zip(keys, calls, strict=True)]
            parts = dict(meter.over(self.cluster.results(tasks), lambda _: self.rows // len(tasks)))
            return tree_sum([parts[i] for i in range(len(tasks))])


@worker_task
def sum_groups(
    store: Store,
    groups: Sequence[range],
    query: Any,
    method: Callable[..., Any],
    arguments: Sequence[Any],
    of_groups: Sequence[Any] = (),
    columns: Columns = StoreBlock.columns,
    meter: Meter | None = None,
) -> Any:
    """Sum ``method`` of ``query`` over groups of chunks, pair by pair; this is one task of a pass."""
    buffer = store.buffer()
    piece_rows = getattr(query, "piece_rows", None)
    more: Sequence[tuple[Any, ...]] = [(argument,) for argument in of_groups] or [()] * len(groups)

    def blocks(group: range) -> Iterator[RowBlock]:
        wanted = while_wanted(_blocks(store, group, piece_rows, columns, buffer))
        return wanted if meter is None else meter.over(wanted, len)

    with single_threaded_blas:
        return tree_sum(
            method(query, blocks(group), *arguments, *argument) for group, argument in zip(groups, more, strict=True)
        )


def _sum_asked(
    sums: Callable[..., Any], groups: Sequence[range], of_groups: Sequence[Any], asked: tuple[Any, ...]
) -> Any:
    """Call ``sums``, which is `sum_groups`, with what is ``asked`` of all tasks of a pass."""
    store, query, method, arguments, columns = asked
    return sums(store, groups, query, method, arguments, of_groups, columns)


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


# Landmarks ----------------------------------------------------------------------------------------------------


def proposal_bytes(store: Store, count: int, itemsize: int, method: str) -> int:
    """Return the peak bytes of one task: a chunk with columns and keys; with its rows, row blocks and landmarks too."""
    chunk = store.chunk_nbytes + 80 * store.chunk_rows + 32 * most_proposals(count)
    if not READS_ROWS[method]:
        return chunk
    rows = store.chunk_rows * store.features * itemsize
    block = 8 * BLOCK * (3 * count + 5 * store.features)
    landmarks = 8 * (4 * count**2 + 4 * count * store.features)
    return chunk + 3 * rows + block + landmarks


@dataclass(frozen=True, eq=False)
class StorePivots:
    """The rows of a store that ``labelling`` keeps, as a `dask_odm.kernels.pivots.PivotRows`.

    Rows are cast to the dtype ``type_name``, then scaled.
    """

    store: Store
    labelling: Targets
    scaling: Scaling
    cluster: Cluster
    type_name: str

    @property
    def n(self) -> int:
        return self.store.rows

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.type_name)

    @property
    def tasks(self) -> int:
        """The most tasks of a pass: enough that no thread idles long."""
        return 4 * self.cluster.slots

    def require(self, count: int, method: str) -> None:
        """Raise MemoryLimitError, with both figures, unless choosing ``count`` landmarks fits."""
        what = f"Choosing {count} landmarks"
        advice = "Use fewer landmarks, fewer threads a worker or more memory."
        needed = proposal_bytes(self.store, count, self.dtype.itemsize, method)
        self.cluster.require(needed, min(self.store.n_chunks, self.tasks), what, advice)

    def run(self, race: Race) -> Proposals:
        chunks = np.array_split(np.arange(self.store.n_chunks), min(self.store.n_chunks, self.tasks))
        shared = self.store, self.labelling, self.scaling, self.type_name, race
        arguments = [(part.tolist(),) for part in chunks]
        return Proposals.merged(self.cluster.map_chunks(propose, arguments, "landmarks", *shared), race.most)

    def take(self, numbers: Array) -> Array:
        return self.scaling(self.raw(numbers))

    def raw(self, numbers: Array) -> Array:
        """Return the rows at ``numbers``, not scaled; each chunk that holds any is read once more."""
        order = np.argsort(numbers)
        rows = np.empty((len(numbers), self.store.features), self.dtype)
        rows[order] = np.concatenate([b.X for b in gathered(self.store, self.cluster, numbers[order], "landmarks")])
        return rows


def gathered(store: Store, cluster: Cluster, numbers: Array, phase: str) -> list[StoreBlock]:
    """Return the rows at ascending ``numbers`` in a few blocks, as workers read them."""
    parts = np.array_split(numbers, max(1, min(4 * cluster.slots, len(numbers))))
    return cluster.map_chunks(Store.read_rows, [(part,) for part in parts], phase, store)


def propose(store: Store, labelling: Targets, scaling: Scaling, dtype: str, race: Race, chunks: list[int]) -> Proposals:
    """Return the proposals of a run of chunks; this is a task."""
    buffer = store.buffer()
    found = None
    for i in chunks:
        block = store.read(i, buffer) if race.reads_rows else store.read_columns(i)
        keep = np.flatnonzero(labelling(block)[0])
        X = block.X[keep]
        if race.reads_rows:
            X = X.astype(dtype, copy=False)
            scaling(X, X)
        own = race.chunk(X, block.first + keep, i)
        found = Proposals.merged([own] if found is None else [found, own], race.most)
    assert found is not None
    return found
