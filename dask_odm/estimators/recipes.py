"""The table of solvers: how each learns from rows in memory, and from a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from dask_odm.data.partitioned import Labelling
from dask_odm.data.store import Store
from dask_odm.errors import InputError
from dask_odm.estimators.landmark import train_landmark_arrays, train_landmark_store
from dask_odm.estimators.linear import train_linear_arrays, train_linear_store
from dask_odm.estimators.svrg import (
    train_csvrg_arrays,
    train_csvrg_store,
    train_ring_arrays,
    train_ring_store,
    train_svrg_arrays,
    train_svrg_store,
)
from dask_odm.estimators.training import FitSettings, Trained, train_arrays, train_store

Array = NDArray[Any]


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
    from_store: Callable[[Store, Labelling, FitSettings], Trained]
    linear: bool = False
    partitions: bool = False


RECIPES = {
    "sodm": Recipe(train_arrays, train_store, partitions=True),
    "landmark": Recipe(train_landmark_arrays, train_landmark_store),
    "newton": Recipe(train_linear_arrays, train_linear_store, linear=True),
    "dsvrg": Recipe(train_ring_arrays, train_ring_store, linear=True, partitions=True),
    "svrg": Recipe(train_svrg_arrays, train_svrg_store, linear=True),
    "csvrg": Recipe(train_csvrg_arrays, train_csvrg_store, linear=True),
}


def choose_recipe(solver: str, kernel: Any) -> Recipe:
    """The recipe that ``solver`` names; of "auto", newton for the linear kernel and sodm for others.

    Raises
    ------
    InputError
        A linear solver for another kernel.
    """
    if solver == "auto":
        return RECIPES["newton" if kernel == "linear" else "sodm"]
    recipe = RECIPES[solver]
    if recipe.linear and kernel != "linear":
        raise InputError(f"solver={solver!r} is for kernel='linear'. Got kernel={kernel!r} instead.")
    return recipe
