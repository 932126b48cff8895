"""The labelled rows of an xarray cube as a source, or a sample of them. One block of the cube is read at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import xarray as xr
from dask.base import compute

from dask_odm.data.cubes.beside import row_dimensions, variable_beside
from dask_odm.data.cubes.blocks import nothing_complete
from dask_odm.data.cubes.cube import cube_of
from dask_odm.data.cubes.reading import LabelledCube, LabelledRows
from dask_odm.data.cubes.sampling import rows_per_class, share_of_rows
from dask_odm.data.readers.sources import Columns, Reading
from dask_odm.data.readers.tables import ArrayTable, Batch, TableSource
from dask_odm.errors import InputError

logger = logging.getLogger("dask_odm")


def cube_source(X: xr.DataArray | xr.Dataset, y: Any, reading: Reading) -> TableSource:
    """Return the rows of a cube that have a label in ``y``, a DataArray or the name of a variable, and all features.

    Rows are in the order of the cube if they are drawn ``per_class``, else in that of its blocks.
    """
    where = f"the {type(X).__name__}"
    label_name = f"'{y}'" if isinstance(y, str) else "y"
    X, y = variable_beside(X, y, "label")
    X, weight = variable_beside(X, reading.weight, "weight")
    labelled = LabelledCube.beside(cube_of(X, row_dimensions(X, y)), y, weight, compute)
    names = labelled.cube.feature_names
    columns = Columns(None if names is None else tuple(names.tolist()), labelled.cube.features, None, None)

    def batches() -> Iterator[Batch]:
        first = 0
        end = 0
        for each in _drawn(labelled, reading):
            end += each.X.nbytes
            yield Batch(ArrayTable(each.X), where, end, first, each.y, each.weight)
            first += len(each.y)

    return TableSource(where, columns, batches, reading, label_name=label_name, size=labelled.nbytes)


def _drawn(labelled: LabelledCube, reading: Reading) -> Iterator[LabelledRows]:
    """Yield the rows that are to be stored, and log how many miss a feature."""
    missing = 0
    complete = 0

    def counted() -> Iterator[LabelledRows]:
        nonlocal missing, complete
        for batch in labelled.batches(compute):
            missing += batch.missing
            complete += len(batch.y)
            yield batch

    if reading.per_class is not None:
        sample = rows_per_class(counted(), int(reading.per_class), reading.seed)
        yield from () if sample is None else (sample,)
    elif reading.fraction is not None:
        yield from share_of_rows(counted(), float(reading.fraction), reading.seed)
    else:
        yield from counted()
    if not complete:
        raise InputError(nothing_complete(labelled.count))
    if missing:
        logger.info("%d of %d labelled rows of the cube miss a feature, and are left out", missing, labelled.count)
