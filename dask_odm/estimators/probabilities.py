"""Classifiers with class probabilities, by a link function that was fitted to leave-one-out scores."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dask_odm.errors import InputError
from dask_odm.estimators.lazy_values import map_blocks
from dask_odm.estimators.mixins import StoreClassifier
from dask_odm.models.log_odds import log_probabilities, probabilities
from dask_odm.models.pairs import coupled, log_coupled
from dask_odm.typing import Array


class NoProbabilitiesError(InputError, AttributeError):
    """The model was fitted without what probabilities need."""


class ProbabilisticClassifier(StoreClassifier):
    """A classifier with `predict_proba` if it has a ``probability_link_``, which ``loo`` asks for."""

    _instead: ClassVar[dict[str, str]] = {
        **StoreClassifier._instead,
        "probability": "loo=True (--loo) makes a model that has probabilities, without refits.",
    }

    @property
    def predict_proba(self) -> Callable[[Any], Any]:
        """Probability of every class: ``predict_proba(X)``, (n, n_classes), float64.

        It takes and returns what `decision_function` does; of an xarray object a DataArray named "probability". The
        most probable class is the one that `predict` returns, except for pairs of classes whose votes are close.
        ``docs/left_out.md`` tells how probabilities are made of leave-one-out decision values. With ``class_weight`` or
        ``sample_weight``, they are those of rows drawn by these weights.

        Raises
        ------
        NoProbabilitiesError
            The model was fitted without leave-one-out scores; an AttributeError, and an InputError.
        InputError
            As `decision_function`.
        """
        self._require_link("predict_proba")
        return self._predict_proba

    @property
    def predict_log_proba(self) -> Callable[[Any], Any]:
        """Logarithms of the probabilities of `predict_proba`, exact even next to 0: ``predict_log_proba(X)``."""
        self._require_link("predict_log_proba")
        return self._predict_log_proba

    def _require_link(self, name: str) -> None:
        fitted = hasattr(self, "classes_")
        if not (hasattr(self, "probability_link_") if fitted else self.loo):
            raise NoProbabilitiesError(
                f"{name} needs leave-one-out scores, which this {type(self).__name__} is fitted without; fit it with "
                "loo=True (--loo)."
            )

    def _predict_proba(self, X: Any) -> Any:
        return self._linked(X, probabilities, coupled, "probability")

    def _predict_log_proba(self, X: Any) -> Any:
        return self._linked(X, log_probabilities, log_coupled, "log_probability")

    # scikit-learn's scorers and displays tell by a method's name that its columns are probabilities of classes
    _predict_proba.__name__ = "predict_proba"
    _predict_log_proba.__name__ = "predict_log_proba"

    def _linked(self, X: Any, plain: Callable[..., Array], of_pairs: Callable[..., Array], name: str) -> Any:
        """Apply a function of decision values and the link, or its version for pairs of classes.

        The result has one column per class.
        """
        check_is_fitted(self)
        columns = len(self.classes_)
        function = plain
        estimator: ProbabilisticClassifier = self
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

    def _of_machines(self) -> ProbabilisticClassifier:
        """Return this classifier with the values of its machines in place of the classes' scores."""
        other = copy(self)
        model = cast(Any, self._model)
        other._model = replace(model, pairs=0)
        other._file = None
        other._token = f"{self._token}-machines"
        return other
