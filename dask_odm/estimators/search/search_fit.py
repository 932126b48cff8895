"""Parameters of searches, the settings of one search, and splits of rows as users give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import sha256
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

import numpy as np
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from dask_odm.data.rows.scaling import Stretch
from dask_odm.data.rows.targets import RealValues
from dask_odm.errors import InputError
from dask_odm.estimators.groups import numbered
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.estimators.odm_estimator import advise_groups
from dask_odm.estimators.scoring import LeftOutScores, NumberScoring, Scorer, Scoring, deciding_scorers
from dask_odm.kernels import KERNELS
from dask_odm.learning.parameters import Registered, SolverObject, solver_word, with_parameters
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.metric import MOST_FEATURES
from dask_odm.methods.metric_settings import Metric
from dask_odm.methods.odm_fit import require_groups
from dask_odm.methods.search.axes import BUDGETS, TUNING, Axes, Budget, View
from dask_odm.methods.search.trials import Given, Score, accuracy, explained
from dask_odm.methods.settings import Landmark
from dask_odm.typing import Array

Number = TypeVar("Number", int, float)
# Kernels that are tried by default, and how the columns are scaled for them, what suits most tables first. No choice
# wins everywhere, and a budget takes the first of each.
DEFAULT_VIEWS = {"rbf": ("minmax", "standard", "ranks"), "laplacian": ("ranks", "standard")}
# How the search learns a metric: half of the rows learn, the others judge. Eight rounds find columns whose labels
# follow steps, where the first round says next to nothing (benchmarks/tables.py).
SEARCHED = Metric(rounds=8, rows=4000)
SHARES_OF_NUMBERS = tuple(10.0 * share for share in TUNING.shares)  # of λ in rows: they are seldom as noisy as classes
MANY = 1000  # rows from which a metric is learned: of fewer, those that judge it are too few
MIXED = 32  # features up to which it may be a matrix, as quickly


@with_parameters
class SearchParameters(LeftOutScores):
    """An estimator that finds settings for another: its parameters, of which it takes several values.

    Parameters
    ----------
    kernel : {…}, array-like of them, or None, default="auto"
        Kernel, or kernels to choose from; "linear" has no γ. "auto" or None: "rbf" and "laplacian". {…}
    gammas : array-like of float or None, default=None
        Values of γ to choose from. None: 2⁻⁴ … 2⁶ times the value of ``gamma="scale"``.
    lams : array-like of float or None, default=None
        Values of λ. None: 2.5⁻⁴ … 2.5⁶ times the number of rows, whatever the scale of their weights; ten times as much
        for real targets.
    cv : int, float, splitter, list of splits, or None, default=None
        How rows are left out: a number of folds (2 or more), the share of a validation set (below 1), or by default one
        by one. The default is computed in closed form, see ``loo_score_``. Your own splits are pairs of row numbers (or
        masks) for training and validation, or a splitter such as scikit-learn's `StratifiedKFold`. Folds are drawn by
        row number, and not copied.
    scoring : str, callable, several of them, dict, or None, default=None
        Score of left-out rows, or several scores: names or scorers of scikit-learn, such as "roc_auc" or
        "neg_mean_absolute_error". `CostScorer` is for costs. Scores are computed from the values of left-out rows,
        without refits, and so are probabilities. None: the logistic loss decides, and accuracy is told; of real
        targets, R².
    refit : str or None, default=None
        Name of the score that decides, if there are several. None: the first.
    tol : float, default=1e-3
        Relative duality gap of the last fit. Trials are solved to 1e-2.
    scale : {…} or None, default="auto"
        Scaling of the features. The model also applies it to new rows. "auto" chooses with "rbf" among all, and with
        "laplacian" between "ranks" and "standard". Other kernels and sparse rows have one: "standard" for tables with
        words or telling gaps, whose numbers are seldom alike and which are never scaled to their range, else "minmax".
    metric : {"auto", "diagonal", "full"}, `dask_odm.Metric` or None, default="auto"
        Learned metric, as of `ODMClassifier`. "auto" tries both kinds with the best view of each kernel, and none; only
        with ``cv=None``, without groups, for 1,000 rows and more of at most 1,000 features, and "full" for 32. Half of
        a sample of 4,000 rows learns it, and settings are then compared by rows that are not of this half.
    budget : {"fast", "default", "thorough"}, default="default"
        How much is tried. "fast" has one scaling for each kernel and no metric, and looks closer at the best. "default"
        looks closer at the best of each kernel, and "thorough" at all. The seconds are told by progress bars and the
        log once the first trials are done, and by ``search_seconds_``.

    Attributes
    ----------
    best_score_ : float
        Score of ``best_params_`` in the last stage of the search: in folds, cells, trials of the exact solver (R² less
        a standard error of a gain), the larger sample, or all rows. With several scores, it is the one that decides.
        The best of many scores of your own is too optimistic for models of that stage. The last fit may have more rows
        and landmarks, and so be better.
    nested_score_ : float
        Score without this optimism, always on the larger sample: each split, or each tenth of the rows if they are left
        out one by one, is scored with the setting that is best on the others. nan if the others have no rows of some
        class. Quote it for at most 8,000 rows, or with groups, and ``loo_score_`` for more; best is the score of
        rows held out.
    best_index_ : int
        Index of ``best_params_`` in ``cv_results_``.
    cv_results_ : dict of arrays
        As in scikit-learn's halving searches: ``iter`` is the stage, and ``n_resources`` the number of its rows.
        Several scores have their names in place of "score". By default, the rank is by logistic loss or R². λ is the
        value for all rows. On a sample, λ is smaller in proportion to the weight of the sample. Saved models do not
        have this attribute.
    search_seconds_ : dict
        Seconds of search and last fit: "expected" as the first trials told, and "taken". Saved models have none.
    feature_importances_ : ndarray of shape (n_features_in_,)
        As of `ODMClassifier`, if a metric was learned with the best kernel and scaling, be it better or not.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": [Registered(KERNELS, "auto"), "array-like", None],
        "gammas": ["array-like", None],
        "lams": ["array-like", None],
        "cv": [
            Interval(Integral, 2, None, closed="left"),
            Interval(Real, 0.0, 1.0, closed="neither"),
            "array-like",
            HasMethods(["split", "get_n_splits"]),
            None,
        ],
        "metric": [StrOptions({"auto", "diagonal", "full"}), Metric, None],
        "scoring": [str, callable, "array-like", None],
        "refit": [str, None],
        "budget": [StrOptions(set(BUDGETS))],
    }
    _saved: ClassVar[tuple[str, ...]] = (
        "best_params_", "best_score_", "best_index_", "nested_score_", "feature_importances_"
    )  # fmt: skip
    _unsaved: ClassVar[tuple[str, ...]] = ("cv_results_", "search_seconds_")
    _plain: ClassVar[Any]  # the estimator whose settings are found
    _axes: ClassVar[tuple[str, ...]] = ("gammas", "lams")

    kernel: Any = "auto"
    _: KW_ONLY
    metric: Any = "auto"
    gammas: Any = None
    lams: Any = None
    cv: Any = None
    scoring: Any = None
    refit: str | None = None
    budget: str = "default"

    @property
    def best_estimator_(self) -> Any:
        """What scikit-learn's searches have, which does not exist: the search itself is the model."""
        raise AttributeError("the search itself is the fitted model; best_params_ are its settings. Use it as it is.")

    def _settings(self, run: FitRun, **more: Any) -> SearchFit:
        groups = more.get("groups")
        kernels = self._kernels()
        solvers = None if isinstance(self.solver, str | SolverObject) else self._several_solvers()
        shared = set(self._get_param_names()) & set(self._plain._get_param_names())
        first = {
            **{name: getattr(self, name) for name in shared},
            "kernel": kernels[0],
            "metric": None,
            "solver": self.solver if solvers is None else solvers[0],
        }
        if more.get("places") and groups is None:
            advise_groups()
        axes: dict[str, Any] = {
            name: None if getattr(self, name) is None else self._several(name) for name in self._axes
        }
        return SearchFit(
            run=run, first=self._plain(**first), **axes, kernels=kernels, scale=self.scale, metric=self.metric,
            budget=self.budget, solvers=solvers, cv=splits_of(self.cv, groups),
            scorers=deciding_scorers(self.scoring, self.refit),
            groups=None if groups is None or self.cv is not None else numbered(groups),
        )  # fmt: skip

    def _kernels(self) -> tuple[str, ...]:
        """Return the kernels to choose from. Cells that search for themselves have the first one by default."""
        kernel = "auto" if self.kernel is None else self.kernel  # as before there was "auto"
        if not isinstance(kernel, str):
            return self._several("kernel")
        if kernel != "auto":
            return (kernel,)
        return tuple(DEFAULT_VIEWS)[: 1 if getattr(self.solver, "settings", "") == "each" else None]

    def _several_solvers(self) -> tuple[Landmark, ...]:
        """Return the `Landmark` objects to choose from, one per number of landmarks."""
        solvers = self._several("solver")
        for solver in solvers:
            if not isinstance(solver, Landmark):
                raise InputError(f"solver must be one solver, or a sequence of dask_odm.solvers.Landmark objects to "
                                 f"choose from. Got {solver!r} among them.")  # fmt: skip
            as_input_error(solver._validate_params)
        if len({(solver.choice, solver.certify) for solver in solvers}) > 1:
            raise InputError("the solvers to choose from may differ in n_landmarks only.")
        return tuple({int(solver.n_landmarks): solver for solver in solvers}.values())

    def _several(self, name: str) -> tuple[Any, ...]:
        """Return the values of a parameter to choose from, each checked like the one value of another estimator."""
        given = getattr(self, name)
        numbers = name not in ("kernel", "solver")
        found = as_input_error(lambda: np.asarray(given, dtype=np.float64 if numbers else object))
        if found.ndim != 1 or not len(found):
            one = "" if numbers else "one value, or "
            raise InputError(f"{name} must be {one}a sequence of one or more. Got {given!r} instead.")
        values = tuple(dict.fromkeys(found.tolist()))
        for value in values if name != "solver" else ():
            checked = self._plain(**{name[:-1]: value}) if numbers else type(self)(value)
            as_input_error(checked._validate_params)
        return values


def views_of(fit: Any, budget: Budget, data: TrainingData) -> tuple[View, ...]:
    """Return the views that a search chooses from: each kernel with the scale that the user named, or those that suit.

    Tables with words or telling gaps have numbers that are seldom alike, and are not scaled to their range
    (benchmarks/MEASURED.md). Sparse rows have one scaling each, of which a sample's kernel values are made dense. The
    metric that was named is that of all views; "auto" adds views with one, unless folds or groups are the user's.
    """
    plain = "standard" if data.run.marks else "minmax"
    found = []
    for kernel in fit.kernels:
        scales = DEFAULT_VIEWS.get(kernel, ("minmax",))[: 1 if data.is_sparse else budget.scales]
        scales = scales if fit.scale == "auto" else (fit.scale,)
        found += [View(kernel, plain if each == "minmax" and fit.scale == "auto" else each) for each in scales]
    views = tuple(dict.fromkeys(found))
    if fit.metric != "auto":
        kind = getattr(fit.metric, "kind", fit.metric)
        return tuple(view._replace(metric=kind) for view in views)
    if data.labelled_rows < MANY or data.features > MOST_FEATURES or not (fit.cv is fit.groups is None):
        return views
    mixed = ("rbf",) if data.features <= MIXED and not data.is_sparse else ()
    kernels = {"diagonal": tuple(DEFAULT_VIEWS), "full": mixed}
    return views + tuple(
        view._replace(metric=kind) for kind in budget.metrics for view in views if view.kernel in kernels[kind]
    )


def axes_of(fit: Any, data: TrainingData, views: tuple[View, ...], *, in_cells: bool) -> Axes:
    """Return the values to choose from: those of ``fit``, or ranges that suit the data, with larger γ for cells.

    λ are then shares of the number of rows, whatever the scale of their weights. The γ of a kernel without it is 1,
    which is not used. For real targets there is one υ and one θ.
    """
    of_classes = len(data.class_weights) > 0
    factors = sorted({times * each for times in (1.0, AUTO.narrower if in_cells else 1.0) for each in TUNING.gammas})
    kernel = replace(fit.kernel, metric=None)

    def gammas(view: View) -> tuple[float, ...]:
        if not hasattr(KERNELS[view.kernel], "gamma"):
            return (1.0,)
        if fit.gammas is not None:
            return _ascending(fit.gammas)
        made: Any = replace(kernel, kernel=view.kernel, scale=view.scale, gamma="scale")
        made = made.make(data.statistics(view.scale))
        return tuple(float(made.gamma) * factor for factor in factors)

    if fit.lams is not None:
        shares = [lam / data.total_weight for lam in fit.lams]
    else:
        shares = [share / data.mean_weight for share in (TUNING.shares if of_classes else SHARES_OF_NUMBERS)]
    return Axes(
        views,
        tuple(map(gammas, views)),
        _ascending(shares),
        _ascending(fit.upsilons or TUNING.upsilons) if of_classes else (float(fit.first.upsilon),),
        _ascending(fit.thetas or TUNING.thetas) if of_classes else (float(fit.first.theta),),
        (None,) if fit.landmarks is None else _ascending(fit.landmarks),
    )


def _ascending(values: Iterable[Number]) -> tuple[Number, ...]:
    return tuple(sorted(set(values)))


@dataclass(frozen=True, eq=False)
class Splitter:
    """A splitter in the manner of scikit-learn's, with the groups of all rows, (n,), or None."""

    splitter: Any
    groups: Array | None = None

    def splits(self, data: TrainingData) -> Given:
        """Split the rows that take part, and return their numbers among all rows that the user gave.

        Raises InputError if there is not a group for each of those, or if the splitter cannot split.
        """
        rows, kept = data.row_numbers
        y = data.columns()[0]
        beside: tuple[Array, ...] = (np.zeros((len(y), 1)), y)
        require_groups(self.groups, rows)
        if self.groups is not None:
            beside = (*beside, self.groups if kept is None else self.groups[kept])
        found = pairs_of(as_input_error(lambda: list(self.splitter.split(*beside))))
        if kept is None:
            return found
        return tuple((tuple(kept[list(a)].tolist()), tuple(kept[list(b)].tolist())) for a, b in found)


def pairs_of(splits: Any) -> Given:
    """Return splits as pairs of row numbers, to learn from and to validate by."""
    return tuple((_numbers(inside), _numbers(outside)) for inside, outside in splits)


def checked_splits(
    cv: int | float | Given | Splitter | None, groups: Array | None, data: TrainingData
) -> int | float | Given | None:
    """Return the splits of the rows of ``data``; raise InputError if they name others, or ``groups`` are of others."""
    rows = data.row_numbers[0]
    require_groups(groups, rows)
    if isinstance(cv, Splitter):
        return cv.splits(data)
    named = [part for split in cv for part in split if part] if isinstance(cv, tuple) else []
    for number in (end(part) for part in named for end in (min, max)):
        if not 0 <= number < rows:
            raise InputError(f"cv names row {number}, but rows are numbered from 0 to {rows - 1}.")
    return cv


def splits_of(cv: Any, groups: Array | None) -> int | float | Given | Splitter | None:
    """Return the parameter ``cv`` of a search in the form that it takes; raise InputError if it is none."""
    if hasattr(cv, "split"):
        return Splitter(cv, groups)
    if groups is not None and cv is not None:
        raise InputError(f"groups are for cv=None, or a splitter as cv such as GroupKFold(5). Got cv={cv!r} instead.")
    if cv is None or isinstance(cv, int | float | np.number):
        return None if cv is None else float(cv) if cv < 1 else int(cv)
    try:
        if not len(cv):
            raise ValueError("there are no splits")
        return pairs_of(cv)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"cv must be a number, a splitter, or pairs of rows' numbers. Got {cv!r:.200} instead."
        ) from error


def _numbers(part: Any) -> tuple[int, ...]:
    """Return the row numbers of one part of a split, which may be a mask of all rows."""
    rows = np.asarray(part)
    return tuple((np.flatnonzero(rows) if rows.dtype == bool else rows).astype(np.int64, casting="same_kind").tolist())


@dataclass(frozen=True)
class SearchFit:
    """Settings of a search: the estimator of the first of all settings, the values to choose from, and the splits.

    Values to choose from are None where ``first`` has the only one, or where ranges that suit the data are taken.
    """

    run: FitRun
    first: Any
    gammas: tuple[float, ...] | None
    lams: tuple[float, ...] | None
    kernels: tuple[str, ...]
    scale: str | None
    metric: str | Metric | None
    budget: str
    solvers: tuple[Landmark, ...] | None
    cv: int | float | Given | Splitter | None
    upsilons: tuple[float, ...] | None = None
    thetas: tuple[float, ...] | None = None
    scorers: dict[str, Scorer] | None = None  # by name, that which decides first; None for accuracy or R²
    classes: Array | None = None
    groups: Array | None = None  # that are left out one by one, (n,)
    stretches: Mapping[str | None, Stretch | None] = field(default_factory=dict)  # of cells, for each scaling

    def score(self, units: RealValues | None) -> Score:
        """Return the scores of left-out rows, the deciding one first, of real targets in ``units``, or of classes."""
        if units is not None:
            return explained if self.scorers is None else NumberScoring(self.scorers, units)
        if self.scorers is None:
            return accuracy
        assert self.classes is not None
        return Scoring(self.scorers, self.classes)

    def identity(self) -> dict[str, Any]:
        others = ("run", "first", "solvers", "scorers", "classes", "groups", "stretches")
        plain = {name: value for name, value in vars(self).items() if name not in others}
        if self.scorers is not None:
            told = {name: repr(scorer) for name, scorer in self.scorers.items()}
            plain["scoring"] = {name: name if " at 0x" in text else text for name, text in told.items()}
        if isinstance(self.metric, Metric):
            plain["metric"] = self.metric.get_params()
        if self.groups is not None:
            plain["groups"] = sha256(self.groups.tobytes()).hexdigest()
        first = {"solver": solver_word(self.first.solver), "multi_class": getattr(self.first, "multi_class", None)}
        return plain | first | {"fit": self.settings.identity(), "landmarks": self.landmarks}

    @property
    def landmarks(self) -> tuple[int, ...] | None:
        """Numbers of landmarks to choose from; None if there is no choice."""
        return None if self.solvers is None else tuple(int(each.n_landmarks) for each in self.solvers)

    @property
    def settings(self) -> Any:
        """Settings of a fit with the first of all."""
        return self.first._settings(self.run)

    @property
    def kernel(self) -> KernelChoice:
        """Kernel of the first of all settings."""
        kernel = self.settings.kernel
        return replace(kernel, metric=self.stretches.get(kernel.scale))

    def estimator(self, view: View, **parameters: Any) -> Any:
        """Return the estimator of a view; a linear one among others has no landmarks."""
        several = len(self.kernels) > 1 or self.solvers is not None
        if several and view.kernel == "linear" and solver_word(self.first.solver) == "landmark":
            parameters["solver"] = "newton"
        return self.first_with(view, **parameters)

    def first_with(self, view: View, **parameters: Any) -> Any:
        """Return the estimator of the first of all settings with those of a view, and other parameters."""
        of_view = view._asdict() | {"metric": None}  # which the search has learned
        return type(self.first)(**self.first.get_params(deep=False) | of_view | parameters)
