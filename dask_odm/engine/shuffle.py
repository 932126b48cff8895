"""Turn rows in any order into partitions: make groups of rows, then shuffle once as a `Partitioner` deals them.

Chunks of a store are read up to three times, a few of them per task, and their rows are moved once. Rows in memory are
permuted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_odm.data.rows.dealing import count_groups, deal, forget_dealt, join
from dask_odm.data.rows.memory import MemoryPartitions, SparseRows, taken
from dask_odm.data.rows.scaling import ScaledRows, Scaling
from dask_odm.data.rows.stored import PIECE_BYTES, StoredPartitions, column_of, sample_chunk
from dask_odm.data.rows.targets import Targets
from dask_odm.data.storage.files import map_array, save_array
from dask_odm.data.store.store import Store, StoreBlock
from dask_odm.engine.client import while_wanted
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import Dealer, GroupDealer, Partitioner
from dask_odm.errors import NO_ROWS, InputError
from dask_odm.kernels.groups import Groups
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.typing import Array

SMALLER_CHUNKS = ("smaller chunks of the store (chunk_rows of odm.ingest)",)
EARLIER = "earlier.npy"  # file of the number of rows of each group in earlier runs, (runs, groups)


def partition_arrays(
    X: Array | SparseRows | CSRRows | ScaledRows, y: Array, weight: Array, partitioner: Partitioner
) -> MemoryPartitions:
    """Partition scaled rows ``X`` (n, d) in memory, with labels ``y`` ±1 and weights > 0, both (n,)."""
    groups, count = groups_of_arrays(X, partitioner)
    return deal_arrays(X, y, weight, groups, partitioner.dealer(tuple(np.bincount(groups, minlength=count).tolist())))


def deal_arrays(
    X: Array | SparseRows | CSRRows | ScaledRows, y: Array, weight: Array, groups: Array, dealer: Dealer
) -> MemoryPartitions:
    """Partition rows as `partition_arrays`, given the group of each (n,) and the dealer of the groups."""
    partition, place = dealer.assign(groups, np.zeros(len(dealer.sizes), np.int64))
    order = np.empty(len(y), np.int64)
    order[(np.cumsum(dealer.counts) - dealer.counts)[partition] + place] = np.arange(len(y))
    return MemoryPartitions(taken(X, order), y[order], weight[order], order, dealer.counts)


def groups_of_arrays(
    X: Array | SparseRows | CSRRows | ScaledRows, partitioner: Partitioner
) -> tuple[NDArray[np.int32], int]:
    """Return the group of each scaled row of ``X`` (n, d), and the number of groups."""
    rng = np.random.default_rng(np.random.SeedSequence(partitioner.seed, spawn_key=(0,)))
    count = min(len(X), partitioner.sample_rows(X.shape[1], X.dtype.itemsize))
    groups = partitioner.groups(X[np.sort(rng.choice(len(X), count, replace=False))])
    if groups.count == 1:
        return np.zeros(len(X), np.int32), 1
    step = 1 << 14
    return np.concatenate([groups(X[i : i + step]) for i in range(0, len(X), step)]), groups.count


def shuffle_bytes(store: Store) -> int:
    """Return the bytes of a task of a shuffle: a chunk, perhaps encoded too, and rows in order, scaled and packed."""
    chunk = store.chunk_nbytes
    return 2 * chunk + (3 * chunk if store.is_sparse else min(3 * chunk, 4 * PIECE_BYTES))


@dataclass(frozen=True, eq=False)
class Shuffle:
    """Shuffle of the rows of a store that have a target and a positive weight, to ``folder``.

    They are written in ``dtype``, or in their own. Raises MemoryLimitError if a task does not fit. The methods raise
    InputError if there are no rows, or fewer than partitions, and StoreError if the store is damaged or the folder
    cannot be written.
    """

    store: Store
    targets: Targets
    folder: str
    cluster: Cluster
    dtype: str | None = None

    def __post_init__(self) -> None:
        self.cluster.require(shuffle_bytes(self.store), self.store.n_chunks, "Shuffling the store", SMALLER_CHUNKS)

    def by_partitioner(self, partitioner: Partitioner, scaling: Scaling) -> StoredPartitions:
        """Write the rows in the order of their partitions. Groups are made of scaled rows; raw rows are written."""
        groups = partitioner.groups(scaling(self._sample(partitioner)))
        scaling.save(scaling_path(self.folder))
        phase = "labels" if groups.count == 1 else "strata"
        counted = self._counted(phase, partial(groups_of_scaled, scaling, groups), groups.count)
        rows = counted.sum()
        if 0 < rows < partitioner.n_partitions:
            raise InputError(f"{rows} rows cannot make {partitioner.n_partitions} partitions; use fewer.")
        return self._move(partitioner.dealer, counted)

    def by_label(self, labels: Array, feature: int | None, parts: int, seed: int) -> StoredPartitions:
        """Write one partition for each of ``parts`` groups, in random order within.

        ``labels`` has the group of each row by its number, or the ascending values of a ``feature``, one for each
        group.
        """
        path = os.path.join(self.folder, "labels.npy")
        np.save(path, labels)
        counted = self._counted("groups", partial(groups_by_label, path, feature), parts)
        return self._move(lambda sizes: GroupDealer(sizes, seed), counted)

    @property
    def _runs(self) -> list[range]:
        """The runs of chunks that one task each counts, and scatters: many chunks have more counts than fit a place."""
        chunks = self.store.n_chunks
        count = min(chunks, self.cluster.tasks)
        return [range(chunks * i // count, chunks * (i + 1) // count) for i in range(count)]

    def _counted(self, phase: str, group_of: Callable[[StoreBlock], Array], n_groups: int) -> Array:
        """Return the number of rows of every (run, group), given a function that finds the groups of rows."""
        shared = self.store, self.targets, group_of, n_groups, self.folder
        runs = [(run,) for run in self._runs]
        return np.array(self.cluster.map_chunks(count_run, runs, phase, *shared, folder=self.folder))

    def _sample(self, partitioner: Partitioner) -> Array:
        """Return raw rows to make groups from, about as many from every chunk."""
        count = partitioner.sample_rows(self.store.features, self.store.dtype.itemsize)
        if not count:
            return np.empty((0, self.store.features), self.store.dtype)
        each = -(-count // self.store.n_chunks)
        chunks = [(c,) for c in range(self.store.n_chunks)]
        shared = self.store, self.targets, each, partitioner.seed
        sample: Array = np.concatenate(self.cluster.map_chunks(sample_chunk, chunks, "landmarks", *shared))
        if not len(sample):
            raise InputError(NO_ROWS)
        return sample

    def _move(self, dealer_of: Callable[[tuple[int, ...]], Dealer], counted: Array) -> StoredPartitions:
        """Write every row to its place, given the number of rows of every (run, group)."""
        if not counted.sum():
            raise InputError(NO_ROWS)
        sizes = counted.sum(axis=0)
        dealer = dealer_of(tuple(sizes.tolist()))
        before = np.zeros(counted.shape, np.min_scalar_type(sizes.max()))
        for i in range(1, len(before)):  # ten times as fast as a sum along the columns
            np.add(before[i - 1], counted[i - 1], before[i])
        # a number for each run and group: workers read those of their run, which would else pass the scheduler
        save_array(os.path.join(self.folder, EARLIER), before)
        planned = StoredPartitions.plan(self.folder, self.store, dealer.counts, self.dtype, self.targets.y_type)
        shared = self.store, self.targets, planned, self.folder, dealer.assign
        runs = [(run, i) for i, run in enumerate(self._runs)]
        entries = sum(self.cluster.map_chunks(deal_run, runs, "shuffle", *shared, folder=self.folder))
        partitions = replace(planned, most_entries=int(np.max(entries))) if planned.is_sparse else planned
        pieces = list(partitions.pieces(0, len(partitions.counts)))
        # the segments of a piece, joined, in order, and packed
        self.cluster.require(5 * partitions.piece_nbytes, len(pieces), "Joining the rows of a piece")
        self.cluster.map_chunks(join, pieces, "seal", partitions, self.folder, self._runs)
        forget_dealt(self.folder)
        return partitions


def count_run(
    store: Store, targets: Targets, group_of: Callable[[StoreBlock], Array], n_groups: int, folder: str, chunks: range
) -> Array:
    """Return the number of rows of a run of chunks in every group, as `count_groups` counts them.

    Their type is as small as they are: a number for each run and group passes the client.
    """
    total: Any = 0
    for c in while_wanted(chunks):
        total = total + count_groups(store, targets, group_of, n_groups, folder, c)
    found = np.asarray(total)
    return found.astype(np.min_scalar_type(found.max()))


def deal_run(
    store: Store, targets: Targets, partitions: StoredPartitions, folder: str,
    assign: Callable[[Array, Array], tuple[Array, Array]], chunks: range, number: int,
) -> Array:  # fmt: skip
    """Deal the chunks of run ``number``, one by one, and return the entries of each piece."""
    before = map_array(os.path.join(folder, EARLIER))[number].astype(np.int64)  # a copy, to which chunks add their rows
    return deal(store, targets, partitions, folder, assign, chunks, while_wanted(chunks), before)


def scaling_path(folder: str) -> str:
    """Return the file in which a shuffle keeps the scaling of the rows."""
    return os.path.join(folder, "scaling.npy")


def groups_by_label(path: str, feature: int | None, block: StoreBlock) -> Array:
    """Return the groups of rows by the labels of `Shuffle.by_label`, in an array file that is mapped into memory."""
    labels = map_array(path)
    if feature is None:
        return np.array(labels[block.first : block.first + block.X.shape[0]])
    return np.searchsorted(labels, column_of(block.X, feature))


def groups_of_scaled(scaling: Scaling, groups: Groups, block: StoreBlock) -> Array:
    """Return the groups of a block's rows after scaling."""
    X = block.X
    step = max(1, PIECE_BYTES // X[:1].nbytes)
    return np.concatenate([groups(scaling(X[i : i + step])) for i in range(0, len(X), step)])
