"""The solver objects of `ODMClassifier` that users pick; those of papers are in their folders."""

from __future__ import annotations

from dataclasses import KW_ONLY

from sklearn.utils._param_validation import StrOptions

from dask_odm.kernels.pivots import RACES
from dask_odm.learning.parameters import COUNT, NOT_NEGATIVE, Registered, SolverObject, parameter, with_parameters


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
    choice : {…}, default="support"
        How landmarks are drawn. "support": a quarter of them uniformly, and the others in proportion to the dual
        variables of the rows in a rough solution over this quarter. {…} Machines of many classes share one set of
        landmarks, unless they are certified, and "support" then means "uniform".
    certify : bool, default=False
        Compute ``dual_gap_`` after the fit, by a pass over all pairs of rows. This computes the kernel values of all
        active rows in float64, O(n²), spread over the workers. All other solvers compute the gap anyway.
    """

    n_landmarks: int = parameter(1000, COUNT)
    _: KW_ONLY
    choice: str = parameter("support", Registered(RACES, "support"))
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

    cell_rows: int | None = parameter(None, COUNT, None)
    _: KW_ONLY
    overlap: float = parameter(0.0, NOT_NEGATIVE)
    settings: str = parameter("shared", StrOptions({"shared", "each"}))

    def most_rows(self, *, pairs: bool) -> int:
        """Return the most rows of a region, for machines of all ``pairs`` of classes or for others."""
        return self.cell_rows or (8000 if pairs else 4000)
