"""Hard-margin SVM and ν-SVM as a scikit-learn classifier: parameters and their constraints.

`dask_odm.estimators.base.StoreEstimator` has `fit`; the solvers are in `dask_odm.papers.saddle.recipes`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Real
from typing import Any, ClassVar, Self

from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.estimators.mixins import StoreClassifier
from dask_odm.estimators.shared_parameters import GammaParameters
from dask_odm.kernels import KERNELS
from dask_odm.learning.parameters import (
    COUNT,
    Registered,
    SolverObject,
    parameter,
    with_parameters,
)
from dask_odm.learning.training.run import FitRun
from dask_odm.papers.saddle.recipes import HullFamily
from dask_odm.papers.saddle.solver_objects import HULL_SOLVERS, SaddleFit


@with_parameters
class SaddleSVC(GammaParameters, StoreClassifier):
    """Hard-margin SVM and ν-SVM, to a certified gap.

    For two classes, it finds the nearest points ``Aη`` and ``Bξ`` of the reduced convex hulls of the classes. η and ξ
    are ≥ 0, have sum 1, and entries of at most ν = 1/(alpha · min(n₁, n₂)), the *cap*, where n₁ and n₂ are the numbers
    of rows. This is the ν-SVM of `sklearn.svm.NuSVC` with ``nu=nu_``, or without caps the hard-margin SVM. More than
    two classes are learned by several *machines*, each a model of two classes.

    Parameters
    ----------
    alpha : float or None, default=0.85
        In (0, 1]: each point of a hull is a mean of at least this share of the smaller class. A larger value makes the
        hulls smaller, and farther apart. None: the whole hulls, for the hard margin.
    kernel : {…}, default="linear"
        Kernel function. Kernels other than "linear" need "mnp", which uses the projections of the rows on the span of
        landmarks. The gap is certified for these. Their hulls are at most as far apart as those of the rows.
    solver : {…} or solver object, default="auto"
        Algorithm that finds the nearest points. A name uses the defaults of the solver. An object of `dask_odm.solvers`
        sets its parameters, such as ``Saddle(n_clients=20)``. "mnp", the choice of "auto", is Wolfe's nearest-point
        algorithm, with a pass over the rows per iteration. "saddle" is the paper's algorithm. "gilbert" takes more
        passes the nearer the hulls are.
    offset : {"kkt", "midpoint"}, default="kkt"
        Where the score is zero, between the two classes. "kkt": half way between the scores at which the caps of the
        classes are used up, by the optimality conditions. "midpoint": half way between the nearest points, as in the
        paper. For the hard margin, both are the same.
    tol : float, default=1e-3
        Relative gap to reach: (ub − lb)/ub, for the upper and lower bounds of half the squared distance of the hulls.
    max_iter : int, default=10000
        Maximum number of iterations. For "saddle", these are sweeps over all coordinates.
    class_weight : dict, "balanced" or None, default=None
        Factors for the row weights of each class. A row of weight c has the cap c·ν, as if it were repeated c times.
        Numbers of rows are then sums of weights.
    multi_class : {"ovr", "ovo"}, default="ovo"
        How more than two classes are learned: one-vs-rest, or one-vs-one, with hulls that overlap less often.

    Attributes
    ----------
    coef_ : ndarray of shape (n_machines, d)
        Weights of the features before scaling, for the linear kernel only. The scores of the nearest points differ by
        2. With the hard margin, rows on the margin have scores of ±1.
    intercept_ : ndarray of shape (n_machines,)
        Two classes give one machine, whose positive class is ``classes_[1]``. More classes give one machine per pair
        (0, 1), (0, 2), …, in which the second class is positive, or one per class, in which this class is positive.
    nu_ : float, or ndarray of shape (n_machines,) of several
        Parameter nu of `sklearn.svm.NuSVC`: 2/(nν), or 2/n for the hard margin.
    margin_ : float, or ndarray of shape (n_machines,) of several
        Distance of the hulls, in scaled features or in the span of the landmarks. 0 if they overlap.
    dual_gap_ : float
        Relative gap of the bounds, 1 if the hulls overlap. For several machines, the largest gap.
    support_ : ndarray of shape (n_support,)
        Numbers of the rows that the nearest points consist of, for "mnp" and rows in memory. For kernels other than
        "linear", the landmarks. Their rows before scaling are ``support_vectors_``, and their coefficients are
        ``dual_coef_``.
    n_iter_ : int
        Number of iterations or sweeps. For several machines, the largest number.
    history_ : list of dict
        One entry per iteration, or for "saddle" per 16 sweeps: iteration, gap, objective (the upper bound), lower (the
        lower bound), passes, seconds. With clients, also rounds, floats (how many numbers were sent) and communication
        (floats divided by clients · features). The first entry also has the solver and why it was chosen.

    Warns
    -----
    ConvergenceWarning
        The hulls overlap, and the warning names an alpha for which they do not. Or ``max_iter`` is too small.

    References
    ----------
    Jin, Huang, Li: *SVM via Saddle Point Optimization: New Bounds and Distributed Algorithms*, 2017.
    Wolfe: *Finding the nearest point in a polytope*, Mathematical Programming 11, 1976.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dask_odm import SaddleSVC
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> SaddleSVC(scale="minmax").fit(X, y).score(X, y) > 0.93
    True
    """

    _family = HullFamily()
    _solvers = HULL_SOLVERS
    _instead: ClassVar[dict[str, str]] = {
        "landmarks": "its name is choice, and the solver has it now: solver=dask_odm.solvers.MNP(choice=…).",
    }
    _saved: ClassVar[tuple[str, ...]] = ("dual_gap_", "margin_", "nu_", "support_", "dual_coef_")

    alpha: float | None = parameter(0.85, Interval(Real, 0.0, 1.0, closed="right"), None)
    _: KW_ONLY
    kernel: str = parameter("linear", Registered(KERNELS))
    solver: str | SolverObject = "auto"
    offset: str = parameter("kkt", StrOptions({"kkt", "midpoint"}))
    tol: float = parameter(1e-3, Interval(Real, 0.0, 1.0, closed="neither"))
    max_iter: int = parameter(10_000, COUNT)
    class_weight: dict[Any, float] | str | None = parameter(None, StrOptions({"balanced"}), dict, None)
    multi_class: str = parameter("ovo", StrOptions({"ovr", "ovo"}))

    def alpha_path(self, X: Any, y: Any = None, *, alphas: Any, sample_weight: Any = None) -> list[Self]:
        """Fit a model for every alpha of ``alphas``, each starting from the solution for the next larger alpha.

        Parameters
        ----------
        X, y, sample_weight
            As `fit` takes them.
        alphas : sequence of float or None
            Values in (0, 1], or None for the hard margin, in any order. Close values take a few passes each.

        Returns
        -------
        list of SaddleSVC
            Fitted models with ``alpha`` set, in the order of ``alphas``. This estimator does not change.

        Raises
        ------
        InputError
            A solver other than "mnp" or "auto", or a kernel other than "linear"; an invalid alpha; or as `fit`.
        """
        return self._path(X, y, sample_weight, "alpha", alphas, "mnp")

    def _settings(self, run: FitRun, **more: Any) -> SaddleFit:
        return SaddleFit.of(self, run, more.get("alphas", ()))
