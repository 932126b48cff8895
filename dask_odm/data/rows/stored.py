"""Rows in the order of their partitions on disk, dense or sparse, in checksummed pieces.

`StoredPartitions` are made by a single shuffle (`dask_odm.data.rows.dealing`), and read here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from dask_odm.data.rows.memory import MemoryPartitions, held_if_small
from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.targets import Targets
from dask_odm.data.storage.files import open_whole
from dask_odm.data.store.layout import CHECKSUM_BYTES, crc32c
from dask_odm.data.store.sealed import CACHE_LINE, room_for
from dask_odm.data.store.statistics import EntryStatistics, StatisticsAccumulator
from dask_odm.data.store.store import Store, StoreBlock
from dask_odm.errors import StoreError
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.linalg.rows import Rows, read_scattered
from dask_odm.typing import Array

PIECE_BYTES = 4 << 20  # fewer than a store's chunk has: solvers read panels that begin and end within pieces


def sealed(arrays: Iterable[Array]) -> bytes:
    """Return arrays as bytes that end in a checksum, and fill whole lines of the cache."""
    data = b"".join(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays)
    data += bytes(_sealed_nbytes(len(data)) - CHECKSUM_BYTES - len(data))
    return data + crc32c(data).to_bytes(CHECKSUM_BYTES, "little")


def _sealed_nbytes(nbytes: int) -> int:
    """Return the bytes of `sealed` arrays of so many."""
    return -(-(nbytes + CHECKSUM_BYTES) // CACHE_LINE) * CACHE_LINE


@dataclass(frozen=True)
class StoredPartitions:
    """Partitions in a scratch folder, in pieces that belong to one partition each.

    A piece is a file of ``chunk_rows`` rows, the last one of a partition of fewer: first their `record_type`, then the
    rows. ``dtype`` is float32 or float64. ``counts`` are the rows of each partition. ``y_type`` is int8
    for two classes, int32 for more codes and float64 for real values. Sparse rows have at most ``most_entries`` entries
    a piece, which are known once rows were dealt; it is None for dense ones.
    """

    path: str
    features: int
    dtype: np.dtype[Any]
    counts: tuple[int, ...]
    chunk_rows: int
    y_type: str = "int8"
    most_entries: int | None = None

    @classmethod
    def plan(
        cls, path: str, store: Store, counts: tuple[int, ...], dtype: str | None = None, y_type: str = "int8"
    ) -> StoredPartitions:
        """Plan partitions for the rows of a store, in its dtype or in ``dtype``, with y in ``y_type``."""
        kind = store.dtype if dtype is None else np.dtype(dtype)
        entries = store.layout.entries
        row = store.features * kind.itemsize
        if entries is not None:
            row = 24 + entries.total * (kind.itemsize + 4) // store.rows
        rows = max(1, min(PIECE_BYTES // row, max(counts)))
        return cls(path, store.features, kind, counts, rows, y_type, None if entries is None else 0)

    @property
    def is_sparse(self) -> bool:
        """Whether rows are read as CSR arrays."""
        return self.most_entries is not None

    @cached_property
    def chunks_each(self) -> int:
        """Number of pieces that the largest partition has; numbers of pieces are kept free for the others."""
        return -(-max(self.counts) // self.chunk_rows)

    @property
    def piece_nbytes(self) -> int:
        """Bytes of the largest piece."""
        rows = self.chunk_rows
        return _sealed_nbytes(rows * self.record_type().itemsize) + self._rows_nbytes(rows, self.most_entries or 0)

    @property
    def reading_bytes(self) -> int:
        """Bytes that a thread holds besides the rows it asked for: a piece, raw and scaled."""
        return 2 * self.piece_nbytes

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield number and rows of every piece of partitions ``first:last``, in order."""
        for k in range(first, last):
            for c in range(-(-self.counts[k] // self.chunk_rows)):
                yield k * self.chunks_each + c, min(self.chunk_rows, self.counts[k] - c * self.chunk_rows)

    def piece_key(self, i: int) -> str:
        """Return the file of piece ``i`` below the folder."""
        return f"pieces/{i}"

    def record_type(self, *, placed: bool = False) -> np.dtype[Any]:
        """Return the type of what is known of a row: weight, number, y, and if ``placed`` its place in its piece."""
        return np.dtype([("weight", "f8"), ("row", "i8"), ("y", self.y_type), *[("place", "i8")] * placed])

    def packed(self, X: Any, records: Array) -> bytes:
        """Return rows and what is known of them as the bytes of a piece."""
        rows = (X.indptr.astype(np.int64), X.data, X.indices.astype(np.int32)) if self.is_sparse else (X,)
        return sealed([records]) + sealed(rows)

    def unpacked(self, data: Array, count: int, kind: np.dtype[Any], what: str) -> tuple[Any, Array]:
        """Return ``count`` rows and their records as views of what `packed` made; StoreError if that is damaged."""
        cut = _sealed_nbytes(count * kind.itemsize)
        return self._rows(data[cut:], count, what), self._records(data[:cut], count, kind, what)

    def damage(self, what: str) -> StoreError:
        """Return an error that says that ``what`` is damaged."""
        return StoreError(
            f"scratch folder '{self.path}': {what} is damaged. Choose a sound disk (temporary-directory)."
        )

    def records(self, first: int, last: int) -> Array:
        """Return the records of partitions ``first:last``, of `record_type`."""
        kind = self.record_type()
        found = [np.empty(0, kind)]
        for i, count in self.pieces(first, last):
            with open_whole(os.path.join(self.path, self.piece_key(i))) as file:
                data = np.frombuffer(file.read(_sealed_nbytes(count * kind.itemsize)), np.uint8)
            found.append(self._records(data, count, kind, f"piece {i}"))
        return np.concatenate(found)

    def labels(self, first: int, last: int) -> tuple[Array, Array]:
        found = self.records(first, last)
        return found["y"].astype(np.float64), found["weight"].copy()

    def row_numbers(self, first: int, last: int) -> Array:
        return self.records(first, last)["row"].copy()

    def reader(
        self, k: int, scaling: Scaling | StoredScaling | None
    ) -> Callable[[tuple[int, int]], tuple[Any, Array, Array]]:
        """Return a function that reads one of the `pieces` of partition ``k``: rows, labels and weights.

        All are read into the same memory. Without scaling, rows are raw. Sparse rows are multiplied by the factors of
        the ``scaling``, and never shifted.
        """
        buffer = room_for(self.piece_nbytes)
        scaled = None if scaling is None or self.is_sparse else np.empty((self.chunk_rows, self.features), self.dtype)

        def read(piece: tuple[int, int]) -> tuple[Any, Array, Array]:
            i, count = piece
            with open_whole(os.path.join(self.path, self.piece_key(i))) as file:
                size = os.fstat(file.fileno()).st_size
                data = buffer[:size] if size <= len(buffer) else room_for(size)
                file.readinto(data.data)
            X, records = self.unpacked(data, count, self.record_type(), f"piece {i}")
            if scaling is not None and scaled is not None:
                X = scaling(X, scaled[: len(X)])
            elif scaling is not None:
                X.data[:] = scaling.entries(X)
            return X, records["y"].astype(np.float64), records["weight"].copy()

        return read

    def blocks(self, k: int, scaling: Scaling | StoredScaling | None) -> Iterator[tuple[Any, Array, Array]]:
        """Yield the rows of partition ``k`` piece by piece, as `MemoryPartitions.blocks`."""
        yield from map(self.reader(k, scaling), self.pieces(k, k + 1))

    def rows(self, first: int, last: int, scaling: Scaling | StoredScaling, memory: int) -> tuple[Rows, int]:
        """Return scaled rows, held in memory if they take at most ``memory`` bytes, and the bytes they take there."""
        return held_if_small(StoredRows(self, first, last, scaling), memory)

    def raw(self, first: int, last: int, chosen: Array) -> Array:
        """Return rows at ascending positions ``chosen`` of partitions ``first:last``, not scaled."""
        return read_scattered(StoredRows(self, first, last, None), chosen)

    def remove(self, k: int) -> None:
        """Remove the rows of partition ``k`` from the disk, which nobody will read again."""
        for i, _ in self.pieces(k, k + 1):
            os.remove(os.path.join(self.path, self.piece_key(i)))

    def _rows_nbytes(self, rows: int, entries: int) -> int:
        dense = rows * self.features * self.dtype.itemsize
        return _sealed_nbytes(8 * (rows + 1) + (self.dtype.itemsize + 4) * entries if self.is_sparse else dense)

    def _records(self, data: Array, count: int, kind: np.dtype[Any], what: str) -> Array:
        self._require_sound(data, _sealed_nbytes(count * kind.itemsize), what)
        return data[: count * kind.itemsize].view(kind)

    def _rows(self, data: Array, count: int, what: str) -> Any:
        if not self.is_sparse:
            self._require_sound(data, self._rows_nbytes(count, 0), what)
            return data[: count * self.features * self.dtype.itemsize].view(self.dtype).reshape(count, self.features)
        self._require_sound(data, max(len(data), self._rows_nbytes(count, 0)), what)
        bounds = data[: 8 * (count + 1)].view(np.int64)
        entries = int(bounds[-1])
        if len(data) != self._rows_nbytes(count, entries):
            raise self.damage(what)
        cut = bounds.nbytes + entries * self.dtype.itemsize
        values = data[bounds.nbytes : cut].view(self.dtype)
        columns = data[cut : cut + 4 * entries].view(np.int32)
        X = csr_array((count, self.features), dtype=self.dtype)
        # given to its constructor, they would be copied, and widened to the type of the bounds
        X.data, X.indices, X.indptr = values, columns, bounds.astype(np.int32)
        X.has_canonical_format = True
        return X

    def _require_sound(self, data: Array, size: int, what: str) -> None:
        """Raise StoreError unless what `sealed` made has this size and its checksum."""
        end = data[-CHECKSUM_BYTES:].tobytes()
        if len(data) != size or crc32c(data[:-CHECKSUM_BYTES]) != int.from_bytes(end, "little"):
            raise self.damage(what)


Partitions = MemoryPartitions | StoredPartitions


@dataclass(eq=False)
class StoredRows:
    """Rows of consecutive partitions, read from disk on demand: scaled, or raw without a scaling.

    Each thread keeps the last chunk it read.
    """

    partitions: StoredPartitions
    first: int
    last: int
    scaling: Scaling | StoredScaling | None
    _local: threading.local = field(default_factory=threading.local)

    @cached_property
    def _starts(self) -> tuple[Array, Array]:
        pieces = list(self.partitions.pieces(self.first, self.last))
        starts = np.concatenate([[0], np.cumsum([rows for _, rows in pieces])]).astype(np.int64)
        return starts, np.array([i for i, _ in pieces], dtype=np.int64)

    @property
    def n(self) -> int:
        return int(self._starts[0][-1])

    @property
    def d(self) -> int:
        return self.partitions.features

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.partitions.dtype

    def chunk(self, number: int, count: int) -> Array:
        """Return the ``count`` rows of a chunk, valid until this thread asks for another."""
        local = self._local
        if not hasattr(local, "read"):
            # buffers that serve every piece: freshly mapped memory is slow, and the allocator would hold on to it
            local.read = self.partitions.reader(self.first, self.scaling)
            local.number = -1
        if local.number != number:
            local.number = -1  # until it is read
            local.X = local.read((number, count))[0]
            local.number = number
        return local.X

    def read(self, start: int, stop: int) -> Array:
        starts, numbers = self._starts
        out = np.empty((stop - start, self.d), self.dtype)
        at = start
        while at < stop:
            piece = int(np.searchsorted(starts, at, side="right")) - 1
            first, end = starts[piece : piece + 2].tolist()
            chunk = self.chunk(int(numbers[piece]), end - first)
            upto = min(stop, end)
            out[at - start : upto - start] = chunk[at - first : upto - first]
            at = upto
        return out


def kept_rows(targets: Targets, block: StoreBlock) -> tuple[Array, Array]:
    """Return the mask of the rows of a block that are kept, and their weights: columns of a pass."""
    return targets(block)[0], np.empty(0) if block.weight is None else block.weight


@dataclass(frozen=True)
class KeptStatistics:
    """Statistics of the rows of a store that are kept, weighted by the store's weights: a query for a pass."""

    features: int
    is_sparse: bool

    def gather(self, blocks: Iterable[RowBlock]) -> EntryStatistics | StatisticsAccumulator:
        """Return the statistics of the blocks."""
        gathered = EntryStatistics(self.features) if self.is_sparse else StatisticsAccumulator(self.features)
        for block in blocks:
            X = block.X if block.y.all() else block.X[block.y]
            gathered.update(X, block.weight[block.y] if block.weight.size else None)
        return gathered


def sample_chunk(store: Store, targets: Targets, count: int, seed: int, chunk: int) -> Array:
    """Draw up to ``count`` kept rows of a chunk without replacement, and return them in their order."""
    block = store.read(chunk)
    keep = np.flatnonzero(targets(block)[0])
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, chunk)))
    return block.X[np.sort(rng.choice(keep, min(count, len(keep)), replace=False))].copy()


def distinct_values(store: Store, targets: Targets, feature: int, chunk: int) -> Array:
    """Return the distinct values of a feature among the kept rows of a chunk, ascending."""
    block = store.read(chunk)
    return np.unique(column_of(block.X, feature)[targets(block)[0]])


def column_of(X: Any, feature: int) -> Array:
    """Return a column (n,) of dense or CSR rows."""
    return X[:, [feature]].toarray().ravel() if issparse(X) else X[:, feature]
