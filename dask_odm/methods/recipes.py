"""The table of solvers: the recipe of each, and which one `solver="auto"` takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from dask_odm.engine.limits import parse_limit
from dask_odm.errors import InputError, MemoryLimitError
from dask_odm.kernels.shape import Shape
from dask_odm.learning.machines import Attributes, Scheme, joined_attributes, train_targets
from dask_odm.learning.training.family import Family
from dask_odm.learning.training.recipe import (
    Choice,
    FeatureAdvice,
    Join,
    Machines,
    Parts,
    Recipe,
    Trained,
    crowding_features,
)
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.cells.choosing import are_possible, gain_of
from dask_odm.methods.cells.recipe import train_cells
from dask_odm.methods.exact.recipe import fit_bytes, train_exact
from dask_odm.methods.exact.systems import LIMITS
from dask_odm.methods.landmark.many_classes import train_machines_at_landmarks, train_targets_at_landmarks
from dask_odm.methods.landmark.recipe import train_landmark
from dask_odm.methods.left_out import OF_MACHINES, group_scores, joined_left_out, labels_left_out, of_many_classes
from dask_odm.methods.linear.recipe import train_newton
from dask_odm.methods.linear.routes import train_sparse
from dask_odm.methods.metric import with_metric
from dask_odm.methods.odm_fit import AUTO_LAM, ODMFit
from dask_odm.methods.pairs.recipe import are_quick, by_classes, suits_pairs, train_pairs
from dask_odm.methods.settings import Cells

logger = logging.getLogger("dask_odm")
F = TypeVar("F", bound=ODMFit)


class ExactRecipe(Recipe[ODMFit]):
    """Newton over all rows; all pairs of many classes at once if they suit that."""

    several: ClassVar[bool] = True

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_exact(data, fit)

    def train_machines(self, data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> Trained | None:
        return train_pairs(data, fit, pairs)


class LandmarkRecipe(Recipe[ODMFit]):
    """Newton over landmarks; machines of many classes in lockstep."""

    several: ClassVar[bool] = True

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_landmark(data, fit)

    def train_machines(self, data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> Trained | None:
        return train_machines_at_landmarks(data, fit, machines, pairs)

    def train_targets(self, data: TrainingData, fit: ODMFit, parts: Parts[ODMFit], join: Join) -> Trained:
        return train_targets_at_landmarks(data, fit, parts, join)

    def reads(self, store: TrainingData, fit: ODMFit) -> bool:
        values = store.rows * min(store.rows, fit.own.n_landmarks)
        return super().reads(store, fit) and values <= AUTO.read_values


class CellsRecipe(Recipe[ODMFit]):
    """Exact machines of every cell."""

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_cells(data, fit)

    def train_machines(self, data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> Trained:
        return train_cells(data, fit, pairs=bool(pairs))


class NewtonRecipe(Recipe[ODMFit]):
    """Newton for the weights of the features; machines of many classes at once if rows are sparse."""

    linear: ClassVar[bool] = True
    sparse: ClassVar[bool] = True
    several: ClassVar[bool] = True

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_newton(data, fit)

    def train_machines(self, data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> Trained | None:
        return train_sparse(data, fit, machines, pairs)


RECIPES: dict[str, Recipe[ODMFit]] = {
    "landmark": LandmarkRecipe(),
    "cells": CellsRecipe(),
    "exact": ExactRecipe(),
    "newton": NewtonRecipe(),
}
PAPERS = {  # the module with the recipe of a solver that a paper describes
    **dict.fromkeys(("sodm", "cascade", "dip", "dc"), "dask_odm.papers.sodm.recipe"),
    **dict.fromkeys(("dsvrg", "svrg", "csvrg"), "dask_odm.papers.dsvrg.recipe"),
}
LEAVE_OUT = ("newton", "landmark", "exact", "cells")  # solvers with leave-one-out in closed form
INSTEAD = "take kernel='linear' and solver='newton' or 'dsvrg', "  # for sparse rows that are too many for a recipe


class ODMFamily(Family[ODMFit]):
    """The optimal margin distribution machine, by the solver that its settings name or by what "auto" takes."""

    def scheme(self, fit: ODMFit) -> Scheme:
        return fit.scheme

    def choose(self, fit: ODMFit, rows: int, features: int) -> Choice[ODMFit]:
        return choose_solver(fit, rows, features)

    def suited(self, choice: Choice[ODMFit], data: TrainingData, fit: ODMFit) -> Choice[ODMFit]:
        """Return what "auto" takes of these data, before trials: exact pairs of many classes for landmarks, if quick.

        A pair has few of the rows, so pairs can be learned exactly even if the whole data set is too large for that.
        ``fit`` is that of `in_pairs`.
        """
        many = fit.loo and len(data.class_weights) > 2 and data.rows > AUTO.grouped_rows
        if choice.solver == "landmark" and fit.has_pairs(data) and suits_pairs(data, fit) and are_quick(data, fit):
            name, why = "exact", f"pairs of {len(data.class_weights)} classes have few of the {data.rows} rows"
        elif choice.solver == "exact" and not fit.has_pairs(data) and many and fit.kernel.kernel != "precomputed":
            name, why = "landmark", f"{data.rows} rows are left out of {len(data.class_weights)} machines much faster"
        else:
            return choice
        logger.info("solver=%r: %s", name, why)
        return _rival(name, why)

    def train(self, choice: Choice[ODMFit], data: TrainingData, fit: ODMFit) -> Trained:
        fit, of_metric = with_metric(data, fit.for_data(data))
        trained = self.learned(choice, data, fit)
        trained.attributes.update(of_metric)
        if fit.groups is not None:
            trained.attributes.update(group_scores(trained.attributes, fit.groups))
        path = tuple(
            _with_lam(each, lam, data, fit)
            for lam, each in zip(fit.lams or (fit.odm.lam,), trained.path or (trained,), strict=True)
        )
        return replace(path[-1], path=path if trained.path else ())

    def learned(self, choice: Choice[ODMFit], data: TrainingData, fit: ODMFit) -> Trained:
        """Train one machine or several by the choice, which for "auto" trials may change."""
        if data.n_targets > 1:
            return train_targets(choice, data, fit, self.joined_targets)
        if fit.word == "auto":
            fit = in_pairs(data, fit)
            choice, fit = choose_by_trials(self.suited(choice, data, fit), data, fit)
        elif fit.word == "exact" and fit.loo and not fit.has_pairs(data) and len(data.class_weights) > 2:
            work = len(data.class_weights) * data.rows**3
            if work > AUTO.leaving_work:
                logger.warning(
                    "solver='exact' leaves %d rows out of %d machines by up to %.0e multiplications, which may take "
                    "minutes to hours; multi_class='ovo' or solver='auto' takes much less.",
                    data.rows, len(data.class_weights), work,
                )  # fmt: skip
        trained = super().train(choice, data, fit)
        if fit.loo and len(data.class_weights) > 2:
            if choice.solver == "exact" and fit.has_pairs(data) and fit.kernel.kernel != "precomputed":
                trained = by_classes(trained, data)
            for each in trained.path or (trained,):
                each.attributes.update(of_many_classes(each.attributes, each.model, data, fit))
        return trained

    def joined(self, fit: ODMFit, machines: Sequence[Attributes]) -> dict[str, Any]:
        return joined_attributes(_plain(machines)) | joined_left_out(machines)

    def joined_targets(self, machines: Sequence[Attributes]) -> dict[str, Any]:
        """Return the attributes of the machines of several labels of a row."""
        return joined_attributes(_plain(machines)) | labels_left_out(machines) | {"multilabel_": True}


def _plain(machines: Sequence[Attributes]) -> list[Attributes]:
    """Return the attributes of machines without those of leave-one-out."""
    return [{name: value for name, value in each.items() if name not in OF_MACHINES} for each in machines]


def _with_lam(trained: Trained, lam: float, data: TrainingData, fit: ODMFit) -> Trained:
    """Return a model with the settings that "auto" chose for it, and what to say of its features."""
    trained.attributes.update(lam_=lam, scale_=fit.kernel.scale)
    last = trained.history[-1].get("objective") if trained.history else None
    nothing = last is not None and last > 0.99 * 0.5 * lam  # close to that of the zero model
    crowding = crowding_features(data, fit.kernel, nothing=nothing)
    nothing = nothing and len(data.class_weights) == 2
    if not crowding and not nothing:
        return trained
    return replace(trained, advice=FeatureAdvice(lam, AUTO_LAM * data.row_numbers[0], crowding, nothing))


def recipe_of(solver: str) -> Recipe[ODMFit]:
    """Return the recipe of a solver. That of a paper is loaded by its name."""
    if solver in PAPERS:
        return import_module(PAPERS[solver]).RECIPES[solver]
    return RECIPES[solver]


def is_linear(solver: str, kernel: Any) -> bool:
    """Return whether ``solver`` learns feature weights; raise InputError if it is linear and the kernel is not."""
    if solver == "auto":
        return bool(kernel == "linear")
    linear = recipe_of(solver).linear
    if linear and kernel != "linear":
        raise InputError(f"solver={solver!r} is for kernel='linear'. Got kernel={kernel!r} instead.")
    return linear


def learns_several(solver: str) -> bool:
    """Return whether ``solver`` learns several targets of a row."""
    return solver == "auto" or (solver in RECIPES and RECIPES[solver].several)


def choose_solver(fit: ODMFit, rows: int, features: int) -> Choice[ODMFit]:
    """Choose the recipe that the settings name, or for "auto" by rows, features, kernel and ``memory_limit``.

    Workers have no influence: the same data make the same model anywhere. Raises InputError for a linear solver with
    another kernel, and for ``loo`` with a solver that has no closed form.
    """
    is_linear(fit.word, fit.kernel.kernel)  # raises an error for the wrong kernel
    name, why = (fit.word, "asked for") if fit.word != "auto" else _suited(fit, rows, features)
    logger.info("solver=%r: %s", name, why)
    if fit.loo and name not in LEAVE_OUT:
        raise InputError(
            f"loo=True has no closed form for solver={name!r}; choose solver='newton', 'landmark', 'exact' or 'cells', "
            "or set loo to False."
        )
    return Choice(name, why, recipe_of(name), INSTEAD)


def choose_by_trials(choice: Choice[Any], data: TrainingData, fit: F) -> tuple[Choice[Any], F]:
    """Choose, for "auto", the rival of the suited solver if it gets more rows right that neither has learned from.

    The rival of landmarks are cells. That of the exact solver are landmarks, which smooth what a larger λ than the
    default makes of noise, and are quicker for many rows. What is chosen depends on data and seed, and on memory alone
    if a rival would not fit.
    Returns the settings of the fit with the solver object of the choice.
    """
    if choice.solver == "landmark" and are_possible(data, fit):
        rival = "cells"
    elif (
        choice.solver == "exact"
        and len(data.class_weights) == 2
        and fit.kernel.kernel != "precomputed"
        and fit.odm.lam > AUTO_LAM * data.total_weight
        and data.rows > fit.own.n_landmarks
    ):
        rival = "landmark"
    else:
        return choice, fit
    try:
        gain, error, tie = gain_of(_rival(rival), choice, data, fit)
    except (InputError, MemoryLimitError):
        return choice, fit  # of two, the suited one says best what is wrong
    why = f"{choice.why}; {_in_words(rival, choice, gain, error, fit)}"
    # of more rows than have their whole kernel matrix in memory, landmarks take less time than the exact solver
    quicker, least = (tie, -error) if rival == "cells" else (data.rows > LIMITS.whole_rows, 0.0)
    if quicker and gain >= least:
        name, why = rival, f"{why}, and is quicker"
    else:
        name = rival if gain > error else choice.solver
    logger.info("solver=%r: %s", name, why)
    return _rival(name, why), replace(fit, own=Cells() if name == "cells" else fit.own)


def suits_narrow_cells(
    choice: Choice[ODMFit], data: TrainingData, fit: ODMFit, found: float, least: float = 0.0
) -> str:
    """Return why a search should go on in cells with a narrower kernel than that of ``fit``, or "" if not.

    Settings that were searched for over landmarks have a kernel that landmarks can follow. Cells may do better with
    another, for which they have to search. ``found`` is the share of the rows outside the largest class that landmarks
    get right beyond a constant, and ``least`` the share of all rows that cells must gain.
    """
    if choice.solver != "landmark" or not are_possible(data, fit):
        return ""
    if found < AUTO.found_nothing:
        why = f"{choice.why}, and landmarks find next to nothing"
    else:
        try:
            gain, error, _ = gain_of(_rival("cells"), choice, data, fit, AUTO.narrower)
        except (InputError, MemoryLimitError):
            return ""
        if gain <= max(error, least):
            return ""
        why = f"{choice.why}; with {AUTO.narrower:g} times the γ, {_in_words('cells', choice, gain, error, fit)}"
    logger.info("solver='cells': %s", why)
    return why


def in_pairs(data: TrainingData, fit: F) -> F:
    """Return the settings with pairs of many classes if rows are left out of these no later than of one-vs-rest."""
    may = fit.loo and fit.any_scheme and fit.groups is None and len(data.class_weights) > 2
    enough = may and data.rows >= min(AUTO.class_rows * len(data.class_weights), AUTO.grouped_rows)
    return replace(fit, scheme="ovo") if enough and suits_pairs(data, fit) and are_quick(data, fit) else fit


def _rival(solver: str, why: str = "") -> Choice[ODMFit]:
    return Choice(solver, why, RECIPES[solver], INSTEAD)


def _in_words(rival: str, choice: Choice[ODMFit], gain: float, error: float, fit: ODMFit) -> str:
    """Return how many rows a rival gets right beside the suited solver, or how much it loses on them."""
    if fit.has_real_targets:
        more = "less" if gain >= 0 else "more"
        return f"in trials on a third of the rows, {rival!r} loses {abs(gain):.2%} ± {error:.2%} {more} on the others"
    more = "more" if gain >= 0 else "fewer"
    return (
        f"in trials on a third of the rows, {rival!r} gets {abs(gain):.2%} ± {error:.2%} of the others {more} right "
        f"than {choice.solver!r}"
    )


def _suited(fit: ODMFit, rows: int, features: int) -> tuple[str, str]:
    """Return the solver that suits the data, and the reason."""
    kernel = fit.kernel.kernel
    if kernel == "linear":
        return "newton", "the kernel is linear"
    if kernel == "precomputed":
        return "exact", "the kernel is precomputed"
    work = rows**2 * (features + 16)
    if work > AUTO.exact_work:
        return "landmark", f"{rows} rows of {features} features are too many for their whole kernel matrix"
    if fit.groups is not None and rows > AUTO.grouped_rows:
        return "landmark", f"groups of {rows} rows are left out much faster over landmarks"
    limit = None if fit.run.memory_limit is None else parse_limit(fit.run.memory_limit)
    if limit is not None and fit_bytes(Shape(fit.kernel.alike, rows, features, 8, fit.run.here().threads)) > limit:
        return "landmark", f"memory_limit={fit.run.memory_limit} is too small for the whole kernel matrix"
    return "exact", f"{rows} rows of {features} features are few enough for their whole kernel matrix"
