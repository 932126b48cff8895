"""Labels and weights beside a cube: which dimensions run along rows, and whether coordinates are the same."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dask_odm.data.cubes.cube import Cube, listed, texts
from dask_odm.data.cubes.points import along_points, at_points, is_points
from dask_odm.errors import InputError


def is_labelled_cube(X: Any, y: Any) -> bool:
    """Return whether the xarray ``X`` is a cube beside its labels ``y``, and no table of two dimensions."""
    if is_points(X, y):
        return True
    if isinstance(X, xr.Dataset):
        return "X" not in X.data_vars and isinstance(y, xr.DataArray | str)
    if not isinstance(y, xr.DataArray):
        return False
    return X.ndim != 2 or (len(y.dims) > 1 and all(d in y.dims and X.sizes[d] != 1 for d in X.dims))


def variable_beside(X: Any, column: Any, what: str) -> tuple[Any, Any]:
    """Split the variable that ``column`` names off the Dataset ``X``; anything else than a name stays as it is."""
    if not isinstance(column, str):
        return X, column
    if not isinstance(X, xr.Dataset) or column not in X.data_vars:
        held = f"; its variables are {listed(X.data_vars)}" if isinstance(X, xr.Dataset) else ""
        raise InputError(f"X has no variable {column!r}, which {what} names{held}.")
    return X.drop_vars(column), X[column]


def beside_rows(X: Any, y: Any, columns: Mapping[str, Any], what: str = "y") -> tuple[Any, Any, dict[str, Any]]:
    """Return a cube without its labels ``y`` and further columns, these, and the columns by name.

    Labels and columns may be named as variables of X. With a table of points, the cube is that of the cells at these
    points, see `at_points`. Messages call the labels ``what``.
    """
    X, y = variable_beside(X, y, what)
    held = {}
    for name, column in columns.items():
        X, held[name] = variable_beside(X, column, name)
    if is_points(X, y):
        X, y = at_points(X, y)
        held = {name: along_points(column) for name, column in held.items()}
    return X, y, held


def row_dimensions(X: xr.DataArray | xr.Dataset, labels: xr.DataArray, what: str = "y") -> tuple[Hashable, ...]:
    """Return the dimensions that ``labels`` share with the cube ``X``, which run along its rows.

    A dimension of one entry in the labels counts only if X has one entry along it, too. Raises InputError if no
    dimension is shared, or if the labels have one that X has not.
    """
    sizes = _sizes(X)
    rows = tuple(d for d in labels.dims if d in sizes and (labels.sizes[d] != 1 or sizes[d] == 1))
    others = [d for d in labels.dims if d not in rows and labels.sizes[d] != 1]
    if others:
        raise InputError(
            f"{what} has the dimension {others[0]!r}, which X has not; those of X are {listed(sizes)}. Select one "
            f"entry of it: {what}.isel({{{others[0]!r}: 0}})."
        )
    if not rows:
        raise InputError(
            f"{what} shares no dimension with X; it has {listed(labels.dims) or 'none'}, and X has "
            f"{listed(sizes) or 'none'}. Rename its dimensions: {what}.rename."
        )
    return rows


def beside(cube: Cube, column: Any, what: str) -> Any:
    """Return the values of labels or weights in the order of the cube's rows, an array of the row dimensions.

    A dimension that weights lack is filled with copies. Raises InputError unless ``column`` is a DataArray whose
    dimensions are the cube's, with the same coordinates.
    """
    if not isinstance(column, xr.DataArray):
        raise InputError(
            f"{what} must be a DataArray over the dimensions of X that run along rows, {listed(cube.dimensions)}. Got "
            f"{type(column).__name__} instead."
        )
    dropped = [d for d in column.dims if d not in cube.dimensions and column.sizes[d] == 1]
    column = column.isel(dict.fromkeys(dropped, 0), drop=True)
    sizes = dict(zip(cube.dimensions, cube.shape, strict=True))
    for d in column.dims:
        if d not in sizes:
            raise InputError(
                f"{what} has the dimension {d!r}, along which X has no rows; rows run along {listed(sizes)}."
            )
        if column.sizes[d] != sizes[d]:
            raise InputError(
                f"{what} has {column.sizes[d]} entries along {d!r}, and X has {sizes[d]}. {_way_out(what)}"
            )
        column = _in_order_of(cube, column, d, what)
    if column.variable.chunks is None and not column.variable._in_memory:
        column = column.chunk({} if column.dtype.hasobject else "auto")  # Dask cannot tell the size of objects
    return column.variable.set_dims(sizes).data


def _in_order_of(cube: Cube, column: xr.DataArray, d: Hashable, what: str) -> xr.DataArray:
    """Return labels in the order of the cube's coordinates along ``d``; raise InputError if they differ."""
    mine = cube.coordinates.indexes.get(d)
    its = column.indexes.get(d)
    if mine is None or its is None or mine.equals(its):
        return column
    if mine.is_unique and its.is_unique and not len(mine.difference(its, sort=False)):
        return column.isel({d: its.get_indexer(mine)})
    raise InputError(f"X and {what} have different coordinates along {d!r}: {_difference(mine, its)} {_way_out(what)}")


def _difference(mine: pd.Index, its: pd.Index) -> str:
    """Say where coordinates first differ."""
    kinds = [index.dtype.kind if isinstance(index.dtype, np.dtype) else "O" for index in (mine, its)]
    if not mine.is_unique or not its.is_unique:
        return "some occur more than once, and their order differs."
    if set(kinds) <= set("iuf"):
        apart = float(np.abs(np.asarray(mine, np.float64) - np.asarray(its, np.float64)).max())
        first = int(np.argmax(np.asarray(mine) != np.asarray(its)))
        return f"entry {first} is {mine[first]} in X and {its[first]} there, and they are up to {apart:.3g} apart."
    missing = mine.difference(its, sort=False)
    return f"X has {texts(missing[:1])[0]}, which is not there."


def _way_out(what: str) -> str:
    return (
        f"If both are of the same grid, take the coordinates of X ({what}.assign_coords); if not, put {what} on it "
        f"({what}.interp_like with method='nearest'), or keep what both have (xarray.align with join='inner')."
    )


def _sizes(X: xr.DataArray | xr.Dataset) -> dict[Hashable, int]:
    """Return the sizes of the dimensions of a cube; those that only coordinates of a Dataset have do not count."""
    if isinstance(X, xr.DataArray):
        return dict(X.sizes)
    return {d: X.sizes[d] for v in X.data_vars.values() for d in v.dims}
