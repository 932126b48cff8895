"""Rows of a store that wait to be written: a chunk of dense rows, or a run of sparse ones.

Dense rows are written chunk by chunk. Of sparse rows, entries are written as they come, so many a file. How many rows
a chunk has is known once all rows are: as many as have about as many entries as a file. Until then their columns wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array, issparse

from dask_odm.data.store.layout import (
    CHECKSUM_BYTES,
    COORDINATES,
    MAX_CHUNK_BYTES,
    STORE_CHUNK_BYTES,
    EntryLayout,
    crc32c,
)
from dask_odm.data.store.sealed import sealed_bytes
from dask_odm.data.store.statistics import EntryStatistics, StatisticsAccumulator
from dask_odm.errors import InputError
from dask_odm.linalg.row_passes import rows_between
from dask_odm.typing import Array

STARTS = "starts"  # the column of sparse rows that says where the entries of each begin
CHUNK_ENTRIES = STORE_CHUNK_BYTES // 16  # of a file, and of the rows of a chunk: 8 to 12 MB with their columns


class OpenRows(ABC):
    """Rows that are being filled with blocks: columns beside X for ``size`` of them.

    ``columns`` are those of the first rows, if they have them: ``y``, whose codes are provisional, or of shape (rows,
    targets), ``weight``, and ``coordinates`` of shape (rows, k).
    """

    statistics: StatisticsAccumulator | EntryStatistics

    def __init__(self, size: int, features: int, columns: Mapping[str, Array]) -> None:
        self.size = size
        self.features = features
        self.used = 0
        types = {name: "float64" if column.dtype.kind == "f" else "int32" for name, column in columns.items()}
        shapes = {name: (size, *column.shape[1:]) for name, column in columns.items()}
        self.columns: dict[str, Array] = {name: np.empty(shapes[name], kind) for name, kind in types.items()}

    @property
    def has_real_targets(self) -> bool:
        return "y" in self.columns and self.columns["y"].dtype.kind == "f"

    def check(self, X: Any, columns: Mapping[str, Array]) -> None:
        """Raise InputError unless rows have the shapes and kinds of these rows, and allowed weights."""
        if issparse(X) != isinstance(self, OpenEntries):
            raise InputError("X must be sparse for all rows or for none.")
        if X.ndim != 2 or X.shape[1] != self.features:
            raise InputError(f"X must have {self.features} features. Got shape {X.shape} instead.")
        for name in ("y", "weight", COORDINATES):
            if (name in columns) != (name in self.columns):
                raise InputError(f"{name} must be given for all rows or for none.")
        for name, column in columns.items():
            shape = (X.shape[0], *self.columns[name].shape[1:])
            if column.shape != shape:
                raise InputError(f"{name} must have shape {shape} as X has rows. Got {column.shape} instead.")
        if "y" in columns and (columns["y"].dtype.kind == "f") != self.has_real_targets:
            raise InputError("y must be label codes for all rows, or real targets for all.")
        weight = columns.get("weight", np.empty(0))
        if not (np.isfinite(weight).all() and (weight >= 0).all()):
            raise InputError("weight must be finite and not negative.")

    def fill(self, X: Any, columns: Mapping[str, Array], at: int) -> int:
        """Take as many rows from row ``at`` on as there is room for, and return their number."""
        room = slice(self.used, min(self.used + X.shape[0] - at, self.size))
        rows = slice(at, at + room.stop - room.start)
        self._take(X, rows, room)
        for name, column in columns.items():
            self.columns[name][room] = column[rows]
        self.used = room.stop
        return rows.stop - at

    @abstractmethod
    def _take(self, X: Any, rows: slice, room: slice) -> None:
        """Take ``rows`` of X to the places ``room``."""

    def chunks(self, runs: Iterable[Mapping[str, Array]], rows: int) -> Iterator[dict[str, Array]]:
        """Cut runs of columns into chunks of ``rows`` rows, the last one padded."""
        for columns in runs:
            for at in range(0, len(next(iter(columns.values()))), rows):
                yield {name: _padded(column[at : at + rows], rows) for name, column in columns.items()}

    def _require_finite(self, values: Array) -> None:
        if not np.isfinite(values).all():
            raise InputError(f"X contains NaN, infinity or a value too large for {values.dtype}.")


class OpenChunk(OpenRows):
    """A chunk of dense rows, with room for its checksum."""

    statistics: StatisticsAccumulator

    def __init__(self, size: int, features: int, dtype: str, columns: Mapping[str, Array]) -> None:
        super().__init__(size, features, columns)
        self._bytes = np.empty(size * features * np.dtype(dtype).itemsize + CHECKSUM_BYTES, dtype=np.uint8)
        self.X = self._bytes[:-CHECKSUM_BYTES].view(dtype).reshape(size, features)
        self.statistics = StatisticsAccumulator(features)

    def _take(self, X: Any, rows: slice, room: slice) -> None:
        with np.errstate(over="ignore"):
            np.copyto(self.X[room], X[rows], casting="same_kind" if X.dtype.kind == "f" else "unsafe")

    def sealed(self, rows: int) -> memoryview:
        """Return the sealed bytes of the first ``rows`` rows of X, the unused ones padded."""
        self._require_finite(self.X[: self.used])
        self.statistics.update(self.X[: self.used])
        self.X[self.used :] = np.nan
        nbytes = rows * self.X.strides[0]
        checksum = crc32c(self._bytes[:nbytes])
        self._bytes[nbytes : nbytes + CHECKSUM_BYTES] = np.frombuffer(checksum.to_bytes(4, "little"), np.uint8)
        return self._bytes[: nbytes + CHECKSUM_BYTES].data


class OpenEntries(OpenRows):
    """A run of sparse rows. Their entries are written as they come, by ``write``, which takes an array and its bytes.

    A chunk has ``chunk_rows`` rows. By default, it has so many, a power of two, that no chunk has `CHUNK_ENTRIES`
    entries more than the longest row.
    """

    run_rows: ClassVar[int] = 1 << 17  # most sparse rows of a chunk; their columns take 1 MB each
    statistics: EntryStatistics

    def __init__(
        self,
        chunk_rows: int | None,
        features: int,
        dtype: str,
        columns: Mapping[str, Array],
        write: Callable[[str, bytes], None],
    ) -> None:
        targets = max(1, targets_of(columns))
        most = MAX_CHUNK_BYTES // (8 * targets)
        if chunk_rows is not None and not 1 <= chunk_rows <= most:
            raise InputError(f"chunk_rows={chunk_rows} is not between 1 and {most} sparse rows.")
        run_rows = max(1, self.run_rows >> (targets - 1).bit_length())
        super().__init__(chunk_rows or run_rows, features, columns)
        self.columns[STARTS] = np.empty(self.size, np.int64)
        self.statistics = EntryStatistics(features)
        self.total = 0
        self._chunk_rows = chunk_rows
        self._rows = 0
        self._write = write
        self._file = {"X/data": np.empty(CHUNK_ENTRIES, dtype), "X/indices": np.empty(CHUNK_ENTRIES, np.int32)}
        self._held = 0  # entries of the next file
        sizes = [chunk_rows] if chunk_rows else [1 << k for k in range(run_rows.bit_length())]
        self._blocks = dict.fromkeys(sizes, (0, 0))  # by rows: first entry of the last block, most of one before

    def _take(self, X: Any, rows: slice, room: slice) -> None:
        part = rows_between(X, rows.start, rows.stop)
        with np.errstate(over="ignore"):
            values = part.data.astype(self._file["X/data"].dtype, copy=False)
        self._require_finite(values)
        bounds = self.total + part.indptr.astype(np.int64)
        self.columns[STARTS][room] = bounds[:-1]
        for size, (start, most) in self._blocks.items():
            cuts = np.arange((self._rows // size + 1) * size, self._rows + part.shape[0] + 1, size) - self._rows
            starts = np.concatenate([[start], bounds[cuts]])
            self._blocks[size] = int(starts[-1]), max(most, int(np.diff(starts).max(initial=0)))
        self.statistics.update(csr_array((values, part.indices, part.indptr), shape=part.shape))
        self._rows += part.shape[0]
        self.total += len(values)
        if self._chunk_rows is not None:
            self._check_chunk_rows(self._chunk_rows)
        at = 0
        while at < len(values):
            count = min(len(values) - at, CHUNK_ENTRIES - self._held)
            for name, given in (("X/data", values), ("X/indices", part.indices)):
                self._file[name][self._held : self._held + count] = given[at : at + count]
            self._held += count
            at += count
            if self._held == CHUNK_ENTRIES:
                self._write_file(CHUNK_ENTRIES)

    def _check_chunk_rows(self, rows: int) -> None:
        """Raise InputError if some chunk of ``rows`` rows takes more bytes than dense ones may."""
        nbytes = self._most_entries()[rows] * sum(values.itemsize for values in self._file.values())
        if min(rows, self._rows) > 1 and nbytes > MAX_CHUNK_BYTES:
            raise InputError(
                f"chunk_rows={rows} makes chunks of {nbytes} bytes; between 1 row and {MAX_CHUNK_BYTES} bytes are "
                "allowed. Leave it out for chunks of about as many entries each."
            )

    def _most_entries(self) -> dict[int, int]:
        """Return the most entries of a chunk of the rows so far, by the number of rows that chunks have."""
        return {size: max(most, self.total - start) for size, (start, most) in self._blocks.items()}

    def _write_file(self, entries: int) -> None:
        for name, values in self._file.items():
            self._write(name, sealed_bytes(_padded(values[: self._held], entries)))
        self._held = 0

    def finish(self) -> tuple[int, EntryLayout]:
        """Write the last file, and return the rows of a chunk and the layout of the entries."""
        chunk = min(CHUNK_ENTRIES, max(1, self.total))
        if self._held:
            self._write_file(chunk)
        most = self._most_entries()
        enough = CHUNK_ENTRIES + min(most.values())
        rows = max(size for size, entries in most.items() if entries <= enough)
        return min(rows, self._rows), EntryLayout(self.total, chunk, most[rows])

    def chunks(self, runs: Iterable[Mapping[str, Array]], rows: int) -> Iterator[dict[str, Array]]:
        """Cut runs of columns into chunks, as for dense rows, and a last one of bounds if these need one more."""
        for columns in super().chunks(runs, rows):
            starts = columns[STARTS]
            starts[starts < 0] = self.total  # of the padding
            yield columns
        if self._rows % rows == 0:
            yield {STARTS: np.full(rows, self.total)}


def targets_of(columns: Mapping[str, Array]) -> int:
    """Return the number of targets of a row, if y among the columns has several, else 0."""
    return columns["y"].shape[1] if "y" in columns and columns["y"].ndim > 1 else 0


def _padded(values: Array, size: int) -> Array:
    """Return the values with padding up to ``size``: NaN or −1."""
    padding = np.nan if values.dtype.kind == "f" else -1
    return np.concatenate([values, np.full((size - len(values), *values.shape[1:]), padding, values.dtype)])
