"""Optimal margin distribution machine that finds its own settings, in the manner of `LogisticRegressionCV`."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Self

from dask_odm.errors import InputError
from dask_odm.estimators.groups import numbered
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.estimators.odm_classifier import ODMClassifier
from dask_odm.estimators.odm_estimator import ODMEstimator, advise_groups
from dask_odm.estimators.registry import solver_class
from dask_odm.estimators.scoring import deciding_scorers
from dask_odm.estimators.search.recipe import SearchFamily
from dask_odm.estimators.search.search_fit import CONSTRAINTS, SearchFit, kernels_of, several, splits_of
from dask_odm.learning.parameters import SolverClasses, SolverObject, SolverOptions, with_parameters
from dask_odm.learning.training.family import Family
from dask_odm.learning.training.run import FitRun
from dask_odm.methods.settings import Cells, Exact, Landmark, Newton
from dask_odm.typing import Array

SEARCHED: SolverClasses = (Exact, Landmark, Cells, solver_class("SODM"), Newton)
AXES = ("gammas", "lams", "upsilons", "thetas")


@with_parameters
class ODMClassifierCV(ODMEstimator):
    """`ODMClassifier` that chooses kernel, scaling, γ, λ, υ and θ for the data, and the number of landmarks if you
    name several.

    Many settings are tried on a sample of 2,000 rows, and the best and their neighbours on 8,000 rows; folds judge the
    best of few rows. The kernel values of a sample are computed once per γ and shared by all λ, υ and θ, and each
    solve starts from the one before. Settings are compared by the logistic loss of left-out rows, which chance moves
    less than their accuracy. The last fit uses the best settings and all rows.

    Parameters
    ----------
    kernel : {…}, or array-like of them, default="auto"
        Kernel, or kernels to choose from; "linear" has no γ. "auto" is "rbf" and "laplacian". {…}
    gammas : array-like of float or None, default=None
        Values of γ to choose from. None: 2⁻⁴ … 2⁶ times the value of ``gamma="scale"``.
    lams : array-like of float or None, default=None
        Values of λ. None: 2.5⁻⁴ … 2.5⁶ times the number of rows, whatever the scale of their weights.
    upsilons : array-like of float or None, default=None
        Values of υ in [0, 1]. None: 0.0125, 0.05, 0.2 and 0.8.
    thetas : array-like of float or None, default=None
        Values of θ in [0, 1). None: 0.1, 0.3 and 0.6.
    cv : int, float, splitter, list of splits, or None, default=None
        How rows are left out: a number of folds (2 or more), the share of a validation set (below 1), or by default one
        by one. The default is computed in closed form, see ``loo_score_`` of `ODMClassifier`. Your own splits are pairs
        of row numbers (or masks) for training and validation, or a splitter such as scikit-learn's `StratifiedKFold`.
        Folds are drawn by row number, and not copied.
    scoring : str, callable, several of them, dict, or None, default=None
        Score of left-out rows, or several scores: names or scorers of scikit-learn, such as "roc_auc" or
        "neg_log_loss". `CostScorer` is for costs. Scores are computed from the decision values of left-out rows,
        without refits, and so are probabilities. None: the logistic loss decides, and accuracy is told.
    refit : str or None, default=None
        Name of the score that decides, if there are several. None: the first.
    solver : str, solver object, or sequence of `dask_odm.solvers.Landmark`, default="auto"
        Solver of the last fit: "auto", "exact", "landmark", "cells", "newton" or "sodm", or an object of
        `dask_odm.solvers`. With a `Landmark` object, trials use at most ``n_landmarks``. Of several `Landmark` objects,
        the best is chosen. With "cells", settings are tried on three cells. "auto" tries settings over landmarks, and
        then on cells if a narrower kernel gains there.
    tol : float, default=1e-3
        Relative duality gap of the last fit. Trials are solved to 1e-2.
    scale : {…} or None, default="auto"
        Scaling of the features. The model also applies it to new rows. "auto" chooses with "rbf" among all, and with
        "laplacian" between "ranks" and "standard". Other kernels and sparse rows have one: "standard" for tables with
        words or telling gaps, whose numbers are seldom alike and which are never scaled to their range, else "minmax".
    metric : {"auto", "diagonal", "full"}, `dask_odm.Metric` or None, default="auto"
        Learned metric, as of `ODMClassifier`. "auto" tries both kinds with the best view of each kernel, and none; only
        with ``cv=None``, without groups, for 1,000 rows and more of at most 1,000 features, and "full" for 32. Half of
        a sample of 4,000 rows learns it, and settings are then compared by rows that are not of this half.
    budget : {"fast", "default", "thorough"}, default="default"
        How much is tried. "fast" has one scaling for each kernel and no metric, and looks closer at the best. "default"
        looks closer at the best of each kernel, and "thorough" at all.
    multi_class : {"ovr", "ovo"} or None, default=None
        How the last fit learns more than two classes, see `ODMClassifier`. Trials use one-vs-rest.

    Attributes
    ----------
    best_params_ : dict
        ``gamma``, ``lam``, ``upsilon`` and ``theta``, as `ODMClassifier` takes them for all rows, and ``kernel``,
        ``scale`` and ``solver`` if there were several to choose from, and ``metric``, with its values, if one is
        better. "linear" has no ``gamma`` and no ``solver``. A scaling that you named is not among them: also pass
        ``scale=search.scale_``.
    best_score_ : float
        Score of ``best_params_`` in the last stage of the search: in folds, on the larger sample, or on all rows. With
        several scores, it is the one that decides. The best of many scores of your own is too optimistic for models of
        that stage. The last fit may have more rows and landmarks, and so be better.
    nested_score_ : float
        Score without this optimism, always on the larger sample: each split, or each tenth of the rows if they are left
        out one by one, is scored with the setting that is best on the others. nan if the others have no rows of some
        class. Quote it for at most 8,000 rows, or with groups, and ``loo_score_`` for more; best is the score of
        rows held out.
    best_index_ : int
        Index of ``best_params_`` in ``cv_results_``.
    cv_results_ : dict of arrays
        As in scikit-learn's halving searches: ``iter`` is the stage, and ``n_resources`` the number of its rows.
        Several scores have their names in place of "score". By default, the rank is by logistic loss. λ is the value
        for all rows. On a sample, λ is smaller in proportion to the weight of the sample. Saved models do not have this
        attribute.
    cell_params_ : dict of lists
        With ``Cells(settings="each")``, this replaces ``best_params_``, ``best_index_`` and ``cv_results_``: ``gamma``,
        ``lam`` (the value for all rows), ``upsilon`` and ``theta`` of every cell, or nan in cells of one class.
        ``best_score_`` is then the mean score of the cells, weighted by their rows.
    feature_importances_ : ndarray of shape (n_features_in_,)
        As of `ODMClassifier`, if a metric was learned with the best kernel and scaling, be it better or not.
    lam_, scale_, classes_, n_features_in_, feature_names_in_, coef_, intercept_, dual_coef_, support_, \
support_vectors_, dual_gap_, history_, n_iter_, loo_decision_function_, loo_score_, loo_parameters_, probability_link_
        As in `ODMClassifier`, from the last fit.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dask_odm import ODMClassifierCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ODMClassifierCV(random_state=0).fit(X, y).best_score_ > 0.97
    True
    """

    _solvers: ClassVar[SolverClasses] = SEARCHED
    _instead: ClassVar[dict[str, str]] = {
        "n_landmarks": "the solver has it now, solver=dask_odm.solvers.Landmark(n_landmarks=…); a list of such objects "
        "is chosen from.",
    }
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CONSTRAINTS,
        "solver": [SolverOptions(SEARCHED), "array-like"],
        **{name: ["array-like", None] for name in AXES},
    }
    _family: ClassVar[Family[Any]] = SearchFamily()
    _saved: ClassVar[tuple[str, ...]] = (
        *ODMEstimator._saved, "best_params_", "best_score_", "best_index_", "nested_score_", "cell_params_"
    )  # fmt: skip
    _unsaved: ClassVar[tuple[str, ...]] = (*ODMEstimator._unsaved, "cv_results_")

    kernel: Any = "auto"
    _: KW_ONLY
    metric: Any = "auto"
    gammas: Any = None
    lams: Any = None
    upsilons: Any = None
    thetas: Any = None
    cv: Any = None
    scoring: Any = None
    refit: str | None = None
    solver: Any = "auto"
    scale: str | None = "auto"
    budget: str = "default"

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Self:
        """Find settings, and learn from all rows with the best of them.

        Parameters
        ----------
        groups : array-like of shape (n,), DataArray, str or None
            Group of each row. With ``cv=None``, each group is left out in turn, in closed form. If ``cv`` is a splitter
            such as scikit-learn's `GroupKFold`, it gets the groups. For a cube, a DataArray over some or all dimensions
            of the rows, or the name of a variable. Neighbouring pixels are alike: leaving out blocks of a scene
            (`spatial_blocks`) measures the quality of a map better than leaving out single pixels.

        Returns
        -------
        self

        Raises
        ------
        InputError
            As `ODMClassifier.fit`; groups with folds that would not keep them together, or groups for another number of
            rows.
        """
        trained, schema = self._train(X, y, sample_weight, groups)
        self._publish(trained, schema)
        return self

    def _settings(self, run: FitRun, **more: Any) -> SearchFit:
        kernels = kernels_of(self, ODMClassifier)
        solvers = None if isinstance(self.solver, str | SolverObject) else self._several_solvers()
        shared = set(self._get_param_names()) & set(ODMClassifier._get_param_names())
        first = {
            **{name: getattr(self, name) for name in shared},
            "kernel": kernels[0],
            "metric": None,
            "solver": self.solver if solvers is None else solvers[0],
        }
        if more.get("places") and more.get("groups") is None:
            advise_groups()
        axes: dict[str, Any] = {
            name: None if getattr(self, name) is None else several(self, name, ODMClassifier) for name in AXES
        }
        plain = ODMClassifier(**first)
        return SearchFit(
            run=run, first=plain, **axes, kernels=kernels, scale=self.scale, metric=self.metric,
            budget=self.budget, solvers=solvers, cv=splits_of(self.cv, more.get("groups")),
            scorers=deciding_scorers(self.scoring, self.refit), groups=self._left_out_groups(more.get("groups")),
        )  # fmt: skip

    def _left_out_groups(self, groups: Array | None) -> Array | None:
        """Return the groups to be left out one by one; None if there are none, or if a splitter takes them."""
        return None if groups is None or self.cv is not None else numbered(groups)

    def _several_solvers(self) -> tuple[Landmark, ...]:
        """Return the `Landmark` objects to choose from, one per number of landmarks."""
        solvers = several(self, "solver", ODMClassifier)
        for solver in solvers:
            if not isinstance(solver, Landmark):
                raise InputError(f"solver must be one solver, or a sequence of dask_odm.solvers.Landmark objects to "
                                 f"choose from. Got {solver!r} among them.")  # fmt: skip
            as_input_error(solver._validate_params)
        if len({(solver.choice, solver.certify) for solver in solvers}) > 1:
            raise InputError("the solvers to choose from may differ in n_landmarks only.")
        return tuple({int(solver.n_landmarks): solver for solver in solvers}.values())
