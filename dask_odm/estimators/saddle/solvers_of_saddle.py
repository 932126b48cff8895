"""The table of solvers of `SaddleSVC`, and which one `solver="auto"` takes."""

from __future__ import annotations

from dask_odm.estimators.fitting.recipe import Choice, Recipe
from dask_odm.estimators.saddle.client_recipes import reads_for_one, spreads_to_clients
from dask_odm.estimators.saddle.first_order_recipes import train_gilbert, train_saddle_point
from dask_odm.estimators.saddle.nearest_recipe import train_nearest_point
from dask_odm.estimators.saddle.saddle_settings import SaddleFit

HULL_RECIPES: dict[str, Recipe[SaddleFit]] = {
    "mnp": Recipe(train_nearest_point, linear=True, unused=frozenset({"block_size", "n_clients"})),
    "saddle": Recipe(train_saddle_point, reads=reads_for_one, spreads=spreads_to_clients, linear=True),
    "gilbert": Recipe(
        train_gilbert, reads=reads_for_one, spreads=spreads_to_clients, linear=True, unused=frozenset({"block_size"})
    ),
}


def choose_hull_solver(solver: str) -> Choice[SaddleFit]:
    """What ``solver`` names; "auto" is "mnp", which took the fewest passes of all wherever it was measured."""
    name, why = (solver, "asked for") if solver != "auto" else ("mnp", "the fewest passes")
    return Choice(name, why, HULL_RECIPES[name])
