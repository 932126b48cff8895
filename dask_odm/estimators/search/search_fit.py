"""Settings of one search, and splits of rows as users give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from dask_odm.data.rows.scaling import SCALINGS, Stretch
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.estimators.odm_classifier import ODMClassifier
from dask_odm.estimators.scoring import Scorer, Scoring
from dask_odm.kernels import KERNELS
from dask_odm.learning.parameters import Registered, solver_word
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.metric import MOST_FEATURES
from dask_odm.methods.metric_settings import Metric
from dask_odm.methods.odm_fit import require_groups
from dask_odm.methods.search.climb import BUDGETS, TUNING, Axes, Budget, View
from dask_odm.methods.search.trials import Given, Score, accuracy
from dask_odm.methods.settings import Landmark
from dask_odm.typing import Array

Number = TypeVar("Number", int, float)
# Kernels that are tried by default, and how the columns are scaled for them, what suits most tables first. No choice
# wins everywhere, and a budget takes the first of each.
SCALES = {"rbf": ("minmax", "standard", "ranks"), "laplacian": ("ranks", "standard")}
# How the search learns a metric: half of the rows learn, the others judge. Eight rounds find columns whose labels
# follow steps, where the first round says next to nothing (benchmarks/tables.py).
SEARCHED = Metric(rounds=8, rows=4000)
MANY = 1000  # rows from which a metric is learned: of fewer, those that judge it are too few
MIXED = 32  # features up to which it may be a matrix, as quickly
CONSTRAINTS: dict[str, list[Any]] = {
    "kernel": [Registered(KERNELS, "auto"), "array-like"],
    "gammas": ["array-like", None],
    "lams": ["array-like", None],
    "cv": [
        Interval(Integral, 2, None, closed="left"),
        Interval(Real, 0.0, 1.0, closed="neither"),
        "array-like",
        HasMethods(["split", "get_n_splits"]),
        None,
    ],
    "scale": [Registered(SCALINGS, "auto"), None],
    "metric": [StrOptions({"auto", "diagonal", "full"}), Metric, None],
    "scoring": [str, callable, "array-like", None],
    "refit": [str, None],
    "budget": [StrOptions(set(BUDGETS))],
}


def kernels_of(search: Any, plain: Any) -> tuple[str, ...]:
    """Return the kernels to choose from. Cells that search for themselves have the first one by default."""
    if not isinstance(search.kernel, str):
        return several(search, "kernel", plain)
    if search.kernel != "auto":
        return (search.kernel,)
    return tuple(SCALES)[: 1 if getattr(search.solver, "settings", "") == "each" else None]


def views_of(fit: Any, budget: Budget, data: TrainingData, groups: Array | None) -> tuple[View, ...]:
    """Return the views that a search chooses from: each kernel with the scale that the user named, or those that suit.

    Tables with words or telling gaps have numbers that are seldom alike, and are not scaled to their range
    (benchmarks/MEASURED.md). Sparse rows have one scaling each, of which a sample's kernel values are made dense. The
    metric that was named is that of all views; "auto" adds views with one, unless folds or groups are the user's.
    """
    plain = "standard" if data.run.marks else "minmax"
    found = []
    for kernel in fit.kernels:
        scales = SCALES.get(kernel, ("minmax",))[: 1 if data.is_sparse else budget.scales]
        scales = scales if fit.scale == "auto" else (fit.scale,)
        found += [View(kernel, plain if each == "minmax" and fit.scale == "auto" else each) for each in scales]
    views = tuple(dict.fromkeys(found))
    if fit.metric != "auto":
        kind = getattr(fit.metric, "kind", fit.metric)
        return tuple(view._replace(metric=kind) for view in views)
    if data.labelled_rows < MANY or data.features > MOST_FEATURES or not (fit.cv is groups is None):
        return views
    mixed = ("rbf",) if data.features <= MIXED and not data.is_sparse else ()
    kernels = {"diagonal": tuple(SCALES), "full": mixed}
    return views + tuple(
        view._replace(metric=kind) for kind in budget.metrics for view in views if view.kernel in kernels[kind]
    )


def metric_of(metric: str | Metric | None) -> Metric:
    """Return how metrics are learned, but for the kind."""
    return metric if isinstance(metric, Metric) else SEARCHED


def axes_of(
    data: TrainingData, kernel: KernelChoice, views: tuple[View, ...], landmarks: Sequence[int] | None = None,
    shares: Sequence[float] = TUNING.shares, *, in_cells: bool = False, **given: Sequence[float] | None,
) -> Axes:  # fmt: skip
    """Return the values to choose from: the user's ``gammas``, ``lams``, ``upsilons`` and ``thetas``, or for None
    ranges that suit the data, with larger γ for cells. λ are then ``shares`` of the number of rows, whatever the scale
    of their weights. The γ of a kernel without it is 1, which is not used."""
    factors = sorted({times * each for times in (1.0, AUTO.narrower if in_cells else 1.0) for each in TUNING.gammas})

    def gammas(view: View) -> tuple[float, ...]:
        if not hasattr(KERNELS[view.kernel], "gamma"):
            return (1.0,)
        if given["gammas"] is not None:
            return _ascending(given["gammas"])
        made: Any = replace(kernel, kernel=view.kernel, scale=view.scale, gamma="scale")
        made = made.make(data.statistics(view.scale))
        return tuple(float(made.gamma) * factor for factor in factors)

    lams = given["lams"]
    return Axes(
        views,
        tuple(map(gammas, views)),
        _ascending(
            [share / data.mean_weight for share in shares]
            if lams is None
            else [lam / data.total_weight for lam in lams]
        ),
        _ascending(given["upsilons"] or TUNING.upsilons),
        _ascending(given["thetas"] or TUNING.thetas),
        (None,) if landmarks is None else _ascending(landmarks),
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


def several(search: Any, name: str, plain: Any) -> tuple[Any, ...]:
    """Return the values of a parameter to choose from, each checked like the parameter of one value, of ``plain``."""
    given = getattr(search, name)
    numbers = name not in ("kernel", "solver")
    found = as_input_error(lambda: np.asarray(given, dtype=np.float64 if numbers else object))
    if found.ndim != 1 or not len(found):
        one = "" if numbers else "one value, or "
        raise InputError(f"{name} must be {one}a sequence of one or more. Got {given!r} instead.")
    values = tuple(dict.fromkeys(found.tolist()))
    for value in values if name != "solver" else ():
        as_input_error((plain(**{name[:-1]: value}) if numbers else type(search)(value))._validate_params)
    return values


def _numbers(part: Any) -> tuple[int, ...]:
    """Return the row numbers of one part of a split, which may be a mask of all rows."""
    rows = np.asarray(part)
    return tuple((np.flatnonzero(rows) if rows.dtype == bool else rows).astype(np.int64, casting="same_kind").tolist())


@dataclass(frozen=True)
class SearchFit:
    """Settings of a search: the classifier of the first of all settings, the values to choose from, and the splits.

    Values to choose from are None where ``first`` has the only one, or where ranges that suit the data are taken.
    """

    run: FitRun
    first: ODMClassifier
    gammas: tuple[float, ...] | None
    lams: tuple[float, ...] | None
    upsilons: tuple[float, ...] | None
    thetas: tuple[float, ...] | None
    kernels: tuple[str, ...]
    scale: str | None
    metric: str | Metric | None
    budget: str
    solvers: tuple[Landmark, ...] | None
    cv: int | float | Given | Splitter | None
    scorers: dict[str, Scorer] | None = None  # by name, that which decides first; None for accuracy
    classes: Array | None = None
    groups: Array | None = None  # that are left out one by one, (n,)
    stretches: Mapping[str | None, Stretch | None] = field(default_factory=dict)  # of cells, for each scaling

    @property
    def score(self) -> Score:
        """Scores of left-out rows, the deciding one first."""
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
        first = {"solver": solver_word(self.first.solver), "multi_class": self.first.multi_class}
        return plain | first | {"fit": self.first._settings(self.run).identity(), "landmarks": self.landmarks}

    @property
    def landmarks(self) -> tuple[int, ...] | None:
        """Numbers of landmarks to choose from; None if there is no choice."""
        return None if self.solvers is None else tuple(int(each.n_landmarks) for each in self.solvers)

    @property
    def kernel(self) -> KernelChoice:
        """Kernel of the first of all settings."""
        kernel = self.first._settings(self.run).kernel
        return replace(kernel, metric=self.stretches.get(kernel.scale))

    def seen_by(self, view: View) -> SearchFit:
        """Return the settings with the first of all views."""
        return replace(self, first=ODMClassifier(**self.first.get_params(deep=False) | _of_view(view)))

    def classifier(self, view: View, **parameters: Any) -> ODMClassifier:
        """Return the classifier of a view; a linear one among others has no landmarks."""
        several = len(self.kernels) > 1 or self.solvers is not None
        if several and view.kernel == "linear" and solver_word(self.first.solver) == "landmark":
            parameters["solver"] = "newton"
        return ODMClassifier(**self.first.get_params(deep=False) | _of_view(view) | parameters)


def _of_view(view: View) -> dict[str, Any]:
    """Return the parameters of an estimator that sees rows by a view, whose metric the search has learned."""
    return view._asdict() | {"metric": None}
