"""A cube: an xarray DataArray or Dataset of which some dimensions run along rows and the others along features."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from dask_odm.data.cubes.blocks import BlockFormat
from dask_odm.errors import InputError
from dask_odm.typing import Array

NODATA = "_FillValue"  # attribute of an array with the value that stands for a missing one, as CF and GDAL have it
_OTHER_NODATA = ("missing_value", "nodata")  # older CF, and the Open Data Cube


@dataclass(frozen=True, eq=False)
class Cube:
    """Arrays whose first dimensions run along rows, and whose others are features.

    ``arrays`` are NumPy or dask arrays, one for a DataArray and one for each variable of a Dataset. All of them have
    the row dimensions ``dimensions`` of sizes ``shape``, in this order, and then their own feature dimensions. All
    those of features are in ``feature_dimensions``. ``feature_names`` has shape (d,), or is None. ``nodata`` has, for
    each array, the value that stands for a missing one, or None. ``coordinates`` is a Dataset without variables that
    has the coordinates of the rows, and scalar ones; ``grid_mapping`` names the one with the map projection. ``dtype``
    is that of the rows.
    """

    arrays: tuple[Any, ...]
    dimensions: tuple[Hashable, ...]
    shape: tuple[int, ...]
    feature_dimensions: tuple[Hashable, ...]
    feature_names: Array | None
    nodata: tuple[Any, ...]
    coordinates: xr.Dataset
    grid_mapping: str | None
    dtype: np.dtype[Any]

    @property
    def features(self) -> int:
        """Number of features."""
        return sum(math.prod(each.shape[len(self.dimensions) :]) for each in self.arrays)

    @property
    def is_lazy(self) -> bool:
        """Whether an array is a dask array."""
        return any(is_dask(each) for each in self.arrays)

    @property
    def blocks(self) -> BlockFormat:
        """The layout by which blocks of this cube become rows."""
        return BlockFormat(len(self.dimensions), self.nodata, self.dtype.name)

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Yield the numbers by which Dask knows each array's dimensions; row dimensions of all arrays share theirs."""
        rows = len(self.dimensions)
        first = rows
        for each in self.arrays:
            last = first + each.ndim - rows
            yield (*range(rows), *range(first, last))
            first = last

    def aligned(self) -> tuple[tuple[tuple[int, ...], ...], tuple[Any, ...]]:
        """Return chunks of the row dimensions that suit all arrays of a lazy cube, and the arrays in these chunks."""
        from dask.array.core import asanyarray, unify_chunks

        indexed = [each for pair in zip(map(asanyarray, self.arrays), self.indices(), strict=True) for each in pair]
        chunks, arrays = unify_chunks(*indexed, warn=False)
        return tuple(chunks[axis] for axis in range(len(self.dimensions))), tuple(arrays)

    @property
    def largest_block(self) -> tuple[int, ...]:
        """Sizes of the largest block of a lazy cube along the row dimensions."""
        return tuple(max(sizes, default=0) for sizes in self.aligned()[0])

    def block_bytes(self, rows: int) -> int:
        """Return the bytes that a block of ``rows`` rows takes while its features are put together.

        Features that lie in several chunks are there twice.
        """
        row = 0
        for each in self.arrays:
            sizes = each.shape[len(self.dimensions) :]
            is_split = is_dask(each) and each.chunksize[len(self.dimensions) :] != sizes
            row += (1 + is_split) * math.prod(sizes) * each.dtype.itemsize
        return rows * row

    def chunks_that(self, fit: Callable[[int], bool]) -> dict[Hashable, int] | None:
        """Return chunk sizes of the row dimensions whose blocks ``fit``, by their number of rows; None if none do.

        They are the cube's own, halved along the longest dimension again and again.
        """
        sizes = dict(zip(self.dimensions, self.largest_block, strict=True))
        while not fit(math.prod(sizes.values())):
            longest = max(sizes, key=lambda d: sizes[d], default=None)
            if longest is None or sizes[longest] <= 1:
                return None
            sizes[longest] = -(-sizes[longest] // 2)
        return sizes

    @property
    def place_kinds(self) -> tuple[tuple[str, str], ...]:
        """Name of each row dimension, and the kind of its coordinates: "date", or "number"."""
        kinds = ["date" if _along(self, d).dtype.kind == "M" else "number" for d in self.dimensions]
        return tuple((str(d), kind) for d, kind in zip(self.dimensions, kinds, strict=True))

    def places(self, numbers: Array) -> Array:
        """Return the coordinates of the rows with these numbers, (n, row dimensions), float64.

        Dates are in seconds since 1970. A dimension without coordinates that are numbers or dates counts from 0.
        """
        found = np.empty((len(numbers), len(self.dimensions)))
        for axis, at in enumerate(np.unravel_index(numbers, self.shape)):
            values = _along(self, self.dimensions[axis])[at]
            is_date = values.dtype.kind == "M"
            found[:, axis] = (values - np.datetime64(0, "s")) / np.timedelta64(1, "s") if is_date else values
        return found


def _along(cube: Cube, dimension: Hashable) -> Array:
    """Return the coordinates of a row dimension if they are numbers or dates, else numbers from 0."""
    values = np.asarray(cube.coordinates.indexes.get(dimension, ()))
    if values.dtype.kind in "iufM" and len(values):
        return values
    return np.arange(cube.shape[cube.dimensions.index(dimension)])


def cube_of(X: xr.DataArray | xr.Dataset, rows: Collection[Hashable], features: Sequence[Hashable] = ()) -> Cube:
    """Return ``X`` as a cube whose dimensions ``rows`` run along rows.

    Dimensions of features are combined in the order of ``features``, or in that of ``X`` if they are not among these.

    Raises InputError for a variable that holds no numbers, and if no variable has a dimension of rows. Variables of a
    Dataset without one, such as a map projection, are no features.
    """
    for name, variable in _variables(X, rows).items():
        if variable.dtype.kind not in "biuf":
            called = "X" if name is None else f"variable {name!r} of X"
            raise InputError(
                f"{called} holds no numbers, but {variable.dtype}; leave it out (X.drop_vars), or encode it as numbers."
            )
    X = _lazy_if_on_disk(X, rows)
    held = _variables(X, rows)
    dimensions = _in_order(held.values(), rows)
    sizes = {d: X.sizes[d] for d in dimensions}
    ordered = {name: dict.fromkeys((*features, *v.dims)) for name, v in held.items()}
    own = {name: tuple(d for d in ordered[name] if d in v.dims and d not in dimensions) for name, v in held.items()}
    of_rows = [name for name, v in X.coords.items() if set(v.dims) <= set(dimensions)]
    coordinates = X.coords.to_dataset()[of_rows]
    # how lazy ones were stored is forgotten: xarray refuses to write chunks that differ from those on disk
    lazy = {name: v.drop_encoding() for name, v in coordinates.coords.items() if v.chunks is not None}
    grid_mappings = (v.encoding.get("grid_mapping", v.attrs.get("grid_mapping")) for v in held.values())
    single = all(v.dtype == np.float32 for v in held.values())
    return Cube(
        arrays=tuple(v.set_dims(sizes | {d: v.sizes[d] for d in own[name]}).data for name, v in held.items()),
        dimensions=dimensions,
        shape=tuple(sizes.values()),
        feature_dimensions=tuple(dict.fromkeys(d for each in own.values() for d in each)),
        feature_names=_names(X, own),
        nodata=tuple(nodata_of(v) for v in held.values()),
        coordinates=coordinates.assign_coords(lazy),
        grid_mapping=next((name for name in grid_mappings if isinstance(name, str)), None),
        dtype=np.dtype(np.float32 if single else np.float64),
    )  # fmt: skip


def _variables(X: Any, rows: Collection[Hashable]) -> dict[Any, xr.Variable]:
    """Return the variables of ``X`` that hold features, by name."""
    if isinstance(X, xr.DataArray):
        return {X.name: X.variable}
    held = {name: v.variable for name, v in X.data_vars.items() if not rows or set(v.dims) & set(rows)}
    if not held:
        raise InputError(f"X has no variable over {listed(rows)}; its variables are {listed(X.data_vars)}.")
    return held


def nodata_of(variable: Any) -> Any:
    """Return the value that stands for a missing one in a variable; None if it has none, or if that is NaN.

    Whole numbers may have it in their encoding, with which they are written to a file.
    """
    attributes = {**(variable.encoding if variable.dtype.kind in "iu" else {}), **variable.attrs}
    value = next((attributes[name] for name in (NODATA, *_OTHER_NODATA) if name in attributes), None)
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if not isinstance(value, int | float | np.integer | np.floating) or value != value:
        return None
    return value.item() if isinstance(value, np.generic) else value


def _lazy_if_on_disk(X: Any, rows: Collection[Hashable]) -> Any:
    """Return ``X`` with dask arrays for values that are still in a file; features stay together in their chunks."""
    variables = [v.variable for v in X.data_vars.values()] if isinstance(X, xr.Dataset) else [X.variable]
    if all(v.chunks is not None or v._in_memory for v in variables):
        return X
    return X.chunk({d: "auto" if d in rows else -1 for d in X.dims})


def _in_order(variables: Collection[xr.Variable], rows: Collection[Hashable]) -> tuple[Hashable, ...]:
    """Return the row dimensions as the variable with most of them has them; others follow."""
    found: dict[Hashable, None] = {}
    for variable in sorted(variables, key=lambda v: -len(set(v.dims) & set(rows))):
        found |= dict.fromkeys(d for d in variable.dims if d in rows)
    return tuple(found)


def _names(X: Any, own: dict[Any, tuple[Hashable, ...]]) -> Array | None:
    """Return the names of the features, (d,), or None if nothing names them.

    A DataArray's features are named by their coordinates: words alone if there is one dimension of features, else
    as ``band=B04, time=3``. Those of a Dataset begin with the name of their variable.
    """
    if isinstance(X, xr.Dataset):
        named = [", ".join([str(name), *parts]) for name, dims in own.items() for parts in _parts(X, dims)]
        return np.array(named, dtype=object)
    (dims,) = own.values()
    if not dims:
        return None
    alone = len(dims) == 1
    found = names_along(X, dims[0]) if alone else [", ".join(parts) for parts in _parts(X, dims)]
    return None if found is None else np.array(found, dtype=object)


def names_along(X: Any, dimension: Hashable) -> list[str] | None:
    """Return the names of features along one dimension: its coordinates if they are words, else ``band=4``, …

    Without coordinates there are none.
    """
    index = X.indexes.get(dimension)
    if index is None:
        return None
    if all(isinstance(value, str) for value in index):
        return list(index)
    return [f"{dimension}={text}" for text in texts(index)]


def _parts(X: Any, dims: Sequence[Hashable]) -> Iterator[tuple[str, ...]]:
    """Yield for each feature the words ``dimension=coordinate``; a dimension without coordinates counts from 0."""
    values = [[f"{d}={text}" for text in texts(X.indexes[d] if d in X.indexes else range(X.sizes[d]))] for d in dims]
    return product(*values)


def texts(values: Any) -> list[str]:
    """Return coordinates as words, dates without the time of day if that is midnight."""
    found = np.asarray(values)
    if found.dtype.kind == "M":
        return [str(np.datetime_as_string(value, unit="auto")) for value in found]
    return [str(value) for value in (found.tolist() if found.dtype.kind != "m" else values)]


def listed(names: Any) -> str:
    """Return the first five names for a message, "none" if there are none."""
    words = [repr(name) for name in names]
    return ", ".join(words[:5]) + (" …" if len(words) > 5 else "") or "none"


def is_dask(array: Any) -> bool:
    """Return whether an array is lazy."""
    return hasattr(array, "dask")
