"""Labels as a table of points: each row has the coordinates of a place in a cube and the label of the nearest cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dask_odm.data.cubes.cube import listed
from dask_odm.errors import InputError
from dask_odm.typing import Array

POINT = "point"  # the dimension of rows at points


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
            f"{listed(labels) or 'none'} beside them; keep one: points[[{kept}]]."
        )
    at = {name: xr.DataArray(_cells(X, name, points[name]), dims=POINT) for name in along}
    found = X.drop_vars(POINT, errors="ignore").isel(at)
    return found, xr.DataArray(points[labels[0]].to_numpy(), dims=POINT, name=labels[0])


def along_points(column: Any) -> Any:
    """Return weights or groups of points, (n,), as a DataArray over the dimension "point"."""
    if column is None or isinstance(column, xr.DataArray | str):
        return column
    return xr.DataArray(np.asarray(column), dims=POINT)


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
