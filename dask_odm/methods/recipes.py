"""The table of solvers: the recipe of each, and which one `solver="auto"` takes."""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib import import_module
from typing import Any

from dask_odm.engine.cluster import parse_limit
from dask_odm.errors import InputError
from dask_odm.learning.machines import Scheme
from dask_odm.learning.training.recipe import Choice, Recipe
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.cells.choosing import are_possible, gain_of_cells
from dask_odm.methods.cells.recipe import train_cells, train_machines_in_cells
from dask_odm.methods.exact.recipe import exact_bytes, train_exact
from dask_odm.methods.landmark.many_classes import train_machines_at_landmarks
from dask_odm.methods.landmark.recipe import reads_store, train_landmark
from dask_odm.methods.linear.recipe import train_newton
from dask_odm.methods.linear.routes import train_sparse
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.pairs.recipe import are_quick, suits_pairs, train_pairs
from dask_odm.methods.settings import Cells

logger = logging.getLogger("dask_odm")


RECIPES: dict[str, Recipe[ODMFit]] = {
    "landmark": Recipe(train_landmark, reads=reads_store, train_machines=train_machines_at_landmarks),
    "cells": Recipe(train_cells, train_machines=train_machines_in_cells),
    "exact": Recipe(train_exact, train_machines=train_pairs),
    "newton": Recipe(train_newton, linear=True, sparse=True, train_machines=train_sparse),
}
PAPERS = {  # the module with the recipe of a solver that a paper describes
    **dict.fromkeys(("sodm", "cascade", "dip", "dc"), "dask_odm.papers.sodm.recipe"),
    **dict.fromkeys(("dsvrg", "svrg", "csvrg"), "dask_odm.papers.dsvrg.recipe"),
}

LEAVE_OUT = ("newton", "landmark", "exact", "cells")  # solvers with leave-one-out in closed form
INSTEAD = "take kernel='linear' and solver='newton' or 'dsvrg', "  # for sparse rows that are too many for a recipe
# Share of all rows that cells of two classes have to get right beyond landmarks, since they take several times as long.
# Cells of many classes are quicker than landmarks, and may get as many rows less right.
WORTH = 0.003
NARROWER = 8.0  # times the γ that a search over landmarks chose: few of these cannot show what a narrow kernel gains
NOTHING = 0.05  # share of the rows outside the largest class, below which a search has found next to nothing
# Rows up to which "exact" leaves groups out in less than about ten times the processor time of "landmark". It takes
# rows³ multiplications for that: at 12,000 rows of 10 features 88 s where landmarks take 1 s.
GROUPED_ROWS = 5000
EXACT_WORK = 1 << 33  # most multiplications of a pass over the whole kernel for "exact"; a fit then takes some seconds


def recipe_of(solver: str) -> Recipe[ODMFit]:
    """Return the recipe of a solver. That of a paper is loaded by its name."""
    if solver in PAPERS:
        found: Recipe[ODMFit] = import_module(PAPERS[solver]).RECIPES[solver]
        return found
    return RECIPES[solver]


def is_linear(solver: str, kernel: Any) -> bool:
    """Return whether ``solver`` learns feature weights; raise InputError if it is linear and the kernel is not."""
    if solver == "auto":
        return bool(kernel == "linear")
    linear = recipe_of(solver).linear
    if linear and kernel != "linear":
        raise InputError(f"solver={solver!r} is for kernel='linear'. Got kernel={kernel!r} instead.")
    return linear


def choose_solver(solver: str, fit: ODMFit, rows: int, features: int) -> Choice[ODMFit]:
    """Choose the recipe that ``solver`` names, or for "auto" by rows, features, kernel and ``memory_limit``.

    Workers have no influence: the same data make the same model anywhere. Raises InputError for a linear solver with
    another kernel, and for ``loo`` with a solver that has no closed form.
    """
    is_linear(solver, fit.kernel.kernel)  # raises an error for the wrong kernel
    name, why = (solver, "asked for") if solver != "auto" else _suited(fit, rows, features)
    logger.info("solver=%r: %s", name, why)
    if fit.loo and name not in LEAVE_OUT:
        raise InputError(
            f"loo=True has no closed form for solver={name!r}; choose solver='newton', 'landmark', 'exact' or 'cells', "
            "or set loo to False."
        )
    return Choice(name, why, recipe_of(name), INSTEAD)


def choose_for_machines(choice: Choice[ODMFit], data: TrainingData, fit: ODMFit, scheme: Scheme) -> Choice[ODMFit]:
    """Choose, for "auto" and many classes, exact pairs instead of landmarks if they are quick; else keep ``choice``.

    A pair has few of the rows, so pairs can be learned exactly even if the whole data set is too large for that.
    """
    together = replace(fit, loo=False)  # machines with leave-one-out are trained one by one, but are as small
    if choice.solver != "landmark" or scheme != "ovo" or not suits_pairs(data, together) or not are_quick(data, fit):
        return choice
    why = f"pairs of {len(data.class_weights)} classes have few of the {data.rows} rows"
    logger.info("solver='exact': %s", why)
    return Choice("exact", why, RECIPES["exact"], INSTEAD)


def choose_by_regions(
    choice: Choice[ODMFit], data: TrainingData, fit: ODMFit, *, pairs: bool = False
) -> tuple[Choice[ODMFit], ODMFit]:
    """Choose, for "auto", cells instead of landmarks if they get more rows of some regions right.

    What is chosen depends on data and seed, and on memory alone if cells would not fit. Returns the settings of the fit
    with the solver object of the choice.
    """
    if choice.solver != "landmark" or not are_possible(data, fit, pairs=pairs):
        return choice, fit
    gain, deviation = _gain_in_regions(data, fit, pairs=pairs)
    least = 2.0 * deviation - WORTH if len(data.class_weights) > 2 else max(WORTH, 2.0 * deviation)
    name = "cells" if gain >= least else "landmark"
    why = f"{choice.why}; in some regions, cells get {_told(gain, deviation)}, and are taken from {least:+.2%} on"
    logger.info("solver=%r: %s", name, why)
    return Choice(name, why, RECIPES[name], INSTEAD), replace(fit, own=Cells() if name == "cells" else fit.own)


def suits_narrow_cells(
    choice: Choice[ODMFit], data: TrainingData, fit: ODMFit, found: float, *, pairs: bool = False
) -> str:
    """Return why cells with a narrower kernel than that of ``fit`` may take the place of landmarks, or "" if not.

    Settings that were searched for over landmarks have a kernel that landmarks can follow. Cells may do better with
    another, for which they have to search. ``found`` is the share of the rows outside the largest class that landmarks
    get right beyond a constant.
    """
    if choice.solver != "landmark" or not are_possible(data, fit, pairs=pairs):
        return ""
    if found < NOTHING:
        why = f"{choice.why}, and landmarks find next to nothing"
    else:
        gain, deviation = _gain_in_regions(data, fit, pairs=pairs, narrower=NARROWER)
        if gain < max(WORTH, deviation):  # a hint suffices, since cells have yet to find their own settings
            return ""
        why = f"{choice.why}; in some regions, with {NARROWER:g} times the γ, cells get {_told(gain, deviation)}"
    logger.info("solver='cells': %s", why)
    return why


def _gain_in_regions(data: TrainingData, fit: ODMFit, *, pairs: bool, narrower: float = 1.0) -> tuple[float, float]:
    # a region has machines against the rest: there a row of k classes weighs as in pairs if λ is k/2 times as large
    times = 0.5 * len(data.class_weights) if pairs else 1.0
    with single_threaded_blas:
        return gain_of_cells(data, replace(fit, odm=replace(fit.odm, lam=times * fit.odm.lam)), narrower)


def _told(gain: float, deviation: float) -> str:
    """Return how many rows cells get right beside landmarks."""
    return f"{abs(gain):.2%} ± {deviation:.2%} of all rows {'more' if gain >= 0 else 'fewer'} right than landmarks"


def _suited(fit: ODMFit, rows: int, features: int) -> tuple[str, str]:
    """Return the solver that suits the data, and the reason."""
    kernel = fit.kernel.kernel
    if kernel == "linear":
        return "newton", "the kernel is linear"
    if kernel == "precomputed":
        return "exact", "the kernel is precomputed"
    work = rows**2 * (features + 16)
    if work > EXACT_WORK:
        return "landmark", f"{rows} rows of {features} features are too many for their whole kernel matrix"
    if fit.groups is not None and rows > GROUPED_ROWS:
        return "landmark", f"groups of {rows} rows are left out much faster over landmarks"
    limit = None if fit.run.memory_limit is None else parse_limit(fit.run.memory_limit)
    if limit is not None and exact_bytes(fit.kernel.alike, rows, features, 8, fit.run.here().threads) > limit:
        return "landmark", f"memory_limit={fit.run.memory_limit} is too small for the whole kernel matrix"
    return "exact", f"{rows} rows of {features} features are few"
