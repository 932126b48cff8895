"""Sparse rows in the order of their partitions on disk: pieces of CSR rows, after one shuffle in bounded memory.

The places of dense rows in a file are known before any is written; those of sparse rows are not. So tasks deal the rows
of a run of chunks into a file of its own (`DealtFile`), in segments, one for each chunk and piece that is to be. Then
other tasks join the segments of a piece (`join`): each opens one file of every run, however many chunks there are. Both
are idempotent, no two write the same file, and files appear whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import IO, Any, ClassVar
from uuid import uuid4

import numpy as np
from scipy.sparse import csr_array, vstack

from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import PARTITION_CHUNK_BYTES, StoredPartitions, groups_of_chunk
from dask_odm.data.rows.targets import Targets
from dask_odm.data.storage.files import make_folders, open_whole
from dask_odm.data.storage.staging import remove_folder
from dask_odm.data.store.layout import CHECKSUM_BYTES, crc32c
from dask_odm.data.store.store import Store
from dask_odm.errors import StoreError
from dask_odm.typing import Array

_DEALT = "dealt"  # folder of the files of runs


@dataclass(frozen=True)
class Segment:
    """Rows of a piece: a CSR array ``X`` (n, d) with targets, weights, row numbers and places in it, (n,) each."""

    X: Any
    y: Array
    weight: Array
    row: Array
    place: Array

    def packed(self) -> bytes:
        """Return all as bytes that end in a checksum; wide numbers come first, so that all are aligned."""
        X = self.X
        head = np.array([len(self.y), X.nnz], np.int64)
        bounds = X.indptr.astype(np.int64, copy=False)
        arrays = (
            head,
            bounds,
            self.weight,
            self.row,
            self.place,
            X.data,
            X.indices.astype(np.int32, copy=False),
            self.y,
        )
        data = b"".join(np.ascontiguousarray(array).data.cast("B") if array.size else b"" for array in arrays)
        return data + crc32c(data).to_bytes(CHECKSUM_BYTES, "little")


@dataclass(frozen=True)
class SparsePartitions(StoredPartitions):
    """Partitions of sparse rows in a scratch folder, in checksummed pieces of ``chunk_rows`` rows.

    No piece has more than ``most_entries`` entries, which are known once rows were dealt.
    """

    most_entries: int = 0
    is_sparse: ClassVar[bool] = True

    @classmethod
    def plan(
        cls, path: str, store: Store, counts: tuple[int, ...], dtype: str | None = None, y_type: str = "int8"
    ) -> SparsePartitions:
        """Plan partitions for the rows of a sparse store, as `StoredPartitions.plan`, by the size of a mean row."""
        kind = store.dtype if dtype is None else np.dtype(dtype)
        entries = store.layout.entries
        assert entries is not None
        row = 24 + entries.total * (kind.itemsize + 4) // store.rows
        rows = max(1, min(PARTITION_CHUNK_BYTES // row, max(counts)))
        return cls(path, store.features, kind.name, counts, rows, y_type)

    @property
    def piece_nbytes(self) -> int:
        """Bytes of the largest piece in memory."""
        return self._nbytes(self.chunk_rows, self.most_entries)

    @property
    def reading_bytes(self) -> int:
        """Bytes that a thread holds besides the rows it asked for: a piece, and its copy if it is scaled."""
        return 2 * self.piece_nbytes

    def _nbytes(self, rows: int, entries: int) -> int:
        per_row = 4 * 8 + np.dtype(self.y_type).itemsize
        return 24 + per_row * rows + (self.dtype.itemsize + 4) * entries + CHECKSUM_BYTES

    def unpacked(self, data: Array, what: str) -> Segment:
        """Return what `Segment.packed` made, as views of ``data``; raise StoreError, naming ``what``, if damaged."""
        sound = len(data) >= self._nbytes(0, 0)
        if sound:
            rows, entries = data[:16].view(np.int64).tolist()
            sound = len(data) == self._nbytes(rows, entries)
            sound = sound and crc32c(data[:-CHECKSUM_BYTES]) == int.from_bytes(
                data[-CHECKSUM_BYTES:].tobytes(), "little"
            )
        if not sound:
            raise self.damage(what)
        found = []
        at = 16
        counts = rows + 1, rows, rows, rows, entries, entries, rows
        types = "int64", "float64", "int64", "int64", self.type_name, "int32", self.y_type
        for count, dtype in zip(counts, types, strict=True):
            stop = at + count * np.dtype(dtype).itemsize
            found.append(data[at:stop].view(dtype))
            at = stop
        bounds, weight, row, place, values, columns, y = found
        X = csr_array((rows, self.features), dtype=self.dtype)
        # given to its constructor, they would be copied, and widened to the type of the bounds
        X.data, X.indices, X.indptr = values, columns, bounds.astype(np.int32)
        X.has_canonical_format = True
        return Segment(X, y, weight, row, place)

    def damage(self, what: str) -> StoreError:
        """Return an error that says that ``what`` is damaged."""
        return StoreError(
            f"scratch folder '{self.path}': {what} is damaged. Choose a sound disk (temporary-directory)."
        )

    def piece_path(self, i: int) -> str:
        """Return the file of piece ``i``."""
        return os.path.join(self.path, "X", str(i))

    def read_piece(self, i: int, buffer: Array | None = None) -> Segment:
        """Read piece ``i``, into ``buffer`` if that is given, and check it."""
        with open_whole(self.piece_path(i)) as file:
            size = os.fstat(file.fileno()).st_size
            data = np.empty(size, np.uint8) if buffer is None or len(buffer) < size else buffer[:size]
            file.readinto(data.data)
        return self.unpacked(data, f"piece {i}")

    def column(self, name: str, first: int, last: int) -> Array:
        parts = [getattr(self.read_piece(i), name) for i, _ in self.pieces(first, last)]
        return np.concatenate(parts) if parts else np.empty(0, self.array(name).dtype)

    def reader(
        self, k: int, scaling: Scaling | StoredScaling | None
    ) -> Callable[[tuple[int, int]], tuple[Any, Array, Array]]:
        """Return a function that reads one of the `pieces` of partition ``k``: CSR rows, labels and weights.

        All are read into the same memory. Rows are multiplied by the factors of the ``scaling``, and never shifted.
        """
        buffer = np.empty(self.piece_nbytes, np.uint8)

        def read(piece: tuple[int, int]) -> tuple[Any, Array, Array]:
            found = self.read_piece(piece[0], buffer)
            if scaling is not None:
                found.X.data *= scaling.factor[found.X.indices]
            return found.X, found.y.astype(np.float64), found.weight

        return read

    def remove(self, k: int) -> None:
        for i, _ in self.pieces(k, k + 1):
            os.remove(self.piece_path(i))


class DealtFile:
    """File of the rows of a run of chunks, in segments.

    It begins with the starts of the segments, int64 (pieces + 1, chunks): a segment ends where that of the next piece
    starts.
    """

    def __init__(self, file: IO[bytes], chunks: range, pieces: int) -> None:
        self._file = file
        self._chunks = chunks
        self._starts = np.empty((pieces + 1, len(chunks)), np.int64)
        file.seek(self._starts.nbytes)

    @classmethod
    @contextmanager
    def new(cls, partitions: SparsePartitions, folder: str, chunks: range) -> Iterator[DealtFile]:
        """Yield the file of a run in which `deal` writes its chunks. It appears when all are written."""
        with _appearing(folder, _dealt(chunks)) as file:
            dealt = cls(file, chunks, len(partitions.counts) * partitions.chunks_each)
            yield dealt
            file.seek(0)
            file.write(dealt._starts.tobytes())

    def append(self, chunk: int, segments: Sequence[bytes]) -> None:
        """Write the segments of a chunk, one for every piece, of which some are empty."""
        at = self._file.tell()
        self._starts[:, self._chunks.index(chunk)] = np.cumsum([at, *map(len, segments)])
        for segment in segments:
            self._file.write(segment)


def deal(
    dealt: DealtFile,
    store: Store,
    targets: Targets,
    partitions: SparsePartitions,
    folder: str,
    assign: Callable[[Array, Array], tuple[Array, Array]],
    chunk: int,
    before: Array,
) -> Array:
    """Append the rows of a chunk to a file in segments, one for each piece, and return the entries of each.

    ``assign`` and ``before`` are as in `dask_odm.data.rows.stored.scatter`.
    """
    block = store.read(chunk)
    keep, y, weight = targets(block)
    groups = groups_of_chunk(folder, chunk, keep, before)
    kept = np.flatnonzero(groups >= 0)
    partition, place = assign(groups[kept], before)
    before += np.bincount(groups[kept], minlength=len(before))
    target = partition.astype(np.int64) * partitions.chunks_each + place // partitions.chunk_rows
    order = np.argsort(target, kind="stable")
    rows = kept[order]
    pieces = len(partitions.counts) * partitions.chunks_each
    starts = np.searchsorted(target[order], np.arange(pieces + 1))
    place = (place[order] % partitions.chunk_rows).astype(np.int64)
    X = block.X[rows].astype(partitions.dtype, copy=False)
    y = y[rows].astype(partitions.y_type)
    weight = weight[rows].astype(np.float64, copy=False)
    numbers = (block.first + rows).astype(np.int64)
    segments = []
    for i in range(pieces):
        own = slice(starts[i], starts[i + 1])
        if own.start < own.stop:
            segments.append(Segment(X[own], y[own], weight[own], numbers[own], place[own]).packed())
        else:
            segments.append(b"")
    dealt.append(chunk, segments)
    return np.diff(X.indptr[starts]).astype(np.int64)


def join(partitions: SparsePartitions, folder: str, runs: Sequence[range], i: int, count: int) -> None:
    """Write piece ``i``, of ``count`` rows, from its segments in all ``runs``. Raises StoreError if rows were lost."""
    parts = [part for chunks in runs for part in _segments(partitions, folder, chunks, i)]
    if sum(len(part.y) for part in parts) != count:
        raise StoreError(
            f"scratch folder '{partitions.path}': rows of piece {i} were lost while workers wrote them. Choose a "
            "folder (Dask's temporary-directory) on a file system that shows every worker what the others write, "
            "without a cache between."
        )
    order = np.argsort(np.concatenate([part.place for part in parts]), kind="stable")
    X = vstack([part.X for part in parts], format="csr")[order]
    columns = {n: np.concatenate([getattr(part, n) for part in parts])[order] for n in ("y", "weight", "row", "place")}
    with _appearing(partitions.path, f"X/{i}") as file:
        file.write(Segment(X, **columns).packed())


def _segments(partitions: SparsePartitions, folder: str, chunks: range, i: int) -> Iterator[Segment]:
    """Yield the segments of piece ``i`` in the order of those chunks of a run that have any of its rows."""
    n = len(chunks)
    with open_whole(os.path.join(folder, _dealt(chunks))) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(8 * n * i)
        bounds = np.frombuffer(file.read(16 * n).ljust(16 * n, b"\xff"), np.int64)
        for chunk, start, stop in zip(chunks, bounds[:n].tolist(), bounds[n:].tolist(), strict=True):
            what = f"segment {i} of chunk {chunk}"
            if not 0 <= start <= stop <= size:
                raise partitions.damage(what)
            if start < stop:
                file.seek(start)
                data = np.empty(stop - start, np.uint8)
                file.readinto(data.data)
                yield partitions.unpacked(data, what)


def forget_dealt(folder: str) -> None:
    """Remove the files that `deal` wrote, and what killed workers left beside them."""
    remove_folder(os.path.join(folder, _DEALT))


def with_most(partitions: SparsePartitions, entries: Array) -> SparsePartitions:
    """Return the partitions with the largest of the pieces' ``entries`` as `most_entries`."""
    return replace(partitions, most_entries=int(entries.max()))


def _dealt(chunks: range) -> str:
    """Return the key of the file of a run."""
    return f"{_DEALT}/{chunks.start}"


@contextmanager
def _appearing(root: str, key: str) -> Iterator[IO[bytes]]:
    """Yield a new file, of which a reader sees all or nothing, even if two workers write it at once."""
    path = make_folders(root, key)
    aside = f"{path}.{uuid4().hex}"
    try:
        with open(aside, "wb") as file:
            yield file
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            os.remove(aside)
        raise
