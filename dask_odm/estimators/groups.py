"""Groups of rows that belong together, and are left out together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial import KDTree

from dask_odm.data.readers.sources import is_of
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.linalg.rows import unmasked
from dask_odm.typing import Array


def numbered(groups: Array) -> Array:
    """Return the numbers, from 0, of the groups that rows are in (n,); raise InputError if there is one alone."""
    found: Array = pd.factorize(groups)[0]
    if not found.any():
        raise InputError("groups must be two or more, since each is left out in turn.")
    return found


def spatial_blocks(coordinates: Any, size: Any) -> Any:
    """Return the spatial block of every row, as groups to leave out together, since neighbouring places are alike.

    Parameters
    ----------
    coordinates : array-like of shape (n, k), or DataArray, or Dataset
        Places of the rows. For an xarray object, the coordinates of the dimensions that ``size`` names are used.
    size : float, array-like of shape (k,), or dict
        Length of a block along each coordinate, in its units. For an xarray object ``{dimension: length}``. A block
        should be several times wider than the distance over which places are alike, since its border cuts fields.

    Returns
    -------
    groups : ndarray of shape (n,), or DataArray
        Number of the block of every row, from 0, int64. A DataArray has the dimensions that ``size`` names.

    Raises
    ------
    InputError
        A length that is not positive, coordinates that are not numbers, or a dimension without coordinates.

    Warns
    -----
    UserWarning
        Nearly all blocks hold one row, as if rows were left out singly.

    Examples
    --------
    >>> from dask_odm import spatial_blocks
    >>> spatial_blocks([[0.0, 0.0], [4.0, 1.0], [12.0, 1.0]], size=10.0).tolist()
    [0, 0, 1]
    """
    is_xarray = is_of(coordinates, "xarray", "DataArray", "Dataset")
    return _of_dimensions(coordinates, size) if is_xarray else _of_places(coordinates, size)


def _of_places(coordinates: Any, size: Any) -> Array:
    places: Array = as_input_error(lambda: np.asarray(unmasked(coordinates), dtype=np.float64))
    places = places[:, None] if places.ndim == 1 else places
    if places.ndim != 2:
        raise InputError(f"coordinates must have shape (n, k). Got {places.shape} instead.")
    found: Array = np.unique(_cells(places, size), axis=0, return_inverse=True)[1].ravel()
    _warn_if_single(found, size, lambda: f"{np.median(KDTree(places).query(places[:1000], k=2)[0][:, 1]):.3g}")
    return found


def _of_dimensions(given: Any, size: Any) -> Any:
    import xarray as xr

    if not isinstance(size, Mapping) or not size:
        raise InputError(f"size must name dimensions of xarray data, {{dimension: length}}. Got {size!r} instead.")
    for name in size:
        if name not in given.dims or name not in given.coords:
            raise InputError(f"{name!r} is no dimension with coordinates of the data: {list(given.dims)}.")
    places: list[Array] = as_input_error(lambda: [np.asarray(given[name], dtype=np.float64) for name in size])
    along = [_cells(each[:, None], [length]) for each, length in zip(places, size.values(), strict=True)]
    grids = np.meshgrid(*(each[:, 0] for each in along), indexing="ij")
    cells = np.column_stack([grid.ravel() for grid in grids])
    found = np.unique(cells, axis=0, return_inverse=True)[1].reshape(grids[0].shape)
    steps = {name: np.ptp(each) / max(1, len(each) - 1) for name, each in zip(size, places, strict=True)}
    told = " and ".join(f"{step:.3g} along {name!r}" for name, step in steps.items())
    _warn_if_single(found.ravel(), dict(size), lambda: told)
    return xr.DataArray(found, {name: given[name] for name in size}, list(size), name="group")


def _cells(places: Array, size: Any) -> Array:
    """Return the places of blocks along each coordinate, (n, k)."""
    lengths = as_input_error(lambda: np.broadcast_to(np.asarray(size, dtype=np.float64), places.shape[1:]))
    if not (lengths > 0).all() or not np.isfinite(lengths).all() or not np.isfinite(places).all():
        raise InputError(f"coordinates must be finite numbers, and size positive. Got size={size!r}.")
    found: Array = np.floor((places - places.min(axis=0, initial=np.inf)) / lengths)
    if found.max(initial=0.0) >= 2.0**53:
        raise InputError(f"size={size!r} is too small for coordinates so far apart: there are too many blocks.")
    return found.astype(np.int64)


def _warn_if_single(groups: Array, size: Any, steps: Callable[[], str]) -> None:
    """Warn if nearly all groups are of one row; ``steps`` tells how far neighbours are apart."""
    counts = np.bincount(groups)
    if len(counts) > 1 and (counts == 1).mean() > 0.9:
        warnings.warn(
            f"nearly all blocks of size={size!r} hold one row, so that rows are left out singly. A size is in the "
            f"units of the coordinates, and neighbours are {steps()} apart; a block should be many times wider.",
            UserWarning,
            stacklevel=4,
        )
