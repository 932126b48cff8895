"""The solver objects of SODM and its rivals."""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Integral

from sklearn.utils._param_validation import Interval

from dask_odm.learning.parameters import COUNT, SolverObject, parameter, with_parameters


@with_parameters
class _Tree(SolverObject):
    """Base of the solvers that merge partitions in a tree.

    Parameters
    ----------
    n_partitions : int or None, default=None
        Number of partitions at the start. None: as many as needed for at most 8,192 rows in each.
    fan_in : int, default=4
        Number of partitions that are merged into one.
    stop_at : int, default=1
        End the tree at the first level with at most this number of partitions. Their models are averaged.
    early_stop : bool, default=False
        End the tree at the first level whose partitions had all converged at their start.
    """

    n_partitions: int | None = parameter(None, COUNT, None)
    _: KW_ONLY
    fan_in: int = parameter(4, Interval(Integral, 2, None, closed="left"))
    stop_at: int = parameter(1, COUNT)
    early_stop: bool = False


@with_parameters
class SODM(_Tree):
    """A tree of partition solves: stratified partitions are solved and merged until one is left.

    Partitions of up to 1,024 rows are solved to rounding.

    Parameters
    ----------
    n_partitions : int or None, default=None
        Number of partitions at the start. None: one for up to 65,536 rows in memory (or in a store of up to 256 MiB),
        else a power of ``fan_in`` that leaves at most 8,192 rows in each.
    n_strata : int, default=64
        Maximum number of landmarks, and so of strata, by which partitions are balanced.

    References
    ----------
    Wang, Cao, Zhang, Shi, Jin: *Scalable Optimal Margin Distribution Machine*, IJCAI-23.
    """

    _: KW_ONLY
    n_strata: int = parameter(64, COUNT)


@with_parameters
class Cascade(_Tree):
    """The cascade: only rows of random partitions with a coefficient are merged, so it only ends near the optimum."""


@with_parameters
class DiP(_Tree):
    """The cascade over partitions that have their share of every k-means cluster. It only ends near the optimum.

    Parameters
    ----------
    n_clusters : int, default=64
        Maximum number of k-means clusters.
    """

    _: KW_ONLY
    n_clusters: int = parameter(64, COUNT)


@with_parameters
class DC(_Tree):
    """Divide and conquer: partitions are clusters in the kernel's feature space, new ones at every level of the tree.

    If the tree ends early, a row is predicted by the model of the cluster with the nearest mean, as in DC-SVM's early
    prediction. This is for two classes only. A cluster of m of the M rows learns with the same ``lam``, like any
    partition of a tree. So a row weighs M/m times as much as in the whole problem, while DC-SVM keeps the weight of a
    row. With several clusters, ``support_`` and ``dual_coef_`` are sorted by cluster.

    Parameters
    ----------
    stop_at : int, default=1
        End the tree at the first level with at most this number of clusters. A row is predicted by the model of its
        cluster.

    References
    ----------
    Hsieh, Si, Dhillon: *A Divide-and-Conquer Solver for Kernel Support Vector Machines*, ICML 2014.
    """
