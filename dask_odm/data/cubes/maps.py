"""Answers to all rows of a cube, put back in their places: a DataArray with the cube's coordinates, lazy if it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from dask_odm.data.cubes.blocks import SLAB_BYTES, AnswerFormat, answers_of_block
from dask_odm.data.cubes.cube import Cube
from dask_odm.errors import InputError
from dask_odm.typing import Array


def mapped(
    cube: Cube,
    function: Callable[..., Array],
    arguments: tuple[Any, ...],
    answers: AnswerFormat,
    name: str,
    columns: tuple[str, Any] = ("column", None),
) -> xr.DataArray:
    """Return ``function(X, *arguments)`` of all complete rows of a cube as a DataArray over its row dimensions.

    Answers of several columns have one more dimension, the last, whose name and coordinate are ``columns``. A lazy
    cube is answered block by block, with chunks as it has; ``arguments`` may then be delayed. One in memory is answered
    at once. Raises InputError if the cube already has a dimension or coordinate of that name.
    """
    last, labels = columns
    if answers.columns and (last in cube.dimensions or last in cube.coordinates):
        raise InputError(f"X has a {last!r} already, which the answers need for themselves; rename it (X.rename).")
    if cube.is_lazy:
        data = _lazily(cube, function, arguments, answers, name)
    else:
        data = answers_of_block(cube.blocks, answers, function, *arguments, *cube.arrays, given=len(arguments))
    dimensions = (*cube.dimensions, last)[: data.ndim]
    found = xr.DataArray(data, cube.coordinates.coords, dimensions, name)
    if answers.columns and labels is not None:
        found = found.assign_coords({last: labels})
    if cube.grid_mapping is not None:
        found.encoding["grid_mapping"] = cube.grid_mapping
    return found


def map_bytes(cube: Cube, answers: AnswerFormat, rows: int) -> int:
    """Return the peak bytes of a task that answers a block of ``rows`` rows.

    It holds the block, its answers, and of one slab the rows, the complete ones, and what a model makes of them.
    """
    return cube.block_bytes(rows) + rows * answers.row_bytes + 4 * SLAB_BYTES


def _lazily(
    cube: Cube, function: Callable[..., Array], arguments: tuple[Any, ...], answers: AnswerFormat, name: str
) -> Any:
    import dask.array as da

    rows = tuple(range(len(cube.dimensions)))
    _, arrays = cube.aligned()
    column = 1 + max((axis for each in cube.indices() for axis in each), default=0)
    blocks = [each for pair in zip(arrays, cube.indices(), strict=True) for each in pair]
    literal = [each for value in (cube.blocks, answers, function, *arguments) for each in (value, None)]
    return da.blockwise(
        answers_of_block,
        (*rows, column) if answers.columns else rows,
        *literal,
        *blocks,
        new_axes={column: answers.columns} if answers.columns else None,
        given=len(arguments),
        token=name,  # as a dashboard shows the tasks
        align_arrays=False,  # they are, and Dask would warn of the chunks of features, which it multiplies
        dtype=answers.dtype,
        meta=np.empty((0,) * (len(rows) + bool(answers.columns)), answers.dtype),
    )
