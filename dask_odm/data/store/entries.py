"""Sparse rows of a store: CSR rows read from chunks of entries, with every bound and column checked before it is used.

The arrays ``X/data`` and ``X/indices`` are cut into chunks of as many entries each, wherever rows end. So the rows of a
chunk may begin and end within chunks of entries. A reader keeps the chunk of each array that it read last, since the
rows that come next begin in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_odm.data.store.layout import CHECKSUM_BYTES, ArrayLayout, Layout
from dask_odm.data.store.sealed import SealedFolder
from dask_odm.linalg.jit import compiled
from dask_odm.typing import Array


class EntryBuffer:
    """Memory of one reader of sparse rows, with the chunk of each array that it read last."""

    def __init__(self) -> None:
        self._raw: dict[str, Array] = {}
        self._held: dict[str, tuple[int, Array]] = {}
        self._joined: dict[str, Array] = {}

    def slice(self, folder: SealedFolder, array: ArrayLayout, start: int, stop: int, most: int) -> Array:
        """Return numbers ``start:stop`` of an array, up to ``most`` at a time; they are valid until the next read."""
        size = array.chunks[0]
        if stop <= start:
            return np.empty(0, array.dtype)
        if start // size == (stop - 1) // size:
            return self._chunk(folder, array, start // size)[start % size : start % size + stop - start]
        joined = self._joined.setdefault(array.name, np.empty(most, array.dtype))[: stop - start]
        at = start
        while at < stop:
            end = min(stop, (at // size + 1) * size)
            joined[at - start : end - start] = self._chunk(folder, array, at // size)[at % size : at % size + end - at]
            at = end
        return joined

    def _chunk(self, folder: SealedFolder, array: ArrayLayout, i: int) -> Array:
        number, values = self._held.get(array.name, (-1, np.empty(0)))
        if number != i:
            self._held.pop(array.name, None)  # its memory is about to be overwritten
            if array.name not in self._raw:
                self._raw[array.name] = np.empty(array.chunk_nbytes + CHECKSUM_BYTES, np.uint8)
            values = folder.numbers(array, i, self._raw[array.name])
            self._held[array.name] = i, values
        return values


def read_entries(folder: SealedFolder, layout: Layout, i: int, buffer: EntryBuffer) -> Any:
    """Read the rows of chunk ``i`` as a CSR array (rows, d) with ascending columns.

    It is valid until ``buffer`` is used again. Raises StoreError, naming the array and chunk, if files are damaged, or
    if bounds or columns are not those of such rows.
    """
    from scipy.sparse import csr_array  # not at the top: who reads dense rows needs no SciPy

    entries = layout.entries
    assert entries is not None
    data, indices, indptr = layout.of_entries().values()
    first = i * layout.chunk_rows
    last = min(first + layout.chunk_rows, layout.rows)
    bounds = buffer.slice(folder, indptr, first, last + 1, layout.chunk_rows + 1)
    start = int(bounds[0])
    stop = int(bounds[-1])
    ends = (first > 0 or start == 0) and (last < layout.rows or stop == entries.total)
    within = 0 <= start <= stop <= entries.total and stop - start <= entries.most
    if not (ends and within and (bounds[1:] >= bounds[:-1]).all()):
        raise folder.chunk(indptr, i).damage("bounds of rows that are impossible")
    local = (bounds - start).astype(np.int32)
    columns = buffer.slice(folder, indices, start, stop, entries.most)
    if not _ascend(columns, local, layout.features):
        raise folder.chunk(indices, start // entries.chunk).damage(
            f"columns of rows {first} to {last - 1} that are out of range or do not ascend"
        )
    values = buffer.slice(folder, data, start, stop, entries.most)
    X = csr_array((values, columns, local), shape=(last - first, layout.features))
    X.has_canonical_format = True
    return X


@compiled
def _ascend(columns: Array, bounds: Array, features: int) -> bool:
    """Return whether the columns of every row are within ``[0, features)`` and ascend."""
    sound = True
    for i in range(bounds.size - 1):
        before = -1
        for t in range(bounds[i], bounds[i + 1]):
            sound = sound and before < columns[t]
            before = columns[t]
        sound = sound and before < features
    return sound
