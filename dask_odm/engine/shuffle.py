"""Turn rows in any order into partitions: make groups of rows, then shuffle once as a `Partitioner` deals them.

Chunks of a store are read up to three times, a few of them per task, and their rows are moved once. Rows in memory are
permuted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.scaled import ScaledRows
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.sparse import SparseRows, taken
from dask_odm.data.rows.stored import (
    StoredPartitions,
    count_groups,
    count_kept,
    sample_chunk,
    scatter,
    seal,
)
from dask_odm.data.rows.targets import Targets
from dask_odm.data.storage.checked_writes import load_array, load_arrays, map_array
from dask_odm.data.store.store import Store, StoreBlock
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partition.base import Dealer, Groups, Partitioner
from dask_odm.engine.partition.dealing import GroupDealer, ranks_within
from dask_odm.errors import NO_ROWS, InputError
from dask_odm.typing import Array


def partition_arrays(
    X: Array | SparseRows | ScaledRows, y: Array, weight: Array, partitioner: Partitioner
) -> MemoryPartitions:
    """Partition scaled rows ``X`` (n, d) in memory, with labels ``y`` ±1 and weights > 0, both (n,)."""
    groups, count = groups_of_arrays(X, partitioner)
    dealer = partitioner.dealer(tuple(np.bincount(groups, minlength=count).tolist()))
    partition, place = dealer.assign(groups, ranks_within(groups, np.zeros(count, np.int64)))
    order = np.lexsort((place, partition))
    return MemoryPartitions(taken(X, order), y[order], weight[order], order, dealer.counts)


def groups_of_arrays(X: Array | SparseRows | ScaledRows, partitioner: Partitioner) -> tuple[NDArray[np.int32], int]:
    """Return the group of each scaled row of ``X`` (n, d), and the number of groups."""
    rng = np.random.default_rng(np.random.SeedSequence(partitioner.seed, spawn_key=(0,)))
    count = min(len(X), partitioner.sample_rows(X.shape[1], X.dtype.itemsize))
    groups = partitioner.groups(X[np.sort(rng.choice(len(X), count, replace=False))])
    if groups.count == 1:
        return np.zeros(len(X), np.int32), 1
    step = 1 << 14
    return np.concatenate([groups(X[i : i + step]) for i in range(0, len(X), step)]), groups.count


def partition_store(
    store: Store,
    labelling: Targets,
    scaling: Scaling,
    partitioner: Partitioner,
    folder: str,
    cluster: Cluster,
    dtype: str | None = None,
) -> StoredPartitions:
    """Write the rows of ``store`` to ``folder`` in the order of their partitions, in ``dtype`` or in their own.

    Raises InputError if fewer rows than partitions have a label and a positive weight, and StoreError if the store is
    damaged or the folder cannot be written.
    """
    _require_chunks(store, cluster)
    counted = _count(store, labelling, scaling, partitioner, folder, cluster)
    sizes = counted.sum(axis=0)
    parts = partitioner.n_partitions
    if not sizes.sum():
        raise InputError(NO_ROWS)
    if sizes.sum() < parts:
        raise InputError(f"{sizes.sum()} rows cannot make {parts} partitions; use fewer.")
    return _move(store, labelling, partitioner.dealer(tuple(sizes.tolist())), counted, folder, cluster, dtype)


def partition_store_by(
    store: Store,
    labelling: Targets,
    group_of: GroupOfRow,
    parts: int,
    seed: int,
    folder: str,
    cluster: Cluster,
    dtype: str | None = None,
) -> StoredPartitions:
    """Write the rows of ``store`` to ``folder``, one partition for each of ``parts`` groups, in random order within."""
    _require_chunks(store, cluster)
    arguments = [(store, labelling, group_of, parts, folder, c) for c in range(store.n_chunks)]
    counted = np.array(cluster.map_chunks(count_groups, arguments, "groups"))
    sizes = counted.sum(axis=0)
    if not sizes.sum():
        raise InputError(NO_ROWS)
    dealer = GroupDealer(tuple(sizes.tolist()), seed)
    return _move(store, labelling, dealer, counted, folder, cluster, dtype)


def _require_chunks(store: Store, cluster: Cluster) -> None:
    # a task holds a chunk, its rows in another order, scaled, and packed for its groups
    cluster.require(5 * store.chunk_nbytes, store.n_chunks, "Shuffling the store")


def _move(
    store: Store, labelling: Targets, dealer: Dealer, counted: Array, folder: str, cluster: Cluster, dtype: str | None
) -> StoredPartitions:
    """Write every row to its place, given the number of rows of every (chunk, group)."""
    partitions = StoredPartitions.plan(folder, store, dealer.counts, dtype, labelling.y_type)
    before = np.cumsum(counted, axis=0) - counted
    chunks = range(store.n_chunks)
    arguments = [(store, labelling, partitions, folder, c, Deal(dealer), before[c]) for c in chunks]
    written = np.zeros(len(dealer.counts), np.uint32)
    for sums in cluster.map_chunks(scatter, arguments, "shuffle"):
        written += sums
    cluster.map_chunks(seal, [(partitions, k, int(total)) for k, total in enumerate(written)], "seal")
    return partitions


def landmarks_path(folder: str) -> str:
    """Return the file in which a shuffle keeps the scaling of the rows and the arrays of its groups."""
    return os.path.join(folder, "landmarks.npz")


@dataclass(frozen=True)
class Deal:
    """The partitions and places of a chunk's rows, from their groups, for `scatter`."""

    dealer: Dealer

    def __call__(self, groups: Array, before: Array) -> tuple[Array, Array]:
        return self.dealer.assign(groups, ranks_within(groups, before))


class GroupOfRow(Protocol):
    """A function that gives the group of each row of a block; tasks carry it."""

    def __call__(self, block: StoreBlock) -> Array:
        """Return the group of every row, (rows,); rows that do not take part may have any."""


@dataclass(frozen=True)
class GroupOfNumber:
    """Groups by the numbers of rows in the store: entries of an array file, which workers map into memory."""

    path: str

    def __call__(self, block: StoreBlock) -> Array:
        return np.array(map_array(self.path)[block.first : block.first + len(block.X)])


@dataclass(frozen=True)
class GroupOfValue:
    """Groups by the value of a feature: its index among the ascending values of an array file."""

    path: str
    feature: int

    def __call__(self, block: StoreBlock) -> Array:
        return np.searchsorted(load_array(self.path), block.X[:, self.feature])


@dataclass(frozen=True)
class GroupOf:
    """Groups of a block's rows by a `Partitioner`, whose arrays are read from a file once per process."""

    path: str
    partitioner: Partitioner

    def __call__(self, block: StoreBlock) -> Array:
        X = block.X
        scaling, groups = _read_groups(self.path, self.partitioner)
        step = max(1, (16 << 20) // X[:1].nbytes)
        return np.concatenate([groups(scaling(X[i : i + step])) for i in range(0, len(X), step)])


@lru_cache(maxsize=4)
def _read_groups(path: str, partitioner: Partitioner) -> tuple[Scaling, Groups]:
    arrays = load_arrays(path)
    return Scaling(arrays["shift"], arrays["factor"]), partitioner.read_groups(arrays)


def _count(
    store: Store, labelling: Targets, scaling: Scaling, partitioner: Partitioner, folder: str, cluster: Cluster
) -> Array:
    """Make groups and count the rows per (chunk, group); every row's group is left in ``folder``."""
    chunks = range(store.n_chunks)
    groups = partitioner.groups(scaling(_sample(store, labelling, partitioner, cluster)))
    path = landmarks_path(folder)
    np.savez(path, shift=scaling.shift, factor=scaling.factor, **groups.arrays())  # type: ignore[arg-type]
    if groups.count == 1:
        return np.array(cluster.map_chunks(count_kept, [(store, labelling, c) for c in chunks], "labels"))
    arguments = [(store, labelling, GroupOf(path, partitioner), groups.count, folder, c) for c in chunks]
    return np.array(cluster.map_chunks(count_groups, arguments, "strata"))


def _sample(store: Store, labelling: Targets, partitioner: Partitioner, cluster: Cluster) -> Array:
    """Return raw rows to make groups from, about as many from every chunk."""
    count = partitioner.sample_rows(store.features, store.dtype.itemsize)
    if not count:
        return np.empty((0, store.features), store.dtype)
    each = -(-count // store.n_chunks)
    arguments = [(store, labelling, each, partitioner.seed, c) for c in range(store.n_chunks)]
    sample: Array = np.concatenate(cluster.map_chunks(sample_chunk, arguments, "landmarks"))
    if not len(sample):
        raise InputError(NO_ROWS)
    return sample
