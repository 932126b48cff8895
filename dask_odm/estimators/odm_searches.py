"""Optimal margin distribution machines that find their own settings, in the manner of `LogisticRegressionCV`."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar

from dask_odm.estimators.odm_classifier import ODMClassifier
from dask_odm.estimators.odm_estimator import ODMEstimator
from dask_odm.estimators.odm_regressor import ODMRegressor, RegressionEstimator
from dask_odm.estimators.registry import solver_class
from dask_odm.estimators.search.recipe import SearchFamily
from dask_odm.estimators.search.search_fit import SearchParameters
from dask_odm.learning.parameters import SolverClasses, SolverOptions, parameter, with_parameters
from dask_odm.methods.settings import Cells, Exact, Landmark, Newton

SEARCHED: SolverClasses = (Exact, Landmark, Cells, solver_class("SODM"), Newton)


@with_parameters
class ODMClassifierCV(SearchParameters, ODMEstimator):
    """`ODMClassifier` that chooses kernel, scaling, γ, λ, υ and θ for the data, and the number of landmarks if you
    name several.

    Many settings are tried on a sample of 2,000 rows, and the best and their neighbours on 8,000 rows; folds judge the
    best of few rows. The kernel values of a sample are computed once per γ and shared by all λ, υ and θ, and each
    solve starts from the one before. Settings are compared by the logistic loss of left-out rows, which chance moves
    less than their accuracy. The last fit uses the best settings and all rows.

    Parameters
    ----------
    upsilons : array-like of float or None, default=None
        Values of υ in [0, 1]. None: 0.0125, 0.05, 0.2 and 0.8.
    thetas : array-like of float or None, default=None
        Values of θ in [0, 1). None: 0.1, 0.3 and 0.6.
    solver : str, solver object, or sequence of `dask_odm.solvers.Landmark`, default="auto"
        Solver of the last fit: "auto", "exact", "landmark", "cells", "newton" or "sodm", or an object of
        `dask_odm.solvers`. With a `Landmark` object, trials use at most ``n_landmarks``. Of several `Landmark` objects,
        the best is chosen. With "cells", settings are tried on three cells. "auto" tries settings over landmarks, and
        then on cells if a narrower kernel gains there.
    multi_class : {"ovr", "ovo"} or None, default=None
        How the last fit learns more than two classes, see `ODMClassifier`. Trials use one-vs-rest.

    Attributes
    ----------
    best_params_ : dict
        ``gamma``, ``lam``, ``upsilon`` and ``theta``, as `ODMClassifier` takes them for all rows, and ``kernel``,
        ``scale`` and ``solver`` if there were several to choose from, and ``metric``, with its values, if one is
        better. "linear" has no ``gamma`` and no ``solver``. A scaling that you named is not among them: also pass
        ``scale=search.scale_``.
    cell_params_ : dict of lists
        With ``Cells(settings="each")``, this replaces ``best_params_``, ``best_index_`` and ``cv_results_``: ``gamma``,
        ``lam`` (the value for all rows), ``upsilon`` and ``theta`` of every cell, or nan in cells of one class.
        ``best_score_`` is then the mean score of the cells, weighted by their rows.
    coef_, intercept_, dual_coef_, loo_decision_function_, loo_score_, probability_link_
        As in `ODMClassifier`, from the last fit.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dask_odm import ODMClassifierCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ODMClassifierCV(random_state=0).fit(X, y).best_score_ > 0.97
    True
    """

    _solvers = SEARCHED
    _instead: ClassVar[dict[str, str]] = {
        "n_landmarks": "the solver has it now, solver=dask_odm.solvers.Landmark(n_landmarks=…); a list of such objects "
        "is chosen from.",
    }
    _family = SearchFamily()
    _saved: ClassVar[tuple[str, ...]] = ("cell_params_",)
    _plain = ODMClassifier
    _axes: ClassVar[tuple[str, ...]] = ("gammas", "lams", "upsilons", "thetas")

    _: KW_ONLY
    upsilons: Any = parameter(None, "array-like", None)
    thetas: Any = parameter(None, "array-like", None)
    solver: Any = parameter("auto", SolverOptions(SEARCHED), "array-like")


@with_parameters
class ODMRegressorCV(SearchParameters, RegressionEstimator):
    """`ODMRegressor` that finds its kernel, scaling, γ and λ by left-out rows of samples, and learns all rows.

    Attributes
    ----------
    best_params_ : dict
        ``kernel``, ``gamma`` and ``lam``, as `ODMRegressor` takes them for all rows, ``scale`` if there were several,
        and ``metric``, with its values, if one is better.
    loo_prediction_, loo_score_, conformity_, dual_coef_, coef_, intercept_
        As in `ODMRegressor`, from the last fit.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from dask_odm import ODMRegressorCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> ODMRegressorCV(random_state=0).fit(X, y).nested_score_ > 0.45
    True
    """

    _family = SearchFamily()
    _plain = ODMRegressor
