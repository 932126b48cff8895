"""Labels and weights beside a cube: which dimensions run along rows, and whether coordinates are the same.

Labels may be a table of points: each row has the coordinates of a place in the cube and the label of the nearest cell.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dask_odm.data.cubes.cube import Cube, listed, texts
from dask_odm.data.cubes.tables import TARGETS
from dask_odm.errors import InputError
from dask_odm.typing import Array

POINT = "point"  # the dimension of rows at points


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
        for name, column in held.items():
            if column is not None and not isinstance(column, xr.DataArray):
                held[name] = xr.DataArray(np.asarray(column), dims=POINT)
    return X, y, held


def row_dimensions(X: xr.DataArray | xr.Dataset, labels: xr.DataArray) -> tuple[Hashable, ...]:
    """Return the dimensions that ``labels`` share with the cube ``X``, which run along its rows.

    A dimension of one entry in the labels counts only if X has one entry along it, too. Raises InputError if no
    dimension is shared, or if the labels have one that X has not, but for that of several targets.
    """
    if isinstance(X, xr.DataArray):
        sizes = dict(X.sizes)
    else:  # dimensions that only coordinates have do not count
        sizes = {d: X.sizes[d] for v in X.data_vars.values() for d in v.dims}
    rows = tuple(d for d in labels.dims if d in sizes and (labels.sizes[d] != 1 or sizes[d] == 1))
    others = [d for d in labels.dims if d not in rows and labels.sizes[d] != 1]
    if others and (len(others) > 1 or others[0] not in TARGETS):
        raise InputError(
            f"y has the dimension {others[0]!r}, which X has not; those of X are {listed(sizes)}. Select one entry of "
            f"it: y.isel({{{others[0]!r}: 0}})."
        )
    if not rows:
        raise InputError(
            f"y shares no dimension with X; it has {listed(labels.dims)}, and X has {listed(sizes)}. Rename its "
            "dimensions: y.rename."
        )
    return rows


def beside(cube: Cube, column: Any, what: str) -> Any:
    """Return the values of labels or weights in the order of the cube's rows, an array of the row dimensions.

    Several targets come last. A dimension that weights lack is filled with copies. Raises InputError unless ``column``
    is a DataArray whose dimensions are the cube's, with the same coordinates.
    """
    if not isinstance(column, xr.DataArray):
        raise InputError(
            f"{what} must be a DataArray over the dimensions of X that run along rows, {listed(cube.dimensions)}. Got "
            f"{type(column).__name__} instead."
        )
    dropped = [d for d in column.dims if d not in cube.dimensions and column.sizes[d] == 1]
    column = column.isel(dict.fromkeys(dropped, 0), drop=True)
    sizes = dict(zip(cube.dimensions, cube.shape, strict=True))
    sizes |= {d: column.sizes[d] for d in column.dims if what == "y" and d in TARGETS and d not in sizes}
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


# Tables of points ------------------------------------------------------------------------------------------------


def is_points(X: xr.DataArray | xr.Dataset, y: Any) -> bool:
    """Return whether ``y`` is a frame of points in the cube ``X``.

    A frame is one if a column has the name of a dimension of ``X``. If the cube is no table, any frame of several
    columns is one, so that `at_points` can say which columns it lacks.
    """
    if not isinstance(y, pd.DataFrame):
        return False
    is_table = "X" in X.data_vars if isinstance(X, xr.Dataset) else X.ndim == 2
    return any(name in X.dims for name in y.columns) or (not is_table and y.shape[1] > 1)


def at_points(X: xr.DataArray | xr.Dataset, points: pd.DataFrame) -> tuple[Any, xr.DataArray]:
    """Return the cells of a cube nearest to points, and the labels of these, both over the dimension "point".

    Columns named as dimensions of ``X`` are coordinates, and the one that remains is the label. A number or date has to
    lie in a cell, which reaches half of the step to the next one; other coordinates have to be those of the cell.

    Raises InputError if there is no column of coordinates, or not one of labels, if a dimension of the points has no
    coordinates, or if a point is outside the cube.
    """
    along = [name for name in points.columns if name in X.dims]
    labels = [name for name in points.columns if name not in along]
    if not along:
        raise InputError(
            f"a table of points has the dimensions of X as columns of coordinates, here of {listed(X.dims)}. Got "
            f"{listed(labels)}; rename the columns of coordinates."
        )
    if len(labels) != 1:
        kept = listed([*along, *labels[:1]]) if labels else listed([*along, "label"])
        raise InputError(
            f"a table of points has columns of coordinates, here {listed(along)}, and one of labels. Got "
            f"{listed(labels)} beside them; keep one: points[[{kept}]]."
        )
    at = {name: xr.DataArray(_cells(X, name, points[name]), dims=POINT) for name in along}
    found = X.drop_vars(POINT, errors="ignore").isel(at)
    return found, xr.DataArray(points[labels[0]].to_numpy(), dims=POINT, name=labels[0])


def _cells(X: Any, name: str, wanted: pd.Series[Any]) -> Array:
    """Return the positions along a dimension of the cells that points lie in."""
    index = X.indexes.get(name)
    if index is None:
        raise InputError(f"X has no coordinates along {name!r}, which the points have; assign them (X.assign_coords).")
    if not index.is_unique:
        raise InputError(f"coordinates of X along {name!r} occur more than once; points cannot tell which is meant.")
    if index.dtype.kind not in "iufM" or not (index.is_monotonic_increasing or index.is_monotonic_decreasing):
        found: Array = index.get_indexer(pd.Index(wanted))
        return _required(found, found >= 0, name, wanted)
    dtype = index.dtype if index.dtype.kind == "M" else np.dtype(np.float64)
    values = np.asarray(index, dtype=dtype)
    try:
        asked = wanted.to_numpy(dtype=dtype)
    except (TypeError, ValueError) as error:
        kind = "dates" if dtype.kind == "M" else "numbers"
        raise InputError(f"coordinates of points along {name!r} are not all {kind}, as those of X are.") from error
    found = pd.Index(values).get_indexer(pd.Index(asked), method="nearest")
    steps = np.abs(np.diff(values))
    reach = np.maximum(np.append(steps[:1], steps), np.append(steps, steps[-1:])) / 2
    apart = np.abs(asked - values[found])
    return _required(found, apart <= reach[found] if len(steps) else apart == apart.dtype.type(0), name, wanted)


def _required(found: Array, is_inside: Array, name: str, wanted: pd.Series[Any]) -> Array:
    """Return the positions found; raise InputError if a point is outside."""
    outside = np.flatnonzero(~is_inside)
    if len(outside):
        raise InputError(
            f"{len(outside)} of {len(found)} points are outside X along {name!r}, the first at "
            f"{wanted.iloc[int(outside[0])]}; leave them out, or give them coordinates of X (the same projection)."
        )
    return found
