"""The solver objects of `ODMClassifier`."""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.kernels.pivots import READS_ROWS
from dask_odm.learning.parameters import SolverClasses, SolverObject, with_parameters

_COUNT = [Interval(Integral, 1, None, closed="left")]
_COUNT_OR_NONE = [*_COUNT, None]


class Exact(SolverObject):
    """Newton's method over all rows, to a certified gap.

    Up to 256 rows are solved to rounding. Time grows at least with the square of the number of rows.
    """


class Newton(SolverObject):
    """Newton's method for the weights of the features, with the linear kernel, to a certified gap."""


@with_parameters
class Landmark(SolverObject):
    """Newton's method over the span of some rows, the *landmarks*: much faster than `Exact`, and near its optimum.

    Parameters
    ----------
    n_landmarks : int, default=1000
        Number of landmarks. More landmarks come closer to the optimum, but time grows with the square of their number.
    choice : {"support", "uniform", "rp"}, default="support"
        How landmarks are drawn. "support": a quarter of them uniformly, and the others in proportion to the dual
        variables of the rows in a rough solution over this quarter. "uniform": all rows have the same probability.
        "rp": by randomly pivoted Cholesky among twenty times as many rows. The probability of a row is then
        proportional to the part of its κ(x, x) that earlier landmarks do not explain. Machines of many classes share
        one set of landmarks, unless they are certified, and "support" then means "uniform".
    certify : bool, default=False
        Compute ``dual_gap_`` after the fit, by a pass over all pairs of rows. This computes the kernel values of all
        active rows in float64, O(n²), spread over the workers. All other solvers compute the gap anyway.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_landmarks": _COUNT,
        "choice": [StrOptions({"support", *READS_ROWS})],
        "certify": ["boolean"],
    }

    n_landmarks: int = 1000
    _: KW_ONLY
    choice: str = "support"
    certify: bool = False


@with_parameters
class Cells(SolverObject):
    """An exact machine for each region of the feature space: for narrow kernels and any number of rows.

    Regions are the leaves of a tree that splits rows at medians. A row is predicted only by the machine of its region.
    The gap is for each machine on its own rows, not for one machine on all rows.

    Parameters
    ----------
    cell_rows : int or None, default=None
        Maximum number of rows in a region. More rows come closer to one machine for all rows, but take more time. None:
        4,000, or 8,000 for one-vs-one, since the machine of a pair learns from few of these rows. Equal rows always
        stay in one region.
    overlap : float, default=0.0
        Regions also learn from rows within this distance beyond a splitting plane. The unit is the standard deviation
        of the rows that the plane divides.
    settings : {"shared", "each"}, default="shared"
        Whether all regions share settings, or each finds its own. "each": every region finds its own γ, λ/M, υ and θ,
        as `ODMClassifierCV` does for all rows. It leaves out its rows one by one. The search then has no common
        settings.

    References
    ----------
    Thomann, Blaschzyk, Meister, Steinwart: *Spatial Decompositions for Large Scale SVMs*, AISTATS 2017.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "cell_rows": _COUNT_OR_NONE,
        "overlap": [Interval(Real, 0.0, None, closed="left")],
        "settings": [StrOptions({"shared", "each"})],
    }

    cell_rows: int | None = None
    _: KW_ONLY
    overlap: float = 0.0
    settings: str = "shared"

    def most_rows(self, *, pairs: bool) -> int:
        """Return the most rows of a region, for machines of all ``pairs`` of classes or for others."""
        return self.cell_rows or (8000 if pairs else 4000)


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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_partitions": _COUNT_OR_NONE,
        "fan_in": [Interval(Integral, 2, None, closed="left")],
        "stop_at": _COUNT,
        "early_stop": ["boolean"],
    }

    n_partitions: int | None = None
    _: KW_ONLY
    fan_in: int = 4
    stop_at: int = 1
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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"n_strata": _COUNT}

    _: KW_ONLY
    n_strata: int = 64


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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"n_clusters": _COUNT}

    _: KW_ONLY
    n_clusters: int = 64


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


@with_parameters
class SVRG(SolverObject):
    """Stochastic variance-reduced gradient steps, for the linear kernel and rows in memory.

    Parameters
    ----------
    step_size : {"auto", "bb"} or float, default="auto"
        Step size η. "auto" is 1/(4L), with L = 1 + λ max(c̃ ‖x‖²)/(1−θ)² over the rows, whose weights c̃ are scaled to
        mean 1. "bb" is the step of Barzilai and Borwein in every epoch, up to 1/L.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "step_size": [StrOptions({"auto", "bb"}), Interval(Real, 0.0, None, closed="neither")]
    }

    step_size: float | str = "auto"


@with_parameters
class DSVRG(SVRG):
    """SVRG that passes the weights from worker to worker, partition by partition, for the linear kernel.

    Parameters
    ----------
    n_partitions : int or None, default=None
        Number of partitions. None: eight, or fewer below 128 rows.
    stage_steps : int or None, default=None
        Number of steps of one *hop*, the turn of a worker. None: all rows of a partition.
    n_strata : int, default=64
        Maximum number of landmarks, and so of strata, by which partitions are balanced. Rows of a sparse store are
        dealt at random.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_partitions": _COUNT_OR_NONE,
        "stage_steps": _COUNT_OR_NONE,
        "n_strata": _COUNT,
    }

    _: KW_ONLY
    n_partitions: int | None = None
    stage_steps: int | None = None
    n_strata: int = 64


@with_parameters
class CSVRG(SVRG):
    """SVRG that takes its snapshots from a coreset, for the linear kernel. It only ends near the optimum.

    Parameters
    ----------
    coreset_size : int, default=1024
        Number of rows of the coreset, which are drawn from every stratum.
    n_strata : int, default=64
        Maximum number of landmarks, and so of strata, from which the coreset is drawn.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"coreset_size": _COUNT, "n_strata": _COUNT}

    _: KW_ONLY
    coreset_size: int = 1024
    n_strata: int = 64


ODM_SOLVERS: SolverClasses = (Exact, Landmark, Cells, SODM, Cascade, DiP, DC, Newton, DSVRG, SVRG, CSVRG)
