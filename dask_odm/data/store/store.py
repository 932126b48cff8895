"""Stores: data sets on disk, each a zarr v3 group with a manifest, read chunk by chunk and checked as it is read.

This is the only module that reads rows from a store. A `Store` is a small record that is sent to workers as it is. The
module imports neither Dask nor xarray, pandas or scikit-learn, so that workers stay lean.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_odm.data.storage.locations import is_address, location_of
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.entries import EntryBuffer, read_entries
from dask_odm.data.store.layout import (
    CHECKSUM_BYTES,
    COORDINATES,
    IDF,
    MAX_CHUNK_BYTES,
    ROOT,
    STATISTICS,
    ArrayLayout,
    Label,
    Layout,
    decode_strings,
)
from dask_odm.data.store.manifest import whole
from dask_odm.data.store.sealed import SealedFolder, room_for, unseal
from dask_odm.data.store.statistics import Statistics, TargetFacts, class_sums, known_targets, plain_item
from dask_odm.data.store.text_recipe import TextRecipe
from dask_odm.errors import InputError, StoreError
from dask_odm.html import card, table
from dask_odm.linalg.rows import READ_BYTES, uniforms_of
from dask_odm.linalg.threads import run_threads
from dask_odm.printing import short
from dask_odm.typing import Array

Buffer = npt.NDArray[np.uint8] | EntryBuffer


@dataclass(frozen=True, eq=False)
class StoreBlock:
    """Consecutive rows of a store, or rows gathered from it."""

    X: Any  # (rows, d), an array, or a CSR array of sparse rows
    # (rows,) codes, indices into `Store.classes`, where -1 is unknown; or real targets in float64, where NaN is
    # unknown, (rows, targets) if there are several
    y: Array | None
    weight: npt.NDArray[np.float64] | None  # (rows,)
    first: int  # number of the first row in the store; -1 if rows were gathered

    def columns(self) -> tuple[Array, Array]:
        """Return y, which the store must have, and the weights, which are empty if all are 1."""
        assert self.y is not None
        return self.y, np.empty(0) if self.weight is None else self.weight


@dataclass(frozen=True)
class Store(SealedFolder):
    """A finished store, which `Store.open` opens. Stores are equal if path and content are equal."""

    layout: Layout  # number of rows and features, chunking and types
    facts: TargetFacts  # what is said of y without reading it
    source: str  # what was ingested, in words
    title: str | None = field(default=None, compare=False)  # name in messages; by default that of the path
    column_recipe: ColumnRecipe | None = None  # that turned the columns of a table into the rows, if any did
    recoded: tuple[int, ...] = ()  # code of each stored label code, −1 for no label; empty if all are as stored
    order: tuple[int, ...] = ()  # stored place of each feature; empty if all are where they are stored
    target: int | None = None  # the only one of several targets that y has

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """Open a finished store, and check the sizes of all files and the content of all but its rows.

        Raises StoreError if the path is not a store, or if the store is unfinished or of another version, or has files
        that are missing, of another size or different from the manifest.
        """
        return whole(location_of(path), cls._opened)

    @classmethod
    def _opened(cls, root: str) -> Store:
        manifest, documents = unseal(root, "store")
        layout = Layout.from_json(manifest.head["layout"])
        facts = TargetFacts.read(root, layout, documents)
        attributes = documents[ROOT]["attributes"]
        columns = _columns_of(root, attributes, layout.features)
        store = cls(
            root, "store", manifest.digest, layout, facts, str(attributes.get("source", "")), column_recipe=columns
        )
        for array in layout.of_features().values():  # few read these; chunks of rows are checked when they are read
            store.chunk(array, 0).payload()
        return store

    @property
    def name(self) -> str:
        """Name of the store in messages."""
        return self.title or f"store '{self.path}'"

    def __repr__(self) -> str:
        y = f"{len(self.classes)} classes" if self.classes else self._of_numbers or "no y"
        return f"Store({self.path!r}: {self.rows:,} rows of {self.features:,} features, {self.dtype.name}, {y})"

    def _repr_html_(self) -> str:
        facts = [
            ("Path", self.path),
            ("Rows", self.rows),
            ("Features", self.features),
            ("Type", self.dtype.name),
            ("In memory", f"{self.layout.rows_nbytes / 1e6:,.1f} MB"),
            ("Chunks", f"{self.n_chunks:,} of {self.chunk_rows:,} rows, {self.chunk_nbytes / 1e6:,.1f} MB each"),
            ("Target", None if self.classes else self._of_numbers or "none"),
            ("Rows without a target", None if self.y_kind is None else self.rows - self.known_rows),
            ("Weights", "one a row" if self.has_weight else None),
            ("Source", self.source or None),
        ]
        classes = list(zip(map(short, self.classes or ()), self.class_counts or (), strict=True))
        tables = [] if self.column_recipe is None else [self.column_recipe._repr_html_()]
        return card("Store", facts, *([table(["class", "rows"], classes)] if classes else []), *tables)

    @property
    def _of_numbers(self) -> str | None:
        """Name of targets that are no classes, in words; None if there are none."""
        one = {"real": "real targets"}.get(self.y_kind or "")
        return f"{self.targets} {'labels' if self.facts.labels else one} a row" if self.targets else one

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.layout.rows

    @property
    def features(self) -> int:
        """Number of features."""
        return self.layout.features

    @property
    def chunk_rows(self) -> int:
        """Number of rows of a chunk. The last chunk may have fewer."""
        return self.layout.chunk_rows

    @property
    def n_chunks(self) -> int:
        """Number of chunks of rows."""
        return self.layout.n_chunks

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of X: float32 or float64."""
        return np.dtype(self.layout.dtype)

    @property
    def y_kind(self) -> str | None:
        """Kind of y: ``classes``, ``real``, or None without y."""
        if self.layout.y_dtype is None:
            return None
        return "real" if self.facts.classes is None else "classes"

    @property
    def targets(self) -> int:
        """Number of targets of a row if there are several, else 0. Labels are such of 0 and 1."""
        return self.layout.targets if self.target is None else 0

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """Labels in sorted order, of one type, dates as words; codes index it. None without y and for real y."""
        return None if self.facts.classes is None else tuple(map(plain_item, self.facts.classes))

    @property
    def class_counts(self) -> tuple[int, ...] | None:
        """Number of rows of each class, or None if `classes` is None."""
        return self.facts.class_counts

    @property
    def known_rows(self) -> int:
        """Number of rows whose y is known."""
        return self.facts.known_rows

    @property
    def has_weight(self) -> bool:
        """Whether rows have weights."""
        return self.layout.has_weight

    @property
    def is_sparse(self) -> bool:
        """Whether rows are sparse: they are read as CSR arrays."""
        return self.layout.entries is not None

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a whole chunk of X in memory."""
        return self.layout.block_nbytes

    @property
    def readers(self) -> int:
        """Number of threads that gather rows from chunks, of which each holds one: up to eight, if chunks are small."""
        return max(1, min(8, MAX_CHUNK_BYTES // max(1, self.chunk_nbytes)))

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Column names, read on demand; None if the source had none."""
        if not self.layout.has_feature_names:
            return None
        chunk = self.chunk(self.layout.of_features()["feature"], 0)
        data = chunk.payload().tobytes()
        try:
            names = decode_strings(data)
        except (ValueError, struct.error) as error:
            raise chunk.damage("not a list of names") from error
        return tuple(names[place] for place in self.order) if self.order else names

    @property
    def text_recipe(self) -> TextRecipe | None:
        """Recipe that turned texts into the rows, read on demand. None if the rows are not from texts."""
        if self.layout.text is None:
            return None
        array = self.layout.of_features()[IDF]
        try:
            return TextRecipe(self.layout.text, self.chunk(array, 0).numbers().astype(np.float64))
        except ValueError as error:
            raise self.chunk(array, 0).damage(str(error)) from error

    @property
    def statistics(self) -> Statistics:
        """Per-feature statistics, read on demand."""
        arrays = self.layout.of_features()
        found = {name: self.chunk(arrays[f"statistics/{name}"], 0).numbers() for name in STATISTICS}
        return Statistics(**{name: each[list(self.order)] if self.order else each for name, each in found.items()})

    @property
    def label_dtype(self) -> np.dtype[Any]:
        """Type of an array of labels: int64, float64 (also for real y), bool, strings, dates or spans.

        If some are unknown, it is float64 for numbers, and object for booleans and strings.
        """
        if self.y_kind == "real":
            return np.dtype(np.float64)
        kind = np.array(self.facts.classes or (0,)).dtype
        if kind.kind in "mM" or sum(self.class_counts or ()) == self.rows:
            return kind
        return np.dtype(np.float64 if kind.kind in "if" else object)

    def labels(self, codes: Array) -> Array:
        """Return the label of each code; real targets are returned as they are.

        An unknown label is NaN among numbers, NaT among dates and spans, else None.
        """
        if self.y_kind == "real":
            return codes
        unknown = np.nan if self.label_dtype == np.float64 else None
        values = np.array([*(self.facts.classes or ()), unknown], dtype=object)
        return values[codes].astype(self.label_dtype)

    def chunk_slice(self, i: int) -> slice:
        """Return the rows of chunk ``i``; raise IndexError if there is no such chunk."""
        if not 0 <= i < self.n_chunks:
            raise IndexError(f"chunk {i} of a store of {self.n_chunks} chunks")
        return slice(i * self.chunk_rows, min((i + 1) * self.chunk_rows, self.rows))

    def buffer(self) -> Buffer:
        """Return a buffer that `read` can fill again and again."""
        return EntryBuffer(self.layout) if self.is_sparse else room_for(self.chunk_nbytes + CHECKSUM_BYTES)

    def read(self, i: int, out: Buffer | None = None) -> StoreBlock:
        """Read chunk ``i`` and check it. StoreError names an array and chunk that is missing, cut off or damaged.

        With a buffer ``out`` from `buffer`, the block's X is a view of it, valid until the next read.
        """
        return self._block(i, self.read_features(i, out))

    def read_features(self, i: int, out: Buffer | None = None) -> Any:
        """Read the rows of chunk ``i`` as `read` does, without y and weight."""
        if self.is_sparse:
            if isinstance(out, EntryBuffer):
                return self._ordered(read_entries(self, self.layout, i, out))
            # copied: who keeps it keeps no whole files
            return self._ordered(read_entries(self, self.layout, i, EntryBuffer(self.layout)).copy())
        assert not isinstance(out, EntryBuffer)
        return self._ordered(self.read_chunk(self.layout.X, i, out))

    def _ordered(self, X: Any) -> Any:
        """Return rows (n, d) with their features in `order`; dense ones are changed in place, a few rows at a time."""
        if not self.order:
            return X
        if self.is_sparse:
            place = np.argsort(self.order).astype(X.indices.dtype)
            found = type(X)((X.data.copy(), place[X.indices], X.indptr), shape=X.shape)
            found.sort_indices()
            return found
        order = np.array(self.order)
        step = max(1, READ_BYTES // (X.itemsize * len(order)))
        for start in range(0, len(X), step):
            X[start : start + step] = np.take(X[start : start + step], order, axis=1)
        return X

    def read_columns(self, i: int) -> StoreBlock:
        """Read y and weight of chunk ``i`` and check them. X is not read, and has no columns."""
        rows = self.chunk_slice(i)
        return self._block(i, np.empty((rows.stop - rows.start, 0), self.dtype))

    def _block(self, i: int, X: Any) -> StoreBlock:
        columns = {name: self.read_chunk(array, i) for name, array in self.layout.of_columns().items()}
        return StoreBlock(X, columns.get("y"), columns.get("weight"), self.chunk_slice(i).start)

    def read_coordinates(self, i: int) -> Array | None:
        """Read the places that the rows of chunk ``i`` come from, (rows, coordinates) float64; None without any."""
        array = self.layout.of_coordinates().get(COORDINATES)
        return None if array is None else self.read_chunk(array, i)

    def read_pieces(self, i: int, rows: int) -> Iterator[Array]:
        """Yield X of chunk ``i``, ``rows`` rows at a time. A piece is valid until the next, so use it at once.

        The chunk is checked after the last piece. If that raises StoreError, no result of any piece may be used.
        """
        X = self.layout.X
        left = self.chunk_slice(i).stop - self.chunk_slice(i).start
        if not X.is_plain or is_address(self.path):
            whole_chunk = self.read_chunk(X, i)
            yield from (self._ordered(whole_chunk[at : at + rows]) for at in range(0, left, rows))
            return
        for piece in self.chunk(X, i).pieces(rows):
            if left:  # the last chunk is padded
                yield self._ordered(piece[:left])
            left -= min(left, len(piece))

    def read_chunk(self, array: ArrayLayout, i: int, out: npt.NDArray[np.uint8] | None = None) -> Array:
        """Read chunk ``i`` of one array along the rows, without the padding of the last chunk."""
        rows = self.chunk_slice(i)
        chunk = self.chunk(array, i).numbers(out)[: rows.stop - rows.start]
        what = None
        if array.name == "y" and self.target is not None:
            chunk = np.where(
                known_targets(chunk), chunk[:, self.target], np.nan if self.facts.classes is None else -1.0
            )
            chunk = chunk.astype(self._room("y", 0).dtype)
        if array.name == "y" and self.y_kind == "real":
            if np.isinf(chunk).any():
                what = "a target that is infinite"
        elif array.name == "y" and not -1 <= chunk.min() <= chunk.max() < len(self.recoded or self.facts.classes or ()):
            what = "a label code without a class"
        elif array.name == "weight" and not 0 <= chunk.min() <= chunk.max() < np.inf:
            what = "a weight that is negative or not finite"
        if what is not None:
            raise self.chunk(array, i).damage(what)
        return np.array([*self.recoded, -1], chunk.dtype)[chunk] if array.name == "y" and self.recoded else chunk

    def of_classes(self, codes: Array) -> Store:
        """Return the store as if only the classes of ascending ``codes`` had labels, numbered in their order."""
        facts = self.facts
        if facts.classes is None or len(codes) == len(facts.classes):
            return self
        place = np.full(len(facts.classes), -1)
        place[codes] = np.arange(len(codes))

        def kept(each: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
            return None if each is None else tuple(each[code] for code in codes)

        counts = kept(facts.class_counts)
        facts = replace(
            facts, classes=kept(facts.classes), class_counts=counts, class_weights=kept(facts.class_weights),
            known_rows=sum(counts or ()),
        )  # fmt: skip
        return replace(self, facts=facts, recoded=tuple(place.tolist()))

    def of_target(self, target: int, *, as_label: bool = False) -> Store:
        """Return the store as if one of several targets were its only one, or with ``as_label`` of classes 0 and 1.

        Rows that miss another target have none.
        """
        facts = self.facts.labels[target] if as_label else replace(self.facts, labels=())
        return replace(self, facts=facts, target=target)

    def of_features(self, names: Iterable[str]) -> Store:
        """Return the store as if its features were in the order of ``names``, if those are its own; else as it is."""
        wanted = list(names)
        own = self.feature_names if wanted else None
        if own is None or list(own) == wanted or sorted(own) != sorted(wanted):
            return self
        place = dict(zip(own, self.order or range(len(own)), strict=True))
        return replace(self, order=tuple(place[name] for name in wanted))

    def blocks(self) -> Iterator[StoreBlock]:
        """Yield all chunks in order through one buffer. A block is valid until the next is taken."""
        out = self.buffer()
        for i in range(self.n_chunks):
            yield self.read(i, out)

    def column_blocks(self) -> Iterator[StoreBlock]:
        """Yield y and weight of all chunks in order, without X."""
        return map(self.read_columns, range(self.n_chunks))

    def class_weights_total(self) -> npt.NDArray[np.float64]:
        """Return the sum of row weights of every class, (classes,). Reads y and weight if the store does not say it."""
        if not self.has_weight or self.class_counts is None:
            return np.array(self.class_counts or (), dtype=np.float64)
        if self.facts.class_weights is not None:
            return np.array(self.facts.class_weights)
        totals = np.zeros(len(self.class_counts))
        for block in self.column_blocks():
            totals += class_sums(*block.columns(), len(totals))
        return totals

    def require_classes(self, purpose: str = "fit") -> None:
        """Raise InputError, with the way out, unless rows have class labels, which ``purpose`` needs."""
        if self.y_kind == "real":
            regressor = "learn them by a regressor, such as ODMRegressor (--estimator regressor), or "
            raise InputError(
                f"{self.name} holds real targets, not the labels of classes; {regressor if purpose == 'fit' else ''}"
                "ingest the data again with target='classes' (--target classes)."
            )
        if self.y_kind is None:
            raise InputError(f"{self.name} has no labels; {purpose} needs them.")

    def require_targets(self, purpose: str = "fit") -> None:
        """Raise InputError, with the way out, unless rows have real targets, which ``purpose`` needs."""
        if self.y_kind != "real":
            what = "the labels of classes" if self.y_kind else "no targets"
            raise InputError(
                f"{self.name} holds {what}, where {purpose} needs real targets; ingest the data again with "
                "target='real' (--target real)."
            )

    def read_rows(self, indices: npt.ArrayLike) -> StoreBlock:
        """Gather rows by number, in the order given, reading each chunk that holds one of them once.

        Raises IndexError if a number is negative or not below ``rows``, and StoreError if a chunk is damaged.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < self.rows:
            raise IndexError(f"row numbers must be in [0, {self.rows})")
        X: Any = [] if self.is_sparse else np.empty((len(wanted), self.features), self.dtype)
        found = {name: self._room(name, len(wanted)) for name in self.layout.of_columns()}
        chunk_of = wanted // self.chunk_rows
        order = np.argsort(chunk_of, kind="stable")
        chunks, starts = np.unique(chunk_of[order], return_index=True)

        def gather(chunk: int, at: Array) -> None:
            block = self.read(chunk)
            rows = wanted[at] - block.first
            if self.is_sparse:
                X.append((at, block.X[rows]))
            else:
                X[at] = block.X[rows]
            for name, values in found.items():
                values[at] = getattr(block, name)[rows]

        places = np.split(order, starts[1:]) if len(order) else []
        run_threads(lambda each: gather(*each), zip(chunks.tolist(), places, strict=True), self.readers)
        return StoreBlock(self._in_order(X) if self.is_sparse else X, found.get("y"), found.get("weight"), -1)

    def _in_order(self, parts: list[tuple[Array, Any]]) -> Any:
        """Return sparse rows in the order of their places, from parts of them with those."""
        from scipy.sparse import csr_array, vstack  # not at the top: who reads dense rows needs no SciPy

        none = csr_array((0, self.features), dtype=self.dtype)
        places = np.concatenate([np.empty(0, np.int64), *(at for at, _ in parts)])
        return vstack([none, *(rows for _, rows in parts)], format="csr")[np.argsort(places)]

    def sample(self, n_rows: int, random_state: int = 0) -> tuple[Array, Array | None]:
        """Draw rows that have a label or target, each as likely as any other; all of them if there are no more.

        For what takes rows in memory, such as scikit-learn's `permutation_importance`. Which rows are drawn depends on
        their numbers and ``random_state`` only, and a smaller sample is part of a larger one.

        Returns
        -------
        X, y : ndarray of shape (n_rows, d) and (n_rows,), or (n_rows, targets)
            In the order of the store; labels as they are, or targets. ``y`` is None of a store that has neither.
        """
        y = self.read_column("y")
        has_one = np.ones(self.rows, bool) if y is None else known_targets(y) if self.facts.classes is None else y >= 0
        known = np.flatnonzero(has_one)
        order = np.argsort(uniforms_of(known, random_state), kind="stable")[: max(0, n_rows)]
        found = self.read_rows(np.sort(known[order]))
        return found.X, found.y if y is None or self.y_kind == "real" else np.array(self.facts.classes)[found.y]

    def read_column(self, name: str) -> Array | None:
        """Read ``y`` (label codes or real targets) or ``weight``, (rows,) or (rows, targets); None without it."""
        array = self.layout.of_columns().get(name)
        if array is None:
            return None
        column = self._room(name, self.rows)
        for i in range(self.n_chunks):
            column[self.chunk_slice(i)] = self.read_chunk(array, i)
        return column

    def _room(self, name: str, rows: int) -> Array:
        """Return room for so many rows of y or weight."""
        array = self.layout.of_columns()[name]
        if name == "y" and self.target is not None:
            return np.empty(rows, array.dtype if self.facts.classes is None else np.int8)
        return np.empty((rows, *array.shape[1:]), array.dtype)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("dask_odm.Store", self.path, self.digest, self.recoded, self.order, self.target)


def _columns_of(root: str, attributes: dict[str, Any], features: int) -> ColumnRecipe | None:
    """Return the recipe of columns among the attributes of a store; raise ValueError if it is none of its features."""
    if "columns" not in attributes:
        return None
    try:
        recipe = ColumnRecipe.from_json(attributes["columns"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"store '{root}': its recipe of columns is none ({error}); ingest it anew.") from error
    if recipe.n_features != features:
        raise StoreError(f"store '{root}': its recipe of columns makes {recipe.n_features} features, not {features}.")
    return recipe
