"""Sets of rows of partitions, which the nodes of a tree are made of, and rows that are read through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_odm.data.rows.memory import held_if_small
from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import Partitions
from dask_odm.linalg.rows import Rows, read_scattered
from dask_odm.typing import Array

Piece = tuple[int, int, Array | None]


@dataclass(frozen=True, eq=False)
class RowSet:
    """Set of rows of some partitions, in the order of all rows.

    Each piece (first, last, chosen) holds all rows of partitions ``first:last`` if ``chosen`` is None, else those at
    the ascending positions ``chosen`` within them. Pieces ascend. Whole partitions take no memory, however many rows
    they have.
    """

    pieces: tuple[Piece, ...]

    @classmethod
    def whole(cls, first: int, last: int) -> RowSet:
        """Return the set of all rows of partitions ``first:last``."""
        return cls(((first, last, None),))

    @classmethod
    def at(cls, positions: Array, counts: Sequence[int]) -> RowSet:
        """Return the rows at ascending ``positions`` among all rows; ``counts`` are the rows of each partition."""
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        cuts = np.searchsorted(positions, bounds)
        pieces: list[Piece] = []
        for k in np.flatnonzero(np.diff(cuts)).tolist():
            if cuts[k + 1] - cuts[k] < counts[k]:
                pieces.append((k, k + 1, positions[cuts[k] : cuts[k + 1]] - bounds[k]))
            elif pieces and pieces[-1][1] == k and pieces[-1][2] is None:
                pieces[-1] = (pieces[-1][0], k + 1, None)
            else:
                pieces.append((k, k + 1, None))
        return cls(tuple(pieces))

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last of consecutive partitions if the set is all of their rows, else None."""
        if len(self.pieces) == 1 and self.pieces[0][2] is None:
            return self.pieces[0][:2]
        return None

    def size(self, counts: Sequence[int]) -> int:
        """Return the number of rows in the set; ``counts`` are the rows of each partition."""
        return sum(sum(counts[a:b]) if chosen is None else len(chosen) for a, b, chosen in self.pieces)

    def positions(self, counts: Sequence[int]) -> NDArray[np.int64]:
        """Return ascending positions of the rows among all rows, int64; ``counts`` are the rows of each partition."""
        found = []
        for a, b, chosen in self.pieces:
            start = sum(counts[:a])
            found.append(np.arange(start, start + sum(counts[a:b])) if chosen is None else chosen + start)
        return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)

    def labels(self, partitions: Partitions) -> tuple[Array, Array]:
        """Return labels and weights of the rows, as `Partitions.labels` does."""
        if self.span:
            return partitions.labels(*self.span)
        columns = [
            [c if chosen is None else c[chosen] for c in partitions.labels(a, b)] for a, b, chosen in self.pieces
        ]
        y, weight = zip(*columns, strict=True)
        return np.concatenate(y), np.concatenate(weight)

    def rows(self, partitions: Partitions, scaling: Scaling | StoredScaling, memory: int) -> tuple[Rows, int]:
        """Return scaled rows, held in memory if they take at most ``memory`` bytes, and the bytes they take there."""
        if self.span:
            return partitions.rows(*self.span, scaling, memory)
        parts = ((partitions.rows(a, b, scaling, 0)[0], chosen) for a, b, chosen in self.pieces)
        return held_if_small(JoinedRows(tuple(parts)), memory)


def merged_span(sets: Sequence[RowSet]) -> tuple[int, int] | None:
    """Return the first and last of consecutive partitions whose rows are those of ``sets``, in order; else None."""
    spans = [rows.span for rows in sets if rows.span is not None]
    if not spans or len(spans) < len(sets) or any(a[1] != b[0] for a, b in pairwise(spans)):
        return None
    return spans[0][0], spans[-1][1]


def overlaps(sets: Sequence[RowSet], others: Sequence[RowSet]) -> list[list[int]]:
    """List, for each of ``sets``, the indices of ``others`` that share a partition with it. The rest share no row."""
    firsts = np.array([other.pieces[0][0] for other in others])
    lasts = np.array([other.pieces[-1][1] for other in others])

    def meet(a: RowSet, b: RowSet) -> bool:
        return any(x[0] < y[1] and y[0] < x[1] for x in a.pieces for y in b.pieces)

    found = []
    for rows in sets:
        near = np.flatnonzero((firsts < rows.pieces[-1][1]) & (rows.pieces[0][0] < lasts)).tolist()
        found.append([c for c in near if meet(rows, others[c])])
    return found


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """Rows of several parts, one after the other: those at ascending positions of each, or all where these are None."""

    parts: tuple[tuple[Rows, Array | None], ...]

    @cached_property
    def _starts(self) -> Array:
        sizes = [part.n if chosen is None else len(chosen) for part, chosen in self.parts]
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @property
    def n(self) -> int:
        return int(self._starts[-1])

    @property
    def d(self) -> int:
        return self.parts[0][0].d

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.parts[0][0].dtype

    def read(self, start: int, stop: int) -> Array:
        out = np.empty((stop - start, self.d), self.dtype)
        for (part, chosen), (first, end) in zip(self.parts, pairwise(self._starts.tolist()), strict=True):
            a = max(start, first)
            b = min(stop, end)
            if a >= b:
                continue
            if chosen is None:
                out[a - start : b - start] = part.read(a - first, b - first)
            else:
                read_scattered(part, chosen[a - first : b - first], out[a - start : b - start])
        return out
