"""The rows that inputs become: in memory, lazy arrays, the labelled rows of a large cube, or a store."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from dask.base import is_dask_collection
from scipy.sparse import issparse
from sklearn.utils.validation import column_or_1d

from dask_odm.data.cubes.blocks import SLAB_BYTES
from dask_odm.data.ingest import write_table
from dask_odm.data.readers.formats import open_source
from dask_odm.data.readers.frames import rows_by
from dask_odm.data.readers.labels import LabelEncoder, labels_of, plain_labels
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.engine.lazy import computed
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import CheckedRows, as_input_error, input_errors, require_finite
from dask_odm.events import Meter
from dask_odm.learning.training.recipe import CubeSchema
from dask_odm.linalg.csr_rows import sparse_rows
from dask_odm.linalg.rows import unmasked
from dask_odm.models.classes import codes_of, codes_of_rows
from dask_odm.printing import quoted
from dask_odm.typing import Array

if TYPE_CHECKING:
    from dask_odm.data.cubes.reading import LabelledCube

BLOCK_BYTES = SLAB_BYTES  # bytes of rows that are written to a store, or made dense, at a time


class Resolved:
    """Rows that an input became, in whatever form, and their labels or targets and weights, which may be None."""

    y: Any
    weight: Any
    feature_names: Any  # (d,), or None
    feature_dimension: str | None = None  # of an xarray X, if its name is a string
    groups: Any = None  # of these rows, if they were among what became them
    column_recipe: Any = None  # by which the columns of a table became these rows; None if they are the columns
    is_table: Any = False  # whether columns may be of any kind, of which a recipe makes features
    has_places: Any = False  # whether rows have coordinates, so that neighbours may resemble each other

    def encoded(self, recipe: ColumnRecipe) -> Resolved:
        """Return rows of columns as the features that a recipe makes of these; other rows as they are."""
        return self

    def cube_schema(self, rows: int) -> CubeSchema | None:
        """Return what a model keeps of the cube of which it learned so many rows; None of others."""
        return None

    def require(self, targets: str, what: str) -> None:
        """Raise InputError, naming ``what`` is done, if a store has no "classes", or no "real" targets."""

    def codes(self, y: Any, classes: list[Any]) -> Array:
        """Return the place of each label among ``classes``, or −1, (n,)."""
        labels = as_input_error(lambda: column_or_1d(labels_of(y), warn=True))
        return codes_of_rows(labels, classes)[0]

    def parts(self) -> Iterator[Any]:
        """Yield rows whose values can be had at once: all, or batch by batch."""
        yield self

    def stored(self, targets: Any) -> AbstractContextManager[Store]:
        """Provide rows as a store, a scratch one of this ``with`` block, with y as a `TargetKind` has it."""
        raise NotImplementedError  # rows in memory are checked first, see `lazy_rows`


@dataclass(frozen=True, eq=False)
class Given(Resolved):
    """Rows in memory with labels and weights as they came, which scikit-learn has yet to validate."""

    X: Any
    y: Any = None
    weight: Any = None
    feature_dimension: str | None = None
    cube: CubeSchema | None = None  # of rows that come from a cube
    groups: Any = None
    column_recipe: ColumnRecipe | None = None
    is_table: bool = False
    is_plain: bool = False  # rows of a frame of numbers without gaps, which a fit learns from

    @property
    def feature_names(self) -> Any:
        """Names of the columns of a frame."""
        return getattr(self.X, "columns", None) if self.column_recipe is None else self.column_recipe.feature_names

    @property
    def has_places(self) -> bool:
        return self.cube is not None

    def encoded(self, recipe: ColumnRecipe) -> Given:
        X = self.X
        if not isinstance(X, pd.DataFrame):
            # a frame keeps the types of values in lists
            X = X if hasattr(X, "ndim") else as_input_error(lambda: pd.DataFrame(self.X))
            names = _names_of(X, None, recipe)
            X = pd.DataFrame(X.toarray() if issparse(X) else X).set_axis(names, axis=1)
        return replace(self, X=rows_by(X, recipe), column_recipe=recipe)

    @classmethod
    def of(cls, X: Any, y: Any, weight: Any, feature_dimension: str | None = None) -> Given:
        """Return rows in memory with labels and weights that may be lazy."""
        # computed, since NumPy would forget what Dask's arrays mask
        y, weight = (computed(each)[0] if is_dask_collection(each) else each for each in (y, weight))
        return cls(X, y, weight, feature_dimension)


class _Blocks(Resolved):
    """Rows that are read or computed block by block."""

    title: ClassVar[str]
    count: Any  # of rows, those that miss a feature included
    dtype: Any  # name of the type of rows in a store

    @property
    def called(self) -> Any:
        """What messages call the features; None if by their place."""
        return self.feature_names

    def blocks(self) -> Iterator[tuple[Array, Array, Any]]:
        """Yield rows, labels and weights, or None, of one block after the other."""
        raise NotImplementedError

    @contextmanager
    def stored(self, targets: Any) -> Iterator[Store]:
        encoder = LabelEncoder(text=False, target=targets.name, several=targets.several)
        with scratch_folder() as folder:
            path = os.path.join(folder, "spooled.zarr")
            with StoreWriter(path, dtype=self.dtype) as writer, Meter("spool", self.count, "rows") as meter:
                for X, y, weight in self.blocks():  # one block is in this process's memory at a time
                    require_finite(X, self.called, writer.rows)
                    codes = encoder.encode(y, lambda i: f"y, row {writer.rows + i}")
                    with input_errors():
                        numbers = None if weight is None else np.asarray(weight, dtype=np.float64)
                    writer.append(X, codes, numbers)
                    meter.add(X.shape[0])
                names = None if self.feature_names is None else [str(name) for name in self.feature_names]
                told = {"feature_names": names, "source": self.title, "columns": self.column_recipe}
                store = writer.finish(encoder.classes() or None, **told)
            yield store


@dataclass(frozen=True, eq=False)
class LazyArrays(_Blocks):
    """Dask arrays with aligned row chunks: X (n, d), y (n,), (n, targets) or None, weight (n,) or None.

    Chunk sizes are known, except those of an X without y and weight. ``feature_dimension`` is as of `Given`.
    """

    X: Any
    y: Any
    weight: Any = None
    feature_names: Array | None = None
    feature_dimension: str | None = None
    numbers: Sequence[int] | None = None  # names of a frame's columns, if these are numbers, for messages
    groups: Any = None
    column_recipe: ColumnRecipe | None = None
    is_table: bool = False
    title: ClassVar[str] = "dask arrays"

    @property
    def called(self) -> Any:
        return self.numbers if self.feature_names is None else self.feature_names

    @property
    def source(self) -> LazyArrays:
        """The rows themselves, for lazy values."""
        return self

    @property
    def columns(self) -> list[Any]:
        """X, y and, if there are any, weights."""
        return [each for each in (self.X, self.y, self.weight) if each is not None]

    @property
    def count(self) -> int:
        return len(self.X)

    @property
    def features(self) -> int:
        """Number of features."""
        return int(self.X.shape[1])

    @property
    def dtype(self) -> str:
        return self.X.dtype.name if self.X.dtype in (np.float32, np.float64) else "float64"

    @property
    def nbytes(self) -> int:
        """Bytes of the dense rows in memory, and of several targets, as numbers of 4 or 8 bytes that are learned."""
        targets = 8 * self.y.size if self.y is not None and self.y.ndim > 1 else 0
        return int(self.X.size * max(self.X.dtype.itemsize, np.dtype(self.dtype).itemsize) + targets)

    def encoded(self, recipe: ColumnRecipe) -> LazyArrays:
        names = _names_of(self.X, self.feature_names, recipe)
        X = self.X.map_blocks(
            lambda rows: rows_by(pd.DataFrame(rows, columns=names), recipe),
            chunks=(self.X.chunks[0], (recipe.n_features,)), dtype=recipe.dtype, meta=np.empty((0, 0), recipe.dtype),
        )  # fmt: skip
        return replace(self, X=X, column_recipe=recipe, feature_names=None)

    def blocks(self) -> Iterator[tuple[Array, Array, Any]]:
        """Compute rows, labels and weights, or None, one block at a time."""
        for block in zip(*[column.to_delayed().reshape(-1) for column in self.columns], strict=True):
            X, y, *weight = computed(*block)
            X = sparse_rows(unmasked(X))
            rows = X if issparse(X) else np.asarray(X)
            yield rows.astype(self.dtype, copy=False), plain_labels(y), weight[0] if weight else None


@dataclass(frozen=True, eq=False)
class LargeCube(_Blocks):
    """A lazy cube whose labelled rows are too large to be read into memory."""

    labelled: LabelledCube
    feature_names: Array | None = None
    title: ClassVar[str] = "a cube"
    has_places = True

    @property
    def count(self) -> int:
        return self.labelled.count

    @property
    def dtype(self) -> str:
        return self.labelled.cube.dtype.name

    def cube_schema(self, rows: int) -> CubeSchema:
        return schema_of_cube(self.labelled, self.count - rows)

    def blocks(self) -> Iterator[tuple[Array, Array, Any]]:
        """Read labelled rows that have all features, labels and weights or None; raise InputError if there are none."""
        for each in self.labelled.batches(computed):
            if len(each.y):
                yield each.X, each.y, each.weight

    def parts(self) -> Iterator[Given]:
        for X, y, weight in self.blocks():
            yield Given(named(X, self.feature_names), y, weight)


@dataclass(frozen=True, eq=False)
class StoredRows(Resolved):
    """The rows of a store."""

    source: Store

    @property
    def feature_names(self) -> Any:
        return self.source.feature_names

    @property
    def column_recipe(self) -> Any:
        return self.source.column_recipe

    @property
    def has_places(self) -> bool:
        return bool(self.source.layout.coordinates)

    @property
    def y(self) -> Any:
        return self.source.read_column("y")

    @property
    def weight(self) -> Any:
        return self.source.read_column("weight")

    def require(self, targets: str, what: str) -> None:
        if targets == "classes":
            self.source.require_classes(what)
        elif self.source.y_kind is not None:
            self.source.require_targets(what)

    def codes(self, y: Any, classes: list[Any]) -> Array:
        return np.array([*codes_of(self.source.classes or (), classes), -1])[y]

    @contextmanager
    def stored(self, targets: Any) -> Iterator[Store]:
        yield self.source


@dataclass(frozen=True, eq=False)
class LazyTable(Resolved):
    """A dask frame whose columns are of any kind, with labels and weights beside it, which may be None."""

    X: Any
    y: Any
    weight: Any
    groups: Any = None
    dtype: str | None = None  # of the features that columns become

    @contextmanager
    def stored(self, targets: Any) -> Iterator[Store]:
        given, label = (self.X, False) if self.y is None else ((self.X, self.y), None)
        with scratch_folder() as folder:
            rows = open_source(given, label=label, weight=self.weight, dtype=self.dtype or "float64")
            yield write_table(rows, os.path.join(folder, "spooled.zarr"), target=targets.name, dtype=self.dtype)


def _names_of(X: Any, names: Any, recipe: ColumnRecipe) -> list[str]:
    """Return the names of the columns of an array, by default those of a recipe; InputError if these are others."""
    if names is not None:
        return list(names)
    if X.ndim != 2 or X.shape[1] != len(recipe.names):
        raise InputError(
            f"X has shape {X.shape}, but the model learned from {len(recipe.names)} columns: "
            f"{quoted(list(recipe.names))[1:-1]}."
        )
    what = "X does not have valid feature names, but the model was fitted with feature names"
    warnings.warn(what, stacklevel=4)
    return list(recipe.names)


def schema_of_cube(labelled: LabelledCube, missing: int) -> CubeSchema:
    """Return what a model keeps of a cube, of whose labelled rows so many miss a feature."""
    return CubeSchema(tuple(str(d) for d in labelled.cube.feature_dimensions), missing, labelled.words)


def named(rows: Any, names: Sequence[Any] | Array | None) -> Any:
    """Return rows in memory as a frame if their features have names; sparse rows have none in memory."""
    return rows if names is None or issparse(rows) else pd.DataFrame(rows, columns=names, copy=False)


def lazy_rows(rows: CheckedRows) -> LazyArrays:
    """Return rows, labels and weights in memory as dask arrays with equal row chunks."""
    import dask.array as da

    count = max(1, BLOCK_BYTES // rows.X[:1].nbytes)
    X = da.from_array(rows.X, chunks=(count, -1))
    return LazyArrays(X, da.from_array(rows.y, chunks=count), da.from_array(rows.weight, chunks=count), rows.names)
