"""Clusters of rows: k-means in input space and in a kernel's, found on a sample; every other row goes to the nearest.

Sources: Hsieh, Si and Dhillon, *A divide-and-conquer solver for kernel support vector machines* (ICML 2014; DC-SVM),
section 4, whose clusters are the partitions; Singh, Roy and Mohan, *DiP-SVM: distribution preserving kernel support
vector machine for big data* (IEEE Transactions on Big Data, 2017), whose clusters are each dealt to all partitions.

One algorithm serves both; it is written here, since a worker that looks rows up in clusters loads this module, and no
worker loads scikit-learn. DC-SVM draws the sample of the levels above the leaves from the support rows of the level
below; here it is drawn from all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dask_odm.engine.partition.dealing import EvenDealer, GroupDealer
from dask_odm.kernels.base import Kernel
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.typing import Array

SAMPLE_ROWS = 2048  # that clusters are found on; their kernel matrix is held
SAMPLE_BYTES = 64 << 20
ROUNDS = 100  # of k-means at most
BLOCK_ROWS = 1024  # rows that are assigned at a time


class Space(Protocol):
    """Inner products of the m rows of a sample, as k-means needs them."""

    @property
    def diagonal(self) -> Array:
        """⟨φ(x_i), φ(x_i)⟩, (m,)."""

    def columns(self, pivots: Array) -> Array:
        """⟨φ(x_i), φ(x_j)⟩ of all rows i and the ``pivots`` j, (m, len(pivots))."""

    def cluster_sums(self, labels: Array) -> tuple[Array, Array]:
        """‖mean‖² of every cluster (count,), and ⟨φ(x_i), mean⟩ of every row and cluster (m, count)."""


@dataclass(frozen=True, eq=False)
class KernelSpace:
    """That of a kernel, by its matrix (m, m) over the sample."""

    K: Array

    @classmethod
    def of(cls, kernel: Kernel, sample: Array) -> KernelSpace:
        """Its entries are float64."""
        rows = sample.astype(np.float64)
        with single_threaded_blas:
            return cls(kernel.tile(rows, rows))

    @property
    def diagonal(self) -> Array:
        return self.K.diagonal()

    def columns(self, pivots: Array) -> Array:
        return self.K[:, pivots]

    def cluster_sums(self, labels: Array) -> tuple[Array, Array]:
        members = _shares(labels)
        with single_threaded_blas:
            similarity = self.K @ members
            return (members * similarity).sum(axis=0), similarity


@dataclass(frozen=True, eq=False)
class InputSpace:
    """That of the features, (m, d) in float64: as `KernelSpace` of the linear kernel, without its matrix."""

    X: Array

    @cached_property
    def diagonal(self) -> Array:
        squares: Array = np.einsum("ij,ij->i", self.X, self.X)
        return squares

    def columns(self, pivots: Array) -> Array:
        with single_threaded_blas:
            found: Array = self.X @ self.X[pivots].T
        return found

    def means(self, labels: Array) -> Array:
        """Of every cluster, (count, d)."""
        with single_threaded_blas:
            found: Array = _shares(labels).T @ self.X
        return found

    def cluster_sums(self, labels: Array) -> tuple[Array, Array]:
        means = self.means(labels)
        with single_threaded_blas:
            return np.einsum("ij,ij->i", means, means), self.X @ means.T


def k_means(space: Space, count: int, seed: int) -> NDArray[np.int64]:
    """Cluster of every row of a sample, by Lloyd's rounds from k-means++ with a few tries a seed.

    Minimises ``Σ_i ‖φ(x_i) − mean of its cluster‖²``, which no round raises.

    Parameters
    ----------
    space : Space
        That of m rows.
    count : int
        Clusters at most; fewer where fewer rows differ.
    seed : int

    Returns
    -------
    ndarray of shape (m,)
        Clusters, numbered from 0 without a gap.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    labels = _first_clusters(space, count, rng)
    for _ in range(ROUNDS):
        norms, similarity = space.cluster_sums(labels)
        nearest = np.argmin(norms - 2.0 * similarity, axis=1)
        if (nearest == labels).all():
            break
        labels = np.unique(nearest, return_inverse=True)[1]
    return labels


def _first_clusters(space: Space, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows by the nearest of ``count`` seeds: of a few drawn in proportion to their squared distance, the best each."""
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


def _shares(labels: Array) -> Array:
    """(m, count): 1 / the size of its cluster for a row and its cluster, else 0."""
    members = np.zeros((len(labels), int(labels.max()) + 1))
    members[np.arange(len(labels)), labels] = 1.0
    shares: Array = members / members.sum(axis=0)
    return shares


@dataclass(frozen=True, eq=False)
class Centres:
    """Clusters of input space by their means (count, d), float64."""

    means: Array

    @property
    def count(self) -> int:
        return len(self.means)

    def __call__(self, X: Array) -> NDArray[np.int32]:
        half = 0.5 * np.einsum("ij,ij->i", self.means, self.means)
        with single_threaded_blas:
            blocks = [np.argmin(half - b.astype(np.float64) @ self.means.T, axis=1) for b in _blocks(X)]
        return np.concatenate(blocks).astype(np.int32) if blocks else np.empty(0, np.int32)

    def arrays(self) -> dict[str, Array]:
        return {"means": self.means}


@dataclass(frozen=True, eq=False)
class KernelClusters:
    """Clusters of a kernel's space by the sample rows (m, d) that are in them.

    Attributes
    ----------
    kernel : Kernel
    rows : ndarray of shape (m, d)
    labels : ndarray of shape (m,)
        Cluster of every one of them.
    norms : ndarray of shape (count,)
        ‖mean‖² of every cluster: it takes the sample's matrix, which who looks rows up need not hold.
    """

    kernel: Kernel
    rows: Array
    labels: Array
    norms: Array

    @property
    def count(self) -> int:
        return len(self.norms)

    def __call__(self, X: Array) -> NDArray[np.int32]:
        members = _shares(self.labels)
        found = []
        with single_threaded_blas:
            right = self.kernel.pack_right(self.rows.astype(X.dtype))
            for block in _blocks(X):
                tile = self.kernel.tile_packed(self.kernel.pack_left(block), right)
                found.append(np.argmin(self.norms - 2.0 * (tile.astype(np.float64) @ members), axis=1))
        return np.concatenate(found).astype(np.int32) if found else np.empty(0, np.int32)

    def arrays(self) -> dict[str, Array]:
        return {"rows": self.rows, "labels": self.labels, "norms": self.norms}


def _blocks(X: Array) -> list[Array]:
    return [X[i : i + BLOCK_ROWS] for i in range(0, len(X), BLOCK_ROWS)]


@dataclass(frozen=True)
class WholeDealer:
    """Every group is a partition; those without a row are left out.

    Parameters
    ----------
    sizes : tuple of int
        Rows in every group.
    seed : int
    """

    sizes: tuple[int, ...]
    seed: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows in every partition."""
        return tuple(size for size in self.sizes if size)

    def assign(self, groups: Array, ranks: Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Partition of every row, and its place there, at random, from its group and its rank in it; (n,) each."""
        group, place = GroupDealer(self.sizes, self.seed).assign(groups, ranks)
        number = np.cumsum(np.array(self.sizes) > 0) - 1
        return number[group].astype(np.int32), place


def cluster_sample_rows(count: int, features: int, itemsize: int) -> int:
    """Rows that ``count`` clusters are found on."""
    return max(count, min(max(SAMPLE_ROWS, 8 * count), SAMPLE_BYTES // (features * itemsize)))


@dataclass(frozen=True)
class MeansPartitioner:
    """k-means clusters of input space, each dealt evenly to all partitions, as DiP-SVM has them.

    Parameters
    ----------
    n_clusters : int
        At most.
    n_partitions : int
    seed : int
    """

    n_clusters: int
    n_partitions: int
    seed: int

    def sample_rows(self, features: int, itemsize: int) -> int:
        return cluster_sample_rows(self.n_clusters, features, itemsize)

    def groups(self, sample: Array) -> Centres:
        space = InputSpace(sample.astype(np.float64))
        return Centres(space.means(k_means(space, self.n_clusters, self.seed)))

    def read_groups(self, arrays: Mapping[str, Array]) -> Centres:
        return Centres(arrays["means"])

    def dealer(self, sizes: tuple[int, ...]) -> EvenDealer:
        return EvenDealer(sizes, self.n_partitions, self.seed)


@dataclass(frozen=True)
class ClusterPartitioner:
    """Clusters of a kernel's space that are the partitions themselves, as DC-SVM has them.

    Parameters
    ----------
    kernel : Kernel
    n_partitions : int
        At most: fewer where fewer rows differ.
    seed : int
    """

    kernel: Kernel
    n_partitions: int
    seed: int

    def sample_rows(self, features: int, itemsize: int) -> int:
        return cluster_sample_rows(self.n_partitions, features, itemsize)

    def groups(self, sample: Array) -> KernelClusters:
        space = KernelSpace.of(self.kernel, sample)
        labels = k_means(space, self.n_partitions, self.seed)
        return KernelClusters(self.kernel, sample, labels, space.cluster_sums(labels)[0])

    def read_groups(self, arrays: Mapping[str, Array]) -> KernelClusters:
        return KernelClusters(self.kernel, arrays["rows"], arrays["labels"], arrays["norms"])

    def dealer(self, sizes: tuple[int, ...]) -> WholeDealer:
        return WholeDealer(sizes, self.seed)
