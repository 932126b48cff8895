"""Scores by scikit-learn's scorers of rows whose decision values are known, such as those of left-out rows.

A scorer asks a classifier or regressor for its answers about rows. `KnownValues` and `KnownNumbers` give answers that
they already have.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dask_odm.data.rows.scaling import SCALINGS
from dask_odm.data.rows.targets import RealValues
from dask_odm.data.store.statistics import listed, plain_item
from dask_odm.errors import InputError
from dask_odm.estimators.base import StoreEstimator
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.estimators.shared_parameters import KernelParameters, NewtonParameters
from dask_odm.learning.parameters import Registered, parameter, with_parameters
from dask_odm.methods.left_out import LEFT_OUT_ROWS
from dask_odm.models.predict import label_block, labels_block
from dask_odm.models.probabilities import answers_of_all, fit_link, joined_links, of_labels, probabilities
from dask_odm.printing import quoted
from dask_odm.typing import Array

Scorer = Callable[..., float]  # of an estimator, its rows, their labels and perhaps their weights


@dataclass(eq=False)
class KnownValues(ClassifierMixin, BaseEstimator):
    """A classifier of the rows whose decision ``values`` (n,) or (n, classes) it has; for X it takes their numbers.

    ``scoring`` has its classes, and ``link`` makes probabilities. If a row may have several ``labels``, these are the
    columns of the values.
    """

    values: Array
    scoring: Scoring
    link: Callable[[], Array]
    labels: bool

    def __post_init__(self) -> None:
        # of labels as scikit-learn's `MultiOutputClassifier` has them
        self.classes_ = [np.arange(2)] * self.values.shape[1] if self.labels else self.scoring.classes

    def decision_function(self, X: Any) -> Array:
        """Return the decision values of rows."""
        return self.values[X]

    def predict(self, X: Any) -> Array:
        """Return the labels of rows."""
        return labels_block(self.values[X]) if self.labels else label_block(self.values[X], self.scoring.classes)

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of rows, (n, classes)."""
        if self.scoring.proba is not None:
            return self.scoring.proba()[X]
        found = partial(of_labels if self.labels else probabilities, link=self.link(), threshold=self.scoring.threshold)
        lacking = self.scoring.lacking
        return answers_of_all(self.values[X], found, lacking, 0.0, True) if lacking else found(self.values[X])


@dataclass(frozen=True, eq=False)
class Scoring:
    """Scorers by name, the one that decides first, and the classes (k,) whose codes rows have.

    Decision values of two classes, or of labels, are what is left after a ``threshold`` was taken off. Probabilities
    are made by ``link``; without one it is fitted to the values themselves if ``fits``, as to those of left-out rows. A
    model had no row of the classes with the codes ``lacking``. ``proba`` makes the probabilities of all rows, (n, k),
    if their values do not tell them.
    """

    scorers: Mapping[str, Scorer]
    classes: Array
    threshold: Any = 0.0
    link: Array | None = None
    fits: bool = True
    lacking: tuple[int, ...] = ()
    proba: Callable[[], Array] | None = None

    def __call__(self, values: Array, codes: Array, weight: Array) -> Array:
        """Return all scores (q,) of rows with decision ``values`` (n,) or (n, k); only rows with a weight count.

        ``codes`` (n,) are of their classes, or (n, k) whether a row has each label. Raises InputError if a scorer
        cannot score them.
        """
        counted = np.flatnonzero(weight > 0)
        labels = codes.ndim == 2
        values, codes, weight = values[counted], codes[counted], weight[counted]

        def link() -> Array:
            if self.link is not None:
                return self.link
            if not self.fits:
                raise InputError("a score of probabilities needs a model fitted with loo=True (--loo), not of pairs.")
            if labels:
                each = zip((values + self.threshold).T, (codes > 0).T, strict=True)
                return joined_links([fit_link(*own, weight) for own in each])
            several = values.ndim == 2
            positive = codes[:, None] == np.arange(values.shape[1]) if several else codes == 1
            shares = np.repeat(weight, values.shape[1]) if several else weight
            return fit_link(values.ravel() + self.threshold, positive.ravel(), shares)

        known = KnownValues(values, self, link, labels)
        needs = f"of {len(np.unique(codes))} classes: it needs rows of every class"
        return _scores(self.scorers, known, codes if labels else self.classes[codes], weight, needs)


@dataclass(eq=False)
class KnownNumbers(RegressorMixin, BaseEstimator):
    """A regressor of the rows whose predicted ``values`` (n,) or (n, targets) it has; for X it takes their numbers."""

    values: Array

    def predict(self, X: Any) -> Array:
        """Return the predictions of rows."""
        return self.values[X]


@dataclass(frozen=True, eq=False)
class NumberScoring:
    """Scorers by name, the one that decides first, of predictions and targets in ``units``."""

    scorers: Mapping[str, Scorer]
    units: RealValues = field(default_factory=RealValues)

    def __call__(self, values: Array, targets: Array, weight: Array) -> Array:
        """Return all scores (q,) of predicted ``values``; raise InputError if a scorer cannot score them."""
        counted = np.flatnonzero(weight > 0)
        values, y = (self.units.mean + self.units.unit * each[counted] for each in (values, targets))
        return _scores(self.scorers, KnownNumbers(values), y, weight[counted], "with targets: it needs more")


def _scores(scorers: Mapping[str, Scorer], known: Any, y: Array, weight: Array, needs: str) -> Array:
    """Return all scores of the answers ``known`` of rows; the error about one that is not finite has ``needs``."""
    found = []
    equal = bool(len(weight)) and bool((weight == weight[0]).all())  # some scorers take no weights
    more = {} if equal else {"sample_weight": weight}
    for name, scorer in scorers.items():
        with warnings.catch_warnings():  # of scores that are not defined, about which the error below is
            warnings.simplefilter("ignore")
            try:
                score = float(as_input_error(partial(scorer, known, np.arange(len(y)), y, **more)))
            except (AttributeError, TypeError) as error:  # such as of probabilities, which numbers do not have
                raise InputError(f"scoring {name!r} cannot score these rows: {str(error).rstrip('.')}.") from error
        if not np.isfinite(score):
            raise InputError(
                f"scoring {name!r} is {score} for {len(y)} rows {needs}; use fewer folds, or another score."
            )
        found.append(score)
    return np.array(found)


@with_parameters
class LeftOutScores(NewtonParameters, KernelParameters, StoreEstimator):
    """An estimator that knows the value of each training row by the model without it, after a fit with ``loo``.

    ``scored_by`` names the score of scikit-learn's that its `score` is, and ``_left_out`` the attribute with values.

    Parameters
    ----------
    loo : bool, default=False
        Compute the value of each training row as if the model had not learned from the row. Probabilities and intervals
        need these values.
    fit_intercept : bool, default=True
        Add 1 to the kernel, which gives a regularised intercept, beside the mean of real targets. The papers have none.
    scale : {…} or None, default="auto"
        Scaling of the features, which the model also applies to new rows. "auto" is "standard", but None for
        precomputed kernels, for callables, for the linear kernel without an intercept, and for sparse rows such as
        texts: more than 2,048 features, of which at most a twentieth is stored. With the linear kernel, "standard" does
        not shift sparse rows.

    Attributes
    ----------
    lam_, scale_
        λ and scaling of the fit, which "auto" chose if it was to.
    loo_parameters_ : float
        With ``loo``, the effective number of parameters.
    support_, support_vectors_ : ndarray of shape (n_support,), and (n_support, d)
        Numbers of the rows with a coefficient, and these rows before scaling. Not for the linear kernel.
    dual_gap_ : float
        Relative duality gap (P − D)/P of the whole problem, with P for the model as it predicts. It is nan if it is not
        known, as for "landmark" without ``certify``. For several machines, it is the largest gap.
    history_ : list of dict
        One entry per step, epoch or level: gap, objective, passes over the rows, seconds. The first entry also has the
        solver and why it was chosen. For several machines, the entries of one machine follow those of another. With
        "cells", entries for the levels of the tree come first: nodes, cells, rows of the smallest and the largest cell,
        seconds.
    n_iter_ : int
        Number of steps or epochs, or the sum of the sweeps and steps of the longest solve of every level. For several
        machines, the largest number.
    """

    # with metadata routing, the groups of `GridSearchCV.fit` are its splitter's, unless `set_fit_request` asks for them
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": False}
    _saved: ClassVar[tuple[str, ...]] = (
        "lam_", "scale_", "dual_gap_", "support_", "loo_score_", "loo_parameters_", "conformity_"
    )  # fmt: skip
    _unsaved: ClassVar[tuple[str, ...]] = (LEFT_OUT_ROWS,)
    scored_by: ClassVar[str]
    _left_out: ClassVar[str]

    _: KW_ONLY
    loo: bool = False
    fit_intercept: bool = True
    solver: Any = "auto"
    scale: str | None = parameter("auto", Registered(SCALINGS, "auto"), None)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Self:
        """Learn from rows, and labels or targets; a search finds settings first, and learns with the best of them.

        Parameters
        ----------
        groups : array-like of shape (n,), DataArray, str or None
            With ``loo``, and in a search with ``cv=None``, the group of each row, such as a patient, a field or a
            station. The left-out value of a row is then that of the model without any row of its group, in closed form.
            Score, probabilities and intervals follow from these values. If the rows of a group resemble each other, as
            neighbouring pixels do, leaving out single rows makes the model look better than it is: leave out blocks of
            a scene (`spatial_blocks`). A splitter as ``cv`` such as scikit-learn's `GroupKFold` gets the groups. For a
            cube, a DataArray over some or all dimensions of the rows, or the name of a variable, in a frame a column.

        Raises
        ------
        InputError
            Parameters or data that cannot be learned from; groups without ``loo``, or with folds that would not keep
            them together; fewer than two groups, or groups for another number of rows.
        """
        return self._fitted(X, y, sample_weight, groups)

    def loo_score(self, scoring: Any = None) -> Any:
        """Return the leave-one-out score of the training rows by any scorer of scikit-learn, without a refit.

        Parameters
        ----------
        scoring : str, callable, several of them, dict, or None, default=None
            As ``scoring`` of `ODMClassifierCV`. None: accuracy, or R² of numbers.

        Returns
        -------
        score : float, or dict of float
            Of several scorers, by name.

        Raises
        ------
        InputError
            The model was fitted without ``loo``, by pairs with groups of several classes, or by an earlier version; it
            was loaded from a file, which has no values of rows; or a scorer does not suit the classes or targets.
        """
        scoring = self.scored_by if scoring is None else scoring
        check_is_fitted(self)
        scorers = scorers_of(scoring)
        score, *rows = self._to_score(scorers)
        found = score(*rows).tolist()
        return found[0] if isinstance(scoring, str) or callable(scoring) else dict(zip(scorers, found, strict=True))

    def _to_score(self, scorers: Mapping[str, Scorer]) -> tuple[Scoring | NumberScoring, Array, Array, Array]:
        """Return what scores left-out values, and the rows that it is called with."""
        return NumberScoring(scorers), *self._rows_left_out()

    def _rows_left_out(self) -> tuple[Array, Array, Array]:
        """Return left-out values, codes of classes or targets, and weights of the training rows; InputError without."""
        if not hasattr(self, LEFT_OUT_ROWS):
            raise InputError(
                "a model from a file has no left-out values of rows, nor has one that was fitted without loo=True, or "
                "by pairs with groups of several classes. Call this before save, or use rows that were held out: "
                "tune_threshold(scoring, X, y) and score(X, y) take them."
            )
        y, weight = getattr(self, LEFT_OUT_ROWS)
        counted = np.flatnonzero(weight)
        return getattr(self, self._left_out)[counted], y[counted], weight[counted]


def deciding_scorers(scoring: Any, refit: str | None) -> dict[str, Scorer] | None:
    """Return the scorers of a search by name, the one that decides first, ``refit`` if given; None for the default."""
    found = {} if scoring is None else scorers_of(scoring)
    if refit is not None and refit not in found:
        raise InputError(f"refit must be one of the scores, {list(found)}. Got {refit!r} instead.")
    first = {} if refit is None else {refit: found[refit]}
    return first | found or None


def tuned_threshold(scoring: Any, values: Array, codes: Array, weight: Array, classes: Array) -> float:
    """Return the threshold of two ``classes`` by a score, or a share of the rows, of `ODMEstimator.tune_threshold`.

    By a score, 0, one on either side of all values, and up to 400 others are tried, as far apart in ranks as can be. Of
    several that are best, it is the nearest to 0. Raises InputError for several scores, and for one that does not
    depend on predictions.
    """
    if isinstance(scoring, Real):
        return share_threshold(values, weight, float(scoring))
    scorers = scorers_of(scoring)
    if len(scorers) > 1:
        raise InputError(f"a threshold is tuned by one score. Got {list(scorers)} instead.")
    for name, scorer in scorers.items():
        asked = getattr(scorer, "_response_method", "predict")
        if "predict" not in ([asked] if isinstance(asked, str) else asked):
            raise InputError(f"a threshold changes what is predicted, which scoring={name!r} does not judge.")
    score = Scoring(scorers, classes)
    between = _between(values)
    chosen = between[np.unique(np.linspace(0, len(between) - 1, min(400, len(between))).astype(np.int64))]
    tried = np.concatenate([[0.0], between[:1], between[-1:], chosen])
    tried = tried[np.argsort(np.abs(tried), kind="stable")]
    return float(tried[np.argmax([score(values - threshold, codes, weight)[0] for threshold in tried])])


def share_threshold(values: Array, weight: Array, share: float) -> float:
    """Return the threshold above which the ``values`` (n,) of about a ``share`` of the ``weight`` (n,) lie.

    Raises InputError if the share is not between 0 and 1.
    """
    if not 0.0 < share < 1.0:
        raise InputError(f"a share of the rows must be between 0 and 1. Got {share!r} instead.")
    between = _between(values)
    order = np.argsort(values, kind="stable")
    below = np.concatenate([[0.0], np.cumsum(weight[order])])[np.searchsorted(values[order], between)]
    return float(between[np.argmin(np.abs(1.0 - below / weight.sum() - share))])


def _between(values: Array) -> Array:
    """Return a number below all values, one between every two different ones, and one above all, ascending."""
    distinct = np.unique(values)
    beyond = 1e-3 * max(1.0, float(np.abs(distinct).max()))
    return np.concatenate([[distinct[0] - beyond], 0.5 * (distinct[1:] + distinct[:-1]), [distinct[-1] + beyond]])


def scorers_of(scoring: Any) -> dict[str, Scorer]:
    """Return scorers by name, from a scorer, its name, several of these, or a dictionary.

    Raises InputError for a name that scikit-learn does not know, and for anything else.
    """
    from sklearn.metrics import get_scorer  # imported here, since it takes long to load

    given = scoring if isinstance(scoring, Mapping | Sequence | set) and not isinstance(scoring, str) else [scoring]
    names = (each if isinstance(each, str) else str(getattr(each, "__name__", type(each).__name__)) for each in given)
    named = given.items() if isinstance(given, Mapping) else zip(names, given, strict=True)
    found: dict[str, Scorer] = {}
    for name, each in named:
        if name in found:
            raise InputError(f"two scorers are called {name!r}: give a dictionary, which names them.")
        if not callable(each) and not isinstance(each, str):
            raise InputError(
                f"scoring must be a scorer of scikit-learn's or its name, or several. Got {each!r:.80} instead."
            )
        found[name] = as_input_error(partial(get_scorer, each))
    if not found:
        raise InputError("scoring must be one scorer or more. Got none instead.")
    return found


class CostScorer:
    """Scorer that returns minus the mean cost of the predictions.

    Parameters
    ----------
    costs : array-like of shape (n_classes, n_classes)
        ``costs[i][j]`` is the cost of predicting class j for a row of class i, in the order of ``classes_``.
    """

    def __init__(self, costs: Any) -> None:
        self.costs = as_input_error(lambda: np.array(costs, dtype=np.float64))
        shaped = self.costs.ndim == 2 and self.costs.shape[0] == self.costs.shape[1] > 0
        if not shaped or not np.isfinite(self.costs).all():
            raise InputError(f"costs must be a square of finite numbers. Got {costs!r:.80} instead.")

    def __repr__(self) -> str:
        return f"CostScorer({self.costs.tolist()})"

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return minus the mean cost of what ``estimator`` predicts for rows X of classes y."""
        classes = np.asarray(estimator.classes_)
        if len(classes) != len(self.costs):
            raise InputError(f"costs are of {len(self.costs)} classes, but there are {len(classes)}.")
        code = {label: i for i, label in enumerate(listed(classes))}
        try:
            true, found = ([code[plain_item(one)] for one in np.asarray(each)] for each in (y, estimator.predict(X)))
        except KeyError as error:
            raise InputError(
                f"costs are of the classes {quoted(list(code))}, and there is a label {quoted(error.args[0])}."
            ) from error
        return -float(np.average(self.costs[true, found], weights=sample_weight))
