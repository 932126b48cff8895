"""Merge rules of a tree: which rows a node passes up to its parent, and the dual variables its parent starts from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_odm.learning.solution import Solution
from dask_odm.typing import Array

PassUp = Callable[[Solution], Array | None]
Begin = Callable[[Solution, float], Array]


def pass_all(solution: Solution) -> None:
    """Pass up all rows of a node, as SODM does: return None for "no mask"."""


def pass_support(solution: Solution) -> Array:
    """Pass up the rows whose dual variables are not all zero, as a cascade does."""
    return np.asarray(solution.dual.any(axis=0))


def scaled_start(child: Solution, weight: float) -> Array:
    """Return a child's dual variables, rescaled to a problem of total ``weight``: see `Solution.rescaled`."""
    return child.rescaled(weight)


def plain_start(child: Solution, weight: float) -> Array:
    """Return a child's dual variables unchanged. Both papers start a merger so; they are too large by the fan-in."""
    return child.dual


def cold_start(child: Solution, weight: float) -> Array:
    """Return zeros, so that a merger uses nothing of its children's solutions."""
    return np.zeros_like(child.dual)
