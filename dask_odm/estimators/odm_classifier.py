"""The optimal margin distribution machine as a scikit-learn classifier: parameters, probabilities, paths of λ.

`dask_odm.estimators.base.StoreEstimator` has `fit`; the recipes are in `dask_odm.methods.recipes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import KW_ONLY, replace
from numbers import Integral, Real
from types import MethodType
from typing import Any, ClassVar, Self, cast
from uuid import uuid4

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from dask_odm.data.cubes.blocks import AnswerFormat
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError
from dask_odm.estimators.base import map_blocks
from dask_odm.estimators.groups import numbered
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.estimators.mixins import StoreClassifier
from dask_odm.estimators.scoring import Scoring, best_threshold, scorers_of, share_threshold
from dask_odm.estimators.shared_parameters import KernelParameters, PolynomialParameters
from dask_odm.learning.machines import Scheme
from dask_odm.learning.parameters import (
    SolverClasses,
    SolverObject,
    SolverOptions,
    solver_object,
    solver_word,
    with_parameters,
)
from dask_odm.learning.training.recipe import Choice, Schema, Trained, warn_of_nothing
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.left_out import LEFT_OUT, LEFT_OUT_ROWS, OF_MACHINE, joined_left_out
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.recipes import choose_by_regions, choose_for_machines, choose_solver, is_linear
from dask_odm.methods.settings import ODM_SOLVERS, Landmark
from dask_odm.models.models import Model
from dask_odm.models.probabilities import coupled, log_coupled, log_probabilities, probabilities
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
        "dual_gap_", "history_", "n_iter_", "support_", "dual_coef_", "threshold_", *LEFT_OUT
    )  # fmt: skip
    _unsaved: ClassVar[tuple[str, ...]] = ("loo_decision_function_", LEFT_OUT_ROWS)

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
        X, y, sample_weight
            As `StoreEstimator.fit` takes them.
        groups : array-like of shape (n,), DataArray, str or None
            With ``loo``, the group of each row: a patient, a field, a station. Left-out values are then by the model
            without any row of the group, in closed form, and so are the score and the probabilities that follow from
            them. Rows that resemble their group's others make the model look better than it is if left out singly.
            Of a cube, a DataArray over some or all dimensions of the rows, or the name of a variable.

        Returns
        -------
        self

        Raises
        ------
        InputError
            As `StoreEstimator.fit`; groups without ``loo``, fewer than two of them, or of another number of rows.
        """
        self._publish(*self._train(X, y, sample_weight, groups))
        return self

    def loo_score(self, scoring: Any = "accuracy") -> Any:
        """Score the training rows as they were left out, by any scorer of scikit-learn's; no refit.

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
            A fit without ``loo``, of pairs of classes, or by a version before this one; a model from a file, which has
            no values of rows; a scorer that does not suit the classes.
        """
        values, codes, weight = self._rows_left_out()
        scorers = scorers_of(scoring)
        score = Scoring(scorers, self.classes_, self._threshold)
        found = score(values, codes, weight).tolist()
        return found[0] if isinstance(scoring, str) or callable(scoring) else dict(zip(scorers, found, strict=True))

    def _rows_left_out(self) -> tuple[Array, Array, Array]:
        """Return decision values, codes of classes and weights of the training rows, left out; InputError without."""
        check_is_fitted(self)
        if not hasattr(self, LEFT_OUT_ROWS):
            raise InputError(
                "there are no left-out values of rows: fit with loo=True, and with multi_class='ovr' if there are more "
                "than two classes. A model from a file has none."
            )
        codes, weight = getattr(self, LEFT_OUT_ROWS)
        counted = np.flatnonzero(weight)
        return self.loo_decision_function_[counted], codes[counted], weight[counted]

    def tune_threshold(
        self, scoring: Any = "balanced_accuracy", X: Any = None, y: Any = None, sample_weight: Any = None
    ) -> Self:
        """Move the boundary between two classes to where a score of rows that were left out is best; no refit.

        Decision values are smaller by ``threshold_`` from then on. Those above 0 belong to ``classes_[1]`` as before,
        in memory, over stores and in maps; a file keeps it. Probabilities and sets stay what they are. The next fit has
        none.
        scikit-learn's `TunedThresholdClassifierCV` does the same by refits.

        Parameters
        ----------
        scoring : str, callable or float, default="balanced_accuracy"
            Score to be largest, as one of ``scoring`` of `ODMClassifierCV`, such as "f1" or `CostScorer`; or the share
            of the rows, between 0 and 1, that is to be predicted ``classes_[1]``.
        X, y, sample_weight
            Rows that were held out of the fit, as `score` takes them. By default the training rows, left out.

        Returns
        -------
        self

        Raises
        ------
        InputError
            More than two classes, or rows of one; a fit without ``loo`` and no rows; several scores, or one that does
            not judge what is predicted; or as `score`.
        """
        check_is_fitted(self)
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

    @property
    def _threshold(self) -> float:
        return getattr(self, "threshold_", 0.0)

    def _move_boundary(self, by: float) -> None:
        """Make all decision values smaller, those of left-out rows, too."""
        model: Any = self._model
        self._model = replace(model, intercept=model.intercept - by)
        self._file = None
        self._token = uuid4().hex
        self.intercept_ = self._model.intercept.copy()
        self.threshold_ = self._threshold + by
        if hasattr(self, LEFT_OUT_ROWS):
            self.loo_decision_function_: Array = self.loo_decision_function_ - by
            values, codes, weight = self._rows_left_out()
            self.loo_score_ = float(np.average((values > 0) == codes, weights=weight))
        elif hasattr(self, "loo_score_"):  # of a model from a file, whose rows are gone
            del self.loo_score_

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

    def predict_set(self, X: Any, coverage: float = 0.9, *, by_class: bool = False) -> Any:
        """Return which classes may be a row's own, bool (n, n_classes), in the form of `decision_function`.

        A row's set holds its class with a probability of about ``coverage``; it is larger where the model is less sure,
        and may be empty where nothing resembles what was learned. Thresholds are quantiles of the left-out decision
        values of the training rows' own classes, or those of other rows after `calibrate`; the guarantee is exact only
        for the latter. ``docs/left_out.md`` says more.

        Parameters
        ----------
        X : rows
            As `decision_function` takes them. A DataArray that is returned is named "set".
        coverage : float, default=0.9
            Probability in (0, 1) that the set holds the class.
        by_class : bool, default=False
            Whether it holds for every class by itself, instead of for all rows together. Sets are larger then.

        Raises
        ------
        InputError
            As `decision_function`; another coverage; a fit without ``loo``, or of pairs of classes, before `calibrate`.
        """
        check_is_fitted(self)
        if not isinstance(coverage, Real) or not 0.0 < coverage < 1.0:
            raise InputError(f"coverage must be a number between 0 and 1. Got {coverage!r} instead.")
        if not hasattr(self, "conformity_"):
            raise InputError(
                "sets need rows that the model did not learn from: fit with loo=True, and with multi_class='ovr' if "
                "there are more than two classes, or call calibrate(X, y)."
            )
        thresholds = thresholds_of(self.conformity_, float(coverage), by_class=by_class)
        return self._answered(X, sets, "set", bool, False, thresholds, self._threshold)

    def calibrate(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Take the thresholds of `predict_set` from rows that were held out of the fit.

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
            As `score`; no row of a class that the model has.
        """
        values, codes, weight = self._values_of_labelled(X, y, sample_weight)
        self.conformity_ = conformity_table(values + self._threshold, codes, weight, len(self.classes_))
        return self

    def _linked(self, X: Any, plain: Callable[..., Array], of_pairs: Callable[..., Array], name: str) -> Any:
        """Apply a function of decision values and the link, or that of pairs, for a column for every class."""
        if getattr(self._model, "pairs", 0):
            more = self.probability_link_, len(self.classes_)
            return self._of_machines()._answered(X, of_pairs, name, np.float64, np.nan, *more)
        return self._answered(X, plain, name, np.float64, np.nan, self.probability_link_, self._threshold)

    def _answered(
        self, X: Any, function: Callable[..., Array], name: str, dtype: Any, fill: Any, *arguments: Any
    ) -> Any:
        """Return ``function(values, *arguments)`` of all rows' decision values, a column for every class.

        ``fill`` stands in cells of a cube that miss a feature.
        """
        cube = self._cube_to_predict(X)
        columns = len(self.classes_)
        if cube is not None:
            answers = AnswerFormat(np.dtype(dtype), fill, columns)
            return self._mapped(cube, answers, name, function, *arguments, classes=self.classes_)
        values = self._values(self._resolve(X))
        if isinstance(values, np.ndarray):
            found: Any = function(values, *arguments)
        else:
            found = map_blocks(function, values, dtype, *arguments, columns=columns)
        return self._like(X, found, name, self.classes_)

    def _of_machines(self) -> ODMEstimator:
        """Return this classifier with the values of its machines in place of the classes' scores."""
        other = copy(self)
        other._model = replace(cast(Any, self._model), pairs=0)
        other._file = None
        other._token = f"{self._token}-machines"
        return other


@with_parameters
class ODMClassifier(KernelParameters, ODMEstimator):
    """Kernel optimal margin distribution machine, for two classes or more.

    Minimises ``½‖w‖² + λ/(2M(1−θ)²) Σ_i [(1−θ−m_i)₊² + υ (m_i−1−θ)₊²]`` over the margins ``m_i = y_i f(x_i)``,
    M the number of rows (with weights, their sum). More than two classes are learned by several such machines of two.
    ``docs/guide.md`` tells more of kernels, solvers and checkpoints, ``docs/left_out.md`` of ``loo`` and probabilities.

    Parameters
    ----------
    kernel : {"rbf", "laplacian", "linear", "poly", "precomputed"} or callable, default="rbf"
        How alike two rows are. "laplacian" is exp(−gamma ‖x − z‖₁). "precomputed": `fit` takes kernel values (n, n),
        `predict` (rows, n). A callable takes rows (n, d) and (m, d) and returns values (n, m).
    lam : float, default=1e4
        λ > 0, weight of the loss; larger fits the training rows more closely.
    upsilon : float, default=0.2
        υ in [0, 1], weight of margins above the band against those below it.
    theta : float, default=0.2
        θ in [0, 1), half the width of the band of margins that cost nothing.
    solver : str or solver object, default="auto"
        How the problem is solved. A word takes the solver's defaults; an object of `dask_odm.solvers` says more, such
        as ``Landmark(n_landmarks=300, certify=True)``. "exact" is Newton over all rows, to a certified gap; "landmark"
        Newton over the span of some rows, much faster and near the optimum; "newton" for the linear kernel; "sodm" a
        tree of partitions, to a certified gap, with its rivals "cascade", "dip" and "dc"; "dsvrg", "svrg" and "csvrg"
        stochastic steps for the linear kernel; "cells" an exact machine for each region of the feature space. "auto"
        chooses by the data and ``memory_limit``, and never by workers: of data too large for "exact", "cells" if they
        get more rows right than "landmark" in a few regions.
    scale : {"minmax", "standard"} or None, default=None
        Scaling of features, kept in the model. "standard" does not shift sparse rows of the linear kernel.
    warm_start : bool, default=False
        Start from the last fit's weights. Linear solvers only.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As scikit-learn has them; the names where the training rows had any.
    missing_rows_ : int
        Of a fit on a cube, how many labelled rows missed a feature, and took no part.
    support_, support_vectors_ : ndarray of shape (n_support,), and (n_support, n_features_in_)
        Numbers of the rows with a coefficient, and those rows, raw; not for the linear kernel.
    dual_coef_ : ndarray of shape (n_machines, n_support)
        ``y_i s_i``. Two classes make one machine, whose positive class is ``classes_[1]``. More make one for each
        class, positive, in their order; or one for every two, (0, 1), (0, 2), …, of which the second is positive.
        Exact machines for every two that are learned at once have ``(n_classes - 1, n_support)``, as scikit-learn's
        `SVC` has: of a row, one for each other class. Rows are then in the order of their classes.
    coef_, intercept_ : ndarray of shape (n_machines, n_features_in_), and (n_machines,)
        Weights of raw features, linear kernel only.
    dual_gap_ : float
        Relative duality gap (P − D)/P of the whole problem, with P of the model as it predicts; nan where it is not
        known, as of "landmark" without its ``certify``. Of several machines it is the worst's.
    history_ : list of dict
        One entry per step, epoch or level: gap, objective, passes over the rows, seconds; the first also has the
        solver, and why. Of several machines the entries of each follow those of the one before. Cells begin with
        one entry per level of their tree: nodes, cells, rows of the smallest and the largest, seconds.
    n_iter_ : int
        Sweeps and steps of the longest solve of every level, added up; or steps or epochs. Of several machines the
        most.
    loo_decision_function_, loo_score_, loo_parameters_, probability_link_
        With ``loo``: the decision value of every row by the model without it, the accuracy of these, the effective
        number of parameters, and the decision values and log-odds that probabilities are made of.

    References
    ----------
    Wang, Cao, Zhang, Shi, Jin: *Scalable Optimal Margin Distribution Machine*, IJCAI-23.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dask_odm import ODMClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ODMClassifier(scale="minmax").fit(X, y).score(X, y) > 0.97
    True
    """

    _solvers: ClassVar[SolverClasses] = ODM_SOLVERS
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": [StrOptions({"rbf", "laplacian", "linear", "poly", "precomputed"}), callable],
        "lam": [Interval(Real, 0.0, None, closed="neither")],
        "upsilon": [Interval(Real, 0.0, 1.0, closed="both")],
        "theta": [Interval(Real, 0.0, 1.0, closed="left")],
        "solver": [SolverOptions(ODM_SOLVERS)],
        "warm_start": ["boolean"],
    }
    _instead: ClassVar[dict[str, str]] = {
        "landmarks": "its name is choice, and the solver has it now: solver=dask_odm.solvers.Landmark(choice=…).",
        "C": "lam is the weight of the loss, and 2 * n_rows * C a place to start (docs/from_svc.md has the others).",
    }
    # Words of parameters for rows in memory only: no store, and so no command, can take them.
    _needs_memory: ClassVar[dict[str, frozenset[str]]] = {"kernel": frozenset({"precomputed"})}

    kernel: str | Callable[[Array, Array], Array] = "rbf"
    _: KW_ONLY
    lam: float = 1e4
    upsilon: float = 0.2
    theta: float = 0.2
    solver: str | SolverObject = "auto"
    warm_start: bool = False

    def lam_path(self, X: Any, y: Any = None, *, lams: Any, sample_weight: Any = None) -> list[Self]:
        """Fit a model for every λ of ``lams``, each starting from the solution for the λ before it.

        Parameters
        ----------
        X, y, sample_weight
            As `fit` takes them.
        lams : sequence of float
            Values > 0. Close values, one after the other, take a pass or two each.

        Returns
        -------
        list of ODMClassifier
            Fitted, with ``lam`` set; this one stays as it was.

        Raises
        ------
        InputError
            Another solver than Newton, or another kernel than "linear"; an invalid λ; or as `fit`.
        """
        values: Array = as_input_error(lambda: np.asarray(lams, dtype=np.float64))
        if values.ndim != 1:
            raise InputError(f"lams must be a sequence of numbers. Got {lams!r} instead.")
        if not len(values) or self.kernel != "linear" or solver_word(self.solver) not in ("auto", "newton"):
            raise InputError("lam_path takes one λ at least, and needs kernel='linear' with solver='newton' or 'auto'.")
        return self._path(X, y, sample_weight, "lam", values.tolist())

    def _publish(self, trained: Trained, schema: Schema) -> None:
        super()._publish(trained, schema)
        if len(self.classes_) == 2:
            warn_of_nothing(trained.history, float(self.lam))

    def _settings(self, run: FitRun, **more: Any) -> ODMFit:
        own = solver_object(self.solver, ODM_SOLVERS) or Landmark()  # "auto" takes others later, if at all
        groups = None if more.get("groups") is None else numbered(more["groups"])
        if groups is not None and not self.loo:
            raise InputError("groups say what leave-one-out leaves out: set loo to True, or give none.")
        return replace(ODMFit.of(self, own, run, more.get("lams", ()), self._starts()), groups=groups)

    def _joined(self, machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        others = (*LEFT_OUT, *self._unsaved, OF_MACHINE)
        plain = [{name: value for name, value in each.items() if name not in others} for each in machines]
        return super()._joined(plain) | joined_left_out(machines, pairs=self._scheme == "ovo")

    def _starts(self) -> tuple[tuple[Array, float], ...]:
        """Return the weights and the intercept of every machine from which ``warm_start`` begins."""
        if not self.warm_start:
            return ()
        if not is_linear(solver_word(self.solver), self.kernel):
            raise InputError("warm_start is for linear solvers (kernel='linear'); set it to False.")
        if not hasattr(self, "coef_"):
            return ()
        return tuple(zip(self.coef_, self.intercept_.tolist(), strict=True))

    @property
    def _scheme(self) -> Scheme:
        if self.multi_class is None:
            return "ovr" if self.kernel == "linear" or self.loo else "ovo"
        return super()._scheme

    def _trained(self, choice: Choice[ODMFit], data: TrainingData, fit: ODMFit) -> Trained:
        if self.solver == "auto":
            many = len(data.class_weights) > 2
            choice = choose_for_machines(choice, data, fit, self._scheme) if many else choice
            choice, fit = choose_by_regions(choice, data, fit, pairs=many and self._scheme == "ovo")
        return super()._trained(choice, data, fit)

    def _choose(self, fit: ODMFit, rows: int, features: int) -> Choice[ODMFit]:
        return choose_solver(solver_word(self.solver), fit, rows, features)

    def _stored_data(self, run: FitRun, store: Store) -> StoredData:
        if self.kernel == "precomputed":
            KernelChoice.of(self).require_named("a store")
        return super()._stored_data(run, store)

    def _of_model(self, model: Model) -> dict[str, Any]:
        found = super()._of_model(model)
        if self.kernel == "precomputed":
            found.pop("coef_", None)  # weights of kernel values, not of features
        return found
