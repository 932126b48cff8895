"""Sums in a fixed tree: the same bits however the parts are dealt out to threads, tasks or workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def tree_sum(parts: Iterable[Any]) -> Any:
    """The sum of a power of two of parts, pair by pair; of a sequence made on the way, few are held at a time.

    Sums of aligned runs of parts, each a power of two long, add up to the same bits by another `tree_sum`.
    """
    held: list[tuple[int, Any]] = []  # sums of 2**level parts, the level falling
    for part in parts:
        level, total = 0, part
        while held and held[-1][0] == level:
            level, total = level + 1, held.pop()[1] + total
        held.append((level, total))
    ((_, total),) = held
    return total
