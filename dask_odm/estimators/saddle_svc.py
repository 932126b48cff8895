"""Hard-margin SVM and ν-SVM as a scikit-learn classifier: parameters and their constraints.

`dask_odm.estimators.base.StoreEstimator` has `fit`; the solvers are in `dask_odm.methods.hulls.recipes`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import Any, ClassVar, Self

from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.estimators.mixins import StoreClassifier
from dask_odm.estimators.shared_parameters import KernelParameters
from dask_odm.learning.parameters import SolverClasses, SolverObject, SolverOptions, solver_word, with_parameters
from dask_odm.learning.training.recipe import Choice
from dask_odm.learning.training.run import FitRun
from dask_odm.methods.hulls.recipes import choose_hull_solver
from dask_odm.methods.hulls.solver_objects import HULL_SOLVERS, SaddleFit


@with_parameters
class SaddleSVC(KernelParameters, StoreClassifier):
    """Hard-margin SVM and ν-SVM, to a certified gap.

    Of more than two classes it is several machines of two. Of two, it finds the nearest points ``Aη`` and ``Bξ`` of
    the two classes' reduced convex hulls: η and ξ are ≥ 0, of sum 1, and have entries of at most ν = 1/(alpha ·
    min(n₁, n₂)), n₁ and n₂ the numbers of rows. That is the ν-SVM of `sklearn.svm.NuSVC` with ``nu=nu_``; without
    caps, the hard-margin SVM.

    Parameters
    ----------
    alpha : float or None, default=0.85
        In (0, 1]: the share of the smaller class that its point of the hull is a mean of, at least. The larger, the
        smaller are the hulls, and the farther apart. None: the whole hulls, the hard margin.
    kernel : {"linear", "rbf", "laplacian", "poly"}, default="linear"
        How alike two rows are. Others than "linear" see the rows' projections on the span of landmarks, whose hulls
        are found, and certified, by "mnp": their distance is at most that of the rows' own hulls.
    solver : {"auto", "mnp", "saddle", "gilbert"} or solver object, default="auto"
        How the nearest points are found. A word takes the solver's defaults; an object of `dask_odm.solvers` says
        more, such as ``Saddle(n_clients=20)``. "mnp" is Wolfe's nearest point, a pass over the rows an iteration, and
        what "auto" takes; "saddle" is the paper's; "gilbert" takes more passes the nearer the hulls are.
    offset : {"kkt", "midpoint"}, default="kkt"
        Where the score is zero, between the two classes. "kkt": half way between the scores at which the caps of the
        classes are used up, as the conditions of optimality have it. "midpoint": half way between the nearest points,
        as the paper has it. The two are one for the hard margin.
    tol : float, default=1e-3
        Relative gap (ub − lb)/ub of the bounds of half the squared distance to reach.
    max_iter : int, default=10000
        Most iterations; of "saddle", sweeps over all coordinates.
    class_weight : dict, "balanced" or None, default=None
        What the weights of rows are multiplied by. A row of weight c has the cap c·ν, as if it were there c times;
        numbers of rows are sums of weights.
    multi_class : {"ovr", "ovo"}, default="ovo"
        How more than two classes are learned: every two, whose hulls are apart more often, or each against the rest.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As scikit-learn has them; the names where the training rows had any.
    missing_rows_ : int
        Of a fit on a cube, how many labelled rows missed a feature, and took no part.
    coef_ : ndarray of shape (n_machines, n_features_in_)
        Weights of raw features, linear kernel only; scores differ by 2 between the nearest points, and are ±1 at the
        rows of the margin where it is hard.
    intercept_ : ndarray of shape (n_machines,)
        Two classes make one machine, whose positive class is ``classes_[1]``. More make one for every two, (0, 1),
        (0, 2), …, of which the second is positive; or one for each class, positive, in their order.
    nu_ : float, or ndarray of shape (n_machines,) of several
        What `sklearn.svm.NuSVC` calls nu: 2/(nν), and 2/n for the hard margin.
    margin_ : float, or ndarray of shape (n_machines,) of several
        Distance of the hulls, in scaled features, or in the span of the landmarks; 0 where they overlap.
    dual_gap_ : float
        Relative gap of the bounds; 1 where the hulls overlap. Of several machines, the worst's.
    support_ : ndarray of shape (n_support,)
        Rows with a share in the nearest points, of "mnp" for rows in memory. Of kernels other than "linear", the
        landmarks, whose raw rows are ``support_vectors_`` and coefficients ``dual_coef_``.
    n_iter_ : int
        Iterations, or sweeps. Of several machines, the most.
    history_ : list of dict
        One entry per iteration, of "saddle" per 16 sweeps: iteration, gap, objective (the upper bound), lower (the
        lower bound), passes, seconds; with clients also rounds, floats (numbers that travelled) and communication
        (floats as multiples of clients · features). The first also has the solver, and why.

    Warns
    -----
    ConvergenceWarning
        The hulls overlap, with an alpha for which they do not; or ``max_iter`` is too small.

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

    _solvers: ClassVar[SolverClasses] = HULL_SOLVERS
    _instead: ClassVar[dict[str, str]] = {
        "landmarks": "its name is choice, and the solver has it now: solver=dask_odm.solvers.MNP(choice=…).",
    }
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "alpha": [Interval(Real, 0.0, 1.0, closed="right"), None],
        "kernel": [StrOptions({"linear", "rbf", "laplacian", "poly"})],
        "solver": [SolverOptions(HULL_SOLVERS)],
        "offset": [StrOptions({"kkt", "midpoint"})],
        "tol": [Interval(Real, 0.0, 1.0, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "multi_class": [StrOptions({"ovr", "ovo"})],
    }
    _saved: ClassVar[tuple[str, ...]] = ("dual_gap_", "margin_", "nu_", "history_", "n_iter_", "support_", "dual_coef_")

    alpha: float | None = 0.85
    _: KW_ONLY
    kernel: str = "linear"
    solver: str | SolverObject = "auto"
    offset: str = "kkt"
    tol: float = 1e-3
    max_iter: int = 10_000
    class_weight: dict[Any, float] | str | None = None
    multi_class: str = "ovo"

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
            Fitted, with ``alpha`` set, in the order of ``alphas``; this one stays as it was.

        Raises
        ------
        InputError
            Another solver than "mnp", or another kernel than "linear"; an invalid alpha; or as `fit`.
        """
        values = as_input_error(lambda: [None if alpha is None else float(alpha) for alpha in alphas])
        if not values or self.kernel != "linear" or solver_word(self.solver) not in ("auto", "mnp"):
            raise InputError(
                "alpha_path takes one alpha at least, and needs kernel='linear' with solver='mnp' or 'auto'."
            )
        return self._path(X, y, sample_weight, "alpha", values)

    def _settings(self, run: FitRun, **more: Any) -> SaddleFit:
        return SaddleFit.of(self, run, more.get("alphas", ()))

    def _choose(self, fit: SaddleFit, rows: int, features: int) -> Choice[SaddleFit]:
        return choose_hull_solver(solver_word(self.solver), fit)
