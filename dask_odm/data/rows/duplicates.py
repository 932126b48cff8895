"""Find equal rows, so that each can be replaced by one row with the sum of their weights, which is the same problem."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dask_odm.typing import Array


def _hash_rows(words: Array, odd: Array, out: Array, cached: int = 1 << 15) -> None:
    """Add a hash of every row of ``words`` (n, d), modulo 2**64, to ``out`` (n,), for ``cached`` words at a time.

    Each word is mixed with its column.
    """
    columns = np.arange(words.shape[1], dtype=np.uint64)
    step = max(1, cached // max(1, words.shape[1]))
    for start in range(0, len(words), step):
        mixed = words[start : start + step] + columns
        mixed *= odd
        mixed ^= mixed >> np.uint64(31)
        mixed *= odd[::-1]
        mixed ^= mixed >> np.uint64(29)
        out[start : start + step] += mixed.sum(axis=1, dtype=np.uint64)


def merge_equal(X: Array, y: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first of each group of equal rows, ascending, and for every row the index of its group.

    Rows of ``X`` (n, d) are equal if all their bits and their ``y`` (n,) are. No rows are merged if two different rows
    have the same hash.
    """
    rows = np.ascontiguousarray(X)
    words = rows.view(np.uint32 if rows.itemsize == 4 else np.uint64)
    odd = np.random.default_rng(0).integers(0, 1 << 63, X.shape[1], np.uint64) * np.uint64(2) + np.uint64(1)
    hashes = np.array(y, np.float64).view(np.uint64)
    _hash_rows(words, odd, hashes)
    ordered = np.sort(hashes)
    if (ordered[1:] != ordered[:-1]).all():  # no duplicates, as in most data; `unique` would take longer
        return np.arange(len(y)), np.arange(len(y))
    _, first, of = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first = first[order]
    of = place[of]
    again = np.flatnonzero(first[of] != np.arange(len(y)))
    steps = (again[i : i + 4096] for i in range(0, len(again), 4096))  # comparing copies the rows
    if not all((words[first[of[i]]] == words[i]).all() and (y[first[of[i]]] == y[i]).all() for i in steps):
        return np.arange(len(y)), np.arange(len(y))  # different rows with equal hashes: very rare, or on purpose
    return first, of
