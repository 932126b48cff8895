"""Priority sampling: a weighted sample of rows that several workers draw together.

Every row has a uniform number, determined by a seed and the row's number. The rows with the largest weight over uniform
number are kept. Samples of parts of the rows merge into the sample of all, whoever drew them. With the weights of
`PrioritySample.weighted`, sums over the sample are unbiased.
Source: Duffield, Lund, Thorup, *Priority sampling for estimation of arbitrary subset sums*, J. ACM 2007.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dask_odm.typing import Array


def uniform_numbers(numbers: Array, seed: int) -> Array:
    """Return a float64 number in (0, 1) for each of ``numbers``, determined by it and ``seed``."""
    x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.random.SeedSequence(seed).generate_state(
        1, np.uint64
    )
    # SplitMix64's finaliser; the products are meant to wrap around
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54


@dataclass(frozen=True, eq=False)
class PrioritySample:
    """The rows of largest priority (m, d), m ≤ size + 1: one more than the sample's size, since the last sets the
    threshold.

    ``priority`` (m,) descends; ``y``, ``weight`` and ``numbers`` (m,) are the rows' targets, weights and numbers.
    """

    size: int
    rows: Array
    y: Array
    weight: Array
    priority: Array
    numbers: Array

    @classmethod
    def draw(
        cls, weight: Array, y: Array, first: int, read: Callable[[Array], Array], size: int, seed: int
    ) -> PrioritySample:
        """Draw rows, numbered from ``first``, by ``weight`` (n,); ``read`` returns rows at ascending positions."""
        at = np.flatnonzero(weight)
        priority = weight[at]
        step = 1 << 14  # all at once take several times the memory
        for start in range(0, len(at), step):
            some = slice(start, start + step)
            priority[some] /= uniform_numbers(first + at[some], seed)
        if len(at) > size + 1:
            # keep everything at the threshold and above, so that ties are decided by row number
            threshold = np.partition(priority, len(at) - size - 1)[len(at) - size - 1]
            best = np.flatnonzero(priority >= threshold)
            at = at[best]
            priority = priority[best]
        order = np.argsort(-priority, kind="stable")[: size + 1]
        chosen = at[order]
        ascending = np.sort(chosen)
        rows = read(ascending)[np.searchsorted(ascending, chosen)]
        return cls(size, rows, y[chosen], weight[chosen], priority[order], first + chosen)

    def __add__(self, other: PrioritySample) -> PrioritySample:
        priority = np.concatenate([self.priority, other.priority])
        best = np.argsort(-priority, kind="stable")[: self.size + 1]
        rows, y, weight, numbers = (
            np.concatenate([getattr(self, name), getattr(other, name)])[best]
            for name in ("rows", "y", "weight", "numbers")
        )
        return PrioritySample(self.size, rows, y, weight, priority[best], numbers)

    def weighted(self) -> tuple[Array, Array, Array]:
        """Return rows (m, d), m ≤ size, targets (m,), and weights (m,) by which sums estimate those over all rows."""
        if len(self.rows) <= self.size:
            return self.rows, self.y, self.weight
        return self.rows[:-1], self.y[:-1], np.maximum(self.weight[:-1], self.priority[-1])
