"""Partitioners: they put rows into groups, and deal the groups to partitions.

Groups are strata of a kernel's space, or clusters by k-means in input space or a kernel's. They are found on a sample;
every other row goes to the nearest.

Sources: SODM, section on stratified partitions; Hsieh, Si and Dhillon, *A divide-and-conquer solver for kernel support
vector machines* (ICML 2014; DC-SVM), section 4, whose clusters are the partitions; Singh, Roy and Mohan, *DiP-SVM:
distribution preserving kernel support vector machine for big data* (IEEE Transactions on Big Data, 2017), in which each
cluster is dealt to all partitions.

k-means is written here, since workers load this module to look rows up in clusters, and no worker loads scikit-learn.
DC-SVM draws the sample of the levels above the leaves from the support rows of the level below; here it is drawn from
all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dask_odm.engine.dealing import Dealer, EvenDealer, GroupDealer
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.landmarks import Landmarks, greedy_landmarks
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.typing import Array


class Groups(Protocol):
    """A function that gives the group of each row, and pickles. If there is only one group, rows are not looked at."""

    @property
    def count(self) -> int: ...
    def __call__(self, X: Array) -> NDArray[np.int32]:
        """Return the group of each scaled row of X (n, d), int32 (n,)."""


class Partitioner(Protocol):
    """Frozen settings of a partitioning, which tasks carry."""

    @property
    def n_partitions(self) -> int: ...
    @property
    def seed(self) -> int: ...
    def sample_rows(self, features: int, itemsize: int) -> int:
        """Return the number of rows that groups are made from; 0 if they need none."""

    def groups(self, sample: Array) -> Groups:
        """Make groups from a ``sample`` of scaled rows (m, d)."""

    def dealer(self, sizes: tuple[int, ...]) -> Dealer:
        """Return the dealer of groups of ``sizes`` rows."""


def sampled_rows(count: int, enough: int, features: int, itemsize: int) -> int:
    """Return how many rows ``count`` groups are made from: ``enough``, if they take at most 64 MB."""
    return max(count, min(enough, (64 << 20) // (features * itemsize)))


@dataclass(frozen=True)
class OneGroup:
    """All rows in one group."""

    count: int = 1

    def __call__(self, X: Array) -> NDArray[np.int32]:
        return np.zeros(len(X), np.int32)


@dataclass(frozen=True)
class RandomPartitioner:
    """``n_partitions`` of rows drawn by ``seed``, whose sizes differ by at most one; features are not looked at."""

    n_partitions: int
    seed: int

    def sample_rows(self, features: int, itemsize: int) -> int:
        return 0

    def groups(self, sample: Array) -> OneGroup:
        return OneGroup()

    def dealer(self, sizes: tuple[int, ...]) -> EvenDealer:
        return EvenDealer(sizes, self.n_partitions, self.seed)


@dataclass(frozen=True, eq=False)
class Strata:
    """Groups of rows by their nearest landmark."""

    landmarks: Landmarks

    @property
    def count(self) -> int:
        return len(self.landmarks.rows)

    def __call__(self, X: Array) -> NDArray[np.int32]:
        return self.landmarks.strata(X)


@dataclass(frozen=True)
class StratifiedPartitioner:
    """At most ``n_landmarks`` strata of ``kernel``, each dealt evenly; sizes of partitions differ by at most one.

    With ``shuffled=False``, rows are dealt in their order, see `dask_odm.engine.dealing.EvenDealer`.
    """

    kernel: Kernel
    n_landmarks: int
    n_partitions: int
    seed: int
    shuffled: bool = True

    def sample_rows(self, features: int, itemsize: int) -> int:
        return sampled_rows(self.n_landmarks, max(4096, 4 * self.n_landmarks), features, itemsize)

    def groups(self, sample: Array) -> Strata:
        return Strata(greedy_landmarks(self.kernel, sample, self.n_landmarks))

    def dealer(self, sizes: tuple[int, ...]) -> EvenDealer:
        return EvenDealer(sizes, self.n_partitions, self.seed, self.shuffled)


@dataclass(frozen=True, eq=False)
class KernelSpace:
    """The space of a kernel: inner products of the m rows of a sample, by its matrix (m, m)."""

    K: Array

    @property
    def diagonal(self) -> Array:
        """⟨φ(x_i), φ(x_i)⟩ of every row, (m,)."""
        return self.K.diagonal()

    def columns(self, pivots: Array) -> Array:
        """Return ⟨φ(x_i), φ(x_j)⟩ of all rows i and the ``pivots`` j, (m, len(pivots))."""
        return self.K[:, pivots]

    def products(self, members: Array) -> Array:
        """Return ⟨φ(x_i), mean⟩ of every row and cluster (m, count), for the ``members`` of `_members`."""
        found: Array = self.K @ members
        return found


@dataclass(frozen=True, eq=False)
class InputSpace:
    """The space of the features, (m, d) in float64: a `KernelSpace` of the linear kernel, without its matrix."""

    X: Array

    @cached_property
    def diagonal(self) -> Array:
        squares: Array = np.einsum("ij,ij->i", self.X, self.X)
        return squares

    def columns(self, pivots: Array) -> Array:
        found: Array = self.X @ self.X[pivots].T
        return found

    def products(self, members: Array) -> Array:
        found: Array = self.X @ (members.T @ self.X).T
        return found


Space = KernelSpace | InputSpace


def k_means(space: Space, count: int, seed: int, max_iter: int = 100) -> NDArray[np.int64]:
    """Cluster the rows of a sample by Lloyd's rounds, started by k-means++ with a few tries per seed.

    It minimises ``Σ_i ‖φ(x_i) − mean of its cluster‖²``, which no round raises. Returns each row's cluster (m,),
    numbered from 0 without a gap. There are at most ``count`` clusters, fewer if fewer rows differ.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    labels = _first_clusters(space, count, rng)
    for _ in range(max_iter):
        members = _members(labels)
        similarity = space.products(members)
        nearest = np.argmin((members * similarity).sum(axis=0) - 2.0 * similarity, axis=1)
        if (nearest == labels).all():
            break
        labels = np.unique(nearest, return_inverse=True)[1]
    return labels


def _first_clusters(space: Space, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Assign rows to the nearest of up to ``count`` seeds, chosen by k-means++.

    For every seed, a few rows are drawn in proportion to their squared distance, and the best of them is taken.
    """
    diagonal = space.diagonal
    trials = 2 + int(np.log(count))
    first = int(rng.integers(len(diagonal)))
    nearest = _square_distances(space, np.array([first]))[:, 0]
    labels = np.zeros(len(diagonal), np.int64)
    for number in range(1, count):
        if nearest.max() <= 1e-12 * diagonal.max():
            break
        drawn = rng.choice(len(diagonal), trials, p=nearest / nearest.sum())
        distances = _square_distances(space, drawn)
        best = distances[:, int(np.minimum(nearest[:, None], distances).sum(axis=0).argmin())]
        labels[best < nearest] = number
        nearest = np.minimum(nearest, best)
    return np.unique(labels, return_inverse=True)[1]


def _square_distances(space: Space, pivots: Array) -> Array:
    diagonal = space.diagonal
    found: Array = np.maximum(diagonal[:, None] + diagonal[pivots] - 2.0 * space.columns(pivots), 0.0)
    return found


def _members(labels: Array) -> Array:
    """Return (m, count): 1 / (size of the cluster) for a row and its cluster, else 0."""
    inside = np.equal.outer(labels, np.arange(labels.max() + 1))
    members: Array = inside / inside.sum(axis=0)
    return members


@dataclass(frozen=True, eq=False)
class Centres:
    """Clusters of input space by their means (count, d), float64."""

    means: Array

    @property
    def count(self) -> int:
        return len(self.means)

    def __call__(self, X: Array) -> NDArray[np.int32]:
        norms = np.einsum("ij,ij->i", self.means, self.means)
        return _nearest(X, norms, lambda block: block.astype(np.float64) @ self.means.T)


@dataclass(frozen=True, eq=False)
class KernelClusters:
    """Clusters of a kernel's space by the sample ``rows`` (m, d) in them, and their ``labels`` (m,).

    ``norms`` (count,) are ‖mean‖² of every cluster, stored because it takes the sample's kernel matrix to compute them.
    """

    kernel: Kernel
    rows: Array
    labels: Array
    norms: Array

    @property
    def count(self) -> int:
        return len(self.norms)

    def __call__(self, X: Array) -> NDArray[np.int32]:
        members = _members(self.labels)
        right = self.kernel.pack_right(self.rows.astype(X.dtype))

        def similarity(block: Array) -> Array:
            tile: Array = self.kernel.tile_packed(self.kernel.pack_left(block), right)
            return tile.astype(np.float64) @ members

        return _nearest(X, self.norms, similarity)


def _nearest(X: Array, norms: Array, similarity: Callable[[Array], Array]) -> NDArray[np.int32]:
    """Return the nearest mean of each row by ``norms`` ‖mean‖² and ``similarity(block)`` ⟨φ(x_i), mean⟩; int32 (n,)."""
    found = np.empty(len(X), np.int32)
    step = 1024  # rows of a block
    with single_threaded_blas:
        for i in range(0, len(X), step):
            found[i : i + step] = np.argmin(norms - 2.0 * similarity(X[i : i + step]), axis=1)
    return found


def cluster_sample_rows(count: int, features: int, itemsize: int) -> int:
    """Return the number of rows that ``count`` clusters are found on; their kernel matrix is held."""
    return sampled_rows(count, max(2048, 8 * count), features, itemsize)


@dataclass(frozen=True)
class MeansPartitioner:
    """At most ``n_clusters`` k-means clusters of input space, each dealt evenly to all partitions, as in DiP-SVM."""

    n_clusters: int
    n_partitions: int
    seed: int

    def sample_rows(self, features: int, itemsize: int) -> int:
        return cluster_sample_rows(self.n_clusters, features, itemsize)

    def groups(self, sample: Array) -> Centres:
        rows = sample.astype(np.float64)
        with single_threaded_blas:
            labels = k_means(InputSpace(rows), self.n_clusters, self.seed)
            return Centres(_members(labels).T @ rows)

    def dealer(self, sizes: tuple[int, ...]) -> EvenDealer:
        return EvenDealer(sizes, self.n_partitions, self.seed)


@dataclass(frozen=True)
class ClusterPartitioner:
    """At most ``n_partitions`` clusters of a kernel's space, each of which is a partition, as in DC-SVM.

    There are fewer if fewer rows differ.
    """

    kernel: Kernel
    n_partitions: int
    seed: int

    def sample_rows(self, features: int, itemsize: int) -> int:
        return cluster_sample_rows(self.n_partitions, features, itemsize)

    def groups(self, sample: Array) -> KernelClusters:
        rows = sample.astype(np.float64)
        with single_threaded_blas:
            K = self.kernel.tile(rows, rows)
            labels = k_means(KernelSpace(K), self.n_partitions, self.seed)
            members = _members(labels)
            return KernelClusters(self.kernel, sample, labels, (members * (K @ members)).sum(axis=0))

    def dealer(self, sizes: tuple[int, ...]) -> GroupDealer:
        return GroupDealer(sizes, self.seed, skip_empty=True)
