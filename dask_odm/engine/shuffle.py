"""Turn rows in any order into partitions: make groups of rows, then shuffle once as a `Partitioner` deals them.

Chunks of a store are read up to three times, a few of them per task, and their rows are moved once. Rows in memory are
permuted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from uuid import uuid4

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from dask_odm.data.rows.memory import MemoryPartitions, SparseRows, taken
from dask_odm.data.rows.scaling import ScaledRows, Scaling
from dask_odm.data.rows.stored import StoredPartitions, count_groups, count_kept, sample_chunk, scatter, seal
from dask_odm.data.rows.targets import Targets
from dask_odm.data.storage.files import map_array
from dask_odm.data.store.store import Store, StoreBlock
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import Dealer, GroupDealer, Partitioner
from dask_odm.errors import NO_ROWS, InputError
from dask_odm.kernels.groups import Groups
from dask_odm.typing import Array


def partition_arrays(
    X: Array | SparseRows | ScaledRows, y: Array, weight: Array, partitioner: Partitioner
) -> MemoryPartitions:
    """Partition scaled rows ``X`` (n, d) in memory, with labels ``y`` ±1 and weights > 0, both (n,)."""
    groups, count = groups_of_arrays(X, partitioner)
    return deal_arrays(X, y, weight, groups, partitioner.dealer(tuple(np.bincount(groups, minlength=count).tolist())))


def deal_arrays(
    X: Array | SparseRows | ScaledRows, y: Array, weight: Array, groups: Array, dealer: Dealer
) -> MemoryPartitions:
    """Partition rows as `partition_arrays`, given the group of each (n,) and the dealer of the groups."""
    partition, place = dealer.assign(groups, np.zeros(len(dealer.sizes), np.int64))
    order = np.empty(len(y), np.int64)
    order[(np.cumsum(dealer.counts) - dealer.counts)[partition] + place] = np.arange(len(y))
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
    parts = partitioner.n_partitions
    if 0 < counted.sum() < parts:
        raise InputError(f"{counted.sum()} rows cannot make {parts} partitions; use fewer.")
    return _move(store, labelling, partitioner.dealer, counted, folder, cluster, dtype)


def partition_store_by(
    store: Store,
    labelling: Targets,
    labels: Array,
    feature: int | None,
    parts: int,
    seed: int,
    folder: str,
    cluster: Cluster,
    dtype: str | None = None,
) -> StoredPartitions:
    """Write the rows of ``store`` to ``folder``, one partition for each of ``parts`` groups, in random order within.

    ``labels`` has the group of each row by its number, or the ascending values of a ``feature``, one for each group.
    """
    _require_chunks(store, cluster)
    path = os.path.join(folder, "labels.npy")
    np.save(path, labels)
    group_of = partial(groups_by_label, path, feature)
    arguments = [(store, labelling, group_of, parts, folder, c) for c in range(store.n_chunks)]
    counted = np.array(cluster.map_chunks(count_groups, arguments, "groups"))
    return _move(store, labelling, lambda sizes: GroupDealer(sizes, seed), counted, folder, cluster, dtype)


def _require_chunks(store: Store, cluster: Cluster) -> None:
    # a task holds a chunk, its rows in another order, scaled, and packed for its groups
    cluster.require(5 * store.chunk_nbytes, store.n_chunks, "Shuffling the store")


def _move(
    store: Store,
    labelling: Targets,
    dealer_of: Callable[[tuple[int, ...]], Dealer],
    counted: Array,
    folder: str,
    cluster: Cluster,
    dtype: str | None,
) -> StoredPartitions:
    """Write every row to its place, given the number of rows of every (chunk, group); raise InputError for no row."""
    if not counted.sum():
        raise InputError(NO_ROWS)
    dealer = dealer_of(tuple(counted.sum(axis=0).tolist()))
    partitions = StoredPartitions.plan(folder, store, dealer.counts, dtype, labelling.y_type)
    before = np.cumsum(counted, axis=0) - counted
    chunks = range(store.n_chunks)
    arguments = [(store, labelling, partitions, folder, c, dealer.assign, before[c]) for c in chunks]
    written = np.zeros(len(dealer.counts), np.uint32)
    for sums in cluster.map_chunks(scatter, arguments, "shuffle"):
        written += sums
    cluster.map_chunks(seal, [(partitions, k, int(total)) for k, total in enumerate(written)], "seal")
    return partitions


def scaling_path(folder: str) -> str:
    """Return the file in which a shuffle keeps the scaling of the rows."""
    return os.path.join(folder, "scaling.npy")


def groups_by_label(path: str, feature: int | None, block: StoreBlock) -> Array:
    """Return the groups of rows by the labels of `partition_store_by`, in an array file that is mapped into memory."""
    labels = map_array(path)
    if feature is None:
        return np.array(labels[block.first : block.first + len(block.X)])
    return np.searchsorted(labels, block.X[:, feature])


def groups_of_scaled(scaling: Scaling, groups: Groups, block: StoreBlock) -> Array:
    """Return the groups of a block's rows after scaling."""
    X = block.X
    step = max(1, (16 << 20) // X[:1].nbytes)
    return np.concatenate([groups(scaling(X[i : i + step])) for i in range(0, len(X), step)])


def _count(
    store: Store, labelling: Targets, scaling: Scaling, partitioner: Partitioner, folder: str, cluster: Cluster
) -> Array:
    """Make groups and count the rows per (chunk, group); every row's group is left in ``folder``."""
    chunks = range(store.n_chunks)
    groups = partitioner.groups(scaling(_sample(store, labelling, partitioner, cluster)))
    scaling.save(scaling_path(folder))
    if groups.count == 1:
        return np.array(cluster.map_chunks(count_kept, [(store, labelling, c) for c in chunks], "labels"))
    # the groups are a task of their own, so that they go to each worker once, with a name that no other fit has
    group_of = delayed(partial(groups_of_scaled, scaling, groups), name=f"groups-{uuid4().hex}", traverse=False)
    arguments = [(store, labelling, group_of, groups.count, folder, c) for c in chunks]
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
