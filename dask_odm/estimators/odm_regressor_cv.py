"""The search for settings of `ODMRegressor`: kernel, γ and λ by left-out rows of a sample."""

from __future__ import annotations

from typing import Any, ClassVar

from dask_odm.estimators.odm_regressor import ODMRegressor, RegressionEstimator
from dask_odm.estimators.search.recipe import SearchFamily
from dask_odm.estimators.search.search_fit import SearchParameters
from dask_odm.learning.parameters import with_parameters
from dask_odm.learning.training.family import Family


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

    _family: ClassVar[Family[Any]] = SearchFamily()
    _plain: ClassVar[Any] = ODMRegressor
