"""What a node of a tree of partitions hands up to the one above: which rows, and dual variables to start from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_odm.learning.solution import Solution
from dask_odm.typing import Array

PassUp = Callable[[Solution], Array | None]
Begin = Callable[[Solution, float], Array]


def pass_all(solution: Solution) -> None:
    """All rows of a node go up: SODM's rule."""


def pass_support(solution: Solution) -> Array:
    """Rows go up that have a dual variable other than zero: a cascade's rule."""
    return np.asarray(solution.dual.any(axis=0))


def scaled_start(child: Solution, weight: float) -> Array:
    """A child's dual variables as a problem of total ``weight`` needs them: see `Solution.rescaled`."""
    return child.rescaled(weight)


def plain_start(child: Solution, weight: float) -> Array:
    """A child's dual variables as they are: what both papers start a merger from, too large by the fan-in."""
    return child.dual


def cold_start(child: Solution, weight: float) -> Array:
    """Zeros: nothing of the children's solutions is used."""
    return np.zeros_like(child.dual)
