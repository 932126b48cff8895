"""Sums in a fixed tree: the bits do not depend on how the parts are distributed to threads, tasks or workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def tree_sum(parts: Iterable[Any]) -> Any:
    """The sum of ``parts``, a power of two in number, pair by pair; of a generator only a few are held at a time.

    If aligned runs of parts, each a power of two long, are summed first, a `tree_sum` of these sums has the same bits.
    """
    held: list[tuple[int, Any]] = []  # sums of 2**level parts, the level falling
    for part in parts:
        level = 0
        total = part
        while held and held[-1][0] == level:
            level = level + 1
            total = held.pop()[1] + total
        held.append((level, total))
    ((_, total),) = held
    return total
