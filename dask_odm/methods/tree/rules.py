"""The four methods that train by a tree of partitions: SODM, cascade, DiP and DC.

A `TreeRule` says how rows are dealt to partitions, which rows are passed up, and what a merger starts from.

Sources: SODM (IJCAI-23) and the methods it is compared with there, each applied to ODM's objective. These are the
cascade (Graf et al., *Parallel support vector machines: the cascade SVM*, NIPS 2004), DiP (Singh, Roy and Mohan,
*DiP-SVM*, 2017) and DC (Hsieh, Si and Dhillon, *A divide-and-conquer solver for kernel support vector machines*, ICML
2014).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dask_odm.engine.partitioners import ClusterPartitioner, MeansPartitioner, Partitioner, RandomPartitioner
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.user_kernels import Precomputed
from dask_odm.learning.solution import Solution
from dask_odm.methods.settings import ODMFit
from dask_odm.methods.tree.node_workers import Begin, PassUp, pass_all, pass_support

WHOLE_ROWS = 1 << 16  # SODM keeps up to so many rows in memory as one partition
LEAF_ROWS = 8192  # rows of a leaf, at most, if the user does not choose the number of partitions


@dataclass(frozen=True)
class TreeRule:
    """A method that solves partitions and merges them.

    ``partitioner(fit, kernel, n_partitions, seed)`` makes the partitioner that deals rows to the leaves. ``pass_up``
    and ``begin`` are the merge rule, as in `dask_odm.methods.tree.node_workers.TreeJob`.
    """

    name: str
    partitioner: Callable[[ODMFit, Kernel, int, int], Partitioner]
    pass_up: PassUp = pass_all
    begin: Begin = Solution.rescaled
    recluster: bool = False  # whether rows are grouped anew for every level, instead of merging partitions
    whole_rows: int = LEAF_ROWS  # most rows in memory that are one partition, if the user does not choose their number
    newton_root: bool = True  # whether Newton over all rows solves a large root, which is one more node otherwise


def by_strata(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Deal each stratum evenly to the partitions. Strata are formed by landmarks of the kernel."""
    return fit.partitioner(kernel, n_partitions)


def at_random(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Deal rows at random."""
    return RandomPartitioner(n_partitions, seed)


def by_means(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Deal each k-means cluster of the features evenly to the partitions; InputError for a precomputed kernel."""
    if isinstance(kernel, Precomputed):
        raise InputError("solver='dip' groups rows by their features, which kernel='precomputed' has none of.")
    return MeansPartitioner(fit.own.n_clusters, n_partitions, seed)


def by_clusters(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Make each cluster in the kernel's feature space a partition."""
    return ClusterPartitioner(kernel, n_partitions, seed)


SODM = TreeRule("sodm", by_strata, whole_rows=WHOLE_ROWS)
CASCADE = TreeRule("cascade", at_random, pass_support, newton_root=False)
DIP = TreeRule("dip", by_means, pass_support, newton_root=False)
DC = TreeRule("dc", by_clusters, recluster=True)
