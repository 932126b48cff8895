"""The table of solvers of `SaddleSVC`, and the choice of `solver="auto"`."""

from __future__ import annotations

from dask_odm.errors import InputError
from dask_odm.learning.training.recipe import Choice, Recipe, is_small
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.hulls.first_order_recipe import train_gilbert, train_saddle_point
from dask_odm.methods.hulls.landmark_recipe import train_in_span
from dask_odm.methods.hulls.nearest_recipe import train_nearest_point
from dask_odm.methods.hulls.settings import SaddleFit


class NearestPointRecipe(Recipe[SaddleFit]):
    linear = True

    def train(self, data: TrainingData, fit: SaddleFit) -> Trained:
        return train_nearest_point(data, fit)


class _ByClients(Recipe[SaddleFit]):
    """What both solvers that can deal rows to clients have in common."""

    linear = True

    def reads(self, store: TrainingData, fit: SaddleFit) -> bool:
        return is_small(store) and fit.n_clients is None

    def spreads(self, fit: SaddleFit) -> bool:
        return fit.n_clients is not None


class SaddlePointRecipe(_ByClients):
    def train(self, data: TrainingData, fit: SaddleFit) -> Trained:
        return train_saddle_point(data, fit)


class GilbertRecipe(_ByClients):
    def train(self, data: TrainingData, fit: SaddleFit) -> Trained:
        return train_gilbert(data, fit)


class LandmarkHullsRecipe(Recipe[SaddleFit]):
    def train(self, data: TrainingData, fit: SaddleFit) -> Trained:
        return train_in_span(data, fit)


HULL_RECIPES: dict[str, Recipe[SaddleFit]] = {
    "mnp": NearestPointRecipe(),
    "saddle": SaddlePointRecipe(),
    "gilbert": GilbertRecipe(),
}


def choose_hull_solver(solver: str, fit: SaddleFit) -> Choice[SaddleFit]:
    """Choose the recipe that ``solver`` names. "auto" is "mnp", the fastest or nearly so in all measurements.

    Raises InputError for another solver than "mnp" if the kernel is not linear.
    """
    if fit.kernel.kernel != "linear":
        if solver not in ("auto", "mnp"):
            raise InputError(f"solver={solver!r} is for kernel='linear'; leave solver='auto' for other kernels.")
        return Choice("mnp", "over the span of landmarks", LandmarkHullsRecipe())
    name, why = (solver, "asked for") if solver != "auto" else ("mnp", "the fewest passes")
    return Choice(name, why, HULL_RECIPES[name])
