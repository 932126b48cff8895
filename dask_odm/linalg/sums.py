"""Sums in a fixed tree, whose bits do not depend on which thread, task or worker computes which part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def tree_sum(parts: Iterable[Any]) -> Any:
    """Add ``parts``, a power of two in number, pair by pair. Of a generator, only a few parts are held at a time.

    Aligned runs of parts, each a power of two long, may be summed first: a `tree_sum` of their sums has the same bits.
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
