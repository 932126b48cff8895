"""Thresholds and scores of classifiers that know each training row's left-out value.

`dask_odm.estimators.base.StoreEstimator` has `fit`; left-out values come from `dask_odm.methods.left_out`.
"""

from __future__ import annotations

import logging
from dataclasses import KW_ONLY, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, ClassVar, Self
from uuid import uuid4

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from dask_odm.errors import InputError
from dask_odm.estimators.probability_classifier import ProbabilityClassifier
from dask_odm.estimators.scoring import Scoring, best_threshold, scorers_of, share_threshold
from dask_odm.estimators.shared_parameters import OF_METRIC, KernelParameters
from dask_odm.learning.parameters import with_parameters
from dask_odm.methods.left_out import LEFT_OUT, LEFT_OUT_ROWS
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


@cache
def advise_groups() -> None:
    """Say, once, that scores of single rows with coordinates are flattered by their neighbours."""
    logger.warning(
        "Rows have coordinates, and are left out singly: their neighbours stay, so that scores may be too good for "
        "new places. Give groups, such as blocks of places: dask_odm.spatial_blocks, --blocks in a shell."
    )


@with_parameters
class ODMEstimator(KernelParameters, ProbabilityClassifier):
    """A classifier that has probabilities if it was fitted with ``loo``.

    Parameters
    ----------
    tol : float, default=1e-3
        Relative duality gap to reach. For "landmark", it is the gap of the problem over the landmarks.
    max_iter : int, default=200
        Maximum number of Newton steps over a partition or all rows, or of epochs of "dsvrg", "svrg" and "csvrg".
    loo : bool, default=False
        Compute the decision value of each training row as if the model had not learned from the row. Probabilities need
        these values.
    fit_intercept : bool, default=True
        Add 1 to the kernel, which gives a regularised intercept. The papers have no intercept.
    class_weight : dict, "balanced" or None, default=None
        Factors for the row weights of each class. "balanced" gives all classes the same total weight.
    multi_class : {"ovr", "ovo"} or None, default=None
        How more than two classes are learned: one-vs-rest or one-vs-one. None: "ovr" for the linear kernel and with
        ``loo``, else "ovo".
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
    _saved: ClassVar[tuple[str, ...]] = (
        "lam_", "scale_", "dual_gap_", "history_", "n_iter_", "support_", "dual_coef_", "threshold_",
        "calibration_rows_", "multilabel_", *LEFT_OUT, *OF_METRIC,
    )  # fmt: skip
    _unsaved: ClassVar[tuple[str, ...]] = ("loo_decision_function_", LEFT_OUT_ROWS)
    # with metadata routing, the groups of `GridSearchCV.fit` are its splitter's, unless `set_fit_request` asks for them
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": False}

    _: KW_ONLY
    tol: float = 1e-3
    max_iter: int = 200
    loo: bool = False
    fit_intercept: bool = True
    class_weight: dict[Any, float] | str | None = None
    multi_class: str | None = None

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Self:
        """Learn from rows and labels.

        Parameters
        ----------
        groups : array-like of shape (n,), DataArray, str or None
            With ``loo``, the group of each row, such as a patient, a field or a station. The left-out value of a row is
            then that of the model without any row of its group, in closed form. Score and probabilities follow from
            these values. If the rows of a group resemble each other, leaving out single rows makes the model look
            better than it is. For a cube, a DataArray over some or all dimensions of the rows, or the name of a
            variable.

        Returns
        -------
        self

        Raises
        ------
        InputError
            Parameters or data that cannot be learned from; groups without ``loo``, fewer than two groups, or groups for
            another number of rows.
        MemoryLimitError
            The fit would exceed the memory limit of a worker.
        StoreError
            A damaged store.
        """
        trained, schema = self._train(X, y, sample_weight, groups)
        self._publish(trained, schema)
        return self

    def loo_score(self, scoring: Any = "accuracy") -> Any:
        """Return the leave-one-out score of the training rows by any scorer of scikit-learn, without a refit.

        Parameters
        ----------
        scoring : str, callable, several of them, or dict, default="accuracy"
            As ``scoring`` of `ODMClassifierCV`.

        Returns
        -------
        score : float, or dict of float
            Of several scorers, by name.

        Raises
        ------
        InputError
            The model was fitted without ``loo``, by pairs of classes, or by an earlier version; it was loaded from a
            file, which has no values of rows; or a scorer does not suit the classes.
        """
        check_is_fitted(self)
        self._refuse_labels("loo_score")
        values, codes, weight = self._of_learned(*self._rows_left_out())
        scorers = scorers_of(scoring)
        score = Scoring(scorers, np.delete(self.classes_, self._model.lacking), self._threshold)
        found = score(values, codes, weight).tolist()
        return found[0] if isinstance(scoring, str) or callable(scoring) else dict(zip(scorers, found, strict=True))

    def _rows_left_out(self) -> tuple[Array, Array, Array]:
        """Return decision values, codes of classes and weights of the training rows, left out; InputError without."""
        check_is_fitted(self)
        if not hasattr(self, LEFT_OUT_ROWS):
            raise InputError(
                "a model from a file has no left-out values of rows, nor has one that was fitted without loo=True, or "
                "by pairs of classes. Call this before save, or use rows that were held out: "
                "tune_threshold(scoring, X, y) and score(X, y) take them."
            )
        codes, weight = getattr(self, LEFT_OUT_ROWS)
        counted = np.flatnonzero(weight)
        return self.loo_decision_function_[counted], codes[counted], weight[counted]

    def tune_threshold(
        self, scoring: Any = "balanced_accuracy", X: Any = None, y: Any = None, sample_weight: Any = None
    ) -> Self:
        """Move the boundary between two classes to where a score of left-out rows is best, without a refit.

        From then on, decision values are smaller by ``threshold_``. Values above 0 still mean ``classes_[1]``, in
        memory, over stores and in maps. A saved model keeps the threshold, and the next fit removes it. Probabilities
        and sets do not change. scikit-learn's `TunedThresholdClassifierCV` does the same with refits.

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
        self._refuse_labels("tune_threshold")
        if len(self.classes_) != 2:
            raise InputError(f"a threshold is between two classes, but there are {len(self.classes_)}.")
        if X is None and (y is not None or sample_weight is not None):
            raise InputError("y and sample_weight are of rows X: give X, too, or none of them.")
        values, codes, weight = self._rows_left_out() if X is None else self._values_of_labelled(X, y, sample_weight)
        if len(np.unique(codes)) < 2:
            raise InputError("a threshold needs rows of both classes, but there are those of one.")
        if isinstance(scoring, Real):
            self._move_boundary(share_threshold(values, weight, float(scoring)))
            return self
        scorers = scorers_of(scoring)
        if len(scorers) > 1:
            raise InputError(f"a threshold is tuned by one score. Got {list(scorers)} instead.")
        for name, scorer in scorers.items():
            asked = getattr(scorer, "_response_method", "predict")
            if "predict" not in ([asked] if isinstance(asked, str) else asked):
                raise InputError(f"a threshold changes what is predicted, which scoring={name!r} does not judge.")
        score = Scoring(scorers, self.classes_)
        self._move_boundary(best_threshold(lambda shifted: float(score(shifted, codes, weight)[0]), values))
        return self

    def _move_boundary(self, by: float) -> None:
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
            self.loo_score_ = float(np.average((values > 0) == codes, weights=weight))
        elif hasattr(self, "loo_score_"):  # of a model from a file, whose rows are gone
            del self.loo_score_
