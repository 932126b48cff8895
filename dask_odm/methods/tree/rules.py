"""What makes a tree of partitions one method or another: how rows are dealt, what goes up, what a merger starts from.

Sources: SODM (IJCAI-23), and what it is compared with there, each for ODM's objective: the cascade (Graf et al.,
*Parallel support vector machines: the cascade SVM*, NIPS 2004), DiP (Singh, Roy and Mohan, *DiP-SVM*, 2017) and DC
(Hsieh, Si and Dhillon, *A divide-and-conquer solver for kernel support vector machines*, ICML 2014).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dask_odm.engine.partition.base import Partitioner
from dask_odm.engine.partition.clusters import ClusterPartitioner, MeansPartitioner
from dask_odm.engine.partition.random import RandomPartitioner
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.user_kernels import Precomputed
from dask_odm.methods.settings import ODMFit
from dask_odm.methods.tree.merge_rule import Begin, PassUp, pass_all, pass_support, scaled_start

WHOLE_ROWS = 1 << 16  # SODM: up to so many rows in memory are one partition
LEAF_ROWS = 8192


@dataclass(frozen=True)
class TreeRule:
    """A method that solves partitions and merges them.

    Attributes
    ----------
    name : str
    partitioner : callable
        ``partitioner(fit, kernel, n_partitions, seed)``: how rows are dealt to the leaves.
    pass_up : callable
        Which rows of a node the one above gets, see `dask_odm.methods.tree.workers.TreeJob`.
    begin : callable
        What a merger starts from.
    recluster : bool
        Whether the nodes of every level are groups of ``partitioner``, made anew, and not merged partitions.
    whole_rows : int
        Up to so many rows in memory are one partition, where no number of partitions is asked for.
    newton_root : bool
        Whether a large root is solved by Newton over all rows, and not as one more node.
    """

    name: str
    partitioner: Callable[[ODMFit, Kernel, int, int], Partitioner]
    pass_up: PassUp = pass_all
    begin: Begin = scaled_start
    recluster: bool = False
    whole_rows: int = LEAF_ROWS
    newton_root: bool = True


def by_strata(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Strata by landmarks of the kernel, each dealt evenly."""
    return fit.partitioner(kernel, n_partitions)


def at_random(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Rows dealt at random."""
    return RandomPartitioner(n_partitions, seed)


def by_means(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """k-means clusters of the features, each dealt evenly."""
    if isinstance(kernel, Precomputed):
        raise InputError("solver='dip' groups rows by their features, which kernel='precomputed' has none of.")
    return MeansPartitioner(fit.n_clusters, n_partitions, seed)


def by_clusters(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Clusters of the kernel's space, which are the partitions."""
    return ClusterPartitioner(kernel, n_partitions, seed)


SODM = TreeRule("sodm", by_strata, whole_rows=WHOLE_ROWS)
CASCADE = TreeRule("cascade", at_random, pass_support, newton_root=False)  # of the rows passed up
DIP = TreeRule("dip", by_means, pass_support, newton_root=False)
DC = TreeRule("dc", by_clusters, recluster=True)
