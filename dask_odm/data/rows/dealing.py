"""The shuffle that puts rows in the order of their partitions on disk, in bounded memory.

It takes the assignment of rows to partitions as a function. First, `count_groups` counts the rows of every chunk. Then
tasks `deal` the rows of a run of chunks into a file of its own, in segments, one for each chunk and piece that is to
be. At last, tasks `join` the segments of a piece: each opens one file of every run, however many chunks there are. All
of them are idempotent, no two write the same file, and files appear whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import vstack

from dask_odm.data.rows.stored import StoredPartitions
from dask_odm.data.rows.targets import Targets
from dask_odm.data.storage.files import appearing, load_array, make_folders, open_whole, save_array
from dask_odm.data.storage.staging import remove_folder
from dask_odm.data.store.store import Store, StoreBlock
from dask_odm.errors import StoreError
from dask_odm.typing import Array

_DEALT = "dealt"  # folder of the files of runs


def count_groups(
    store: Store, targets: Targets, group_of: Callable[[StoreBlock], Array], n_groups: int, folder: str, chunk: int
) -> Array:
    """Count the rows of a chunk per group, (n_groups,), and save each row's group (−1 if dropped) in ``folder``.

    Features are not read if there is a single group.
    """
    block = store.read(chunk) if n_groups > 1 else store.read_columns(chunk)
    keep, _, _ = targets(block)
    groups = np.where(keep, group_of(block) if n_groups > 1 else 0, -1).astype(np.int32)
    save_array(_groups_path(folder, chunk), groups)
    return np.bincount(groups[groups >= 0], minlength=n_groups)


def _groups_path(folder: str, chunk: int) -> str:
    return os.path.join(folder, f"groups-{chunk}.npy")


def deal(
    store: Store, targets: Targets, partitions: StoredPartitions, folder: str,
    assign: Callable[[Array, Array], tuple[Array, Array]], run: range, chunks: Iterable[int], before: Array,
) -> Array:  # fmt: skip
    """Write the rows of a ``run`` of chunks to a file, in segments, and return the entries of every piece.

    ``chunks`` yields the numbers of the run. ``assign(groups, before)`` returns partition and place of each row, given
    the rows' groups and how many rows of each group earlier chunks have; those of the run are added.

    The file begins with two tables, int64 (pieces + 1, chunks): where segments start, and how many rows were dealt
    before each. A segment ends where that of the next piece starts.
    """
    starts = np.empty((len(partitions.counts) * partitions.chunks_each + 1, len(run), 2), np.int64)
    entries = np.zeros(len(starts) - 1 if partitions.is_sparse else 1, np.int64)
    with appearing(make_folders(folder, _dealt(run))) as file:
        file.seek(starts.nbytes)
        at = starts.nbytes
        for j, chunk in enumerate(chunks):
            block = store.read(chunk)
            rows, records, bounds = _in_order(block, targets, partitions, folder, assign, chunk, before)
            starts[:, j, 1] = bounds
            for i, (a, b) in enumerate(pairwise(bounds.tolist())):
                starts[i, j, 0] = at
                if a < b:
                    X = block.X[rows[a:b]].astype(partitions.dtype, copy=False)
                    at += file.write(partitions.packed(X, records[a:b]))
                    if partitions.is_sparse:
                        entries[i] += X.nnz
            starts[-1, j, 0] = at
        file.seek(0)
        file.write(starts.tobytes())
    return entries


def _in_order(
    block: StoreBlock, targets: Targets, partitions: StoredPartitions, folder: str,
    assign: Callable[[Array, Array], tuple[Array, Array]], chunk: int, before: Array,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return the rows of a chunk that are kept, in the order of pieces, their records, and the bounds of pieces."""
    _, y, weight = targets(block)
    groups = load_array(_groups_path(folder, chunk))
    kept = np.flatnonzero(groups >= 0)
    partition, place = assign(groups[kept], before)
    before += np.bincount(groups[kept], minlength=len(before))
    target = partition.astype(np.int64) * partitions.chunks_each + place // partitions.chunk_rows
    order = np.argsort(target, kind="stable")
    rows = kept[order]
    records = np.empty(len(rows), partitions.record_type(placed=True))
    records["place"] = place[order] % partitions.chunk_rows
    records["weight"] = weight[rows]
    records["row"] = block.first + rows
    records["y"] = y[rows]
    bounds = np.searchsorted(target[order], np.arange(len(partitions.counts) * partitions.chunks_each + 1))
    return rows, records, bounds


def join(partitions: StoredPartitions, folder: str, runs: Sequence[range], i: int, count: int) -> None:
    """Write piece ``i``, of ``count`` rows, from its segments in all ``runs``. Raises StoreError if rows were lost."""
    parts = [part for chunks in runs for part in _segments(partitions, folder, chunks, i)]
    if sum(len(records) for _, records in parts) != count:
        raise StoreError(
            f"scratch folder '{partitions.path}': rows of piece {i} were lost while workers wrote them. Choose a "
            "folder (Dask's temporary-directory) on a file system that shows every worker what the others write, "
            "without a cache between."
        )
    records: Any = np.concatenate([records for _, records in parts])
    order = np.argsort(records["place"], kind="stable")
    held = [X for X, _ in parts]
    X = (vstack(held, format="csr") if partitions.is_sparse else np.concatenate(held))[order]
    kind = partitions.record_type()
    records = records[order][list(kind.names or ())].astype(kind)
    with appearing(make_folders(partitions.path, partitions.piece_key(i))) as file:
        file.write(partitions.packed(X, records))


def _segments(partitions: StoredPartitions, folder: str, chunks: range, i: int) -> Iterator[tuple[Any, Array]]:
    """Yield the segments of piece ``i`` in the order of those chunks of a run that have any of its rows."""
    n = len(chunks)
    with open_whole(os.path.join(folder, _dealt(chunks))) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(16 * n * i)
        bounds = np.frombuffer(file.read(32 * n).ljust(32 * n, b"\xff"), np.int64).reshape(2, n, 2)
        for chunk, (start, first), (stop, last) in zip(chunks, *bounds.tolist(), strict=True):
            what = f"segment {i} of chunk {chunk}"
            if not (0 <= start <= stop <= size and 0 <= last - first <= stop - start):
                raise partitions.damage(what)
            if start < stop:
                file.seek(start)
                data = np.empty(stop - start, np.uint8)
                file.readinto(data.data)
                yield partitions.unpacked(data, last - first, partitions.record_type(placed=True), what)


def forget_dealt(folder: str) -> None:
    """Remove the files that `deal` wrote, and what killed workers left beside them."""
    remove_folder(os.path.join(folder, _DEALT))


def _dealt(chunks: range) -> str:
    """Return the key of the file of a run."""
    return f"{_DEALT}/{chunks.start}"
