"""From rows in any order to stratified partitions: landmarks, strata, and the one-time shuffle.

Source: SODM, section on stratified partitions. Chunks of a store are read three times, a few of them a task, and
their rows moved once; rows in memory are permuted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.sparse import SparseRows, taken
from dask_odm.data.rows.stored import StoredPartitions, count_strata, sample_chunk, scatter, seal
from dask_odm.data.rows.targets import Targets
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.landmarks import Landmarks, choose_landmarks
from dask_odm.partition.strata import StratifiedPartitioner, ranks_within
from dask_odm.typing import Array

SAMPLE_ROWS = 4096
SAMPLE_BYTES = 64 << 20


@dataclass(frozen=True)
class ShuffleSettings:
    """``n_landmarks`` strata at most, dealt to ``n_partitions`` by ``seed``; rows in ``dtype``, or as they come."""

    n_partitions: int
    n_landmarks: int
    seed: int
    dtype: str | None = None


def sample_size(n_landmarks: int, features: int, itemsize: int) -> int:
    """Rows that landmarks are chosen from."""
    return max(n_landmarks, min(max(SAMPLE_ROWS, 4 * n_landmarks), SAMPLE_BYTES // (features * itemsize)))


def partition_arrays(
    X: Array | SparseRows, y: Array, weight: Array, kernel: Kernel, settings: ShuffleSettings
) -> MemoryPartitions:
    """Stratified partitions of scaled rows in memory.

    Parameters
    ----------
    X : ndarray or SparseRows of shape (n, d)
        Scaled rows.
    y, weight : ndarrays of shape (n,)
        Labels ±1 and weights > 0.
    """
    strata, count = strata_of_arrays(X, kernel, settings.n_landmarks, settings.seed)
    sizes = np.bincount(strata, minlength=count)
    partitioner = StratifiedPartitioner(tuple(sizes.tolist()), settings.n_partitions, settings.seed)
    partition, place = partitioner.assign(strata, ranks_within(strata, np.zeros(len(sizes), np.int64)))
    order = np.lexsort((place, partition))
    return MemoryPartitions(taken(X, order), y[order], weight[order], order, partitioner.counts)


def strata_of_arrays(
    X: Array | SparseRows, kernel: Kernel, n_landmarks: int, seed: int
) -> tuple[NDArray[np.int32], int]:
    """The stratum of every one of scaled rows ``X`` (n, d), and how many strata there are."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    count = min(len(X), sample_size(n_landmarks, X.shape[1], X.dtype.itemsize))
    sample = X[np.sort(rng.choice(len(X), count, replace=False))]
    landmarks = choose_landmarks(kernel, sample, n_landmarks)
    step = 1 << 14
    strata = np.concatenate([landmarks.strata(X[i : i + step]) for i in range(0, len(X), step)])
    return strata, len(landmarks.rows)


def partition_store(
    store: Store,
    labelling: Targets,
    scaling: Scaling,
    kernel: Kernel,
    settings: ShuffleSettings,
    folder: str,
    cluster: Cluster,
) -> StoredPartitions:
    """Write the rows of ``store`` to ``folder`` in the order of their partitions.

    Raises
    ------
    InputError
        Fewer rows with a label and a positive weight than partitions.
    StoreError
        The store is damaged, or the folder cannot be written.
    """
    chunks = range(store.n_chunks)
    # a chunk, its rows in another order, scaled, and packed for the landmarks
    cluster.require(5 * store.chunk_nbytes, store.n_chunks, "Shuffling the store")
    assigned = _assign_strata(store, labelling, scaling, kernel, settings, folder, cluster)
    sizes = assigned.sum(axis=0)
    if sizes.sum() < settings.n_partitions:
        raise InputError(f"{sizes.sum()} rows cannot make {settings.n_partitions} partitions; use fewer.")
    partitioner = StratifiedPartitioner(tuple(sizes.tolist()), settings.n_partitions, settings.seed)
    partitions = StoredPartitions.plan(folder, store, partitioner.counts, settings.dtype, labelling.y_type)
    before = np.cumsum(assigned, axis=0) - assigned
    arguments = [(store, labelling, partitions, folder, c, Deal(partitioner), before[c]) for c in chunks]
    written = np.zeros(settings.n_partitions, np.uint32)
    for sums in cluster.map_chunks(scatter, arguments, "shuffle"):
        written += sums
    cluster.map_chunks(seal, [(partitions, k, int(written[k])) for k in range(settings.n_partitions)], "seal")
    return partitions


def landmarks_path(folder: str) -> str:
    """Where a shuffle leaves its landmarks and the scaling of the rows."""
    return os.path.join(folder, "landmarks.npz")


@dataclass(frozen=True)
class Deal:
    """Partitions and places of a chunk's rows from their strata, for `scatter`."""

    partitioner: StratifiedPartitioner

    def __call__(self, strata: Array, before: Array) -> tuple[Array, Array]:
        return self.partitioner.assign(strata, ranks_within(strata, before))


@dataclass(frozen=True)
class StrataOf:
    """Strata of raw rows, the landmarks read from a file once a process."""

    path: str
    kernel: Kernel

    def __call__(self, X: Array) -> Array:
        scaling, landmarks = _load(self.path, self.kernel)
        step = max(1, (16 << 20) // X[:1].nbytes)
        parts = [landmarks.strata(scaling(X[i : i + step])) for i in range(0, len(X), step)]
        return np.concatenate(parts)


@lru_cache(maxsize=4)
def _load(path: str, kernel: Kernel) -> tuple[Scaling, Landmarks]:
    with np.load(path) as arrays:
        landmarks = Landmarks(kernel, arrays["rows"], arrays["index"])
        return Scaling(arrays["shift"], arrays["factor"]), landmarks


def _assign_strata(
    store: Store,
    labelling: Targets,
    scaling: Scaling,
    kernel: Kernel,
    settings: ShuffleSettings,
    folder: str,
    cluster: Cluster,
) -> Array:
    """Choose landmarks and count rows per (chunk, stratum); every row's stratum is left in ``folder``."""
    count = sample_size(settings.n_landmarks, store.features, store.dtype.itemsize)
    each = -(-count // store.n_chunks)
    drawn = cluster.map_chunks(
        sample_chunk, [(store, labelling, each, settings.seed, c) for c in range(store.n_chunks)], "landmarks"
    )
    sample = scaling(np.concatenate(drawn))
    if not len(sample):
        raise InputError("no row has both a label and a positive weight.")
    landmarks = choose_landmarks(kernel, sample, settings.n_landmarks)
    path = landmarks_path(folder)
    np.savez(path, rows=landmarks.rows, index=landmarks.index, shift=scaling.shift, factor=scaling.factor)
    strata_of = StrataOf(path, kernel)
    arguments = [(store, labelling, strata_of, len(landmarks.rows), folder, c) for c in range(store.n_chunks)]
    return np.array(cluster.map_chunks(count_strata, arguments, "strata"))
