"""What `ODMClassifier` and `ODMClassifierCV` share: parameters, and probabilities of the classes."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import KW_ONLY, replace
from numbers import Integral, Real
from types import MethodType
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from dask_odm.errors import InputError
from dask_odm.estimators.lazy_values import map_blocks
from dask_odm.estimators.mixins import StoreClassifier
from dask_odm.estimators.shared_parameters import PolynomialParameters
from dask_odm.learning.parameters import with_parameters
from dask_odm.methods.left_out import LEFT_OUT
from dask_odm.models.log_odds import log_probabilities, probabilities
from dask_odm.models.pairs import coupled, log_coupled
from dask_odm.typing import Array


class NoProbabilitiesError(InputError, AttributeError):
    """The model was fitted without what probabilities need."""


class _NeedsLink:
    """A method that only models with a link have, like scikit-learn's `available_if`, but the error has the way out."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self._method
        if not (hasattr(model, "probability_link_") if hasattr(model, "classes_") else model.loo):
            raise NoProbabilitiesError(
                f"{self._method.__name__} needs leave-one-out scores, which this {type(model).__name__} is fitted "
                "without; fit it with loo=True (--loo)."
            )
        return MethodType(self._method, model)


@with_parameters
class ODMEstimator(PolynomialParameters, StoreClassifier):
    """A classifier that has probabilities if it was fitted with ``loo``.

    Parameters
    ----------
    tol : float, default=1e-3
        Relative duality gap to reach; of "landmark", over the span.
    max_iter : int, default=200
        Most steps of Newton over a partition or all rows, or epochs of the svrg solvers.
    loo : bool, default=False
        Find what the model would say of each training row without having learned from it; probabilities need it.
    fit_intercept : bool, default=True
        Adds 1 to the kernel: a regularised intercept. The papers have none.
    class_weight : dict, "balanced" or None, default=None
        What the weights of a class's rows are multiplied by; "balanced" gives all classes the same weight.
    multi_class : {"ovr", "ovo"} or None, default=None
        How more than two classes are learned: each against the rest, or every two. None: "ovr" for the linear kernel
        and with ``loo``, else "ovo".
    dtype : {"float32", "float64"} or None, default=None
        Number type to compute in. None keeps the rows' own. The gap is always held against float64.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "tol": [Interval(Real, 0.0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "loo": ["boolean"],
        "fit_intercept": ["boolean"],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "multi_class": [StrOptions({"ovr", "ovo"}), None],
    }
    _instead: ClassVar[dict[str, str]] = {
        "probability": "loo=True (--loo) makes a model that has probabilities, without refits.",
    }
    _saved: ClassVar[tuple[str, ...]] = ("dual_gap_", "history_", "n_iter_", "support_", "dual_coef_", *LEFT_OUT)
    _unsaved: ClassVar[tuple[str, ...]] = ("loo_decision_function_",)

    _: KW_ONLY
    tol: float = 1e-3
    max_iter: int = 200
    loo: bool = False
    fit_intercept: bool = True
    class_weight: dict[Any, float] | str | None = None
    multi_class: str | None = None

    @_NeedsLink
    def predict_proba(self, X: Any) -> Any:
        """Return the probability of every class, (n, n_classes), float64, in the form of `decision_function`.

        A DataArray is named "probability". The most probable class is the one that `predict` returns, except for pairs
        of classes whose votes are close. ``docs/left_out.md`` tells how probabilities are made of leave-one-out
        decision values. With ``class_weight`` or ``sample_weight``, they are those of rows drawn by these weights.

        Raises
        ------
        NoProbabilitiesError
            The model was fitted without leave-one-out scores; an AttributeError, and an InputError.
        InputError
            As `decision_function`.
        """
        return self._linked(X, probabilities, coupled, "probability")

    @_NeedsLink
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithms of the probabilities of `predict_proba`, exact even next to 0."""
        return self._linked(X, log_probabilities, log_coupled, "log_probability")

    def _linked(self, X: Any, plain: Callable[..., Array], of_pairs: Callable[..., Array], name: str) -> Any:
        """Apply a function of decision values and the link, or its version for pairs of classes.

        The result has one column per class.
        """
        check_is_fitted(self)
        columns = len(self.classes_)
        function = plain
        estimator: ODMEstimator = self
        more: tuple[Any, ...] = (self.probability_link_,)
        if getattr(self._model, "pairs", 0):
            estimator = self._of_machines()
            function = of_pairs
            more = (*more, columns)
        scores = estimator._values(self._resolve(X))
        if isinstance(scores, np.ndarray):
            found: Any = function(scores, *more)
        else:
            found = map_blocks(function, scores, np.float64, *more, columns=columns)
        return self._like(X, found, name, self.classes_)

    def _of_machines(self) -> ODMEstimator:
        """Return this classifier with the values of its machines in place of the classes' scores."""
        other = copy(self)
        other._adopt(replace(cast(Any, self._model), pairs=0))
        other._token = f"{self._token}-machines"
        return other
