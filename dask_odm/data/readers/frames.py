"""Rows of frames of pandas, polars and Arrow: as frames of pandas, and as features that a recipe makes of columns."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd

from dask_odm.data.readers import tables
from dask_odm.data.readers.column_values import values_by
from dask_odm.data.readers.sources import column_name, is_of, require_in_range
from dask_odm.data.readers.survey import Survey
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.errors import InputError
from dask_odm.printing import quoted
from dask_odm.typing import Array


def is_dask_frame(X: Any) -> bool:
    """Return whether ``X`` is a dask DataFrame."""
    return is_of(X, "dask.dataframe", "DataFrame")


def is_frame(X: Any) -> bool:
    """Return whether ``X`` is a pandas or dask DataFrame."""
    return isinstance(X, pd.DataFrame) or is_dask_frame(X)


def as_pandas(X: Any) -> Any:
    """Return a frame of polars, Arrow or any library with an Arrow stream as one of pandas, and all else as it is.

    Raises InputError for a frame of polars that is lazy, or holds integers of 128 bits.
    """
    tables.refuse_unreadable_frame(X)
    if is_of(X, "polars", "DataFrame"):  # without pyarrow, which polars does not need
        values = {each.name: each.to_numpy() for each in X.get_columns()}
        frame = pd.DataFrame({name: held if held.ndim == 1 else list(held) for name, held in values.items()})
        zoned = [name for name, dtype in X.schema.items() if getattr(dtype, "time_zone", None) is not None]
        return frame.assign(**{name: frame[name].dt.tz_localize("UTC") for name in zoned})  # NumPy knows no zones
    if tables.is_arrow_frame(X):
        import pyarrow

        return pyarrow.table(X).to_pandas()
    return X


def without_numbers(frame: pd.DataFrame) -> list[int]:
    """Return the places of the columns without numbers. Numbers in object columns are accepted."""
    plain = [dtype.kind in "iuf" for dtype in frame.dtypes]
    return [j for j, is_plain in enumerate(plain) if not is_plain and tables.other_type(frame.iloc[:, j]) is not None]


def surveyed_rows(frame: pd.DataFrame, dtype: str | None) -> tuple[Array, ColumnRecipe] | None:
    """Return the features (n, d) of the columns of a frame, and the recipe; None if all are numbers without gaps.

    Without ``dtype`` of the features, the rows choose, see `Survey.recipe`.
    """
    if not frame.size:
        return None
    if all(dtype.kind in "iuf" for dtype in frame.dtypes) and not frame.isna().to_numpy().any():
        return None
    names = tuple(map(str, frame.columns))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"X: two columns are named {quoted(twice)}; give each a name of its own.")
    others = without_numbers(frame)  # words or spans of time, which may be numbers
    survey = Survey(names)
    table, place = tables.PandasTable(frame), "X, row {}".format
    held = (table.column(j, 0, len(frame)) for j in range(len(names)))
    values = survey.add(held, len(frame), place, spells_all=False)
    require_in_range(values, dtype or "float64", partial(column_name, names=names), place)
    recipe, encode = survey.recipe(lambda: iter((values,)), dtype, "X")
    return (encode(values), recipe) if others or not recipe.is_plain else None


def rows_by(frame: pd.DataFrame, recipe: ColumnRecipe, where: str = "X") -> Array:
    """Return the features (n, d) that a recipe makes of the columns of a frame; further columns are left out.

    Raises InputError if columns are missing, or hold what cannot be read as in the rows of the fit.
    """
    places = recipe.places(list(map(str, frame.columns)), "X")
    table, place = tables.PandasTable(frame), f"{where}, row {{}}".format
    held = (None if at < 0 else table.column(at, 0, len(frame)) for at in places)
    values = values_by(recipe, held, len(frame), place)
    require_in_range(values, recipe.dtype, partial(column_name, names=recipe.names), place)
    return recipe.encode(values)
