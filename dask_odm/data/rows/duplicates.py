"""Equal rows, found by their hashes and checked: one with the sum of their weights is the same problem."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from dask_odm.typing import Array

_ROWS = 4096  # compared at a time


@numba.njit(nogil=True, cache=True)
def _hash_rows(words: Array, odd: Array, out: Array) -> None:
    for i in range(words.shape[0]):
        row = words[i]
        total = out[i]
        for j in range(row.size):
            mixed = (np.uint64(row[j]) + np.uint64(j)) * odd[j]
            total = (total ^ (mixed >> np.uint64(31)) ^ mixed) * np.uint64(0x9E3779B97F4A7C15)
        out[i] = total


def merge_equal(X: Array, y: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first of all equal rows of ``X`` (n, d) with equal ``y`` (n,), ascending; and which of them each row is.

    Rows are equal where their bits are.
    """
    rows = np.ascontiguousarray(X)
    words = rows.view(np.uint32 if rows.itemsize == 4 else np.uint64)
    odd = np.random.default_rng(0).integers(0, 1 << 63, X.shape[1], np.uint64) * np.uint64(2) + np.uint64(1)
    hashes = np.where(y > 0, np.uint64(1), np.uint64(0))
    _hash_rows(words, odd, hashes)
    _, first, of = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first, of = first[order], place[of]
    again = np.flatnonzero(first[of] != np.arange(len(y)))
    steps = (again[i : i + _ROWS] for i in range(0, len(again), _ROWS))
    if not all((words[first[of[i]]] == words[i]).all() and (y[first[of[i]]] == y[i]).all() for i in steps):
        return np.arange(len(y)), np.arange(len(y))  # two rows of one hash: of 2**64, or made on purpose
    return first, of
