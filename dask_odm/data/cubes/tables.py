"""xarray objects of two dimensions as rows and labels, whatever names and order their dimensions have."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import xarray as xr

from dask_odm.errors import InputError
from dask_odm.typing import Array

TARGETS = ("target", "class")  # names of the dimension of several targets, or labels, as predictions have them


def sample_dimension(
    X: xr.DataArray, y: Any, weight: Any, *, features: Hashable | None = None, count: int | None = None
) -> Hashable:
    """Return the name of the dimension of ``X`` that runs along the rows.

    It is the dimension that y or weight share with X, else the one beside that of the ``features``, if it is known,
    else "sample", or the one beside "feature", else the one beside a dimension of ``count`` entries, or the first.

    Raises InputError unless X has two dimensions of which y or weight share exactly one, and if both have ``count``
    entries.
    """
    if X.ndim != 2:
        raise InputError(
            f"X must have two dimensions. Got {X.dims} instead; give y as a DataArray over those that run along rows, "
            "or stack or select the others."
        )
    for name, column in (("y", y), ("sample_weight", weight)):
        if isinstance(column, xr.DataArray):
            shared = [d for d in X.dims if d in column.dims and (X.sizes[d] != 1 or column.ndim == 1)]
            if len(shared) != 1:
                raise InputError(f"{name} must share one dimension with X, {X.dims}. Got {column.dims}; rename it.")
            return shared[0]
    first, second = X.dims
    if features is not None:
        return first if second == features else second
    if "sample" in X.dims:
        return "sample"
    if "feature" in X.dims:
        return first if second == "feature" else second
    if X.sizes[first] == X.sizes[second] == count:
        raise InputError(
            f"either dimension of X, {X.dims}, may be that of the features, since both have {count} entries; rename "
            f"the one of the rows: X.rename({{{first!r}: 'sample'}})."
        )
    return second if X.sizes[first] == count else first


def oriented(X: xr.DataArray, y: Any, weight: Any, sample: Hashable) -> tuple[xr.DataArray, Any, Any]:
    """Return ``X`` as (sample, feature), and y and weight along its rows; raise InputError if they do not match."""
    X = X.transpose(sample, ...)
    return X, along(X, y, "y"), along(X, weight, "sample_weight")


def along(X: xr.DataArray, column: Any, name: str) -> Any:
    """Return a ``column`` along the rows of ``X`` (sample, feature); raise InputError if it does not match them."""
    if not isinstance(column, xr.DataArray):
        return column
    sample = X.dims[0]
    others = [d for d in column.dims if d != sample]
    several = name == "y" and len(others) == 1 and others[0] in TARGETS
    if sample not in column.dims or (not several and any(column.sizes[d] != 1 for d in others)):
        beside = f", or with {TARGETS[0]!r}" if name == "y" else ""
        raise InputError(f"{name} must have the dimension {sample!r} of X alone{beside}. Got {column.dims} instead.")
    column = column.transpose(sample, ...)
    if name != "y":  # of which scikit-learn warns
        column = column.isel(dict.fromkeys(others, 0), drop=True)
    mine = X.indexes.get(sample)
    its = column.indexes.get(sample)
    if mine is not None and its is not None and not mine.equals(its):
        raise InputError(
            f"X and {name} have different coordinates along {sample!r}; align them first: "
            "X, y = xarray.align(X, y, join='inner')."
        )
    return column.data


def feature_names(X: xr.DataArray) -> Array | None:
    """Return the coordinates of the features of ``X`` (sample, feature) if they are strings, else None."""
    index = X.indexes.get(X.dims[1])
    if index is None or not len(index) or not all(isinstance(name, str) for name in index):
        return None
    return np.array(index, dtype=object)
