"""Writing a store: chunk files in a staging folder, the manifest last, and one rename into place.

Chunk files are written as zarr's ``[bytes, crc32c]`` codecs would write them, byte for byte, without going through
zarr. A store becomes visible only when every byte of it is on disk; a failure leaves nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_odm.data.storage.files import reason
from dask_odm.data.storage.locations import location_of
from dask_odm.data.storage.storage import new_storage
from dask_odm.data.store.classes import class_sums, sort_classes
from dask_odm.data.store.layout import (
    CHECKSUM_BYTES,
    CODE_TYPES,
    FLOAT_TYPES,
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    REAL_TYPE,
    STATISTICS,
    ArrayLayout,
    Label,
    Layout,
    Manifest,
    check_chunk_rows,
    crc32c,
    default_chunk_rows,
    encode_strings,
    group_document,
    seal,
)
from dask_odm.data.store.open_chunk import OpenChunk, sealed_bytes
from dask_odm.data.store.statistics import StatisticsAccumulator
from dask_odm.data.store.store import Store
from dask_odm.data.store.zstd import pack_zstd
from dask_odm.errors import InputError, StoreError
from dask_odm.typing import Array

_CODES = "codes"  # key of provisional label codes and the rows' weights, until all labels are known


class StoreWriter:
    """Writer of one store, used as a context manager.

    Order of calls: ``append`` as often as needed, then ``finish``. If several stores are to appear together,
    ``prepare`` and ``publish`` take its place. Leaving the context before that removes what was written.

    Parameters
    ----------
    path : folder to make, whose parent must exist; or an address in an object store
    dtype : ``float32`` or ``float64``
    chunk_rows : rows of a chunk; by default as many as make 8 to 16 MB
    compression : None (fastest locally) or ``zstd``
    overwrite : replace an existing store, once the new one is complete

    Raises
    ------
    InputError
        The output exists, its parent does not, or a parameter is out of range.
    StoreError
        The disk is full or the folder cannot be written.
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
        self._entries: dict[str, list[tuple[int, int]]] = {}
        self._counts = np.zeros(0, dtype=np.int64)
        self._known_rows = 0
        self._known_weight = 0.0
        self._open: OpenChunk | None = None
        self._prepared: Manifest | None = None

    def __enter__(self) -> StoreWriter:
        with self._writing():
            self._storage.begin(overwrite=self.overwrite)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._storage.discard()

    def append(self, X: Array, y: npt.ArrayLike | None = None, weight: npt.ArrayLike | None = None) -> None:
        """Add rows.

        Parameters
        ----------
        X : finite numbers of shape (rows, d)
        y : integer codes of shape (rows,), indices into the ``classes`` given at the end, -1 is unknown; or real
            targets, floats of shape (rows,), NaN is unknown. The same kind for all rows
        weight : numbers of shape (rows,), finite and not negative

        Raises
        ------
        InputError
            Shapes that do not fit, or numbers that are not allowed.
        """
        X = np.asarray(X)
        y = None if y is None else np.asarray(y)
        w = None if weight is None else np.asarray(weight, dtype=np.float64)
        if self._open is None:
            self._open = self._start(X, None if y is None else y.dtype, w is not None)
        self._check(self._open, X, y, w)
        if y is not None:
            _check_real(y) if y.dtype.kind == "f" else self._count(y)
        at = 0
        while at < len(X):
            taken = self._open.fill(X[at:], None if y is None else y[at:], None if w is None else w[at:])
            at += taken
            self.rows += taken
            if self._open.used == self._open.size:
                self._flush(self._open)

    def make_real(self, values: Sequence[float]) -> None:
        """Turn the codes appended so far into real targets, ``values[code]``.

        Later rows must have real targets, too.
        """
        chunk = self._open
        table = np.array([*values, np.nan])
        if chunk is None or chunk.y is None or chunk.y.dtype.kind == "f":
            return
        with self._writing():
            for i in range(len(self._entries.get("X", []))):
                codes, weight = self._read_codes(i, chunk.size)
                self._write_real(i, table[codes], weight)
            self._storage.remove(_CODES)
        chunk.y = np.append(table[chunk.y[: chunk.used]], np.empty(chunk.size - chunk.used))
        self._counts = np.zeros(0, dtype=np.int64)

    def finish(
        self,
        classes: Sequence[Label] | None = None,
        *,
        feature_names: Sequence[str] | None = None,
        source: str = "",
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
    ) -> None:
        """Write everything that is left, still in the staging folder.

        Parameters
        ----------
        classes : the label of each code, in the order of the codes. The store keeps those that occur, in sorted
            order. By default the codes are their own labels. None for real targets
        feature_names : d distinct names, or None
        source : what the data came from, for people

        Raises
        ------
        InputError
            No rows, more codes than classes, or names that are not d distinct strings.
        """
        if self._open is None or self.rows == 0:
            raise InputError("no rows: there is nothing to make a store of.")
        chunk = self._open
        names = None if feature_names is None else check_feature_names(feature_names, chunk.features)
        labels = tuple(range(len(self._counts))) if classes is None else tuple(classes)
        if len(self._counts) > len(labels):
            raise InputError(f"label code {len(self._counts) - 1}, but only {len(labels)} classes.")
        kept, recode = sort_classes(labels, self._counts)
        chunk_rows = min(chunk.size, self.rows)
        y_dtype = None
        if chunk.y is not None:
            y_dtype = REAL_TYPE if chunk.y.dtype.kind == "f" else smallest_code_type(len(kept))
        layout = Layout(
            self.rows, chunk.features, chunk_rows, self.dtype, y_dtype,
            chunk.weight is not None, names is not None, self.compression,
        )  # fmt: skip
        with self._writing():
            if chunk.used:
                self._flush(chunk, chunk_rows)
            attributes = self._real_attributes() if y_dtype == REAL_TYPE else self._write_codes(layout, kept, recode)
            self._write_per_feature(layout, chunk.statistics, names)
            self._finish_files(layout, attributes, source)

    def publish(self) -> Store:
        """Rename the prepared store into its place and open it."""
        if self._prepared is None:
            raise RuntimeError("publish comes after prepare")
        with self._writing():
            self._storage.publish(overwrite=self.overwrite)
        return Store.open(self.path)

    def _start(self, X: Array, y_dtype: np.dtype[Any] | None, has_weight: bool) -> OpenChunk:
        if X.ndim != 2 or X.shape[1] == 0:
            raise InputError(f"X must have two dimensions and at least one feature. Got shape {X.shape} instead.")
        size = self._chunk_rows if self._chunk_rows is not None else default_chunk_rows(X.shape[1], self.dtype)
        check_chunk_rows(size, X.shape[1], self.dtype)
        kind = None if y_dtype is None else REAL_TYPE if y_dtype.kind == "f" else "int32"
        return OpenChunk(size, X.shape[1], self.dtype, kind, has_weight)

    def _check(self, chunk: OpenChunk, X: Array, y: Array | None, weight: Array | None) -> None:
        if X.ndim != 2 or X.shape[1] != chunk.features:
            raise InputError(f"X must have {chunk.features} features. Got shape {X.shape} instead.")
        for name, column, expected in (("y", y, chunk.y), ("weight", weight, chunk.weight)):
            if (column is None) != (expected is None):
                raise InputError(f"{name} must be given for all rows or for none.")
            if column is not None and column.shape != (len(X),):
                raise InputError(f"{name} must have shape ({len(X)},) as X has rows. Got {column.shape} instead.")
        if y is not None and chunk.y is not None and (y.dtype.kind == "f") != (chunk.y.dtype.kind == "f"):
            raise InputError("y must be label codes for all rows, or real targets for all.")
        if weight is not None and not (np.isfinite(weight).all() and (weight >= 0).all()):
            raise InputError("weight must be finite and not negative.")

    def _count(self, codes: Array) -> None:
        if codes.dtype.kind not in "iu" or (codes.size and codes.min() < -1):
            raise InputError("label codes must be integers of at least -1.")
        counts = np.bincount(codes[codes >= 0], minlength=len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts = counts

    def _flush(self, chunk: OpenChunk, rows: int | None = None) -> None:
        """Write the rows so far as the next chunk, padded to ``rows`` rows."""
        i = len(self._entries.get("X", []))
        rows = rows or chunk.size
        layout = Layout(rows, chunk.features, rows, self.dtype, None, True, False, self.compression)
        with self._writing():
            self._write_chunk(layout.X, i, chunk.padded_bytes(rows))
            if chunk.weight is not None and layout.weight is not None:
                chunk.weight[chunk.used :] = np.nan
                self._write_chunk(layout.weight, i, sealed_bytes(chunk.weight[:rows]))
            weight = None if chunk.weight is None else chunk.weight[:rows]
            if chunk.y is not None and chunk.y.dtype.kind == "f":
                chunk.y[chunk.used :] = np.nan
                self._write_real(i, chunk.y[:rows], weight)
            elif chunk.y is not None:
                chunk.y[chunk.used :] = -1
                self._storage.write(f"{_CODES}/{i}", _bytes(chunk.y[:rows], weight))
        chunk.restart()

    def _write_chunk(self, array: ArrayLayout, i: int, sealed: bytes | memoryview) -> None:
        """Write one chunk file from its sealed plain bytes, compressed if asked for."""
        data = memoryview(sealed)
        if array.compression == "zstd":
            data = memoryview(seal(pack_zstd(bytes(data[:-CHECKSUM_BYTES]))))
        self._storage.write(array.chunk_key(i), data)
        checksum = int.from_bytes(data[-CHECKSUM_BYTES:], "little")
        self._entries.setdefault(array.name, []).append((len(data), checksum))

    def _read_codes(self, i: int, rows: int) -> tuple[Array, Array | None]:
        """Return the provisional codes of chunk ``i``, and its weights if rows have any."""
        data = self._storage.read(f"{_CODES}/{i}", 12 * rows)
        weight = np.frombuffer(data, np.float64, offset=4 * rows) if len(data) > 4 * rows else None
        return np.frombuffer(data, np.int32, rows), weight

    def _write_codes(self, layout: Layout, kept: tuple[Label, ...], recode: Array) -> dict[str, Any]:
        """Turn provisional codes into final ones, and return the attributes of y."""
        if layout.y is None:
            return {}
        counts = np.zeros(len(kept), dtype=np.int64)
        totals = np.zeros(len(kept))
        for i in range(layout.n_chunks):
            codes, weight = self._read_codes(i, layout.chunk_rows)
            final = np.append(recode, -1)[codes].astype(layout.y.dtype)  # code -1 takes the last entry
            counts += np.bincount(final[final >= 0], minlength=len(kept))
            if weight is not None:
                totals += class_sums(final, weight, len(kept))
            self._write_chunk(layout.y, i, sealed_bytes(final))
        self._storage.remove(_CODES)
        kind = type(kept[0]).__name__ if kept else "int"
        found = {"classes": list(kept), "class_type": kind, "class_counts": counts.tolist()}
        return found | ({"class_weights": [_finite(each) for each in totals.tolist()]} if layout.has_weight else {})

    def _write_real(self, i: int, y: Array, weight: Array | None) -> None:
        """Write chunk ``i`` of real targets, padding included, and add up its known rows and their weights."""
        known = ~np.isnan(y)
        self._known_rows += int(np.count_nonzero(known))
        self._known_weight += float(np.count_nonzero(known) if weight is None else weight[known].sum())
        layout = Layout(len(y), 1, len(y), self.dtype, REAL_TYPE, compression=self.compression).y
        assert layout is not None
        self._write_chunk(layout, i, sealed_bytes(y))

    def _real_attributes(self) -> dict[str, Any]:
        return {"known_rows": self._known_rows, "known_weight": _finite(self._known_weight)}

    def _write_per_feature(
        self, layout: Layout, statistics: StatisticsAccumulator, names: tuple[str, ...] | None
    ) -> None:
        result = statistics.result()
        for name in STATISTICS:
            array = layout.per_feature(f"statistics/{name}")
            self._write_chunk(array, 0, sealed_bytes(getattr(result, name)))
        if layout.feature is not None and names is not None:
            self._write_chunk(layout.feature, 0, seal(encode_strings(names)))

    def _finish_files(self, layout: Layout, y_attributes: dict[str, Any], source: str) -> None:
        """Write the zarr documents, and the manifest after everything else is on disk."""
        attributes = {"format": FORMAT, "format_version": FORMAT_VERSION, "rows": layout.rows, "source": source}
        members: dict[str, Any] = {
            array.name: array.document(y_attributes if array.name == "y" else {}) for array in layout.arrays()
        }
        members["statistics"] = group_document({}, {})
        documents = {f"{name}/zarr.json": document for name, document in members.items()}
        documents["statistics/zarr.json"] = group_document({})
        documents["zarr.json"] = group_document(attributes, members)
        entries = {}
        for key in layout.documents():
            text = json.dumps(documents[key], indent=1, allow_nan=False).encode()
            self._storage.write(key, text)
            entries[key] = (len(text), crc32c(text))
        prepared = Manifest(layout, self._entries, entries)
        self._storage.complete(MANIFEST, prepared.to_json().encode())
        self._prepared = prepared

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot write store '{self.path}': {reason(error)}.") from error


def publish_all(writers: Sequence[StoreWriter]) -> list[Store]:
    """Publish prepared stores that belong together. If one fails, those that replaced nothing are taken back."""
    new = [writer for writer in writers if not writer._storage.check(overwrite=True)]
    try:
        return [writer.publish() for writer in writers]
    except BaseException:
        for writer in new:
            writer._storage.retract()
        raise


def smallest_code_type(classes: int) -> str:
    """Return the NumPy name of the smallest type for the codes of so many classes."""
    return next(name for name in CODE_TYPES if classes - 1 <= np.iinfo(name).max)


def _check_real(y: Array) -> None:
    if np.isinf(y).any():
        raise InputError("real targets must be finite, or NaN where they are unknown.")


def _finite(total: float) -> float | None:
    """Return a sum of weights for JSON, which has no infinity: None stands for it."""
    return total if np.isfinite(total) else None


def _bytes(codes: Array, weight: Array | None) -> bytes:
    """Return the bytes of provisional codes, followed by those of the weights if there are any."""
    return codes.tobytes() + (b"" if weight is None else weight.tobytes())


def check_feature_names(names: Sequence[str], features: int) -> tuple[str, ...]:
    """Return the names as a tuple; raise InputError unless they are ``features`` distinct strings."""
    result = tuple(names)
    if len(result) != features or not all(isinstance(name, str) for name in result):
        raise InputError(f"feature names must be {features} strings. Got {len(result)} values.")
    if len(set(result)) != features:
        twice = next(name for name in result if result.count(name) > 1)
        raise InputError(f"feature names must be distinct; {twice!r} occurs more than once.")
    return result
