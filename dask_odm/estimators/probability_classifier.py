"""Probabilities of classes, and sets of likely classes, from the decision values of left-out or held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dask_odm.errors import InputError
from dask_odm.estimators.mixins import StoreClassifier
from dask_odm.learning.problem.linear import EXACT_FEATURES
from dask_odm.models.probabilities import answers_of_all, coupled, learned_values, of_labels, probabilities
from dask_odm.models.sets import conformity_table, sets, thresholds_of
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
            way_out = "fit it with loo=True (--loo)."
            if hasattr(model, "text_recipe_") and model.n_features_in_ >= EXACT_FEATURES:
                way_out = (
                    f"and texts of {model.n_features_in_:,} features are too many for loo=True. After calibrate(X, y) "
                    "with rows that were held out (dask-odm calibrate), predict_set (--sets) says which classes are "
                    "plausible. Or ingest the texts with n_features=1024 (--hash 1024), and fit with loo=True (--loo)."
                )
            raise NoProbabilitiesError(
                f"{self._method.__name__} needs leave-one-out scores, which this {type(model).__name__} is fitted "
                f"without; {way_out}"
            )
        return MethodType(self._method, model)


class ProbabilityClassifier(StoreClassifier):
    """A classifier that has probabilities if its fit left rows out."""

    def _of_learned(self, values: Array, codes: Array, weight: Array) -> tuple[Array, Array, Array]:
        """Return values, codes and weights of the rows of learned classes, as if there were no other classes."""
        lacking = self._model.lacking
        if not lacking:
            return values, codes, weight
        own = np.flatnonzero(~np.isin(codes, lacking))
        codes = codes[own]
        return learned_values(values[own], lacking), codes - np.searchsorted(lacking, codes), weight[own]

    @property
    def _threshold(self) -> Any:
        return getattr(self, "threshold_", 0.0)

    @_NeedsLink
    def predict_proba(self, X: Any) -> Any:
        """Return the probability of every class, (n, n_classes), float64, in the form of `decision_function`.

        For a matrix of labels, it is that of each label by itself, (n, n_labels), as in scikit-learn's `MLPClassifier`.

        A DataArray is named "probability". The most probable class is the one that `predict` returns, except for pairs
        of classes whose votes are close. ``docs/probabilities.md`` explains how leave-one-out decision values become
        probabilities. With ``class_weight`` or ``sample_weight``, probabilities are for rows drawn by these weights.

        Parameters
        ----------
        X : rows of shape (n, d), or a cube
            As `decision_function` takes them.

        Raises
        ------
        NoProbabilitiesError
            The model was fitted without ``loo``. The error is an AttributeError and an InputError.
        InputError
            As `decision_function`.
        """
        return self._linked(X, "probability", 0.0, log=False)

    @_NeedsLink
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithms of the probabilities of `predict_proba`, exact even for probabilities near 0.

        Parameters
        ----------
        X : rows of shape (n, d), or a cube
            As `decision_function` takes them.
        """
        return self._linked(X, "log_probability", -np.inf, log=True)

    def predict_set(self, X: Any, coverage: float = 0.9, *, by_class: bool = False) -> Any:
        """Return the set of likely classes of every row, bool (n, n_classes), in the form of `decision_function`.

        The set of a row contains its true class with a probability of about ``coverage``. A set is larger if the model
        is less sure, and may be empty if the row resembles no training rows. Thresholds are quantiles of left-out
        decision values of the training rows for their own classes. After `calibrate`, they are quantiles over held-out
        rows, and only then is the coverage exact. ``docs/probabilities.md`` says more.

        Parameters
        ----------
        X : rows
            As `decision_function` takes them. A DataArray that is returned is named "set".
        coverage : float, default=0.9
            Probability in (0, 1) that the set contains the true class.
        by_class : bool, default=False
            Whether the coverage holds for every class by itself, instead of for all rows together. Sets are then
            larger.

        Raises
        ------
        InputError
            As `decision_function`; a coverage out of range; a fit without ``loo``, or by pairs of classes with
            groups, before `calibrate`.
        """
        check_is_fitted(self)
        self._refuse_labels("predict_set")
        if not hasattr(self, "conformity_"):
            raise InputError(
                "sets need rows that the model did not learn from: fit with loo=True, and with multi_class='ovr' if "
                "there are more than two classes, or call calibrate(X, y)."
            )
        thresholds = thresholds_of(self.conformity_, coverage, by_class=by_class)
        return self._by_class(X, sets, "set", bool, False, thresholds, self._threshold)

    def calibrate(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Take the thresholds of `predict_set` from rows that were held out of the fit.

        The attribute ``calibration_rows_`` then has the number of these rows.

        Parameters
        ----------
        X, y, sample_weight
            As `score` takes them: rows in memory or a store, with their labels.

        Returns
        -------
        self

        Raises
        ------
        InputError
            As `score`; no row belongs to a class that the model knows.
        """
        self._refuse_labels("calibrate")
        values, codes, weight = self._of_learned(*self._values_of_labelled(X, y, sample_weight))
        classes = len(self.classes_) - len(self._model.lacking)
        self.conformity_ = conformity_table(values + self._threshold, codes, weight, classes)
        self.calibration_rows_ = len(codes)
        return self

    def _linked(self, X: Any, name: str, of_lacking: float, *, log: bool) -> Any:
        """Return probabilities or their logarithms, a column for every class: ``of_lacking`` of those without a row."""
        check_is_fitted(self)
        link = self.probability_link_
        if getattr(self._model, "pairs", 0):
            classes = len(self.classes_) - len(self._model.lacking)
            of_pairs = partial(coupled, log=log)
            return self._by_class(X, of_pairs, name, np.float64, of_lacking, link, classes, of_machines=True)
        of_values = partial(of_labels if self._has_labels else probabilities, log=log)
        return self._by_class(X, of_values, name, np.float64, of_lacking, link, self._threshold)

    def _by_class(
        self,
        X: Any,
        function: Callable[..., Array],
        name: str,
        dtype: Any,
        of_lacking: Any,
        *arguments: Any,
        of_machines: bool = False,
    ) -> Any:
        """Return ``function(values, *arguments)`` of all rows' decision values, a column for every class.

        It is ``of_lacking`` for classes that had no row. With ``of_machines``, values are those of the machines instead
        of the classes.
        """
        lacking = self._model.lacking
        if lacking:
            arguments = (function, lacking, of_lacking, not of_machines, *arguments)
            function = answers_of_all
        giver = self._changed("machines", pairs=0, lacking=()) if of_machines else self
        return self._answered(X, name, function, *arguments, dtype=dtype, columns=len(self.classes_), giver=giver)
