"""Sums of blocks of rows that have the same bits however the blocks are divided among tasks.

The sum of a block is a leaf of a binary tree over all rows, and `MomentSums` holds the largest subtrees that are
complete. More rows continue the sum of those before them as if all had come at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_odm.linalg.row_passes import RowBlock
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Tail:
    """The rows behind the last whole block: moments of their whole pieces, and of all of them, with the other rows.

    ``place`` is the number of their block. ``rows`` may be followed by others in their piece.
    """

    place: int
    begun: Array
    sums: Array
    rows: RowBlock


@dataclass(frozen=True, eq=False)
class MomentSums:
    """Moments of some blocks of rows, (shards, k, k) each. They add up to the same bits in any order.

    ``nodes`` has the sum of the 2**level blocks from ``place * 2**level`` on for keys ``(level, place)``, none of which
    is part of a larger one.
    """

    nodes: dict[tuple[int, int], Array]
    tail: Tail | None = None

    def __add__(self, other: MomentSums) -> MomentSums:
        nodes = dict(self.nodes)
        for key, sums in other.nodes.items():
            join(nodes, key, sums)
        return MomentSums(nodes, self.tail or other.tail)

    def total(self, k: int) -> Array:
        """Return the moments of all rows, (shards, k, k). Blocks that are missing at the end count as zero."""
        parts = [self.nodes[key] for key in self.order()]
        if self.tail is not None:
            parts.append(self.tail.sums)
        total = parts.pop()
        for sums in reversed(parts):
            total = sums + total
        lower = np.tril(total[:, :k, :k])
        return lower + np.tril(lower, -1).transpose(0, 2, 1)

    def order(self) -> list[tuple[int, int]]:
        """Return the keys of the nodes in the order of their rows."""
        return sorted(self.nodes, key=lambda key: key[1] << key[0])


def join(nodes: dict[tuple[int, int], Array], key: tuple[int, int], sums: Array) -> None:
    """Put ``sums`` among the nodes, together with its sibling if that is there, and so on upwards."""
    level, place = key
    while (sibling := nodes.pop((level, place ^ 1), None)) is not None:
        sums = sums + sibling
        level += 1
        place //= 2
    nodes[level, place] = sums
