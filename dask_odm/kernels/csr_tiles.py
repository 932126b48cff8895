"""Dot products of CSR rows, for tiles of kernels that depend on them: linear, polynomial and RBF.

Rows on the right are packed feature by feature, in panels of up to 512 rows. A row on the left visits its own entries
alone: it looks each feature up among those of the panel, and adds its multiple of the panel's entries to 512 sums,
which stay in the first-level cache. So time grows with the entries, not with the number of features. A feature that
many rows of a panel have is stored as a dense column, since adding whole columns takes vector instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.kernels.loops import BLOCK
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.linalg.jit import compiled_in_order, inlined
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class CSRLeft:
    """``n`` rows for the left of a tile.

    ``terms`` (n,) are added to the products of every row, which are multiplied by ``factor`` first.
    """

    starts: Array
    features: Array
    values: Array
    terms: Array
    factor: float

    @classmethod
    def of(cls, X: CSRRows, factor: float, terms: Array) -> CSRLeft:
        return cls(X.starts, X.features, X.values, terms.astype(X.dtype), factor)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.terms)

    def __getitem__(self, rows: slice) -> CSRLeft:
        first, last, _ = rows.indices(len(self))
        return CSRLeft(self.starts[first : last + 1], self.features, self.values, self.terms[rows], self.factor)


@dataclass(frozen=True, eq=False)
class CSRPanels:
    """Rows packed for the right of a tile, in ``panels`` of 512; ``terms`` (n,) are added to the products of each."""

    panels: list[tuple[Array, ...]]
    terms: Array

    @classmethod
    def of(cls, X: CSRRows, terms: Array) -> CSRPanels:
        parts = (X.starts[first : first + BLOCK + 1] for first in range(0, len(X), BLOCK))
        return cls([_pack(part, X.features, X.values) for part in parts], terms.astype(X.dtype))

    def __len__(self) -> int:
        return len(self.terms)

    def __getitem__(self, rows: slice) -> CSRPanels:
        """Return a run of whole panels."""
        first, last, _ = rows.indices(len(self))
        return CSRPanels(self.panels[first // BLOCK : -(-last // BLOCK)], self.terms[rows])


def dot_products(left: CSRLeft, right: CSRPanels, out: Array) -> None:
    """Set ``out`` (n, m) to ``factor · x·z`` plus the terms of both rows."""
    factor = left.values.dtype.type(left.factor)
    for panel, first in zip(right.panels, range(0, len(right), BLOCK), strict=True):
        some = slice(first, first + BLOCK)
        _multiply(left.starts, left.features, left.values, *panel, factor, left.terms, right.terms[some], out, first)


@inlined
def _slot(table: Array, feature: int) -> int:
    """Return the place of a ``feature`` in a hash table (size, 3), or the free place where it belongs."""
    mask = table.shape[0] - 1
    at = ((np.uint32(feature) * np.uint32(2654435769)) >> np.uint32(8)) & mask
    while table[at, 0] != feature and table[at, 0] >= 0:
        at = (at + 1) & mask
    return at


@compiled_in_order
def _pack(starts: Array, features: Array, values: Array) -> Any:
    """Return a panel: its hash table, the rows and values of listed entries, and dense columns (columns, 512).

    Of every feature, the table (size, 3) has the number, and where its entries begin and end in the lists; of a dense
    column −1 − its number, and −1.
    """
    n = starts.size - 1
    size = 16
    while size < 2 * (starts[n] - starts[0]):
        size *= 2
    table = np.full((size, 3), -1, np.int32)
    for e in range(starts[0], starts[n]):
        at = _slot(table, features[e])
        if table[at, 0] < 0:
            table[at, 0] = features[e]
            table[at, 1] = 0
        table[at, 1] += 1
    listed = 0
    columns = 0
    for at in range(size):
        count = table[at, 1]
        if 16 * count > n:  # more than one row in sixteen has the feature
            table[at, 1] = -1 - columns
            columns += 1
        elif count > 0:
            table[at, 1] = table[at, 2] = listed
            listed += count
    rows = np.empty(listed, np.int32)
    entries = np.empty(listed, values.dtype)
    dense = np.zeros((columns, BLOCK), values.dtype)
    for i in range(n):
        for e in range(starts[i], starts[i + 1]):
            at = _slot(table, features[e])
            place = table[at, 1]
            if place < 0:
                dense[-1 - place, i] += values[e]
            else:
                to = table[at, 2]
                rows[to] = i
                entries[to] = values[e]
                table[at, 2] = to + 1
    return table, rows, entries, dense


@compiled_in_order
def _multiply(
    starts: Array, features: Array, values: Array, table: Array, rows: Array, entries: Array, dense: Array,
    factor: Any, left: Array, right: Array, out: Array, first: int,
) -> None:  # fmt: skip
    """Fill the columns from ``first`` on of ``out`` that belong to a panel."""
    sums = np.empty(BLOCK, values.dtype)
    m = right.size
    for i in range(left.size):
        sums[:] = 0
        for e in range(starts[i], starts[i + 1]):
            at = _slot(table, features[e])
            if table[at, 0] < 0:
                continue
            x = values[e]
            place = table[at, 1]
            if place < 0:
                column = dense[-1 - place]
                for j in range(BLOCK):
                    sums[j] += x * column[j]
            else:
                for q in range(place, table[at, 2]):
                    sums[rows[q]] += x * entries[q]
        term = left[i]
        into = out[i, first : first + m]
        for j in range(m):
            into[j] = factor * sums[j] + (term + right[j])
