"""Classifiers that know each training row's left-out value: probabilities, sets of likely classes, thresholds, scores.

`settings_of` makes the settings of a fit, of regressors as well. `dask_odm.estimators.base.StoreEstimator` has `fit`;
left-out values come from `dask_odm.methods.left_out`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, replace
from functools import cache, partial
from types import MethodType
from typing import Any, ClassVar, Self, TypeVar
from uuid import uuid4

import numpy as np
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from dask_odm.errors import InputError
from dask_odm.estimators.groups import numbered
from dask_odm.estimators.mixins import StoreClassifier
from dask_odm.estimators.scoring import LeftOutScores, Scorer, Scoring, tuned_threshold
from dask_odm.learning.parameters import parameter, solver_object, solver_word, with_parameters
from dask_odm.learning.problem.linear import EXACT_FEATURES
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.methods.left_out import LEFT_OUT, LEFT_OUT_PAIRS, LEFT_OUT_ROWS, is_right
from dask_odm.methods.odm_fit import LastFit, ODMFit
from dask_odm.methods.recipes import is_linear
from dask_odm.methods.settings import Landmark
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.pair_model import PairModel
from dask_odm.models.probabilities import answers_of_all, coupled, learned_values, of_labels, probabilities
from dask_odm.models.sets import conformity_table, sets, thresholds_of
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
F = TypeVar("F", bound=ODMFit)


@cache
def advise_groups() -> None:
    """Say, once, that scores of single rows with coordinates are flattered by their neighbours."""
    logger.warning(
        "Rows have coordinates, and are left out singly: their neighbours stay, so that scores may be too good for "
        "new places. Give groups, such as blocks of places: dask_odm.spatial_blocks, --blocks in a shell."
    )


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


@with_parameters
class ODMEstimator(LeftOutScores, StoreClassifier):
    """A classifier that has probabilities if it was fitted with ``loo``.

    Parameters
    ----------
    max_iter : int, default=200
        Maximum number of Newton steps over a partition or all rows, or of epochs of "dsvrg", "svrg" and "csvrg".
    class_weight : dict, "balanced" or None, default=None
        Factors for the row weights of each class. "balanced" gives all classes the same total weight.
    multi_class : {"ovr", "ovo"} or None, default=None
        How more than two classes are learned: one-vs-rest or one-vs-one. None: "ovr" for the linear kernel and with
        ``loo``, else "ovo"; of 125 rows a class or more, "auto" leaves rows out of pairs if that is quick.
    """

    _instead: ClassVar[dict[str, str]] = {
        "probability": "loo=True (--loo) makes a model that has probabilities, without refits.",
    }
    _saved: ClassVar[tuple[str, ...]] = ("dual_coef_", "threshold_", "calibration_rows_", "multilabel_", *LEFT_OUT)
    _unsaved: ClassVar[tuple[str, ...]] = ("loo_decision_function_", LEFT_OUT_PAIRS)
    scored_by = "accuracy"
    _left_out = "loo_decision_function_"

    _: KW_ONLY
    class_weight: dict[Any, float] | str | None = parameter(None, StrOptions({"balanced"}), dict, None)
    multi_class: str | None = parameter(None, StrOptions({"ovr", "ovo"}), None)

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
            As `decision_function`; a coverage out of range; a fit without ``loo``, or by pairs with groups of
            several classes, before `calibrate`.
        """
        check_is_fitted(self)
        self._refuse_labels("predict_set")
        if not hasattr(self, "conformity_"):
            raise InputError(
                "sets need rows that the model did not learn from: fit with loo=True, and with multi_class='ovr' if "
                "there are more than two classes, or call calibrate(X, y)."
            )
        thresholds = thresholds_of(self.conformity_, coverage, by_class=by_class)
        return self._by_class(X, partial(sets, thresholds=thresholds, moved=self._threshold), "set", bool, False)

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
        known: dict[str, Any] = {"link": self.probability_link_, "log": log}
        if getattr(self._model, "pairs", 0):
            of_pairs = partial(coupled, classes=len(self.classes_) - len(self._model.lacking), **known)
            return self._by_class(X, of_pairs, name, np.float64, of_lacking, of_machines=True)
        of_values = partial(of_labels if self._has_labels else probabilities, threshold=self._threshold, **known)
        return self._by_class(X, of_values, name, np.float64, of_lacking)

    def _by_class(
        self, X: Any, function: Callable[[Array], Array], name: str, dtype: Any, nothing: Any, of_machines: bool = False
    ) -> Any:
        """Return ``function(values)`` of all rows' decision values, a column for every class.

        It is ``nothing`` for classes that had no row. With ``of_machines``, values are those of the machines instead of
        the classes.
        """
        lacking = self._model.lacking
        if lacking:
            more = {"lacking": lacking, "nothing": nothing, "of_all": not of_machines}
            function = partial(answers_of_all, function=function, **more)
        giver = self._changed("machines", pairs=0, lacking=()) if of_machines else self
        return self._answered(X, name, function, dtype=dtype, columns=len(self.classes_), giver=giver)

    def _to_score(self, scorers: Mapping[str, Scorer]) -> tuple[Scoring, Array, Array, Array]:
        rows = self._of_learned(*self._rows_left_out())
        score = Scoring(scorers, np.delete(self.classes_, self._model.lacking), self._threshold)
        if pairs := self._model.pairs:
            values = getattr(self, LEFT_OUT_PAIRS)[getattr(self, LEFT_OUT_ROWS)[1] > 0]
            score = replace(score, proba=partial(coupled, values, self.probability_link_, pairs))
        return score, *rows

    def tune_threshold(
        self, scoring: Any = "balanced_accuracy", X: Any = None, y: Any = None, sample_weight: Any = None
    ) -> Self:
        """Move the boundary between two classes to where a score of left-out rows is best, without a refit.

        From then on, decision values are smaller by ``threshold_``. Values above 0 still mean ``classes_[1]``, in
        memory, over stores and in maps. A saved model keeps the threshold, and the next fit removes it. Probabilities
        and sets do not change. scikit-learn's `TunedThresholdClassifierCV` does the same with refits.

        Each of several labels of a row has a threshold, where its own score is best. A label that all rows have, or
        none, keeps its boundary.

        Parameters
        ----------
        scoring : str, callable or float, default="balanced_accuracy"
            Score to maximise, as ``scoring`` of `ODMClassifierCV`, such as "f1" or `CostScorer`. Or the share of the
            rows, between 0 and 1, that should be predicted as ``classes_[1]``.
        X, y, sample_weight
            Rows that were held out of the fit, as `score` takes them. By default, left-out values of the training rows
            are used.

        Returns
        -------
        self

        Raises
        ------
        InputError
            More than two classes, or rows of one class only; neither rows nor a fit with ``loo``; several scores, or a
            score that does not depend on predictions; or as `score`.
        """
        check_is_fitted(self)
        if len(self.classes_) != 2 and not self._has_labels:
            raise InputError(f"a threshold is between two classes, but there are {len(self.classes_)}.")
        if X is None and (y is not None or sample_weight is not None):
            raise InputError("y and sample_weight are of rows X: give X, too, or none of them.")
        values, codes, weight = self._rows_left_out() if X is None else self._values_of_labelled(X, y, sample_weight)
        if not self._has_labels:
            if len(np.unique(codes)) < 2:
                raise InputError("a threshold needs rows of both classes, but there are those of one.")
            self._move_boundary(tuned_threshold(scoring, values, codes, weight, self.classes_))
            return self
        each = zip(values.T, codes.T, strict=True)
        two = np.arange(2)
        found = [tuned_threshold(scoring, own, y, weight, two) if y.min() < y.max() else 0.0 for own, y in each]
        self._move_boundary(np.array(found))
        return self

    def _move_boundary(self, by: Any) -> None:
        """Make all decision values smaller, those of left-out rows, too."""
        model: Any = self._model
        self._model = replace(model, intercept=model.intercept - by)
        self._file = None
        self._token = uuid4().hex
        self.intercept_ = self._model.intercept.copy()
        self.threshold_ = self._threshold + by
        if hasattr(self, "loo_group_scores_"):  # which were those of the boundary before
            del self.loo_group_scores_
        if hasattr(self, LEFT_OUT_ROWS):
            self.loo_decision_function_: Array = self.loo_decision_function_ - by
            values, codes, weight = self._rows_left_out()
            self.loo_score_ = float(np.average(is_right(values, codes), weights=weight))
        elif hasattr(self, "loo_score_"):  # of a model from a file, whose rows are gone
            del self.loo_score_


def settings_of(model: Any, kind: type[F], run: FitRun, more: dict[str, Any], **own_settings: Any) -> F:
    """Return the settings of the fit ``run`` of an estimator; ``more`` are as `StoreEstimator._settings` takes them."""
    own = solver_object(model.solver, model._solvers) or Landmark()  # "auto" takes others later, if at all
    groups = None if more.get("groups") is None else numbered(more["groups"])
    if groups is not None and not model.loo:
        raise InputError("groups say what leave-one-out leaves out: set loo to True, or give none.")
    if more.get("places") and groups is None and model.loo:
        advise_groups()
    found = kind.of(model, own, run, more.get("lams", ()), word=solver_word(model.solver), **own_settings)
    return replace(found, groups=groups, **(_start(model) if model.warm_start else {}))


def _start(estimator: Any) -> dict[str, Any]:
    """Return the start for ``warm_start``: weights and intercepts, or the solution of the last fit of a kernel."""
    word = solver_word(estimator.solver)
    model: Any = getattr(estimator, "_model", None)
    if is_linear(word, estimator.kernel):
        found = zip(model.weights, model.intercept.tolist(), strict=True) if hasattr(estimator, "coef_") else ()
        return {"starts": tuple(found)}
    if word not in ("auto", "exact", "landmark", "cells") or not KernelChoice.of(estimator).is_named:
        raise InputError(
            "warm_start is for kernels by their names, by solver 'exact', 'landmark' or 'cells', and for linear "
            "solvers; set it to False."
        )
    from_zero = isinstance(model, PairModel) and not estimator.loo  # as machines do that are learned at once
    if not isinstance(model, KernelModel) or from_zero or not hasattr(estimator, "support_"):
        return {}
    tree = getattr(model, "tree", None)
    last = LastFit(estimator.support_, model.raw_support, model.machine_coefficients, model.scaling, tree)
    if getattr(estimator, "multi_class", "") is None:
        return {"last": last, "scheme": "ovo" if model.pairs else "ovr", "any_scheme": False}
    return {"last": last}
