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

    Up to 256 rows are solved to rounding. Time grows with the square of the rows and more.
    """


class Newton(SolverObject):
    """Newton's method in the weights of the features, for the linear kernel, to a certified gap."""


@with_parameters
class Landmark(SolverObject):
    """Newton's method over the span of some rows, the landmarks: much faster than `Exact`, and near its optimum.

    Parameters
    ----------
    n_landmarks : int, default=1000
        Rows whose kernel functions span the model. More come closer to the optimum; time grows with their square.
    choice : {"support", "uniform", "rp"}, default="support"
        How landmarks are drawn. "support": a quarter of them uniformly among all rows, the others in proportion to the
        dual variables that a rough solution over the first gives the rows. "uniform": all with the same probability.
        "rp": by randomly pivoted Cholesky among twenty times as many rows, each in proportion to what those before
        leave of its κ(x, x). Machines of many classes share one set of landmarks, unless they are certified; "support"
        then is "uniform".
    certify : bool, default=False
        Find ``dual_gap_`` after the fit, by a pass over all pairs of rows. It takes the kernel of all active rows in
        float64, O(n²), and is spread over the workers. All other solvers certify anyway.
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

    Regions are the leaves of a tree that splits rows at medians. A row is predicted by the machine of its region alone.
    The gap is that of the machines, each for its own rows, not that of one machine for all rows.

    Parameters
    ----------
    cell_rows : int or None, default=None
        Most rows of a region. More come closer to one machine for all rows; time grows with them. None: 4,000, or 8,000
        if every two of many classes have a machine, which sees few of them. Equal rows stay in one region, however many
        they are.
    overlap : float, default=0.0
        Regions also learn from rows this near beyond a plane, in standard deviations of the rows that it divides.
    settings : {"shared", "each"}, default="shared"
        "each": every region finds its own γ, λ/M, υ and θ, as `ODMClassifierCV` does for all rows. It leaves out the
        region's rows one by one. The search then has no settings for all regions.

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
        Partitions that the tree starts from. None: so many that each has at most 8,192 rows.
    fan_in : int, default=4
        Partitions that are merged into one.
    stop_at : int, default=1
        End the tree at the first level of at most so many partitions; their models are averaged.
    early_stop : bool, default=False
        End the tree at the first level whose merged starts had all converged.
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
        Partitions that the tree starts from. None: one for up to 65,536 rows in memory (or in a store of up to
        256 MiB), else a power of ``fan_in`` that leaves at most 8,192 rows in each.
    n_strata : int, default=64
        The most landmarks, and so strata, that partitions are balanced by.

    References
    ----------
    Wang, Cao, Zhang, Shi, Jin: *Scalable Optimal Margin Distribution Machine*, IJCAI-23.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"n_strata": _COUNT}

    _: KW_ONLY
    n_strata: int = 64


@with_parameters
class Cascade(_Tree):
    """The cascade: of random partitions only rows with a coefficient are merged, so it ends near the optimum only."""


@with_parameters
class DiP(_Tree):
    """The cascade over partitions that have their share of every k-means cluster; it ends near the optimum only.

    Parameters
    ----------
    n_clusters : int, default=64
        The most k-means clusters.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"n_clusters": _COUNT}

    _: KW_ONLY
    n_clusters: int = 64


@with_parameters
class DC(_Tree):
    """Divide and conquer: partitions are clusters in the kernel's space, found anew at every level of the tree.

    A tree that ends early predicts a row by the model of the cluster with the nearest mean, which is DC-SVM's early
    prediction. It is for two classes. As any partition of a tree, a cluster of m of the M rows learns with ``lam`` as
    it is, so that a row weighs M/m times what it weighs in the whole; DC-SVM keeps the weight of a row. With several
    clusters, ``support_`` and ``dual_coef_`` are in their order.

    Parameters
    ----------
    stop_at : int, default=1
        End the tree at the first level of at most so many clusters; a row is predicted by the model of its own.

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
        Step η. "auto" is 1/(4L), L = 1 + λ max(c̃ ‖x‖²)/(1−θ)² over the rows, of weights c̃ scaled to mean 1; "bb" is
        Barzilai and Borwein's of every epoch, up to 1/L.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "step_size": [StrOptions({"auto", "bb"}), Interval(Real, 0.0, None, closed="neither")]
    }

    step_size: float | str = "auto"


@with_parameters
class DSVRG(SVRG):
    """SVRG that hands the weights round the workers, partition by partition, for the linear kernel.

    Parameters
    ----------
    n_partitions : int or None, default=None
        Partitions that the hops go round. None: eight, fewer below 128 rows.
    stage_steps : int or None, default=None
        Steps of one hop, before the next worker's turn. None: all rows of a partition.
    n_strata : int, default=64
        The most landmarks, and so strata, that partitions are balanced by. Rows of a sparse store are dealt at random.
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
    """SVRG that takes its snapshots from a coreset, for the linear kernel; it ends near the optimum only.

    Parameters
    ----------
    coreset_size : int, default=1024
        Rows that the snapshots are made of, drawn from every stratum.
    n_strata : int, default=64
        The most landmarks, and so strata, that the coreset is drawn from.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"coreset_size": _COUNT, "n_strata": _COUNT}

    _: KW_ONLY
    coreset_size: int = 1024
    n_strata: int = 64


ODM_SOLVERS: SolverClasses = (Exact, Landmark, Cells, SODM, Cascade, DiP, DC, Newton, DSVRG, SVRG, CSVRG)
