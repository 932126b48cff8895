"""The table of solvers: the recipe of each, and which one `solver="auto"` takes."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from dask_odm.engine.cluster import parse_limit
from dask_odm.errors import InputError
from dask_odm.learning.machines import Scheme
from dask_odm.learning.training.recipe import Choice, Machines, Recipe, is_small
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.exact.limits import solver_bytes as exact_bytes
from dask_odm.methods.exact.recipe import train_exact
from dask_odm.methods.landmark.recipe import (
    WHOLE_VALUES,
    landmark_values,
    machines_at_once,
    train_landmark,
    train_machines_at_landmarks,
)
from dask_odm.methods.linear.many_classes_recipe import suits_sparse, train_sparse
from dask_odm.methods.linear.recipe import train_newton
from dask_odm.methods.pairs.recipe import are_quick, suits_pairs, train_pairs
from dask_odm.methods.settings import ODMFit
from dask_odm.methods.svrg.recipe import train_csvrg, train_dsvrg, train_svrg
from dask_odm.methods.tree.recipe import train_tree
from dask_odm.methods.tree.rules import CASCADE, DC, DIP, SODM, TreeRule

logger = logging.getLogger("dask_odm")


class ExactRecipe(Recipe[ODMFit]):
    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_exact(data, fit)

    def train_machines(self, data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> Trained | None:
        return train_pairs(data, fit, machines, pairs) if pairs and suits_pairs(data, fit) else None


class LandmarkRecipe(Recipe[ODMFit]):
    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_landmark(data, fit)

    def reads(self, store: TrainingData, fit: ODMFit) -> bool:
        return is_small(store) and landmark_values(store.rows, fit) <= WHOLE_VALUES

    def train_machines(self, data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> Trained | None:
        """Train all machines over the same landmarks, unless each is certified or left-out rows are wanted."""
        return None if fit.own.certify or fit.loo else train_machines_at_landmarks(data, fit, machines, pairs)

    def at_once(self, data: TrainingData, fit: ODMFit) -> int:
        return machines_at_once(data, fit)


class NewtonRecipe(Recipe[ODMFit]):
    linear = True

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_newton(data, fit)

    def train_machines(self, data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> Trained | None:
        return train_sparse(data, fit, machines) if not pairs and suits_sparse(data, fit) else None


class TreeRecipe(Recipe[ODMFit]):
    def __init__(self, rule: TreeRule) -> None:
        self.rule = rule

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_tree(data, fit, self.rule)

    def reads(self, store: TrainingData, fit: ODMFit) -> bool:
        return is_small(store) and store.rows <= self.rule.whole_rows and fit.own.n_partitions in (None, 1)

    def spreads(self, fit: ODMFit) -> bool:
        return has_partitions(fit)


class DSVRGRecipe(Recipe[ODMFit]):
    linear = True

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_dsvrg(data, fit)

    def reads(self, store: TrainingData, fit: ODMFit) -> bool:
        return False

    def spreads(self, fit: ODMFit) -> bool:
        return has_partitions(fit)


class SVRGRecipe(Recipe[ODMFit]):
    linear = True

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_svrg(data, fit)


class CSVRGRecipe(Recipe[ODMFit]):
    linear = True

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        return train_csvrg(data, fit)


def has_partitions(fit: ODMFit) -> bool:
    """Return whether several partitions are asked for, with a kernel that workers can compute."""
    return (fit.own.n_partitions or 1) > 1 and fit.kernel.is_named


RECIPES: dict[str, Recipe[ODMFit]] = {
    "sodm": TreeRecipe(SODM),
    "cascade": TreeRecipe(CASCADE),
    "dip": TreeRecipe(DIP),
    "dc": TreeRecipe(DC),
    "landmark": LandmarkRecipe(),
    "exact": ExactRecipe(),
    "newton": NewtonRecipe(),
    "dsvrg": DSVRGRecipe(),
    "svrg": SVRGRecipe(),
    "csvrg": CSVRGRecipe(),
}

LEAVE_OUT = ("newton", "landmark", "exact")  # solvers with leave-one-out in closed form
EXACT_WORK = 1 << 33  # most multiplications of a pass over the whole kernel for "exact"; a fit then takes some seconds


def is_linear(solver: str, kernel: Any) -> bool:
    """Return whether ``solver`` learns feature weights; raise InputError if it is linear and the kernel is not."""
    if solver == "auto":
        return bool(kernel == "linear")
    linear = RECIPES[solver].linear
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
            f"loo=True has no closed form for solver={name!r}; choose solver='newton', 'landmark' or 'exact', or set "
            "loo to False."
        )
    return Choice(name, why, RECIPES[name])


def choose_for_machines(choice: Choice[ODMFit], data: TrainingData, fit: ODMFit, scheme: Scheme) -> Choice[ODMFit]:
    """Choose, for "auto" and many classes, exact pairs instead of landmarks if they are quick; else keep ``choice``.

    A pair has few of the rows, so pairs can be learned exactly even if the whole data set is too large for that.
    """
    together = replace(fit, loo=False)  # machines with leave-one-out are trained one by one, but are as small
    if choice.solver != "landmark" or scheme != "ovo" or not suits_pairs(data, together) or not are_quick(data, fit):
        return choice
    why = f"pairs of {len(data.class_weights)} classes have few of the {data.rows} rows"
    logger.info("solver='exact': %s", why)
    return Choice("exact", why, RECIPES["exact"])


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
    limit = None if fit.run.memory_limit is None else parse_limit(fit.run.memory_limit)
    if limit is not None and exact_bytes(rows, features, 8) > limit:
        return "landmark", f"memory_limit={fit.run.memory_limit} is too small for the whole kernel matrix"
    return "exact", f"{rows} rows of {features} features are few"
