"""xarray objects as rows and labels, and predictions that keep their coordinates.

Dimensions may have any names and any order. The one that runs along the rows follows from what lies beside ``X``.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import xarray as xr

from dask_odm.data.cubes.cube import listed
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.frames import warn_column
from dask_odm.typing import Array

_DEFAULT = re.compile(r"dim_\d+")  # xarray's name of a dimension without a name


def columns_of(X: xr.DataArray | xr.Dataset, y: Any, weight: Any) -> tuple[xr.DataArray, Any, Any]:
    """Return rows, labels and weights of a Dataset, or those given with a DataArray; raise InputError without ``X``."""
    if isinstance(X, xr.DataArray):
        return X, y, weight
    if "X" not in X:
        held = listed(X.data_vars)
        raise InputError(
            f"the Dataset has no variable 'X' of rows; it has {held}. Say which one holds the labels: fit(dataset, "
            "'name of the labels'), or pass labels beside it, fit(dataset, labels)."
        )
    return X["X"], X.get("y"), X.get("weight")


def sample_dimension(X: xr.DataArray, y: Any, weight: Any, model: Any) -> Any:
    """Return the name of the dimension of ``X`` that runs along the rows.

    It is the dimension that y or weight share with X. Otherwise it is the one beside the dimension of the features of
    the fitted estimator ``model``, which their names identify, or the dimension's name in `fit`. Otherwise it is
    "sample", or the one beside "feature". Otherwise it is the one whose other dimension has as many entries as the
    model has features, or without a model the first.

    Raises InputError unless X has two dimensions of which y or weight share exactly one, and if nothing tells the two
    apart.
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
    known = None if model is None else _known_features(X, model)
    if known is not None:
        return first if second == known else second
    if "sample" in X.dims:
        return "sample"
    if "feature" in X.dims:
        return first if second == "feature" else second
    return first if model is None else _beside_as_many(X, model.n_features_in_)


def _known_features(X: xr.DataArray, model: Any) -> Any:
    """Return the dimension of ``X`` by which the model knows its features; None if there is none."""
    if hasattr(model, "feature_names_in_"):
        wanted = list(model.feature_names_in_)
        named = [d for d in X.dims if d in X.indexes and list(X.indexes[d]) == wanted]
        if len(named) == 1:
            return named[0]
    name = model._feature_dimension
    if name is None or name not in X.dims:
        return None
    # xarray's default name does not count if the number of entries differs
    return None if _DEFAULT.fullmatch(name) and X.sizes[name] != model.n_features_in_ else name


def _beside_as_many(X: xr.DataArray, count: int) -> Any:
    """Return the dimension whose other one has ``count`` entries, else the first; raise InputError if both have."""
    first, second = X.dims
    if X.sizes[first] == X.sizes[second] == count:
        raise InputError(
            f"either dimension of X, {X.dims}, may be that of the features, since both have {count} entries; rename "
            f"the one of the rows: X.rename({{{first!r}: 'sample'}})."
        )
    return second if X.sizes[first] == count else first


def oriented(X: xr.DataArray, y: Any, weight: Any, model: Any) -> tuple[xr.DataArray, Any, Any]:
    """Return ``X`` as (sample, feature), and y and weight along its rows; raise InputError if they do not match."""
    sample = sample_dimension(X, y, weight, model)
    X = X.transpose(sample, ...)
    return X, _along(X, y, "y"), _along(X, weight, "sample_weight")


def _along(X: xr.DataArray, column: Any, name: str) -> Any:
    if not isinstance(column, xr.DataArray):
        return column
    sample = X.dims[0]
    others = [d for d in column.dims if d != sample]
    if sample not in column.dims or any(column.sizes[d] != 1 for d in others):
        raise InputError(f"{name} must have the dimension {sample!r} of X alone. Got {column.dims} instead.")
    if others:
        warn_column()
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


def like(X: xr.DataArray | xr.Dataset, values: Any, name: str, model: Any) -> xr.DataArray:
    """Return ``values``, (n,) or (n, target), over the sample dimension of ``X`` with its coordinates."""
    rows, y, weight = columns_of(X, None, None)
    sample = sample_dimension(rows, y, weight, model)
    of_features = [each for each, coordinate in rows.coords.items() if set(coordinate.dims) - {sample}]
    return xr.DataArray(values, rows.drop_vars(of_features).coords, (sample, "target")[: values.ndim], name)
