"""Partitioners: they put rows into groups, and deal the groups to partitions.

Groups are strata of a kernel's space, or clusters by k-means in input space or a kernel's. They are found on a sample;
every other row goes to the nearest. A group is dealt evenly to all partitions, or is a partition.

A row is identified by its group and its rank in it, counted in the order of the rows. The rank goes through a seeded
bijection, a Feistel network with cycle walking. So chunks of a store are dealt one by one, in any order and more than
once, no permutation is ever held in memory, and rows on disk go where the same rows in memory would.

Sources: SODM, section on stratified partitions; Hsieh, Si and Dhillon, *A divide-and-conquer solver for kernel support
vector machines* (ICML 2014; DC-SVM), section 4, whose clusters are the partitions; Singh, Roy and Mohan, *DiP-SVM:
distribution preserving kernel support vector machine for big data* (IEEE Transactions on Big Data, 2017), in which each
cluster is dealt to all partitions.

k-means is written here, since workers load this module to look rows up in clusters, and no worker loads scikit-learn.
DC-SVM draws the sample of the levels above the leaves from the support rows of the level below; here it is drawn from
all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_odm.data.rows.scaling import COPIED_BYTES
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.groups import Groups, members_of
from dask_odm.kernels.landmarks import greedy_landmarks
from dask_odm.kernels.named import Linear
from dask_odm.linalg.jit import compiled
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.typing import Array

# multipliers and shifts of SplitMix64's finaliser
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(27), np.uint64(31)


class Partitioner:
    """Frozen settings of a partitioning, which tasks carry. By default, all rows are one group, dealt evenly."""

    n_partitions: int
    seed: int

    def sample_rows(self, features: int, itemsize: int) -> int:
        """Return the number of rows that groups are made from; 0 if they need none."""
        return 0

    def groups(self, sample: Any) -> Groups:
        """Make groups from a ``sample`` of scaled rows (m, d)."""
        return Groups(Linear(), np.zeros((1, sample.shape[1])), np.zeros(1))

    def dealer(self, sizes: tuple[int, ...]) -> Dealer:
        """Return the dealer of groups of ``sizes`` rows."""
        return EvenDealer(sizes, self.n_partitions, self.seed)


@dataclass(frozen=True)
class RandomPartitioner(Partitioner):
    """``n_partitions`` of rows drawn by ``seed``, whose sizes differ by at most one; features are not looked at."""

    n_partitions: int
    seed: int


@dataclass(frozen=True)
class StratifiedPartitioner(Partitioner):
    """At most ``n_landmarks`` strata of ``kernel``, each dealt evenly; sizes of partitions differ by at most one.

    A row's stratum is its nearest landmark.
    """

    kernel: Kernel
    n_landmarks: int
    n_partitions: int
    seed: int

    def sample_rows(self, features: int, itemsize: int) -> int:
        return _sampled_rows(self.n_landmarks, max(4096, 4 * self.n_landmarks), features, itemsize)

    def groups(self, sample: Any) -> Groups:
        rows = greedy_landmarks(self.kernel, sample, self.n_landmarks).rows
        return Groups(self.kernel, rows, self.kernel.diagonal(rows))


@dataclass(frozen=True)
class MeansPartitioner(Partitioner):
    """At most ``n_clusters`` k-means clusters of input space, each dealt evenly to all partitions, as in DiP-SVM."""

    n_clusters: int
    n_partitions: int
    seed: int

    def sample_rows(self, features: int, itemsize: int) -> int:
        return _sampled_rows(self.n_clusters, max(2048, 8 * self.n_clusters), features, itemsize)

    def groups(self, sample: Any) -> Groups:
        X = np.asarray(sample, dtype=np.float64)
        diagonal = np.einsum("ij,ij->i", X, X)
        with single_threaded_blas:
            labels = k_means(lambda V: X @ (X.T @ V), diagonal, self.n_clusters, self.seed)
            means = members_of(labels).T @ X
        return Groups(Linear(), means, np.einsum("ij,ij->i", means, means))


@dataclass(frozen=True)
class ClusterPartitioner(Partitioner):
    """At most ``n_partitions`` clusters of a kernel's space, each of which is a partition, as in DC-SVM.

    There are fewer if fewer rows differ. The kernel matrix of the sample is held.
    """

    kernel: Kernel
    n_partitions: int
    seed: int

    def sample_rows(self, features: int, itemsize: int) -> int:
        return _sampled_rows(self.n_partitions, max(2048, 8 * self.n_partitions), features, itemsize)

    def groups(self, sample: Any) -> Groups:
        rows = sample.astype(np.float64)
        with single_threaded_blas:
            K = self.kernel.tile(rows, rows)
            labels = k_means(K.__matmul__, K.diagonal(), self.n_partitions, self.seed)
            members = members_of(labels)
            norms = (members * (K @ members)).sum(axis=0)
        kept = np.unique(Groups(self.kernel, sample, norms, labels)(sample))  # means that are the nearest of a row
        inside = np.isin(labels, kept)
        return Groups(self.kernel, sample[inside], norms[kept], np.searchsorted(kept, labels[inside]))

    def dealer(self, sizes: tuple[int, ...]) -> GroupDealer:
        return GroupDealer(sizes, self.seed, skip_empty=True)


@dataclass(frozen=True, eq=False)
class GroupedPartitioner(Partitioner):
    """Every group of rows is a partition; ``known`` returns the groups of scaled rows, and has their ``count``.

    Rows keep their order unless they are ``shuffled``.
    """

    known: Any
    n_partitions: int
    seed: int
    skip_empty: bool = False
    shuffled: bool = True

    def groups(self, sample: Any) -> Any:
        return self.known

    def dealer(self, sizes: tuple[int, ...]) -> GroupDealer:
        return GroupDealer(sizes, self.seed if self.shuffled else None, self.skip_empty)


def _sampled_rows(count: int, enough: int, features: int, itemsize: int) -> int:
    """Return how many rows ``count`` groups are made from: ``enough``, if they take at most 64 MB."""
    return max(count, min(enough, COPIED_BYTES // (features * itemsize)))


# k-means --------------------------------------------------------------------------------------------------------------

Gram = Callable[[Array], Array]  # the product K V of a sample's matrix of inner products (m, m) and V (m, c)


def k_means(gram: Gram, diagonal: Array, count: int, seed: int, max_iter: int = 100) -> NDArray[np.int64]:
    """Cluster the rows of a sample by Lloyd's rounds, started by k-means++ with a few tries per seed.

    It minimises ``Σ_i ‖φ(x_i) − mean of its cluster‖²``, which no round raises. ``diagonal`` (m,) has ‖φ(x_i)‖².
    Returns each row's cluster (m,), numbered from 0 without a gap. There are at most ``count`` clusters, fewer if fewer
    rows differ.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    labels = _first_clusters(gram, diagonal, count, rng)
    for _ in range(max_iter):
        members = members_of(labels)
        similarity = gram(members)
        nearest = np.argmin((members * similarity).sum(axis=0) - 2.0 * similarity, axis=1)
        if (nearest == labels).all():
            break
        labels = np.unique(nearest, return_inverse=True)[1]
    return labels


def _first_clusters(gram: Gram, diagonal: Array, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Assign rows to the nearest of up to ``count`` seeds, chosen by k-means++.

    For every seed, a few rows are drawn in proportion to their squared distance, and the best of them is taken.
    """
    numbers = np.arange(len(diagonal))[:, None]

    def square_distances(pivots: Array) -> Array:
        columns = gram((numbers == pivots).astype(np.float64))
        return np.maximum(diagonal[:, None] + diagonal[pivots] - 2.0 * columns, 0.0)

    trials = 2 + int(np.log(count))
    nearest = square_distances(np.array([rng.integers(len(diagonal))]))[:, 0]
    labels = np.zeros(len(diagonal), np.int64)
    for number in range(1, count):
        if nearest.max() <= 1e-12 * diagonal.max():
            break
        drawn = rng.choice(len(diagonal), trials, p=nearest / nearest.sum())
        distances = square_distances(drawn)
        best = distances[:, int(np.minimum(nearest[:, None], distances).sum(axis=0).argmin())]
        labels[best < nearest] = number
        nearest = np.minimum(nearest, best)
    return np.unique(labels, return_inverse=True)[1]


# Dealing --------------------------------------------------------------------------------------------------------------


def require_rows(rows: int, parts: int, name: str = "n_partitions") -> None:
    """Raise InputError if the parameter ``name`` asks for more ``parts`` than there are ``rows``."""
    if parts > rows:
        raise InputError(f"{name} must be at most the number of rows, {rows}. Got {parts} instead.")


def permute(ranks: Array, n: int, key: int) -> NDArray[np.int64]:
    """Return the image of ``ranks`` under a bijection of 0 … n − 1 that ``key`` chooses; int64, of their shape."""
    half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence(key).generate_state(4, np.uint64)  # one for each round of the network
    out = np.array(ranks, np.uint64)
    _walk_cycles(out, np.uint64(n), np.uint64(half), np.uint64((1 << half) - 1), keys)
    return out.astype(np.int64)


@compiled
def _walk_cycles(x: Array, n: int, half: int, mask: int, keys: Array) -> None:
    """Send every number through the network until it is below ``n``. All are uint64, and products are meant to wrap."""
    for i in range(x.size):
        image = x[i]
        while True:
            left = image >> half
            right = image & mask
            for key in keys:
                # a round of SplitMix64's finaliser
                mixed = (right + key) * _FIRST
                mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _SECOND
                left, right = right, (left ^ (mixed ^ (mixed >> _SHIFTS[1]))) & mask
            image = (left << half) | right
            if image < n:
                break
        x[i] = image


@dataclass(frozen=True)
class EvenDealer:
    """The even deal of groups of ``sizes`` rows to ``n_partitions``, whose sizes differ by at most one."""

    sizes: tuple[int, ...]
    n_partitions: int
    seed: int

    @cached_property
    def _first(self) -> Array:
        """Number of rows dealt before each group, so that each group starts at the next partition."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Rows in every partition."""
        rows = int(self._first[-1])
        parts = self.n_partitions
        return tuple((rows - k + parts - 1) // parts for k in range(parts))

    def assign(self, groups: Array, before: Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return each row's partition and its place there, from the rows' groups; (n,) each.

        ``before`` (n_groups,) counts the earlier rows of each group. Places are random too. Rows often come sorted by
        class or group, and a solver visits them block by block; blocks of one class or group would mislead it.
        """
        partition = np.empty(len(groups), np.int32)
        place = np.empty(len(groups), np.int64)
        for g, rows in _rows_by_group(groups):
            dealt = self._dealt(g, before[g] + np.arange(len(rows)))
            partition[rows], place[rows] = dealt % self.n_partitions, dealt // self.n_partitions
        for k, rows in _rows_by_group(partition):
            place[rows] = permute(place[rows], self.counts[k], _key(self.seed, 1, k))
        return partition, place

    def partition_of(self, ranks: Array, group: int = 0) -> NDArray[np.int32]:
        """Return the partitions, as by `assign`, of rows of one group by their ranks (n,); places would cost more."""
        return (self._dealt(group, ranks) % self.n_partitions).astype(np.int32)

    def _dealt(self, group: int, ranks: Array) -> NDArray[np.int64]:
        return self._first[group] + permute(ranks, self.sizes[group], _key(self.seed, 0, group))


@dataclass(frozen=True)
class GroupDealer:
    """A partition for every group of ``sizes`` rows, with its rows in random order, or in their own without a seed.

    With ``skip_empty``, a group without a row is no partition. Rows in their own order are shuffled several times as
    fast, since those of a chunk go to neighbouring places.
    """

    sizes: tuple[int, ...]
    seed: int | None
    skip_empty: bool = False

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows in every partition."""
        return tuple(size for size in self.sizes if size or not self.skip_empty)

    def assign(self, groups: Array, before: Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return each row's partition and its place there, as `EvenDealer.assign`."""
        place = np.empty(len(groups), np.int64)
        for g, rows in _rows_by_group(groups):
            ranks = before[g] + np.arange(len(rows))
            place[rows] = ranks if self.seed is None else permute(ranks, self.sizes[g], _key(self.seed, 1, g))
        partition = np.cumsum(np.array(self.sizes) > 0) - 1 if self.skip_empty else np.arange(len(self.sizes))
        return partition[groups].astype(np.int32), place


Dealer = EvenDealer | GroupDealer  # gives each row its partition and its place there, for groups of known sizes


def _key(seed: int, *use: int) -> int:
    return int(np.random.SeedSequence([seed, *map(int, use)]).generate_state(1)[0])


def _rows_by_group(groups: Array) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield every group that has rows, and their numbers in ascending order."""
    if len(groups) and groups.min() >= 0 and groups.max() < 1 << 16:
        groups = groups.astype(np.uint16)  # NumPy sorts two-byte numbers by radix, several times as fast
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order].astype(np.int64), prepend=-1))
    for start, stop in pairwise([*starts.tolist(), len(order)]):
        yield int(groups[order[start]]), order[start:stop]
