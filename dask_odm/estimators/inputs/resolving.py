"""From what users pass to `fit` or `predict` to rows in memory, lazy arrays or a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from dask.base import is_dask_collection
from scipy.sparse import issparse
from sklearn.utils.validation import _get_feature_names

from dask_odm.data.readers.labels import LabelEncoder, plain_labels
from dask_odm.data.readers.sources import is_of
from dask_odm.data.readers.texts import is_texts, rows_of_texts
from dask_odm.data.storage.locations import is_address
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.engine.client import active_client
from dask_odm.engine.lazy import computed, computed_once
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import CheckedRows, as_input_error, input_errors, require_finite
from dask_odm.estimators.inputs.frames import (
    as_pandas,
    column_by_name,
    dask_labels,
    dask_rows,
    is_dask_frame,
    is_frame,
    labels_by_name,
    labels_of,
    refuse_labels_among,
    refuse_labels_inside,
    require_numbers,
    warn_column,
)
from dask_odm.events import Meter
from dask_odm.learning.training.recipe import CubeSchema
from dask_odm.learning.training.run import read_limit
from dask_odm.linalg.csr_rows import sparse_rows
from dask_odm.linalg.rows import unmasked
from dask_odm.typing import Array

if TYPE_CHECKING:
    from dask_odm.data.cubes.reading import LabelledCube

BLOCK_BYTES = 16 << 20  # bytes of rows that are written to a store, or made dense, at a time


@dataclass(frozen=True, eq=False)
class Given:
    """Rows in memory with labels and weights as they came, which scikit-learn has yet to validate."""

    X: Any
    y: Any = None
    weight: Any = None
    feature_dimension: str | None = None  # of an xarray X, if its name is a string
    cube: CubeSchema | None = None  # of rows that come from a cube
    groups: Any = None  # of these rows


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
        return _cube_schema(self.labelled, self.count - rows)

    def blocks(self) -> Iterator[tuple[Array, Array, Any]]:
        """Read labelled rows that have all features, labels and weights or None; raise InputError if there are none."""
        for each in self.labelled.batches(computed):
            if len(each.y):
                yield each.X, each.y, each.weight

    def batches(self) -> Iterator[Given]:
        """Read the labelled rows as rows in memory, see `blocks`."""
        for X, y, weight in self.blocks():
            yield Given(_named(X, self.feature_names), y, weight)


Resolved = Store | LazyArrays | LargeCube | Given


def is_xarray(X: Any) -> bool:
    """Return whether ``X`` is an xarray object."""
    return is_of(X, "xarray", "Dataset", "DataArray")


def resolve(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    groups: Any = None,
    model: Any = None,
    memory_limit: int | str | None = None,
    needs_labels: bool = True,
) -> Resolved:
    """Return the store, the dask arrays or the rows in memory behind the arguments of `fit`.

    ``model`` is a fitted estimator, whose features identify the dimensions of an xarray X. ``groups`` matter to cubes
    alone. Unknown chunk sizes are computed if there are y or weights. A frame without y that seems to have labels among
    its columns is refused if ``needs_labels``.

    Raises InputError if y or sample_weight are given besides a source that has its own, for input of a wrong kind, and
    if lengths, dimensions or coordinates do not match; StoreError if the path is not a sound store; MemoryLimitError if
    a block of a lazy cube exceeds a worker's memory or ``memory_limit``.
    """
    given, X = X, as_pandas(X)
    is_converted = X is not given
    if hasattr(model, "text_recipe_"):
        _refuse_single_texts(X, model)
    if isinstance(X, str | os.PathLike | Store):
        _no_extras(y, sample_weight, "a store")
        return X if isinstance(X, Store) else Store.open(X)
    cube = _of_cube(X, y, sample_weight, groups, model, memory_limit) if is_xarray(X) else None
    if cube is not None:
        return cube
    if is_of(X, "xarray", "Dataset"):
        _no_extras(y, sample_weight, "a Dataset")
    if y is None and model is None and needs_labels:
        refuse_labels_inside(X, "frame.to_pandas()" if is_converted else "frame")
    named, labels = labels_by_name(X, y)
    if named is not X:
        X, y = named, labels
    elif model is None and is_dask_frame(X):
        refuse_labels_among(X, y, y)
    if isinstance(sample_weight, str) or (isinstance(sample_weight, Integral) and is_frame(X) and sample_weight in X):
        X, sample_weight = column_by_name(X, sample_weight, "sample_weight")
    if is_converted:
        require_numbers(X, getattr(model, "feature_names_in_", ()), "arrow")
    if is_texts(X) and hasattr(model, "text_recipe_"):
        X = rows_of_texts(X, model.text_recipe_)
    if is_xarray(X):
        return _of_xarray(X, y, sample_weight, model)
    if is_dask_frame(X):
        names = as_input_error(lambda: _get_feature_names(X._meta))
        rows = dask_rows(X, getattr(model, "feature_names_in_", ()))
        numbers = X.columns.tolist() if names is None else None
        return replace(_aligned(rows, y, sample_weight), feature_names=names, numbers=numbers)
    if is_of(X, "dask.array", "Array"):
        return _aligned(X, y, sample_weight)
    # NumPy would forget what Dask's arrays mask
    y, sample_weight = (computed(each)[0] if is_dask_collection(each) else each for each in (y, sample_weight))
    return Given(X, y, sample_weight)


def resolve_training(
    X: Any,
    y: Any,
    sample_weight: Any,
    groups: Any = None,
    memory_limit: int | str | None = None,
    *,
    needs_labels: bool = True,
) -> Resolved:
    """Return the training data behind ``X``, as `resolve` does; lazy arrays of few bytes are read into memory.

    The y of lazy arrays is zeros unless ``needs_labels``.
    """
    resolved = resolve(X, y, sample_weight, groups=groups, memory_limit=memory_limit, needs_labels=needs_labels)
    if isinstance(resolved, Given):
        refuse_labels_among(resolved.X, resolved.y, y)
    if not isinstance(resolved, LazyArrays):
        return resolved
    if resolved.y is None and needs_labels:
        raise InputError("fit needs labels, but y is None.")
    if not needs_labels:
        rows = _known(resolved.X)
        resolved = replace(resolved, X=rows, y=_beside(rows, np.zeros(len(rows)), "y"))
    if resolved.X.nbytes > read_limit():
        return resolved
    held, labels, *weight = _in_memory(resolved)
    rows = _named(held, resolved.called)
    refuse_labels_among(rows, labels, y)
    return Given(rows, labels, weight[0] if weight else None, resolved.feature_dimension)


def _in_memory(lazy: LazyArrays) -> list[Any]:
    """Compute the columns of lazy arrays; workers keep their blocks until these are copied, a few at a time."""
    from dask.array.dispatch import concatenate_lookup

    parts = list(zip(*[column.to_delayed().reshape(-1) for column in lazy.columns], strict=True))
    together = max(1, BLOCK_BYTES // max(1, lazy.X.nbytes // len(parts)))
    values = computed_once(list(chain.from_iterable(parts)), together * len(lazy.columns))
    blocks: list[list[Any]] = [[] for _ in lazy.columns]
    rows: Any = None  # of all blocks, if these are plain arrays
    for first in accumulate(lazy.X.chunks[0][:-1], initial=0):
        for column in blocks:
            column.append(next(values))
        if first == 0 and type(blocks[0][0]) is np.ndarray:
            rows = np.empty(lazy.X.shape, blocks[0][0].dtype)
        if rows is not None:
            X = blocks[0].pop()
            if type(X) is np.ndarray:
                rows = rows.astype(np.result_type(rows, X), copy=False)
                rows[first : first + len(X)] = X
            else:
                blocks[0], rows = [rows[:first], X], None
    joined = [concatenate_lookup.dispatch(type(max(each, key=_priority)))(each) for each in blocks if each]
    return joined if rows is None else [rows, *joined]


def _priority(block: Any) -> float:
    """Return NumPy's priority of a block's type, which is that of blocks of several types."""
    return float(getattr(block, "__array_priority__", 0.0))


def _refuse_single_texts(X: Any, model: Any) -> None:
    """Raise InputError for a text, or a table with a column of texts, in place of a list of texts."""
    if isinstance(X, str) and not is_address(X) and not os.path.exists(X):
        raise InputError("X is a string, but there is no such path: pass a list of texts, such as [text].")
    column = model.text_recipe_.column
    if isinstance(X, pd.DataFrame) and (column in X.columns or not all(map(pd.api.types.is_numeric_dtype, X.dtypes))):
        named = column if column in X.columns else "…"
        raise InputError(f"X is a table, not a list of texts: pass its column of texts, X[{named!r}].")


def _no_extras(y: Any, sample_weight: Any, what: str) -> None:
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise InputError(f"{name} must be None when X is {what}, which holds its own. Got {type(value).__name__}.")


def _of_xarray(X: Any, y: Any, weight: Any, model: Any) -> Resolved:
    from dask_odm.data.store.interchange import as_store
    from dask_odm.estimators.inputs.xarray_inputs import columns_of, feature_names, oriented

    store = as_store(X) if is_of(X, "xarray", "Dataset") else None
    if store is not None:
        return store
    rows, y, weight = oriented(*columns_of(X, y, weight), model)
    names = feature_names(rows)
    dimension = rows.dims[1] if isinstance(rows.dims[1], str) else None
    if rows.chunks is None and rows.variable._in_memory:
        return Given(_named(rows.to_numpy(), names), y, weight, dimension)
    lazy = rows if rows.chunks is not None else rows.chunk()  # whose values are still in a file
    return replace(_aligned(lazy.data, y, weight), feature_names=names, feature_dimension=dimension)


def _of_cube(
    X: Any, y: Any, weight: Any, groups: Any, model: Any, memory_limit: int | str | None
) -> Given | LargeCube | None:
    """Return the labelled rows of a cube, in memory unless they are large; None if the xarray ``X`` is no cube."""
    from dask_odm.estimators.inputs.cubes import is_cube, labelled_cube

    if y is None or not is_cube(X, y, model):
        return None
    labelled = labelled_cube(X, y, weight, groups, model, memory_limit)
    names = labelled.cube.feature_names if model is None else getattr(model, "feature_names_in_", None)
    if labelled.cube.is_lazy and labelled.nbytes > read_limit():
        if groups is not None:
            raise InputError(
                "groups are for labelled rows that are read into memory (Dask's setting dask_odm.read-into-memory); "
                "draw some by dask_odm.ingest(…, per_class=…), --per-class in a shell, and give groups of the rows of "
                "that store."
            )
        return LargeCube(labelled, names)
    rows = labelled.read(computed)
    schema = _cube_schema(labelled, rows.missing)
    return Given(_named(rows.X, names), rows.y, rows.weight, cube=schema, groups=rows.columns.get("groups"))


def _cube_schema(labelled: LabelledCube, missing: int) -> CubeSchema:
    return CubeSchema(tuple(str(d) for d in labelled.cube.feature_dimensions), missing, labelled.words)


def _named(rows: Any, names: Array | None) -> Any:
    """Return rows in memory as a frame if their features have names; sparse rows have none in memory."""
    return rows if names is None or issparse(rows) else pd.DataFrame(rows, columns=names, copy=False)


def _aligned(X: Any, y: Any, weight: Any) -> LazyArrays:
    """Compute unknown chunk sizes, and give all arrays the row chunks of X. Single rows are not split."""
    if X.ndim != 2:
        raise InputError(f"X must have two dimensions. Got shape {X.shape} instead. Reshape your data.")
    if y is None and weight is None:
        return LazyArrays(X.rechunk({1: -1}), None)
    X = _known(X).rechunk({1: -1})
    weight = _beside(X, weight, "sample_weight")
    if weight is not None and weight.dtype.kind not in "biufO":
        raise InputError(f"sample_weight must be numbers. Got dtype {weight.dtype} instead.")
    return LazyArrays(X, _beside(X, y, "y"), weight)


def _known(array: Any) -> Any:
    """Return the array with known chunk sizes, computing them if needed."""
    if not np.isnan(array.shape).any():
        return array
    active_client()  # says what to do about an asynchronous one, of which Dask only says that it is
    return array.copy().compute_chunk_sizes()


def _beside(X: Any, column: Any, name: str) -> Any:
    """Return labels or weights of any form as a dask array with the row chunks of X; None stays None."""
    import dask.array as da

    if column is None:
        return None
    if is_xarray(column):
        column = column.data
    if is_of(column, "dask.dataframe", "DataFrame", "Series"):
        column = dask_labels(column)
    if is_of(column, "dask.array", "Array"):
        plain = np.empty((0,) * column.ndim, column.dtype)
        column = _known(column.map_blocks(unmasked, labels=name == "y", dtype=column.dtype, meta=plain))
    else:
        column = da.from_array(labels_of(column), chunks=-1)
    if column.ndim == 2 and column.shape[1] == 1:
        warn_column()
        column = column[:, 0]
    if column.shape != (len(X),):
        raise InputError(f"{name} must have shape ({len(X)},) as X has rows. Got {column.shape} instead.")
    return column.rechunk((X.chunks[0],))


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
