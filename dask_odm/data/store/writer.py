"""Writing a store: chunk files in a staging folder, the manifest last, and one rename into place.

Chunk files are written as zarr's ``[bytes, crc32c]`` codecs would write them, byte for byte, without going through
zarr. A store becomes visible only when every byte of it is on disk; a failure leaves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType

import numpy as np
import numpy.typing as npt

from dask_odm.data.storage.locations import location_of
from dask_odm.data.storage.storage import new_storage
from dask_odm.data.store.layout import (
    CHECKSUM_BYTES,
    CODE_TYPES,
    COORDINATES,
    FLOAT_TYPES,
    REAL_TYPE,
    ROOT,
    STATISTICS,
    Label,
    Layout,
    crc32c,
    encode_strings,
    rows_of_chunk,
    seal,
    zarr_documents,
)
from dask_odm.data.store.manifest import FORMAT, FORMAT_VERSION, Entry
from dask_odm.data.store.sealed import encoded, finish, write_chunk, writing
from dask_odm.data.store.statistics import (
    StatisticsAccumulator,
    class_attributes,
    class_sums,
    real_attributes,
    sort_classes,
)
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError
from dask_odm.typing import Array

_CODES = "codes"  # key of provisional label codes and the rows' weights, until all labels are known


class _OpenChunk:
    """Chunk that is being filled with blocks of rows: X with room for its checksum, columns beside it, statistics.

    ``columns`` are those of the first rows, if they have them: ``y``, whose codes are provisional, ``weight``, and
    ``coordinates`` of shape (rows, k).
    """

    def __init__(self, size: int, features: int, dtype: str, columns: Mapping[str, Array]) -> None:
        self.size = size
        self.features = features
        self.used = 0
        self._bytes = np.empty(size * features * np.dtype(dtype).itemsize + CHECKSUM_BYTES, dtype=np.uint8)
        self.X = self._bytes[:-CHECKSUM_BYTES].view(dtype).reshape(size, features)
        types = {name: "float64" if column.dtype.kind == "f" else "int32" for name, column in columns.items()}
        shapes = {name: (size, *column.shape[1:]) for name, column in columns.items()}
        self.columns: dict[str, Array] = {name: np.empty(shapes[name], kind) for name, kind in types.items()}
        self.statistics = StatisticsAccumulator(features)

    @property
    def has_real_targets(self) -> bool:
        return "y" in self.columns and self.columns["y"].dtype.kind == "f"

    def check(self, X: Array, columns: Mapping[str, Array]) -> None:
        """Raise InputError unless rows have the shapes and kinds of this chunk, and allowed weights."""
        if X.ndim != 2 or X.shape[1] != self.features:
            raise InputError(f"X must have {self.features} features. Got shape {X.shape} instead.")
        for name in ("y", "weight", COORDINATES):
            if (name in columns) != (name in self.columns):
                raise InputError(f"{name} must be given for all rows or for none.")
        for name, column in columns.items():
            shape = (len(X), *self.columns[name].shape[1:])
            if column.shape != shape:
                raise InputError(f"{name} must have shape {shape} as X has rows. Got {column.shape} instead.")
        if "y" in columns and (columns["y"].dtype.kind == "f") != self.has_real_targets:
            raise InputError("y must be label codes for all rows, or real targets for all.")
        weight = columns.get("weight", np.empty(0))
        if not (np.isfinite(weight).all() and (weight >= 0).all()):
            raise InputError("weight must be finite and not negative.")

    def fill(self, X: Array, columns: Mapping[str, Array], at: int) -> int:
        """Take as many rows from row ``at`` on as there is room for, and return their number."""
        room = slice(self.used, min(self.used + len(X) - at, self.size))
        rows = slice(at, at + room.stop - room.start)
        with np.errstate(over="ignore"):
            np.copyto(self.X[room], X[rows], casting="same_kind" if X.dtype.kind == "f" else "unsafe")
        for name, column in columns.items():
            self.columns[name][room] = column[rows]
        self.used = room.stop
        return rows.stop - at

    def padded(self, rows: int) -> tuple[memoryview, dict[str, Array]]:
        """Return the sealed bytes of the first ``rows`` rows of X, and their columns, the unused ones padded."""
        if not np.isfinite(self.X[: self.used]).all():
            raise InputError(f"X contains NaN, infinity or a value too large for {self.X.dtype}.")
        self.statistics.update(self.X[: self.used])
        self.X[self.used :] = np.nan
        for column in self.columns.values():
            column[self.used :] = np.nan if column.dtype.kind == "f" else -1
        nbytes = rows * self.X.strides[0]
        checksum = crc32c(self._bytes[:nbytes])
        self._bytes[nbytes : nbytes + CHECKSUM_BYTES] = np.frombuffer(checksum.to_bytes(4, "little"), np.uint8)
        X = self._bytes[: nbytes + CHECKSUM_BYTES].data
        return X, {name: column[:rows] for name, column in self.columns.items()}


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
        self.rows = 0
        self._chunk_rows = chunk_rows
        self._storage = new_storage(self.path)
        self._entries: dict[str, list[Entry]] = {}
        self._counts = np.zeros(0, dtype=np.int64)
        self._known_rows = 0
        self._known_weight = 0.0
        self._open: _OpenChunk | None = None

    def __enter__(self) -> StoreWriter:
        with writing("store", self.path):
            self._storage.begin(overwrite=self.overwrite)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._storage.discard()

    def append(
        self,
        X: Array,
        y: npt.ArrayLike | None = None,
        weight: npt.ArrayLike | None = None,
        coordinates: Array | None = None,
    ) -> None:
        """Add rows: finite numbers X of shape (rows, d), and for all rows or none y and weights that are not negative.

        ``y`` has integer codes of shape (rows,), indices into the ``classes`` given at the end, where -1 is unknown; or
        real targets, floats, where NaN is unknown. ``coordinates`` (rows, k), float64, are places that rows come from.
        Raises InputError if shapes or numbers are not allowed.
        """
        X = np.asarray(X)
        columns = {} if y is None else {"y": np.asarray(y)}
        if weight is not None:
            columns["weight"] = np.asarray(weight, dtype=np.float64)
        if coordinates is not None:
            columns[COORDINATES] = coordinates
        if self._open is None:
            if X.ndim != 2 or X.shape[1] == 0:
                raise InputError(f"X must have two dimensions and at least one feature. Got shape {X.shape} instead.")
            size = rows_of_chunk(self._chunk_rows, X.shape[1], self.dtype)
            self._open = _OpenChunk(size, X.shape[1], self.dtype, columns)
        self._open.check(X, columns)
        if "y" in columns:
            self._check_targets(columns["y"])
        at = 0
        while at < len(X):
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
        table = np.array([*values, np.nan])
        if chunk is None or "y" not in chunk.columns or chunk.has_real_targets:
            return
        with writing("store", self.path):
            for i in range(len(self._entries.get("X", []))):
                codes, weight = self._read_codes(i, chunk.size)
                self._write_real(table[codes], weight)
            self._storage.remove(_CODES)
        known = table[chunk.columns["y"][: chunk.used]]
        chunk.columns["y"] = np.append(known, np.empty(chunk.size - chunk.used))
        self._counts = np.zeros(0, dtype=np.int64)

    def finish(
        self, classes: Sequence[Label] | None = None, *, feature_names: Sequence[str] | None = None, source: str = ""
    ) -> Store:
        """Complete the store, put it in its place and open it. Parameters are those of `prepare`."""
        self.prepare(classes, feature_names=feature_names, source=source)
        return self.publish()

    def prepare(
        self,
        classes: Sequence[Label] | None = None,
        *,
        feature_names: Sequence[str] | None = None,
        source: str = "",
        coordinates: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Write everything that is left, still in the staging folder.

        ``classes`` are the labels of the codes, by default the codes themselves; the store keeps those that occur, in
        sorted order. ``source`` tells people what the data came from. ``coordinates`` are names and kinds of those
        that rows have, see `Layout`. Raises InputError if there are no rows, more codes than classes, or
        ``feature_names`` that are not d distinct strings.
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
        layout = Layout(
            self.rows, chunk.features, min(chunk.size, self.rows), self.dtype, y_dtype,
            "weight" in chunk.columns, names is not None, self.compression,
            tuple(coordinates) if COORDINATES in chunk.columns else (),
        )  # fmt: skip
        head = {"format": FORMAT, "format_version": FORMAT_VERSION}
        attributes = {ROOT: {**head, "rows": self.rows, "source": source}}
        with writing("store", self.path):
            if chunk.used:
                self._flush(chunk, layout.chunk_rows)
            if chunk.has_real_targets:
                attributes["y/zarr.json"] = real_attributes(self._known_rows, self._known_weight)
            elif y_dtype is not None:
                attributes["y/zarr.json"] = self._write_codes(layout, y_dtype, kept, recode)
            statistics = chunk.statistics.result()
            for name in STATISTICS:
                self._write(f"statistics/{name}", sealed_bytes(getattr(statistics, name)))
            if names is not None:
                self._write("feature", seal(encode_strings(names)))
            documents = encoded(zarr_documents(layout.arrays(), attributes))
            finish(self._storage, {**head, "layout": layout.json()}, self._entries, documents)

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

    def _flush(self, chunk: _OpenChunk, rows: int) -> None:
        """Write the rows so far as the next chunk, padded to ``rows`` rows."""
        i = len(self._entries.get("X", []))
        X, columns = chunk.padded(rows)
        weight = columns.get("weight")
        with writing("store", self.path):
            self._write("X", X)
            for name in ("weight", COORDINATES):
                if name in columns:
                    self._write(name, sealed_bytes(columns[name]))
            if chunk.has_real_targets:
                self._write_real(columns["y"], weight)
            elif "y" in columns:
                y = columns["y"]
                self._storage.write(f"{_CODES}/{i}", y.tobytes() + (b"" if weight is None else weight.tobytes()))
        chunk.used = 0

    def _write(self, name: str, sealed: bytes | memoryview) -> None:
        """Write the next chunk of an array. Its key and compression depend on no number of rows."""
        layout = Layout(1, 1, 1, self.dtype, REAL_TYPE, True, True, self.compression, (("", "number"),))
        (array,) = (each for each in layout.arrays() if each.name == name)
        entries = self._entries.setdefault(name, [])
        entries.append(write_chunk(self._storage, array, len(entries), sealed))

    def _read_codes(self, i: int, rows: int) -> tuple[Array, Array | None]:
        """Return the provisional codes of chunk ``i``, and its weights if rows have any."""
        data = self._storage.read(f"{_CODES}/{i}", 12 * rows)
        weight = np.frombuffer(data, np.float64, offset=4 * rows) if len(data) > 4 * rows else None
        return np.frombuffer(data, np.int32, rows), weight

    def _write_codes(self, layout: Layout, y_dtype: str, kept: tuple[Label, ...], recode: Array) -> dict[str, object]:
        """Turn provisional codes into final ones, and return the attributes of y."""
        counts = np.zeros(len(kept), dtype=np.int64)
        totals = np.zeros(len(kept))
        for i in range(layout.n_chunks):
            codes, weight = self._read_codes(i, layout.chunk_rows)
            final = np.append(recode, -1)[codes].astype(y_dtype)  # code -1 takes the last entry
            counts += np.bincount(final[final >= 0], minlength=len(kept))
            if weight is not None:
                totals += class_sums(final, weight, len(kept))
            self._write("y", sealed_bytes(final))
        self._storage.remove(_CODES)
        return class_attributes(kept, counts, totals if layout.has_weight else None)

    def _write_real(self, y: Array, weight: Array | None) -> None:
        """Write the next chunk of real targets, padding included, and add up its known rows and their weights."""
        known = ~np.isnan(y)
        self._known_rows += int(np.count_nonzero(known))
        self._known_weight += float(np.count_nonzero(known) if weight is None else weight[known].sum())
        self._write("y", sealed_bytes(y))


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
    return result


def sealed_bytes(numbers: Array) -> bytes:
    """Return the little-endian bytes of an array, followed by their checksum."""
    return seal(np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("<")).tobytes())
