"""Thresholds and scores of classifiers that know each training row's left-out value.

`dask_odm.estimators.base.StoreEstimator` has `fit`; left-out values come from `dask_odm.methods.left_out`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from functools import cache
from typing import Any, ClassVar, Self
from uuid import uuid4

import numpy as np
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from dask_odm.errors import InputError
from dask_odm.estimators.probability_classifier import ProbabilityClassifier
from dask_odm.estimators.scoring import LeftOutScores, Scorer, Scoring, tuned_threshold
from dask_odm.learning.parameters import parameter, with_parameters
from dask_odm.methods.left_out import LEFT_OUT, LEFT_OUT_ROWS, is_right
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
class ODMEstimator(LeftOutScores, ProbabilityClassifier):
    """A classifier that has probabilities if it was fitted with ``loo``.

    Parameters
    ----------
    max_iter : int, default=200
        Maximum number of Newton steps over a partition or all rows, or of epochs of "dsvrg", "svrg" and "csvrg".
    class_weight : dict, "balanced" or None, default=None
        Factors for the row weights of each class. "balanced" gives all classes the same total weight.
    multi_class : {"ovr", "ovo"} or None, default=None
        How more than two classes are learned: one-vs-rest or one-vs-one. None: "ovr" for the linear kernel and with
        ``loo``, else "ovo"; of more than 5,000 rows, "auto" leaves rows out of pairs if that is quick.
    """

    _instead: ClassVar[dict[str, str]] = {
        "probability": "loo=True (--loo) makes a model that has probabilities, without refits.",
    }
    _saved: ClassVar[tuple[str, ...]] = ("dual_coef_", "threshold_", "calibration_rows_", "multilabel_", *LEFT_OUT)
    _unsaved: ClassVar[tuple[str, ...]] = ("loo_decision_function_",)
    scored_by: ClassVar[str] = "accuracy"
    _left_out: ClassVar[str] = "loo_decision_function_"

    _: KW_ONLY
    class_weight: dict[Any, float] | str | None = parameter(None, StrOptions({"balanced"}), dict, None)
    multi_class: str | None = parameter(None, StrOptions({"ovr", "ovo"}), None)

    def _to_score(self, scorers: Mapping[str, Scorer]) -> tuple[Scoring, Array, Array, Array]:
        score = Scoring(scorers, np.delete(self.classes_, self._model.lacking), self._threshold)
        if pairs := self._model.pairs:
            return replace(score, pairs=pairs, link=self.probability_link_), *self._rows_left_out()
        return score, *self._of_learned(*self._rows_left_out())

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
