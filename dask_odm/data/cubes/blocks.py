"""Work of a task on one block of a cube: make rows of it, pick its labelled rows, put answers in their places.

A block is a list of arrays, one for each array of the cube. All of them begin with the same row dimensions; an array's
own feature dimensions follow. This module knows NumPy only, since workers load it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_odm.linalg.rows import unmasked
from dask_odm.typing import Array

SLAB_BYTES = 16 << 20  # bytes of rows that are made of a block and answered at a time
SCORE_BYTES = 32  # of one score of a row: in float64, in the rows' dtype, and what is made of it

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class BlockFormat:
    """The layout by which the blocks of a cube become rows.

    ``dimensions`` counts the row dimensions. ``nodata`` has, for each array, the value that stands for a missing one,
    or None. ``dtype`` is that of the rows.
    """

    dimensions: int
    nodata: tuple[Any, ...]
    dtype: str

    def shape(self, block: Sequence[Array]) -> tuple[int, ...]:
        """Return the sizes of the row dimensions of a block."""
        return block[0].shape[: self.dimensions]

    def rows(self, block: Sequence[Array]) -> tuple[Array, Mask]:
        """Return all rows of a block, (n, d), and the mask (n,) of those that have all features."""
        count = math.prod(self.shape(block))
        return self._joined([each.reshape(count, math.prod(each.shape[self.dimensions :])) for each in block])

    def rows_at(self, block: Sequence[Array], positions: Array) -> tuple[Array, Mask]:
        """Return the rows at ``positions`` (n,) of a block, which count its rows in C order, as `rows` does."""
        at = np.unravel_index(positions, self.shape(block))
        return self._joined([each[at].reshape(len(positions), -1) for each in block])

    def _joined(self, parts: Sequence[Array]) -> tuple[Array, Mask]:
        count = len(parts[0])
        X = np.empty((count, sum(part.shape[1] for part in parts)), self.dtype)
        complete = np.ones(count, dtype=bool)
        first = 0
        for each, nodata in zip(parts, self.nodata, strict=True):
            part = unmasked(each)
            last = first + part.shape[1]
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows the dtype is infinite, and so missing
                X[:, first:last] = part
            if nodata is not None:
                complete &= (part != nodata).all(axis=1)
            first = last
        complete &= np.isfinite(X).all(axis=1)
        return X, complete


@dataclass(frozen=True)
class AnswerFormat:
    """The layout of a block of answers: ``columns`` per row; 0 means one answer, without a dimension of its own.

    ``fill`` stands in the rows that miss a feature. ``work`` is the bytes that answering a row takes besides its
    features and its answer.
    """

    dtype: np.dtype[Any]
    fill: Any
    columns: int = 0
    work: int = 0

    @property
    def last(self) -> tuple[int, ...]:
        """Sizes of the dimensions that follow those of the rows."""
        return (self.columns,) if self.columns else ()

    @property
    def row_bytes(self) -> int:
        """Bytes of the answers to a row."""
        return max(1, self.columns) * self.dtype.itemsize


def answers_of_block(
    rows: BlockFormat, answers: AnswerFormat, function: Callable[..., Array], *arguments: Any, given: int
) -> Array:
    """Return ``function(X, …)`` of the complete rows X of a block, each answer in its row's place.

    The first ``given`` of the arguments are those of the function; the arrays of the block follow, or nested lists of
    their chunks along features. Rows are made and answered slab by slab, so that they take little memory beside the
    block.
    """
    block = [_whole(each, rows.dimensions) for each in arguments[given:]]
    shape = rows.shape(block)
    out = np.empty((*shape, *answers.last), answers.dtype)
    features = sum(math.prod(each.shape[rows.dimensions :]) for each in block)
    for slab in slabs(shape, slab_rows(features * np.dtype(rows.dtype).itemsize + answers.work)):
        part = [each[slab] for each in block]
        X, complete = rows.rows(part)
        found = np.full((len(X), *answers.last), answers.fill, answers.dtype)
        if complete.any():
            found[complete] = function(X if complete.all() else X[complete], *arguments[:given])
        out[slab] = found.reshape((*rows.shape(part), *answers.last))
    return out


def _whole(part: Any, axis: int) -> Array:
    """Join the nested lists of chunks, along ``axis`` and the axes after it, in which Dask passes an array."""
    if not isinstance(part, list):
        return unmasked(part)  # here, since NumPy forgets masks when it joins arrays
    chunks = [_whole(each, axis + 1) for each in part]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks, axis)  # one is not copied


def slab_rows(row_bytes: int) -> int:
    """Return how many rows of ``row_bytes`` each are made and answered at a time."""
    return max(1, SLAB_BYTES // max(1, row_bytes))


def slabs(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Yield slices that cut an array of this shape into parts of at most ``most`` entries, in C order."""
    steps = [min(max(1, size), max(1, most // max(1, math.prod(shape[axis + 1 :])))) for axis, size in enumerate(shape)]
    yield from product(
        *[
            [slice(i, min(i + step, size)) for i in range(0, size, step)]
            for size, step in zip(shape, steps, strict=True)
        ]
    )


def labelled_rows(labels: Array, nodata: Any = None, targets: tuple[int, ...] = ()) -> tuple[Array, Array]:
    """Return the positions (n,) of the rows of a block that have a label, and the labels (n,), or (n, targets)."""
    flat = unmasked(labels, labels=True).reshape(-1, *targets)
    known = _are_labels(flat.reshape(-1)).reshape(flat.shape)
    if nodata is not None:
        known &= flat != nodata
    positions = np.flatnonzero(known.all(axis=1) if targets else known)
    return positions.astype(np.min_scalar_type(len(flat))), flat[positions]  # tasks carry positions, so they are small


def complete_rows(rows: BlockFormat, positions: Array, names: tuple[str, ...], *given: Array) -> tuple[Any, ...]:
    """Return the rows at ``positions`` (n,) of a block that have all features, the mask (n,) of them, their columns.

    Columns with these ``names`` come first of what is ``given``, then the arrays of the block.
    """
    X, complete = rows.rows_at(given[len(names) :], positions)
    beside = zip(names, map(unmasked, given), strict=False)
    columns = {name: each.reshape(-1)[positions][complete] for name, each in beside}
    return X if complete.all() else X[complete], complete, columns


def _are_labels(labels: Array) -> Mask:
    """Return a mask of the labels that are not NaN, NaT, None or blank."""
    if labels.dtype.kind == "f":
        return ~np.isnan(labels)
    if labels.dtype.kind in "mM":
        return ~np.isnat(labels)
    if labels.dtype.kind in "OUST":
        return np.array([_is_label(value) for value in labels.tolist()], dtype=bool)
    return np.ones(len(labels), dtype=bool)


def _is_label(value: Any) -> bool:
    if isinstance(value, str | bytes):
        return bool(value.strip())
    try:
        return value is not None and bool(value == value)
    except TypeError:  # pandas.NA, which has no truth
        return False
