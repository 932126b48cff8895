"""Rows in the order of their partitions on disk, after a single shuffle in bounded memory.

The shuffle takes the assignment of rows to partitions as a function. It consists of idempotent tasks over chunks:
`count_groups` (or `count_kept` if there is only one group), then `scatter`, then `seal`. The destination of every row
is known before any row is moved, so a task may run twice, or on another worker, without harm. `scatter` returns the sum
of all words that it wrote, and `seal` raises unless it finds the same sum: on some network file systems, workers
that write one file at the same time undo each other's writes.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from io import BufferedRandom
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse

from dask_odm.data.rows.memory import MemoryPartitions, held_if_small
from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.targets import Targets
from dask_odm.data.storage.files import WholeFile, load_array, make_folders, reserve, save_array
from dask_odm.data.store.layout import CHECKSUM_BYTES, ArrayLayout, crc32c
from dask_odm.data.store.sealed import ChunkFile
from dask_odm.data.store.statistics import EntryStatistics, StatisticsAccumulator
from dask_odm.data.store.store import Store, StoreBlock
from dask_odm.errors import StoreError
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.linalg.rows import Rows, read_scattered
from dask_odm.typing import Array

PARTITION_CHUNK_BYTES = 4 << 20  # fewer than a store's: solvers read panels that begin and end within chunks
_COLUMNS = {"weight": "float64", "row": "int64"}


@dataclass(frozen=True)
class StoredPartitions:
    """Partitions in a scratch folder, in plain checksummed chunks. Each chunk belongs to one partition only.

    ``type_name`` is float32 or float64. ``counts`` are the rows of each partition, and ``chunk_rows`` those of a chunk;
    the last chunk of a partition is padded with zeros. ``y_type`` is int8 for two classes, int32 for more codes and
    float64 for real values.
    """

    path: str
    features: int
    type_name: str
    counts: tuple[int, ...]
    chunk_rows: int
    y_type: str = "int8"

    @classmethod
    def plan(
        cls, path: str, store: Store, counts: tuple[int, ...], dtype: str | None = None, y_type: str = "int8"
    ) -> StoredPartitions:
        """Plan partitions for the rows of a store, in its dtype or in ``dtype``, with y in ``y_type``."""
        kind = store.dtype if dtype is None else np.dtype(dtype)
        rows = max(1, min(PARTITION_CHUNK_BYTES // (store.features * kind.itemsize), max(counts)))
        return cls(path, store.features, kind.name, counts, rows, y_type)

    is_sparse: ClassVar[bool] = False  # whether rows are read as CSR arrays

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.type_name)

    @cached_property
    def chunks_each(self) -> int:
        """Number of chunks reserved for every partition."""
        return -(-max(self.counts) // self.chunk_rows)

    @property
    def reading_bytes(self) -> int:
        """Bytes that a thread holds besides the rows it asked for: its chunk, raw and scaled."""
        return 2 * self.array("X").chunk_nbytes

    def array(self, name: str) -> ArrayLayout:
        """Return the layout of ``X``, ``y``, ``weight`` or ``row``."""
        total = len(self.counts) * self.chunks_each * self.chunk_rows
        if name == "X":
            shape = (total, self.features)
            chunks = (self.chunk_rows, self.features)
            return ArrayLayout("X", shape, chunks, self.type_name, ("sample", "feature"))
        dtype = self.y_type if name == "y" else _COLUMNS[name]
        return ArrayLayout(name, (total,), (self.chunk_rows,), dtype, ("sample",))

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield number and rows of every chunk of partitions ``first:last``, in order."""
        for k in range(first, last):
            for c in range(-(-self.counts[k] // self.chunk_rows)):
                yield k * self.chunks_each + c, min(self.chunk_rows, self.counts[k] - c * self.chunk_rows)

    def column(self, name: str, first: int, last: int) -> Array:
        """Return ``y``, ``weight`` or ``row`` of partitions ``first:last``."""
        layout = self.array(name)
        parts = [ChunkFile(self.path, layout, i).numbers()[:rows] for i, rows in self.pieces(first, last)]
        return np.concatenate(parts) if parts else np.empty(0, layout.dtype)

    def labels(self, first: int, last: int) -> tuple[Array, Array]:
        return self.column("y", first, last).astype(np.float64), self.column("weight", first, last)

    def row_numbers(self, first: int, last: int) -> Array:
        return self.column("row", first, last)

    def reader(
        self, k: int, scaling: Scaling | StoredScaling | None
    ) -> Callable[[tuple[int, int]], tuple[Array, Array, Array]]:
        """Return a function that reads one of the `pieces` of partition ``k``: rows, labels and weights.

        All are read into the same memory. Without scaling, rows are raw.
        """
        rows = StoredRows(self, k, k + 1, scaling)

        def read(piece: tuple[int, int]) -> tuple[Array, Array, Array]:
            number, count = piece
            X = rows.chunk(number, count)
            arrays = (self.array(name) for name in ("y", "weight"))
            y, weight = (ChunkFile(self.path, array, number).numbers()[:count] for array in arrays)
            return X, y.astype(np.float64), weight

        return read

    def blocks(self, k: int, scaling: Scaling | StoredScaling | None) -> Iterator[tuple[Any, Array, Array]]:
        """Yield the rows of partition ``k`` chunk by chunk, as `MemoryPartitions.blocks`."""
        yield from map(self.reader(k, scaling), self.pieces(k, k + 1))

    def rows(self, first: int, last: int, scaling: Scaling | StoredScaling, memory: int) -> tuple[Rows, int]:
        """Return scaled rows, held in memory if they take at most ``memory`` bytes, and the bytes they take there."""
        return held_if_small(StoredRows(self, first, last, scaling), memory)

    def raw(self, first: int, last: int, chosen: Array) -> Array:
        """Return rows at ascending positions ``chosen`` of partitions ``first:last``, not scaled."""
        return read_scattered(StoredRows(self, first, last, None), chosen)

    def remove(self, k: int) -> None:
        """Remove the rows of partition ``k`` from the disk, which nobody will read again."""
        for name in ("X", "y", *_COLUMNS):
            for i, _ in self.pieces(k, k + 1):
                os.remove(os.path.join(self.path, self.array(name).chunk_key(i)))


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
        layout = self.partitions.array("X")
        if not hasattr(local, "number"):
            # buffers that serve every chunk: freshly mapped memory is slow, and the allocator would hold on to it
            local.raw = np.empty(layout.chunk_nbytes + CHECKSUM_BYTES, np.uint8)
            local.scaled = None if self.scaling is None else np.empty(layout.chunks, layout.dtype)
            local.number = -1
        if local.number != number:
            local.number = -1  # until it is read
            X = ChunkFile(self.partitions.path, layout, number).numbers(local.raw)[:count]
            local.X = X if self.scaling is None else self.scaling(X, local.scaled[:count])
            local.number = number
        chunk: Array = local.X
        return chunk

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


def chunk_statistics(store: Store, targets: Targets, chunk: int) -> StatisticsAccumulator:
    """Return statistics of the rows of a chunk that are kept, weighted by the store's weights."""
    block = store.read(chunk)
    keep = np.flatnonzero(targets(block)[0])
    gathered = StatisticsAccumulator(store.features)
    gathered.update(block.X[keep], None if block.weight is None else block.weight[keep])
    return gathered


def kept_rows(targets: Targets, block: StoreBlock) -> tuple[Array, Array]:
    """Return the mask of the rows of a block that are kept, and their weights: columns of a pass."""
    return targets(block)[0], np.empty(0) if block.weight is None else block.weight


@dataclass(frozen=True)
class KeptStatistics:
    """Statistics of sparse rows that are kept, weighted by the store's weights: a query for a pass."""

    features: int

    def gather(self, blocks: Iterable[RowBlock]) -> EntryStatistics:
        """Return the statistics of the blocks."""
        gathered = EntryStatistics(self.features)
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


def count_groups(
    store: Store, targets: Targets, group_of: Callable[[StoreBlock], Array], n_groups: int, folder: str, chunk: int
) -> Array:
    """Count the rows of a chunk per group, (n_groups,), and save each row's group (−1 if dropped) in ``folder``."""
    block = store.read(chunk)
    keep, _, _ = targets(block)
    groups = np.where(keep, group_of(block), -1).astype(np.int32)
    save_array(_groups_path(folder, chunk), groups)
    return np.bincount(groups[groups >= 0], minlength=n_groups)


def count_kept(store: Store, targets: Targets, chunk: int) -> Array:
    """Count the rows of a chunk that are kept, (1,), as for a single group. Features are not read."""
    return np.array([np.count_nonzero(targets(store.read_columns(chunk))[0])])


def distinct_values(store: Store, targets: Targets, feature: int, chunk: int) -> Array:
    """Return the distinct values of a feature among the kept rows of a chunk, ascending."""
    block = store.read(chunk)
    return np.unique(column_of(block.X, feature)[targets(block)[0]])


def column_of(X: Any, feature: int) -> Array:
    """Return a column (n,) of dense or CSR rows."""
    column: Array = X[:, [feature]].toarray().ravel() if issparse(X) else X[:, feature]
    return column


def _groups_path(folder: str, chunk: int) -> str:
    return os.path.join(folder, f"groups-{chunk}.npy")


def groups_of_chunk(folder: str, chunk: int, keep: Array, before: Array) -> Array:
    """Return the group of each row of a chunk, −1 if it is dropped: as `count_groups` saved it, or the only one."""
    return load_array(_groups_path(folder, chunk)) if len(before) > 1 else np.where(keep, 0, -1).astype(np.int32)


def scatter(
    store: Store,
    targets: Targets,
    partitions: StoredPartitions,
    folder: str,
    assign: Callable[[Array, Array], tuple[Array, Array]],
    chunk: int,
    before: Array,
) -> Array:
    """Write the rows of a chunk to their places, and return the sum of the written words per partition, for `seal`.

    ``assign(groups, before)`` returns partition and place of each row, given the rows' groups and how many rows of each
    group earlier chunks have; those of this chunk are added. With a single group, `count_groups` need not have run.
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
    place = place[order] % partitions.chunk_rows
    target = target[order]
    columns = {"X": block.X, "y": y, "weight": weight, "row": block.first + np.arange(len(y))}
    starts = np.flatnonzero(np.diff(target, prepend=-1))
    sums = np.zeros(len(partitions.counts), np.uint32)
    for start, stop in pairwise([*starts.tolist(), len(rows)]):
        i = int(target[start])
        for name, values in columns.items():
            written = values[rows[start:stop]].astype(partitions.array(name).dtype, copy=False)
            _place_rows(partitions, name, i, place[start:stop], written)
            sums[[i // partitions.chunks_each]] += word_sum(written)  # an array wraps without a warning
    return sums


def seal(partitions: StoredPartitions, k: int, expected: int) -> int:
    """Append checksums to the chunks of partition ``k``, so that later damage is found, and return its number of rows.

    Raises StoreError if the words in the partition do not add up to ``expected``, the sum that `scatter` tasks wrote.
    """
    found = np.zeros(1, np.uint32)
    for name in ("X", "y", *_COLUMNS):
        layout = partitions.array(name)
        for i, _ in partitions.pieces(k, k + 1):
            with _opened(partitions, layout, i) as file:
                data = np.frombuffer(file.read(layout.chunk_nbytes), np.uint8)
                file.seek(layout.chunk_nbytes)
                file.write(crc32c(data).to_bytes(CHECKSUM_BYTES, "little"))
            if len(data) == layout.chunk_nbytes:
                found += word_sum(data.view(layout.dtype))
    if int(found[0]) != expected:
        raise StoreError(
            f"scratch folder '{partitions.path}': rows of partition {k} were lost while workers wrote them. Choose a "
            "folder (Dask's temporary-directory) on a file system that shows every worker what the others write, "
            "without a cache between."
        )
    return partitions.counts[k]


def word_sum(values: Array) -> np.uint32:
    """Return the sum, modulo 2³², of the 4-byte words of an array, or of its bytes if its items are single bytes."""
    words = np.ascontiguousarray(values).ravel().view(np.uint8 if values.itemsize == 1 else np.uint32)
    total: np.uint32 = np.add.reduce(words, dtype=np.uint32)
    return total


def _place_rows(partitions: StoredPartitions, name: str, i: int, places: Array, values: Array) -> None:
    """Write ``values`` to ``places`` of chunk ``i``."""
    layout = partitions.array(name)
    with _opened(partitions, layout, i) as file:
        size = layout.chunk_nbytes + CHECKSUM_BYTES
        reserve(file.fileno(), size, alone=False)
        with mmap.mmap(file.fileno(), size) as memory:
            chunk = np.frombuffer(memory, layout.dtype, int(np.prod(layout.chunks))).reshape(layout.chunks)
            chunk[places] = values
            del chunk  # or the map cannot be closed


def _opened(partitions: StoredPartitions, layout: ArrayLayout, i: int) -> Any:
    key = layout.chunk_key(i)
    try:
        descriptor = os.open(os.path.join(partitions.path, key), os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:  # the folder is not there yet
        descriptor = os.open(make_folders(partitions.path, key), os.O_RDWR | os.O_CREAT, 0o644)
    return BufferedRandom(WholeFile(descriptor, "r+b"))
