"""Settings of one search, and splits of rows as users give them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np

from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.estimators.odm_classifier import ODMClassifier
from dask_odm.estimators.scoring import Scorer, Scoring
from dask_odm.learning.parameters import solver_word
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.search.trials import Given, Score, accuracy
from dask_odm.methods.settings import Landmark
from dask_odm.typing import Array


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
        if self.groups is not None:
            if self.groups.shape != (rows,):
                raise InputError(f"groups must have shape ({rows},) as X has rows. Got {self.groups.shape} instead.")
            beside = (*beside, self.groups if kept is None else self.groups[kept])
        found = pairs_of(as_input_error(lambda: list(self.splitter.split(*beside))))
        if kept is None:
            return found
        return tuple((tuple(kept[list(a)].tolist()), tuple(kept[list(b)].tolist())) for a, b in found)


def pairs_of(splits: Any) -> Given:
    """Return splits as pairs of row numbers, to learn from and to validate by."""
    return tuple((_numbers(inside), _numbers(outside)) for inside, outside in splits)


def splits_of(cv: Any, groups: Array | None) -> int | float | Given | Splitter | None:
    """Return the parameter ``cv`` of a search in the form that it takes; raise InputError if it is none."""
    if hasattr(cv, "split"):
        return Splitter(cv, groups)
    if groups is not None and cv is not None:
        raise InputError(f"groups are for cv=None, or a splitter as cv such as GroupKFold(5). Got cv={cv!r} instead.")
    if cv is None or isinstance(cv, int | float | np.number):
        return None if cv is None else float(cv) if cv < 1 else int(cv)
    try:
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
    kernels: tuple[str, ...] | None
    solvers: tuple[Landmark, ...] | None
    cv: int | float | Given | Splitter | None
    scorers: dict[str, Scorer] | None = None  # by name, that which decides first; None for accuracy
    classes: Array | None = None
    groups: Array | None = None  # that are left out one by one, (n,)

    @property
    def score(self) -> Score:
        """Scores of left-out rows, the deciding one first."""
        if self.scorers is None:
            return accuracy
        assert self.classes is not None
        return Scoring(self.scorers, self.classes)

    def identity(self) -> dict[str, Any]:
        others = ("run", "first", "solvers", "scorers", "classes", "groups")
        plain = {name: value for name, value in vars(self).items() if name not in others}
        if self.scorers is not None:
            told = {name: repr(scorer) for name, scorer in self.scorers.items()}
            plain["scoring"] = {name: name if " at 0x" in text else text for name, text in told.items()}
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
        return self.first._settings(self.run).kernel

    def with_scale(self) -> SearchFit:
        """Return the settings with the scaling that "auto" chooses (benchmarks/mixed_tables.py)."""
        if self.first.scale != "auto":
            return self
        scale = "standard" if self.run.marks else "minmax"
        return replace(self, first=ODMClassifier(**self.first.get_params(deep=False) | {"scale": scale}))

    def classifier(self, kernel: str, **parameters: Any) -> ODMClassifier:
        """Return the classifier of a kernel; a linear one among others has no landmarks."""
        several = self.kernels is not None or self.solvers is not None
        if several and kernel == "linear" and solver_word(self.first.solver) == "landmark":
            parameters["solver"] = "newton"
        return ODMClassifier(**self.first.get_params(deep=False) | {"kernel": kernel, **parameters})
