"""Writing a store: chunk files in a staging folder, the manifest last, and one rename into place.

Chunk files are written as zarr's ``[bytes, crc32c]`` codecs would write them, byte for byte, without going through
zarr. A store becomes visible only when every byte of it is on disk; a failure leaves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse

from dask_odm.data.storage.locations import location_of
from dask_odm.data.storage.storage import new_storage
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.kept_rows import KeptBlocks
from dask_odm.data.store.layout import (
    CODE_TYPES,
    COORDINATES,
    FLOAT_TYPES,
    IDF,
    REAL_TYPE,
    ROOT,
    SPARSE,
    STATISTICS,
    EntryLayout,
    Label,
    Layout,
    encode_strings,
    rows_of_chunk,
    seal,
    zarr_documents,
)
from dask_odm.data.store.manifest import FORMAT, FORMAT_VERSION, Entry
from dask_odm.data.store.open_chunks import STARTS, OpenChunk, OpenEntries, OpenRows, targets_of
from dask_odm.data.store.sealed import encoded, finish, sealed_bytes, write_chunk, writing
from dask_odm.data.store.statistics import class_attributes, class_sums, known_targets, real_attributes, sort_classes
from dask_odm.data.store.store import Store
from dask_odm.data.store.text_recipe import TextRecipe
from dask_odm.errors import InputError
from dask_odm.linalg.csr_rows import sparse_rows
from dask_odm.typing import Array


class StoreWriter:
    """Writer of one store, used as a context manager.

    Order of calls: ``append`` as often as needed, then ``finish``. If several stores are to appear together,
    ``prepare`` and `publish_all` take its place. Leaving the context before that removes what was written.

    ``path`` is a folder to make, whose parent must exist, or an address in an object store. A chunk has ``chunk_rows``
    rows, by default as many as make 8 to 16 MB. ``compression`` is None (fastest locally) or ``zstd``. With
    ``overwrite`` an existing store is replaced, once the new one is complete. Raises InputError if the output or a
    parameter is not allowed, and StoreError if the disk is full or the folder cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: str = "float32",
        chunk_rows: int | None = None,
        compression: str | None = None,
        overwrite: bool = False,
    ) -> None:
        if dtype not in FLOAT_TYPES:
            raise InputError(f"dtype must be 'float32' or 'float64'. Got {dtype!r} instead.")
        if compression not in (None, "zstd"):
            raise InputError(f"compression must be None or 'zstd'. Got {compression!r} instead.")
        self.path = location_of(path)
        self.dtype = dtype
        self.compression = compression
        self.overwrite = overwrite
        self._chunk_rows = chunk_rows
        self._storage = new_storage(self.path)

    def __enter__(self) -> StoreWriter:
        with writing("store", self.path):
            self._storage.begin(overwrite=self.overwrite)
            self._kept = KeptBlocks(TemporaryFile(dir=self._storage.scratch))  # columns, until all labels are known
        self.rows = 0
        self._entries: dict[str, list[Entry]] = {}
        self._counts = np.zeros(0, dtype=np.int64)
        self._open: OpenChunk | OpenEntries | None = None
        return self

    def restart(self) -> None:
        """Begin the store anew, without the rows that were appended."""
        self.__exit__(None, None, None)
        self._storage = new_storage(self.path)
        self.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.file.close()
        self._storage.discard()

    def append(
        self,
        X: Any,
        y: npt.ArrayLike | None = None,
        weight: npt.ArrayLike | None = None,
        coordinates: Array | None = None,
    ) -> None:
        """Add rows: finite numbers X of shape (rows, d), and for all rows or none y and weights that are not negative.

        X is an array, or sparse for all rows.

        ``y`` has integer codes of shape (rows,), indices into the ``classes`` given at the end, where -1 is unknown; or
        real targets, floats, where NaN is unknown, or several of them, (rows, targets). ``coordinates`` (rows, k),
        float64, are places that rows come from. Raises InputError if shapes or numbers are not allowed.
        """
        X = sparse_rows(X)
        X = X if issparse(X) else np.asarray(X)
        columns = {} if y is None else {"y": np.asarray(y)}
        if weight is not None:
            columns["weight"] = np.asarray(weight, dtype=np.float64)
        if coordinates is not None:
            columns[COORDINATES] = coordinates
        if self._open is None:
            if X.ndim != 2 or X.shape[1] == 0:
                raise InputError(f"X must have two dimensions and at least one feature. Got shape {X.shape} instead.")
            if issparse(X):
                self._open = OpenEntries(self._chunk_rows, X.shape[1], self.dtype, columns, self._write)
            else:
                size = rows_of_chunk(self._chunk_rows, X.shape[1], self.dtype, targets_of(columns))
                self._open = OpenChunk(size, X.shape[1], self.dtype, columns)
        self._open.check(X, columns)
        if "y" in columns:
            self._check_targets(columns["y"])
        at = 0
        while at < X.shape[0]:
            with writing("store", self.path):
                taken = self._open.fill(X, columns, at)
            at += taken
            self.rows += taken
            if self._open.used == self._open.size:
                self._flush(self._open, self._open.size)

    def make_real(self, values: Sequence[float]) -> None:
        """Turn the codes appended so far into real targets, ``values[code]``.

        Later rows must have real targets, too.
        """
        chunk = self._open
        if chunk is None or "y" not in chunk.columns or chunk.has_real_targets:
            return
        self._kept.make_real(values)
        known = np.array([*values, np.nan])[chunk.columns["y"][: chunk.used]]
        chunk.columns["y"] = np.append(known, np.empty(chunk.size - chunk.used))
        self._counts = np.zeros(0, dtype=np.int64)

    def finish(self, classes: Sequence[Label] | None = None, **more: Any) -> Store:
        """Complete the store, put it in its place and open it. Parameters are those of `prepare`."""
        self.prepare(classes, **more)
        return self.publish()

    def prepare(
        self,
        classes: Sequence[Label] | None = None,
        *,
        feature_names: Sequence[str] | None = None,
        source: str = "",
        coordinates: Sequence[tuple[str, str]] = (),
        text: TextRecipe | None = None,
        columns: ColumnRecipe | None = None,
    ) -> None:
        """Write everything that is left, still in the staging folder.

        ``classes`` are the labels of the codes, by default the codes themselves; the store keeps those that occur, in
        sorted order. ``source`` tells people what the data came from. ``coordinates`` are names and kinds of those
        that rows have, see `Layout`, and ``text`` or ``columns`` is the recipe by which texts, or the columns of a
        table, became the rows. Raises InputError if there are no rows, more codes than classes, or ``feature_names``
        that are not d distinct strings.
        """
        if self._open is None or self.rows == 0:
            raise InputError("no rows: there is nothing to make a store of.")
        chunk = self._open
        names = None if feature_names is None else check_feature_names(feature_names, chunk.features)
        labels = tuple(range(len(self._counts))) if classes is None else tuple(classes)
        if len(self._counts) > len(labels):
            raise InputError(f"label code {len(self._counts) - 1}, but only {len(labels)} classes.")
        kept, recode = sort_classes(labels, self._counts)
        y_dtype = None
        if "y" in chunk.columns:
            codes = (name for name in CODE_TYPES if len(kept) - 1 <= np.iinfo(name).max)
            y_dtype = REAL_TYPE if chunk.has_real_targets else next(codes)
        with writing("store", self.path):
            chunk_rows, entries = (
                chunk.finish() if isinstance(chunk, OpenEntries) else (min(chunk.size, self.rows), None)
            )
        layout = Layout(
            self.rows, chunk.features, chunk_rows, self.dtype, y_dtype,
            "weight" in chunk.columns, names is not None, self.compression,
            tuple(coordinates) if COORDINATES in chunk.columns else (), entries,
            None if text is None else text.column, targets_of(chunk.columns),
        )  # fmt: skip
        head = {"format": FORMAT, "format_version": FORMAT_VERSION}
        attributes = {ROOT: {**head, "rows": self.rows, "source": source}}
        if columns is not None:
            attributes[ROOT]["columns"] = columns.json()
        with writing("store", self.path):
            if chunk.used:
                self._flush(chunk, layout.chunk_rows)
            of_targets = self._write_kept(chunk, layout, kept, recode)
            if y_dtype is not None:
                attributes["y/zarr.json"] = of_targets
            if entries is not None:  # as AnnData writes and reads them
                shape = [layout.rows, layout.features]
                attributes[SPARSE] = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": shape}
            statistics = chunk.statistics.result()
            for name in STATISTICS:
                self._write(f"statistics/{name}", sealed_bytes(getattr(statistics, name)))
            if text is not None:
                self._write(IDF, sealed_bytes(text.idf))
            if names is not None:
                self._write("feature", seal(encode_strings(names)))
            documents = encoded(zarr_documents(layout.arrays(), attributes))
            chunks = {array.name: self._entries.get(array.name, []) for array in layout.arrays()}
            for array in layout.arrays():  # before the store takes the place of another one
                if len(chunks[array.name]) != array.n_chunks:
                    written = len(chunks[array.name])
                    raise RuntimeError(f"array {array.name!r} has {written} of {array.n_chunks} chunks.")
            finish(self._storage, {**head, "layout": layout.json()}, chunks, documents)

    def publish(self) -> Store:
        """Rename the store into its place after `prepare`, and open it."""
        with writing("store", self.path):
            self._storage.publish(overwrite=self.overwrite)
        return Store.open(self.path)

    def _check_targets(self, y: Array) -> None:
        """Raise InputError for impossible codes or targets, and count the rows of each code."""
        if y.dtype.kind == "f":
            if np.isinf(y).any():
                raise InputError("real targets must be finite, or NaN where they are unknown.")
            return
        if y.dtype.kind not in "iu" or (y.size and y.min() < -1):
            raise InputError("label codes must be integers of at least -1.")
        counts = np.bincount(y[y >= 0], minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts

    def _flush(self, chunk: OpenChunk | OpenEntries, rows: int) -> None:
        """Write the dense rows so far as the next chunk, padded to ``rows`` rows, and put columns aside."""
        X = chunk.sealed(rows) if isinstance(chunk, OpenChunk) else None
        with writing("store", self.path):
            if X is not None:
                self._write("X", X)
            if chunk.columns:
                self._kept.keep({name: column[: chunk.used] for name, column in chunk.columns.items()})
        chunk.used = 0

    def _write(self, name: str, sealed: bytes | memoryview) -> None:
        """Write the next chunk of an array. Its key and compression depend on no number of rows."""
        entries = EntryLayout(1, 1, 1) if isinstance(self._open, OpenEntries) else None
        targets = 0 if self._open is None else targets_of(self._open.columns)
        layout = Layout(
            1, 1, 1, self.dtype, REAL_TYPE, True, True, self.compression, (("", "number"),), entries, "text", targets
        )  # fmt: skip
        (array,) = (each for each in layout.arrays() if each.name == name)
        written = self._entries.setdefault(name, [])
        written.append(write_chunk(self._storage, array, len(written), sealed))

    def _write_kept(self, chunk: OpenRows, layout: Layout, kept: tuple[Label, ...], recode: Array) -> dict[str, object]:
        """Write the columns that were put aside, with final codes of labels, and return the attributes of y."""
        counts = np.zeros(max(1, len(kept)), dtype=np.int64)  # of real targets, all are one class
        totals = np.zeros(len(counts))
        of_values = np.zeros((layout.targets, 2, 2))
        for columns in chunk.chunks(self._kept, layout.chunk_rows):
            for name, array in ((STARTS, "X/indptr"), ("weight", "weight"), (COORDINATES, COORDINATES)):
                if name in columns:
                    self._write(array, sealed_bytes(columns[name]))
            y = columns.get("y")
            if y is None:
                continue
            if chunk.has_real_targets:
                codes = np.where(known_targets(y), 0, -1)
            else:
                codes = y = np.append(recode, -1)[y].astype(layout.y_dtype)  # code -1 takes the last entry
            self._write("y", sealed_bytes(y))
            weight = columns.get("weight", np.ones(len(codes)))
            counts += np.bincount(codes[codes >= 0], minlength=len(counts))
            totals += weight[codes == 0].sum() if chunk.has_real_targets else class_sums(codes, weight, len(counts))
            for value in (0, 1) if layout.targets else ():
                rows = y[codes == 0] == value
                held = weight[codes == 0] if layout.has_weight else np.full(len(rows), np.nan)
                of_values[:, :, value] += np.stack([rows.sum(axis=0), held @ rows], axis=1)
        if chunk.has_real_targets:
            return real_attributes(int(counts[0]), float(totals[0]), of_values)
        return class_attributes(kept, counts[: len(kept)], totals[: len(kept)] if layout.has_weight else None)


def publish_all(writers: Sequence[StoreWriter]) -> list[Store]:
    """Publish prepared stores that belong together. If one fails, those that replaced nothing are taken back."""
    new = [writer for writer in writers if not writer._storage.check(overwrite=True)]
    try:
        return [writer.publish() for writer in writers]
    except BaseException:
        for writer in new:
            writer._storage.retract()
        raise


def check_feature_names(names: Sequence[str], features: int) -> tuple[str, ...]:
    """Return the names as a tuple; raise InputError unless they are ``features`` distinct strings."""
    result = tuple(names)
    if len(result) != features or not all(isinstance(name, str) for name in result):
        raise InputError(f"feature names must be {features} strings. Got {len(result)} values.")
    if len(set(result)) != features:
        twice = next(name for name in result if result.count(name) > 1)
        raise InputError(f"feature names must be distinct; {twice!r} occurs more than once.")
    for name in result:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"feature names must be text that UTF-8 can write; {name!r} is none.") from error
    return result
