"""The labelled rows of a cube, read block by block.

Labels are read first. Then each chunk of the row dimensions is read once, and chunks without a label are not read.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np
from dask.delayed import Delayed, delayed

from dask_odm.data.cubes.beside import beside
from dask_odm.data.cubes.blocks import BlockFormat, complete_rows, labelled_rows, slab_rows
from dask_odm.data.cubes.codes import words_of
from dask_odm.data.cubes.cube import Cube, is_dask, nodata_of
from dask_odm.errors import InputError
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
Compute = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows of a cube that have a label and all features.

    ``X`` (n, d), ``y`` (n,) or (n, targets). ``columns`` are further values of each row, (n,), by name: "weight" and
    "groups", if there are any. ``numbers`` (n,) are the rows' places among all rows of the cube, in C order.
    ``missing`` counts rows that have a label, but miss a feature.
    """

    X: Array
    y: Array
    columns: Mapping[str, Array]
    numbers: Array
    missing: int = 0

    @property
    def weight(self) -> Array | None:
        """Weights of the rows, (n,); None if all are 1."""
        return self.columns.get("weight")

    def taken(self, at: Array) -> LabelledRows:
        """Return the rows at ``at``, a mask or positions."""
        columns = {name: each[at] for name, each in self.columns.items()}
        return LabelledRows(self.X[at], self.y[at], columns, self.numbers[at], self.missing)

    @classmethod
    def joined(cls, parts: Sequence[LabelledRows]) -> LabelledRows:
        """Return all rows of the parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        columns = {name: np.concatenate([each.columns[name] for each in parts]) for name in parts[0].columns}
        X, y, numbers = (np.concatenate([getattr(each, name) for each in parts]) for name in ("X", "y", "numbers"))
        return cls(X, y, columns, numbers, sum(each.missing for each in parts))


@dataclass(frozen=True, eq=False)
class _Part:
    """A block of a cube that has labels. Arrays and columns may be delayed.

    ``positions`` (k,) are those of the labelled rows in the block, and ``labels`` (k,) or (k, targets) their labels.
    """

    slices: tuple[slice, ...]
    arrays: tuple[Any, ...]
    columns: Mapping[str, Any]
    positions: Array
    labels: Array

    def read(self, rows: BlockFormat) -> Any:
        """Call `complete_rows` on this block, delayed if anything is."""
        arguments = (rows, self.positions, tuple(self.columns), *self.columns.values(), *self.arrays)
        return _called(complete_rows, arguments)

    def rows(self, shape: tuple[int, ...], X: Array, complete: Array, columns: Mapping[str, Array]) -> LabelledRows:
        """Return the rows of this block of a cube of that ``shape``, from what `read` found."""
        at = np.unravel_index(self.positions[complete], tuple(each.stop - each.start for each in self.slices))
        inside = [index + each.start for index, each in zip(at, self.slices, strict=True)]
        numbers = np.ravel_multi_index(inside, shape)
        return LabelledRows(X, self.labels[complete], columns, numbers, int(np.count_nonzero(~complete)))


@dataclass(frozen=True, eq=False)
class LabelledCube:
    """A cube with the places of its labelled rows, whose features are still to be read.

    ``words`` are the meanings of labels that are codes, by their text. ``name`` is that of the labels, or None.
    """

    cube: Cube
    parts: tuple[_Part, ...]
    words: Mapping[str, str]
    name: str | None

    @classmethod
    def of(cls, cube: Cube, y: Any, columns: Mapping[str, Any], compute: Compute) -> LabelledCube:
        """Find the rows of a cube that have a label in ``y``; y and ``columns``, or None, are DataArrays.

        A column "sample_weight" is called "weight". ``compute`` computes lazy values.

        Raises InputError if their dimensions or coordinates do not match, and if there is no label.
        """
        given = {name: beside(cube, column, name) for name, column in columns.items() if column is not None}
        if not cube.is_lazy:
            given = {name: compute(each)[0] if is_dask(each) else each for name, each in given.items()}
        labels = beside(cube, y, "y")
        blocks = list(_blocks(cube, labels, {name.removeprefix("sample_"): each for name, each in given.items()}))
        nodata = nodata_of(y)
        targets = labels.shape[len(cube.shape) :]
        found = _computed([_called(labelled_rows, (each.labels, nodata, targets)) for each in blocks], compute)
        parts = tuple(
            replace(block, positions=positions, labels=known)
            for block, (positions, known) in zip(blocks, found, strict=True)
            if len(positions)
        )
        if not parts:
            raise InputError("y has no labels: all of its values are missing.")
        labelled = cls(cube, parts, words_of(y.attrs), None if y.name is None else str(y.name))
        if y.dtype.kind in "iu" and not targets and nodata is None and "flag_values" not in y.attrs:
            labelled._warn_of_zeros()
        return labelled

    def _warn_of_zeros(self) -> None:
        """Warn if label 0 is on most rows, beside several other classes: it means none on many maps."""
        share = sum(int(np.count_nonzero(part.labels == 0)) for part in self.parts) / math.prod(self.cube.shape)
        if share <= 0.5:
            return
        others = {int(label) for part in self.parts for label in np.unique(part.labels[part.labels != 0])}
        if len(others) > 1:
            warnings.warn(
                f"y is 0 on {share:.0%} of the rows, which is learned as a class. If it means that there is no label, "
                "say so: y.assign_attrs(_FillValue=0), --ignore 0 in a shell.",
                UserWarning,
                stacklevel=2,
            )

    @property
    def count(self) -> int:
        """Number of labelled rows, those that miss a feature included."""
        return sum(len(part.labels) for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the labelled rows."""
        return self.count * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of the features of a row."""
        return self.cube.features * self.cube.dtype.itemsize

    def task_bytes(self, rows: int) -> int:
        """Return the peak bytes of a task that reads a block of ``rows`` rows, and takes its labelled rows.

        Those are there twice if some of them miss a feature.
        """
        most = max(len(part.labels) for part in self.parts)
        return self.cube.block_bytes(rows) + 2 * min(rows, most) * self.row_bytes

    def read(self, compute: Compute) -> LabelledRows:
        """Read all labelled rows into memory, in the cube's order, whatever its chunks, see `batches`."""
        found = LabelledRows.joined(list(self.batches(compute)))
        return found if len(self.parts) == 1 else found.taken(np.argsort(found.numbers, kind="stable"))

    def batches(self, compute: Compute) -> Iterator[LabelledRows]:
        """Read the labelled rows in the order of the blocks, with 16 MiB of blocks at once.

        How many miss a feature is logged at the end. Raises InputError if all do, and if the labels are a feature.
        """
        missing = 0
        names = self.cube.feature_names
        # the feature that is named as the labels, if there is one
        same = [] if names is None or self.name is None else np.flatnonzero(names == self.name).tolist()
        for parts in self._batches():
            read = _computed([part.read(self.cube.blocks) for part in parts], compute)
            rows = [part.rows(self.cube.shape, *each) for part, each in zip(parts, read, strict=True)]
            missing += sum(each.missing for each in rows)
            joined = LabelledRows.joined(rows)
            same = [j for j in same if np.array_equal(joined.X[:, j], joined.y)]
            yield joined
        if missing == self.count:
            raise InputError(f"all {missing} rows of X that have a label miss a feature (NaN, infinity or nodata).")
        if same:
            raise InputError(
                f"y is also a feature of X, {self.name!r}, which a model would copy. Give that name in place of y, "
                f"fit(X, {self.name!r}), or leave the feature out: X.drop_vars({self.name!r}), --features in a shell."
            )
        if missing:
            level = logging.WARNING if missing > 0.1 * self.count else logging.INFO  # a few are usual
            logger.log(
                level,
                "%d of %d labelled rows of the cube miss a feature, as under a cloud, and are left out. Predictions of "
                "such rows are missing, too, and scores are of the others.", missing, self.count
            )  # fmt: skip

    def _batches(self) -> Iterator[list[_Part]]:
        """Yield the blocks that are read at once."""
        most = slab_rows(self.row_bytes)
        batch: list[_Part] = []
        count = 0
        for part in self.parts:
            count += len(part.labels)
            if batch and count > most:
                yield batch
                batch = []
                count = len(part.labels)
            batch.append(part)
        yield batch


def _blocks(cube: Cube, labels: Any, columns: Mapping[str, Any]) -> Iterator[_Part]:
    """Yield the blocks of a cube with their labels and columns: one of a cube in memory, else one for each chunk."""
    none = np.empty(0, dtype=np.int64)
    chunks: tuple[tuple[int, ...], ...] = tuple((size,) for size in cube.shape)
    arrays = cube.arrays
    if cube.is_lazy:
        chunks, arrays = cube.aligned()
        # features in one chunk
        arrays = tuple(each.rechunk(dict.fromkeys(range(len(chunks), each.ndim), -1)) for each in arrays)
    split = [_split(each, chunks) for each in (labels, *columns.values(), *arrays)]
    ends = [list(pairwise(accumulate(sizes, initial=0))) for sizes in chunks]
    for index in product(*[range(len(sizes)) for sizes in chunks]):
        slices = tuple(slice(*ends[axis][i]) for axis, i in enumerate(index))
        known, *others = (each(index, slices) for each in split)
        held = dict(zip(columns, others, strict=False))  # the arrays follow
        yield _Part(slices, tuple(others[len(columns) :]), held, none, known)


def _split(array: Any, chunks: tuple[tuple[int, ...], ...]) -> Callable[[Any, Any], Any]:
    """Return a function that gives the block of ``array`` at an index of chunks, or between slices of entries."""
    if not is_dask(array):
        return lambda index, slices: array[slices]
    delays = array.rechunk(dict.fromkeys(range(array.ndim), -1) | dict(enumerate(chunks))).to_delayed()
    last = (0,) * (array.ndim - len(chunks))
    return lambda index, slices: delays[(*index, *last)]


def _called(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Call a function, later if an argument is delayed."""
    if any(isinstance(each, Delayed) for each in arguments):
        return delayed(function)(*arguments)
    return function(*arguments)


def _computed(values: Sequence[Any], compute: Compute) -> Sequence[Any]:
    """Compute values that are delayed, which all of them are, or none."""
    return compute(*values) if any(isinstance(each, Delayed) for each in values) else values
