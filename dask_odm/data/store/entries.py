"""Sparse rows of a store: CSR rows read from chunks of entries, with every bound and column checked before it is used.

The arrays ``X/data`` and ``X/indices`` are cut into chunks of as many entries each, wherever rows end. So the rows of a
chunk may begin and end within chunks of entries. A reader keeps the chunk of each array that it read last, since the
rows that come next begin in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_odm.data.store.layout import CHECKSUM_BYTES, ArrayLayout, Layout
from dask_odm.data.store.sealed import SealedFolder, room_for
from dask_odm.typing import Array


class EntryBuffer:
    """Memory of one reader of sparse rows: their entries, the columns of these, and the bounds of rows."""

    def __init__(self, layout: Layout) -> None:
        assert layout.entries is not None
        data, indices, indptr = layout.of_entries().values()
        self.data = _Window(data, layout.entries.most)
        self.indices = _Window(indices, layout.entries.most)
        self.indptr = _Window(indptr, layout.chunk_rows + 1)


class _Window:
    """Consecutive numbers of an array: the chunk that was read last, and room for ``most`` numbers before it.

    Of numbers that begin in earlier chunks, only those that are wanted move to this room when the next chunk is read.
    """

    def __init__(self, array: ArrayLayout, most: int) -> None:
        dtype = np.dtype(array.dtype).newbyteorder("<")
        before = most * dtype.itemsize
        room = room_for(before + array.chunk_nbytes + CHECKSUM_BYTES, before)
        self.array = array
        self._most = most
        self._numbers = room[: before + array.chunk_nbytes].view(dtype)
        self._chunk = room[before:]
        self._held = -1  # number of the chunk

    def slice(self, folder: SealedFolder, start: int, stop: int) -> Array:
        """Return numbers ``start:stop``, at most ``most`` of them; they are valid until the next read."""
        if stop <= start:
            return self._numbers[:0]
        size = self.array.chunks[0]
        first = start // size
        last = (stop - 1) // size
        if self._held != first:
            self._read(folder, first)
        for i in range(first + 1, last + 1):
            wanted = i * size - start
            end = self._most + size
            self._numbers[self._most - wanted : self._most] = self._numbers[end - wanted : end]
            self._read(folder, i)
        at = self._most - last * size
        return self._numbers[at + start : at + stop]

    def _read(self, folder: SealedFolder, i: int) -> None:
        self._held = -1  # its memory is about to be overwritten
        folder.chunk(self.array, i).numbers(self._chunk)
        self._held = i


def read_entries(folder: SealedFolder, layout: Layout, i: int, buffer: EntryBuffer) -> Any:
    """Read the rows of chunk ``i`` as a CSR array (rows, d) with ascending columns.

    It is valid until ``buffer`` is used again. Raises StoreError, naming the array and chunk, if files are damaged, or
    if bounds or columns are not those of such rows.
    """
    from scipy.sparse import csr_array  # not at the top: who reads dense rows needs no SciPy

    entries = layout.entries
    assert entries is not None
    first = i * layout.chunk_rows
    last = min(first + layout.chunk_rows, layout.rows)
    bounds = buffer.indptr.slice(folder, first, last + 1)
    start = int(bounds[0])
    stop = int(bounds[-1])
    ends = (first > 0 or start == 0) and (last < layout.rows or stop == entries.total)
    within = 0 <= start <= stop <= entries.total and stop - start <= entries.most
    if not (ends and within and (bounds[1:] >= bounds[:-1]).all()):
        raise folder.chunk(buffer.indptr.array, i).damage("bounds of rows that are impossible")
    local = (bounds - start).astype(np.int32)
    columns = buffer.indices.slice(folder, start, stop)
    if not _ascend(columns, local, layout.features):
        raise folder.chunk(buffer.indices.array, start // entries.chunk).damage(
            f"columns of rows {first} to {last - 1} that are out of range or do not ascend"
        )
    values = buffer.data.slice(folder, start, stop)
    X = csr_array((last - first, layout.features), dtype=layout.dtype)
    X.data, X.indices, X.indptr = values, columns, local  # given to its constructor, views of a buffer would be copied
    X.has_canonical_format = True
    return X


def _ascend(columns: Array, bounds: Array, features: int) -> bool:
    """Return whether the columns of every row are within ``[0, features)`` and ascend; ``bounds`` are sound."""
    if not columns.size:
        return True
    ascend = columns[1:] > columns[:-1]
    starts = bounds[(bounds > 0) & (bounds < columns.size)]
    ascend[starts - 1] = True  # between two rows, columns may fall
    return bool(ascend.all() and columns.min() >= 0 and columns.max() < features)
