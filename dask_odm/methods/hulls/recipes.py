"""The table of solvers of `SaddleSVC`, and the choice of `solver="auto"`."""

from __future__ import annotations

from dask_odm.errors import InputError
from dask_odm.learning.training.recipe import Choice, Recipe
from dask_odm.methods.hulls.clients.recipe import reads_for_one, spreads_to_clients
from dask_odm.methods.hulls.first_order_recipe import train_gilbert, train_saddle_point
from dask_odm.methods.hulls.landmark_recipe import train_in_span
from dask_odm.methods.hulls.nearest_recipe import train_nearest_point
from dask_odm.methods.hulls.settings import SaddleFit

HULL_RECIPES: dict[str, Recipe[SaddleFit]] = {
    "mnp": Recipe(train_nearest_point, linear=True),
    "saddle": Recipe(train_saddle_point, reads=reads_for_one, spreads=spreads_to_clients, linear=True),
    "gilbert": Recipe(train_gilbert, reads=reads_for_one, spreads=spreads_to_clients, linear=True),
}


SPAN_RECIPE: Recipe[SaddleFit] = Recipe(train_in_span)


def choose_hull_solver(solver: str, fit: SaddleFit) -> Choice[SaddleFit]:
    """Choose the recipe that ``solver`` names. "auto" is "mnp", the fastest or nearly so in all measurements.

    Raises InputError for another solver than "mnp" if the kernel is not linear.
    """
    if fit.kernel.kernel != "linear":
        if solver not in ("auto", "mnp"):
            raise InputError(f"solver={solver!r} is for kernel='linear'; leave solver='auto' for other kernels.")
        return Choice("mnp", "over the span of landmarks", SPAN_RECIPE)
    name, why = (solver, "asked for") if solver != "auto" else ("mnp", "the fewest passes")
    return Choice(name, why, HULL_RECIPES[name])
