"""Cubes that users pass to `fit`, `score` and `predict`: which dimensions and variables are features."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from dask_odm.data.cubes.beside import beside_rows, row_dimensions
from dask_odm.data.cubes.cube import Cube, cube_of, listed, names_along
from dask_odm.data.cubes.reading import LabelledCube
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.lazy import computed
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import check_features


def labelled_cube(X: Any, y: Any, weight: Any, groups: Any, model: Any, memory_limit: int | str | None) -> LabelledCube:
    """Return a cube with labels, weights and groups, whose features are those of ``model`` if there is one.

    ``y`` may be a table of points, see `at_points`; the cube is then that of the cells at these points.

    Raises InputError if what is beside the cube has other dimensions or coordinates, and if there is no label;
    MemoryLimitError if a block of a lazy cube does not fit.
    """
    X, y, columns = beside_rows(X, y, {"sample_weight": weight, "groups": groups})
    if model is not None:
        X = with_features_of(X, model)
    for d in X.dims:  # models keep those of features
        if not isinstance(d, str):
            raise InputError(f"the dimensions of a cube need words as names. Got {d!r}; rename it (X.rename).")
    cube = cube_of(X, row_dimensions(X, y), () if model is None else _of_fit(X, model) or ())
    if model is not None:
        check_features(model, cube)
    found = LabelledCube.of(cube, y, columns, computed)
    if cube.is_lazy:
        require_blocks(cube, found.task_bytes, Cluster.current(memory_limit))
    return found


def require_blocks(cube: Cube, task_bytes: Callable[[int], int], cluster: Cluster) -> None:
    """Raise MemoryLimitError, with the chunks that would do, unless each task can hold a block of a lazy cube.

    ``task_bytes`` returns the peak bytes of a task for the number of rows of its block.
    """
    available, _ = cluster.share(cluster.slots)
    chunks = cube.chunks_that(lambda rows: task_bytes(rows) <= available)
    way_out = "Fewer threads a worker or more memory would do."
    if chunks is not None:
        way_out = f"Blocks are its chunks along its rows: open it with chunks={chunks}, or write it so. {way_out}"
    cluster.require(task_bytes(prod(cube.largest_block)), cluster.slots, "A block of the cube", way_out)


def cube_to_predict(X: Any, model: Any) -> Cube:
    """Return a cube whose features are those of a fitted estimator; raise InputError if they cannot be told."""
    X = with_features_of(X, model)
    features = feature_dimensions(X, model)
    cube = cube_of(X, [d for d in X.dims if d not in features], features)
    check_features(model, cube)
    return cube if model.dtype is None else replace(cube, dtype=np.dtype(model.dtype))


def with_features_of(X: Any, model: Any) -> Any:
    """Return ``X`` with the features of a fitted estimator alone, in its order, as far as their names tell them.

    Of a Dataset these are variables, and of a DataArray entries of its one dimension of features.
    """
    if not hasattr(model, "feature_names_in_"):
        return X
    names = [str(name) for name in model.feature_names_in_]
    if isinstance(X, xr.Dataset):
        first = {name: names.index(found) for name in X.data_vars if (found := _first_of(str(name), names)) is not None}
        return X[sorted(first, key=lambda name: first[name])] if first else X
    for d in X.dims:
        known = names_along(X, d) or []
        if known != names and set(names) <= set(known) and len(set(known)) == len(known):
            return X.isel({d: [known.index(name) for name in names]})
    return X


def feature_dimensions(X: xr.DataArray | xr.Dataset, model: Any) -> tuple[Hashable, ...]:
    """Return the dimensions of ``X`` that hold features of a fitted estimator.

    They are the one whose coordinates are the names of the features; else those of the fit, or in the names of its
    features; else "feature"; else the only one with as many entries as there are features. In a Dataset without those
    of the fit, only the variables are features.
    """
    of_fit = _of_fit(X, model)
    if isinstance(X, xr.Dataset):
        return tuple(d for d in of_fit or () if d in X.dims)
    named = named_dimension(X, model)
    if named is not None:
        return (named,)
    if of_fit is not None and all(d in X.dims for d in of_fit):
        return of_fit
    if "feature" in X.dims:
        return ("feature",)
    as_many = [d for d in X.dims if X.sizes[d] == model.n_features_in_]
    if len(as_many) == 1:
        return (as_many[0],)
    wanted = f", {listed(of_fit)} in fit" if of_fit else ""
    raise InputError(
        f"none of the dimensions of X, {listed(X.dims) or 'which has none'}, is known to hold the "
        f"{model.n_features_in_} features{wanted}; rename the one that does: X.rename({{…: "
        f"{of_fit[0] if of_fit else 'feature'!r}}}). If several hold them, stack these in the order of the fit: "
        "X.stack(feature=(…))."
    )


def _of_fit(X: Any, model: Any) -> tuple[Hashable, ...] | None:
    """Return the dimensions of features in the fit; None if neither the rows nor their features' names tell them."""
    if model._schema.cube is not None:
        return tuple(model._schema.cube.dimensions)
    if model._schema.feature_dimension is not None and model._schema.feature_dimension in X.dims:
        return (model._schema.feature_dimension,)
    # samples of a cube have names such as "time=2024-03-01, band=B04"
    parts = [part for name in getattr(model, "feature_names_in_", ()) for part in str(name).split(", ")]
    held = dict.fromkeys(part.partition("=")[0] for part in parts if "=" in part)
    found = tuple(d for d in held if d in X.dims)
    if found or model._schema.feature_dimension is None:
        return found or None
    return (model._schema.feature_dimension,)


def named_dimension(X: xr.DataArray, model: Any) -> Hashable | None:
    """Return the dimension whose coordinates are the names of the model's features."""
    if not hasattr(model, "feature_names_in_"):
        return None
    wanted = list(model.feature_names_in_)
    named = [d for d in X.dims if X.sizes[d] == len(wanted) and names_along(X, d) == wanted]
    return named[0] if len(named) == 1 else None


def _first_of(variable: str, names: list[str]) -> str | None:
    """Return the first of the names of features that a variable of a Dataset holds."""
    return next((name for name in names if name == variable or name.startswith(f"{variable}, ")), None)
