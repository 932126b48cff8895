"""The table of solvers: how each learns from rows in memory, and from a store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dask_odm.data.rows.targets import TwoClasses
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import parse_limit
from dask_odm.errors import InputError
from dask_odm.estimators.fitting.training import FitSettings, Trained
from dask_odm.estimators.odm.exact_recipe import train_exact_arrays, train_exact_store
from dask_odm.estimators.odm.landmark_recipe import train_landmark_arrays, train_landmark_store
from dask_odm.estimators.odm.newton_recipe import train_linear_arrays, train_linear_store
from dask_odm.estimators.odm.svrg_recipe import (
    train_csvrg_arrays,
    train_csvrg_store,
    train_ring_arrays,
    train_ring_store,
    train_svrg_arrays,
    train_svrg_store,
)
from dask_odm.estimators.odm.tree_recipe import train_arrays, train_store
from dask_odm.solvers.exact import solver_bytes as exact_bytes
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


@dataclass(frozen=True)
class Recipe:
    """How one ``solver`` learns.

    Attributes
    ----------
    from_arrays : callable
        Takes raw rows (n, d), labels ±1, weights, the weights of the classes and settings.
    from_store : callable
        Takes a store, its labelling and settings.
    linear : bool
        For the linear kernel only, in the weights of its features, which it can start from.
    partitions : bool
        Cuts rows into partitions, which Dask's workers solve if there are any.
    """

    from_arrays: Callable[[Any, Array, Array, tuple[float, float], FitSettings], Trained]
    from_store: Callable[[Store, TwoClasses, FitSettings], Trained]
    linear: bool = False
    partitions: bool = False


RECIPES = {
    "sodm": Recipe(train_arrays, train_store, partitions=True),
    "landmark": Recipe(train_landmark_arrays, train_landmark_store),
    "exact": Recipe(train_exact_arrays, train_exact_store),
    "newton": Recipe(train_linear_arrays, train_linear_store, linear=True),
    "dsvrg": Recipe(train_ring_arrays, train_ring_store, linear=True, partitions=True),
    "svrg": Recipe(train_svrg_arrays, train_svrg_store, linear=True),
    "csvrg": Recipe(train_csvrg_arrays, train_csvrg_store, linear=True),
}


EXACT_WORK = 1 << 33  # multiplications of a pass over the whole kernel: some seconds for a fit


@dataclass(frozen=True)
class Choice:
    """The solver that a fit goes by, and why."""

    solver: str
    why: str

    @property
    def recipe(self) -> Recipe:
        return RECIPES[self.solver]

    def told(self, trained: Trained) -> Trained:
        """``trained`` with the choice in the first record of its history."""
        for model in (trained, *trained.path):
            model.history[0] |= {"solver": self.solver, "why": self.why}
        return trained


def is_linear(solver: str, kernel: Any) -> bool:
    """Whether ``solver`` learns weights of features.

    Raises
    ------
    InputError
        A linear solver for another kernel.
    """
    if solver == "auto":
        return bool(kernel == "linear")
    linear = RECIPES[solver].linear
    if linear and kernel != "linear":
        raise InputError(f"solver={solver!r} is for kernel='linear'. Got kernel={kernel!r} instead.")
    return linear


def choose_solver(solver: str, settings: FitSettings, rows: int, features: int) -> Choice:
    """What ``solver`` names; of "auto" what suits so many rows and features, the kernel and ``memory_limit``.

    Workers have no say: the same data make the same model anywhere.
    """
    choice = _choose(solver, settings, rows, features)
    logger.info("solver=%r: %s", choice.solver, choice.why)
    return choice


def _choose(solver: str, settings: FitSettings, rows: int, features: int) -> Choice:
    if solver != "auto":
        return Choice(solver, "asked for")
    if settings.kernel == "linear":
        return Choice("newton", "the kernel is linear")
    if settings.n_partitions is not None or settings.tree.stop_at > 1 or settings.tree.early_stop:
        return Choice("sodm", "partitions are asked for")
    if settings.kernel != "precomputed" and (
        settings.n_landmarks is not None or settings.landmarks != "support" or settings.certify
    ):
        return Choice("landmark", "landmarks are asked for")
    if settings.kernel == "precomputed":
        return Choice("exact", "the kernel is precomputed")
    work = rows**2 * (features + 16)
    if work > EXACT_WORK:
        return Choice("landmark", f"{rows} rows of {features} features are too many for their whole kernel matrix")
    limit = None if settings.memory_limit is None else parse_limit(settings.memory_limit)
    if limit is not None and exact_bytes(rows, features, 8) > limit:
        return Choice("landmark", f"memory_limit={settings.memory_limit} is too small for the whole kernel matrix")
    return Choice("exact", f"{rows} rows of {features} features are few")
