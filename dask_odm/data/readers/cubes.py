"""The labelled rows of an xarray cube as a source, or a sample of them. One block of the cube is read at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import xarray as xr

from dask_odm.data.cubes.beside import beside_rows, row_dimensions
from dask_odm.data.cubes.cube import cube_of
from dask_odm.data.cubes.reading import LabelledCube, LabelledRows
from dask_odm.data.cubes.sampling import rows_per_class, share_of_rows
from dask_odm.data.readers.sources import Columns, Reading, computed
from dask_odm.data.readers.table_source import Batch, TableSource
from dask_odm.data.readers.tables import ArrayTable


def cube_source(X: xr.DataArray | xr.Dataset, y: Any, reading: Reading) -> TableSource:
    """Return the rows of a cube that have a label in ``y``, and all features.

    Labels are a DataArray, the name of a variable, or a table of points, see `at_points`.

    Rows are in the order of the cube if they are drawn ``per_class``, else in that of its blocks.
    """
    where = f"the {type(X).__name__}"
    label_name = f"'{y}'" if isinstance(y, str) else "y"
    X, y, columns_of_rows = beside_rows(X, y, {"weight": reading.weight}, "label")
    labelled = LabelledCube.beside(cube_of(X, row_dimensions(X, y)), y, columns_of_rows, computed)
    names = labelled.cube.feature_names
    columns = Columns(None if names is None else tuple(names.tolist()), labelled.cube.features, None, None)

    def batches() -> Iterator[Batch]:
        first = 0
        end = 0
        for each in _drawn(labelled, reading):
            end += each.X.nbytes
            places = labelled.cube.places(each.numbers)
            yield Batch(ArrayTable(each.X), where, end, first, each.y, each.weight, coordinates=places)
            first += len(each.y)

    source = TableSource(where, columns, batches, reading, label_name=label_name, size=labelled.nbytes)
    source.coordinates = labelled.cube.place_kinds
    return source


def _drawn(labelled: LabelledCube, reading: Reading) -> Iterator[LabelledRows]:
    """Return the rows that are to be stored, batch by batch."""
    batches = labelled.batches(computed)
    if reading.per_class is not None:
        return rows_per_class(batches, int(reading.per_class), reading.seed)
    if reading.fraction is not None:
        return share_of_rows(batches, float(reading.fraction), reading.seed)
    return batches
