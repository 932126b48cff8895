"""The rows that inputs become: in memory, lazy arrays, the labelled rows of a large cube, or a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from dask.base import is_dask_collection
from scipy.sparse import issparse

from dask_odm.data.cubes.blocks import SLAB_BYTES
from dask_odm.data.readers.labels import LabelEncoder, plain_labels
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.engine.lazy import computed
from dask_odm.estimators.inputs.checks import CheckedRows, input_errors, require_finite
from dask_odm.events import Meter
from dask_odm.learning.training.recipe import CubeSchema
from dask_odm.linalg.csr_rows import sparse_rows
from dask_odm.linalg.rows import unmasked
from dask_odm.typing import Array

if TYPE_CHECKING:
    from dask_odm.data.cubes.reading import LabelledCube

BLOCK_BYTES = SLAB_BYTES  # bytes of rows that are written to a store, or made dense, at a time


@dataclass(frozen=True, eq=False)
class Given:
    """Rows in memory with labels and weights as they came, which scikit-learn has yet to validate."""

    X: Any
    y: Any = None
    weight: Any = None
    feature_dimension: str | None = None  # of an xarray X, if its name is a string
    cube: CubeSchema | None = None  # of rows that come from a cube
    groups: Any = None  # of these rows

    @classmethod
    def of(cls, X: Any, y: Any, weight: Any, feature_dimension: str | None = None) -> Given:
        """Return rows in memory with labels and weights that may be lazy."""
        # computed, since NumPy would forget what Dask's arrays mask
        y, weight = (computed(each)[0] if is_dask_collection(each) else each for each in (y, weight))
        return cls(X, y, weight, feature_dimension)


@dataclass(frozen=True, eq=False)
class LazyArrays:
    """Dask arrays with aligned row chunks: X (n, d), y (n,) or None, weight (n,) or None.

    Chunk sizes are known, except those of an X without y and weight. ``feature_dimension`` is as of `Given`.
    """

    X: Any
    y: Any
    weight: Any = None
    feature_names: Array | None = None
    feature_dimension: str | None = None
    numbers: Sequence[int] | None = None  # names of a frame's columns, if these are numbers, for messages
    title: ClassVar[str] = "dask arrays"

    @property
    def called(self) -> Any:
        """What messages call the features; None if by their place."""
        return self.numbers if self.feature_names is None else self.feature_names

    @property
    def columns(self) -> list[Any]:
        """X, y and, if there are any, weights."""
        return [each for each in (self.X, self.y, self.weight) if each is not None]

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.X)

    @property
    def features(self) -> int:
        """Number of features."""
        return int(self.X.shape[1])

    @property
    def dtype(self) -> str:
        """Name of the type of rows in a store."""
        return self.X.dtype.name if self.X.dtype in (np.float32, np.float64) else "float64"

    def blocks(self) -> Iterator[tuple[Array, Array, Any]]:
        """Compute rows, labels and weights, or None, one block at a time."""
        for block in zip(*[column.to_delayed().reshape(-1) for column in self.columns], strict=True):
            X, y, *weight = computed(*block)
            X = sparse_rows(unmasked(X))
            rows = X if issparse(X) else np.asarray(X)
            yield rows.astype(self.dtype, copy=False), plain_labels(y), weight[0] if weight else None


@dataclass(frozen=True, eq=False)
class LargeCube:
    """A lazy cube whose labelled rows are too large to be read into memory."""

    labelled: LabelledCube
    feature_names: Array | None = None
    title: ClassVar[str] = "a cube"

    @property
    def called(self) -> Any:
        """What messages call the features."""
        return self.feature_names

    @property
    def count(self) -> int:
        """Number of labelled rows, those that miss a feature included."""
        return self.labelled.count

    @property
    def features(self) -> int:
        """Number of features."""
        return self.labelled.cube.features

    @property
    def dtype(self) -> str:
        """Name of the type of rows in a store."""
        return self.labelled.cube.dtype.name

    def schema(self, rows: int) -> CubeSchema:
        """Return what a model keeps of the cube of which it learned so many rows."""
        return cube_schema(self.labelled, self.count - rows)

    def blocks(self) -> Iterator[tuple[Array, Array, Any]]:
        """Read labelled rows that have all features, labels and weights or None; raise InputError if there are none."""
        for each in self.labelled.batches(computed):
            if len(each.y):
                yield each.X, each.y, each.weight

    def batches(self) -> Iterator[Given]:
        """Read the labelled rows as rows in memory, see `blocks`."""
        for X, y, weight in self.blocks():
            yield Given(named(X, self.feature_names), y, weight)


Resolved = Store | LazyArrays | LargeCube | Given


def cube_schema(labelled: LabelledCube, missing: int) -> CubeSchema:
    """Return what a model keeps of a cube, of whose labelled rows so many miss a feature."""
    return CubeSchema(tuple(str(d) for d in labelled.cube.feature_dimensions), missing, labelled.words)


def named(rows: Any, names: Array | None) -> Any:
    """Return rows in memory as a frame if their features have names; sparse rows have none in memory."""
    return rows if names is None or issparse(rows) else pd.DataFrame(rows, columns=names, copy=False)


@contextmanager
def spooled(rows: Store | LazyArrays | LargeCube | CheckedRows, target: str) -> Iterator[Store]:
    """Provide rows as a store: itself, or a scratch one of this ``with`` block; its y becomes ``target``."""
    if isinstance(rows, Store):
        yield rows
        return
    with scratch_folder() as folder:
        lazy = _lazy(rows) if isinstance(rows, CheckedRows) else rows
        yield _spool(lazy, os.path.join(folder, "spooled.zarr"), target)


def _lazy(rows: CheckedRows) -> LazyArrays:
    """Return rows, labels and weights in memory as dask arrays with equal row chunks."""
    import dask.array as da

    count = max(1, BLOCK_BYTES // rows.X[:1].nbytes)
    X = da.from_array(rows.X, chunks=(count, -1))
    return LazyArrays(X, da.from_array(rows.y, chunks=count), da.from_array(rows.weight, chunks=count), rows.names)


def _spool(rows: LazyArrays | LargeCube, path: str, target: str) -> Store:
    """Write lazy rows to a store at ``path``, one block in this process's memory at a time."""
    encoder = LabelEncoder(text=False, target=target)
    with StoreWriter(path, dtype=rows.dtype) as writer, Meter("spool", rows.count, "rows") as meter:
        for X, y, weight in rows.blocks():
            require_finite(X, rows.called, writer.rows)
            targets = encoder.encode(y, lambda i: f"y, row {writer.rows + i}")
            with input_errors():
                numbers = None if weight is None else np.asarray(weight, dtype=np.float64)
            writer.append(X, targets, numbers)
            meter.add(X.shape[0])
        names = None if rows.feature_names is None else [str(name) for name in rows.feature_names]
        return writer.finish(encoder.classes() or None, feature_names=names, source=rows.title)
