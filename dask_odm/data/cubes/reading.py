"""The labelled rows of a cube, read block by block.

Labels are read first. Then each chunk of the row dimensions is read once, and chunks without a label are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np
from dask.delayed import Delayed, delayed

from dask_odm.data.cubes.beside import beside
from dask_odm.data.cubes.blocks import BlockFormat, complete_rows, labelled_rows, nothing_complete
from dask_odm.data.cubes.cube import Cube, is_dask, nodata_of
from dask_odm.errors import InputError
from dask_odm.typing import Array

Compute = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows of a cube that have a label and all features.

    ``X`` (n, d), ``y`` (n,), ``weight`` (n,) or None. ``numbers`` (n,) are the rows' places among all rows of the cube,
    in C order. ``missing`` counts rows that have a label, but miss a feature.
    """

    X: Array
    y: Array
    weight: Array | None
    numbers: Array
    missing: int = 0

    def taken(self, at: Array) -> LabelledRows:
        """Return the rows at ``at``, a mask or positions."""
        weight = None if self.weight is None else self.weight[at]
        return LabelledRows(self.X[at], self.y[at], weight, self.numbers[at], self.missing)

    @classmethod
    def joined(cls, parts: Sequence[LabelledRows]) -> LabelledRows:
        """Return all rows of the parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        weight = None if parts[0].weight is None else np.concatenate([each.weight for each in parts])
        X, y, numbers = (np.concatenate([getattr(each, name) for each in parts]) for name in ("X", "y", "numbers"))
        return cls(X, y, weight, numbers, sum(each.missing for each in parts))


@dataclass(frozen=True, eq=False)
class _Part:
    """A block of a cube that has labels. Arrays and weights may be delayed.

    ``positions`` (k,) are those of the labelled rows in the block, ``numbers`` (k,) those in the cube, and ``labels``
    (k,) their labels.
    """

    slices: tuple[slice, ...]
    arrays: tuple[Any, ...]
    weight: Any
    positions: Array
    numbers: Array
    labels: Array

    def read(self, rows: BlockFormat) -> Any:
        """Return what `complete_rows` returns of this block, delayed if anything is."""
        arguments = (rows, self.positions, self.weight, *self.arrays)
        return _called(complete_rows, arguments)

    def rows(self, X: Array, complete: Array, weight: Array | None) -> LabelledRows:
        """Return the rows of this block, from what `read` found."""
        missing = int(np.count_nonzero(~complete))
        return LabelledRows(X, self.labels[complete], weight, self.numbers[complete], missing)


@dataclass(frozen=True, eq=False)
class LabelledCube:
    """A cube with the places of its labelled rows, whose features are still to be read."""

    cube: Cube
    parts: tuple[_Part, ...]

    @classmethod
    def beside(cls, cube: Cube, y: Any, weight: Any, compute: Compute) -> LabelledCube:
        """Find the rows of a cube that have a label in ``y``; y and ``weight``, or None, are DataArrays.

        Raises InputError if their dimensions or coordinates do not match, and if there is no label.
        """
        weights = None if weight is None else beside(cube, weight, "sample_weight")
        return cls.of(cube, beside(cube, y, "y"), nodata_of(y), weights, compute)

    @classmethod
    def of(cls, cube: Cube, labels: Any, nodata: Any, weight: Any, compute: Compute) -> LabelledCube:
        """Find the labelled rows.

        ``labels`` and ``weight`` are NumPy or dask arrays over the rows of the cube, and ``nodata`` stands for a
        missing label. ``compute`` computes lazy values. Raises InputError if there is no label.
        """
        if is_dask(weight) and not cube.is_lazy:
            (weight,) = compute(weight)
        blocks = list(_blocks(cube, labels, weight))
        found = _computed([_called(labelled_rows, (each.labels, nodata)) for each in blocks], compute)
        parts = tuple(
            replace(block, positions=positions, numbers=_numbers(cube.shape, block.slices, positions), labels=known)
            for block, (positions, known) in zip(blocks, found, strict=True)
            if len(positions)
        )
        if not parts:
            raise InputError("y has no labels: all of its values are missing.")
        return cls(cube, parts)

    @property
    def count(self) -> int:
        """Number of labelled rows, those that miss a feature included."""
        return sum(len(part.labels) for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the labelled rows."""
        return self.count * self.cube.features * self.cube.dtype.itemsize

    def read(self, compute: Compute) -> LabelledRows:
        """Read all labelled rows into memory, in the cube's order, whatever its chunks.

        Raises InputError if all miss a feature.
        """
        read = _computed([part.read(self.cube.blocks) for part in self.parts], compute)
        found = LabelledRows.joined([part.rows(*each) for part, each in zip(self.parts, read, strict=True)])
        if not len(found.y):
            raise InputError(nothing_complete(self.count))
        return found if len(self.parts) == 1 else found.taken(np.argsort(found.numbers, kind="stable"))

    def batches(self, compute: Compute) -> Iterator[LabelledRows]:
        """Read the labelled rows block by block, in the order of the blocks."""
        for part in self.parts:
            (read,) = _computed([part.read(self.cube.blocks)], compute)
            yield part.rows(*read)


def _numbers(shape: tuple[int, ...], slices: tuple[slice, ...], positions: Array) -> Array:
    """Return the numbers in the cube, in C order, of the rows at ``positions`` of a block."""
    sizes = tuple(each.stop - each.start for each in slices)
    at = np.unravel_index(positions, sizes)
    inside = [index + each.start for index, each in zip(at, slices, strict=True)]
    numbers: Array = np.ravel_multi_index(inside, shape)
    return numbers


def _blocks(cube: Cube, labels: Any, weight: Any) -> Iterator[_Part]:
    """Yield the blocks of a cube with their labels and weights: one of a cube in memory, else one for each chunk."""
    none = np.empty(0, dtype=np.int64)
    chunks, arrays = _aligned_chunks(cube)
    columns = [_split(each, chunks) for each in (*arrays, labels, weight)]
    ends = [list(pairwise(accumulate(sizes, initial=0))) for sizes in chunks]
    for index in product(*[range(len(sizes)) for sizes in chunks]):
        slices = tuple(slice(*ends[axis][i]) for axis, i in enumerate(index))
        *block, known, weights = (each(index, slices) for each in columns)
        yield _Part(slices, tuple(block), weights, none, none, known)


def _aligned_chunks(cube: Cube) -> tuple[tuple[tuple[int, ...], ...], tuple[Any, ...]]:
    """Return the chunks of the row dimensions, and the cube's arrays with these; features are in one chunk."""
    if not cube.is_lazy:
        return tuple((size,) for size in cube.shape), cube.arrays
    from dask.array.core import asanyarray, unify_chunks

    indexed = [each for pair in zip(map(asanyarray, cube.arrays), cube.indices(), strict=True) for each in pair]
    chunks, arrays = unify_chunks(*indexed, warn=False)
    rows = len(cube.dimensions)
    whole = tuple(each.rechunk(dict.fromkeys(range(rows, each.ndim), -1)) for each in arrays)
    return tuple(chunks[axis] for axis in range(rows)), whole


def _split(array: Any, chunks: tuple[tuple[int, ...], ...]) -> Callable[[Any, Any], Any]:
    """Return a function that gives the block of ``array`` at an index of chunks, or between slices of entries."""
    if array is None:
        return lambda index, slices: None
    if not is_dask(array):
        return lambda index, slices: array[slices]
    delays = array.rechunk(dict(enumerate(chunks))).to_delayed()
    last = (0,) * (array.ndim - len(chunks))
    return lambda index, slices: delays[(*index, *last)]


def _called(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Call a function, later if an argument is delayed."""
    if any(isinstance(each, Delayed) for each in arguments):
        return delayed(function)(*arguments)
    return function(*arguments)


def _computed(values: Sequence[Any], compute: Compute) -> Sequence[Any]:
    """Compute those values that are delayed."""
    lazy = [each for each in values if isinstance(each, Delayed)]
    found = iter(compute(*lazy)) if lazy else iter(())
    return [next(found) if isinstance(each, Delayed) else each for each in values]
