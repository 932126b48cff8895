"""Inputs of xarray: cubes, and tables of two dimensions, whose answers keep their coordinates.

A table becomes a cube if labels run along both of its dimensions, or if the model was fitted on a cube.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import xarray as xr

from dask_odm.data.cubes.beside import is_labelled_cube
from dask_odm.data.cubes.cube import listed
from dask_odm.data.cubes.tables import along, feature_names, oriented, sample_dimension
from dask_odm.data.store.interchange import as_store
from dask_odm.engine.lazy import computed
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.cubes import cube_to_predict, labelled_cube, named_dimension
from dask_odm.estimators.inputs.dask_inputs import aligned
from dask_odm.estimators.inputs.kind import Beside, InputKind
from dask_odm.estimators.inputs.resolved import (
    Given,
    LargeCube,
    Resolved,
    named,
    schema_of_cube,
)
from dask_odm.learning.training.run import read_limit
from dask_odm.typing import Array

_DEFAULT = re.compile(r"dim_\d+")  # xarray's name of a dimension without a name


class XarrayCube(InputKind):
    """A DataArray of any dimensions, or a Dataset whose variables are features."""

    @staticmethod
    def takes(X: Any, y: Any, model: Any) -> bool:
        if is_labelled_cube(X, y):
            return True
        if model is None or not (y is None or isinstance(y, xr.DataArray)):
            return False
        return "X" not in X.data_vars if isinstance(X, xr.Dataset) else X.ndim != 2 or model._schema.cube is not None

    @staticmethod
    def rows(X: Any, beside: Beside) -> Resolved:
        """Return the labelled rows, in memory unless they are large; without labels, those of a table."""
        model = beside.model
        if beside.y is None:
            return XarrayTable.rows(X, beside)
        labelled = labelled_cube(X, beside.y, beside.weight, beside.groups, model, beside.memory_limit)
        names = labelled.cube.feature_names if model is None else getattr(model, "feature_names_in_", None)
        if labelled.cube.is_lazy and labelled.nbytes > read_limit():
            if beside.groups is not None:
                raise InputError(
                    "groups are for labelled rows that are read into memory (Dask's setting "
                    "dask_odm.read-into-memory); draw some by dask_odm.ingest(…, per_class=…), --per-class in a shell, "
                    "and give groups of the rows of that store."
                )
            return LargeCube(labelled, names)
        rows = labelled.read(computed)
        schema = schema_of_cube(labelled, rows.missing)
        return Given(named(rows.X, names), rows.y, rows.weight, cube=schema, groups=rows.columns.get("groups"))

    @staticmethod
    def cube(X: Any, model: Any) -> Any:
        return cube_to_predict(X, model)


class XarrayTable(InputKind):
    """A DataArray of two dimensions, or a Dataset with ``X`` and perhaps ``y`` and ``weight``; or that of a store."""

    @staticmethod
    def rows(X: Any, beside: Beside) -> Resolved:
        if isinstance(X, xr.Dataset):
            beside.refuse("a Dataset")
            store = as_store(X)
            if store is not None:
                return beside.of_store(store)
        X, y, weight, _ = beside.columns(X)
        rows, y, weight = _columns_of(X, y, weight)
        rows, y, weight = oriented(rows, y, weight, _sample_dimension(rows, y, weight, beside.model))
        names = feature_names(rows)
        groups = along(rows, beside.groups, "groups")
        dimension = rows.dims[1] if isinstance(rows.dims[1], str) else None
        if rows.chunks is None and rows.variable._in_memory:
            return replace(Given.of(named(rows.to_numpy(), names), y, weight, dimension), groups=groups)
        lazy = rows if rows.chunks is not None else rows.chunk()  # whose values are still in a file
        return replace(aligned(lazy.data, y, weight), feature_names=names, feature_dimension=dimension, groups=groups)

    @staticmethod
    def like(X: Any, values: Any, name: str, model: Any, classes: Array | None = None) -> xr.DataArray:
        """Return values over the sample dimension of X, with its coordinates."""
        rows, y, weight = _columns_of(X, None, None)
        sample = _sample_dimension(rows, y, weight, model)
        of_features = [each for each, coordinate in rows.coords.items() if set(coordinate.dims) - {sample}]
        dimensions = (sample, "target" if classes is None else "class")[: values.ndim]
        found = xr.DataArray(values, rows.drop_vars(of_features).coords, dimensions, name)
        return found if classes is None else found.assign_coords({"class": classes})


KINDS: tuple[type[InputKind], ...] = (XarrayCube, XarrayTable)  # asked in this order


def _columns_of(X: xr.DataArray | xr.Dataset, y: Any, weight: Any) -> tuple[xr.DataArray, Any, Any]:
    """Return rows, labels and weights of a Dataset, or those given with a DataArray; raise InputError without ``X``."""
    if isinstance(X, xr.DataArray):
        return X, y, weight
    if "X" not in X:
        raise InputError(
            f"the Dataset has no variable 'X' of rows; it has {listed(X.data_vars)}. Say which one holds the labels: "
            "fit(dataset, 'name of the labels'), or pass labels beside it, fit(dataset, labels)."
        )
    return X["X"], X.get("y"), X.get("weight")


def _sample_dimension(X: xr.DataArray, y: Any, weight: Any, model: Any) -> Any:
    """Return the dimension that runs along the rows, see `sample_dimension`; a fitted estimator knows its features."""
    if model is None:
        return sample_dimension(X, y, weight)
    return sample_dimension(X, y, weight, features=_known_features(X, model), count=model.n_features_in_)


def _known_features(X: xr.DataArray, model: Any) -> Any:
    """Return the dimension of ``X`` by which the model knows its features; None if there is none."""
    found = named_dimension(X, model)
    if found is not None:
        return found
    name = model._schema.feature_dimension
    if name is None or name not in X.dims:
        return None
    # xarray's default name does not count if the number of entries differs
    return None if _DEFAULT.fullmatch(name) and X.sizes[name] != model.n_features_in_ else name
