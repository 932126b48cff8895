"""The labelled rows of an xarray cube as a source, or a sample of them. One block of the cube is read at a time.

A draw depends on a row's place in the cube and on the seed alone, so chunks and workers do not change the sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dask_odm.data.cubes.beside import beside_rows, row_dimensions
from dask_odm.data.cubes.cube import cube_of
from dask_odm.data.cubes.reading import LabelledCube, LabelledRows
from dask_odm.data.readers.sources import Columns, Reading, computed
from dask_odm.data.readers.table_source import Batch, TableSource
from dask_odm.data.readers.tables import ArrayTable
from dask_odm.errors import InputError
from dask_odm.linalg.rows import uniforms_of


def cube_source(X: xr.DataArray | xr.Dataset, y: Any, reading: Reading) -> TableSource:
    """Return the rows of a cube that have a label in ``y``, and all features.

    Labels are a DataArray, the name of a variable, or a table of points, see `at_points`.

    Rows are in the order of the cube if they are drawn ``per_class``, else in that of its blocks.
    """
    where = f"the {type(X).__name__}"
    label_name = f"'{y}'" if isinstance(y, str) else "y"
    X, y, columns_of_rows = beside_rows(X, y, {"weight": reading.weight}, "label")
    labelled = LabelledCube.of(cube_of(X, row_dimensions(X, y)), y, columns_of_rows, computed)
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
    if reading.per_class is not None and labelled.parts[0].labels.ndim > 1:
        raise InputError("per_class draws rows of each class, and y has several columns: draw by fraction instead.")
    if reading.per_class is not None:
        return _rows_per_class(batches, int(reading.per_class), reading.seed)
    if reading.fraction is not None:
        share = float(reading.fraction)
        return (batch.taken(uniforms_of(batch.numbers, reading.seed) < share) for batch in batches)
    return batches


def _rows_per_class(batches: Iterator[LabelledRows], count: int, seed: int) -> Iterator[LabelledRows]:
    """Yield once the ``count`` rows of each class with the smallest draws, in the cube's order.

    All rows of a class that has fewer are taken. At most these and one batch are in memory.
    """
    kept: list[LabelledRows] = []
    for batch in batches:
        both = LabelledRows.joined([*kept, batch])
        draws = pd.Series(uniforms_of(both.numbers, seed)).groupby(pd.factorize(both.y)[0])
        kept = [both.taken(np.flatnonzero(draws.rank(method="first") <= count))]
    for each in kept:
        yield each.taken(np.argsort(each.numbers, kind="stable"))
