"""Minimum, maximum, mean and variance of every feature, computed block by block.

Blocks are merged by the pairwise update of Chan, Golub and LeVeque (1983), "Algorithms for computing the sample
variance", The American Statistician 37, so nothing cancels however far the data are from zero. Figures that overflow
are infinite or NaN, without a warning; code that divides by them checks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Statistics:
    """Per-feature statistics of the rows of a store, each float64 of shape ``(d,)``.

    The variance is the population's (``ddof=0``), as `numpy.var` gives it.
    """

    minimum: npt.NDArray[np.float64]
    maximum: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    variance: npt.NDArray[np.float64]

    @property
    @np.errstate(over="ignore", invalid="ignore")
    def total_variance(self) -> float:
        """Variance of all entries of X together, by which ``gamma="scale"`` divides."""
        return float(self.variance.mean() + self.mean.var())


class StatisticsAccumulator:
    """Accumulator of `Statistics` over blocks. The result depends on block bounds only by rounding."""

    def __init__(self, features: int) -> None:
        self.count = 0.0
        self._minimum = np.full(features, np.inf)
        self._maximum = np.full(features, -np.inf)
        self._mean = np.zeros(features)
        self._squares = np.zeros(features)

    @np.errstate(over="ignore", invalid="ignore")
    def update(self, block: npt.NDArray[Any], weight: npt.NDArray[np.float64] | None = None) -> None:
        """Add the rows of ``block``, shape (rows, d), of any float dtype. A row of ``weight`` 2 counts as two rows.

        Rows of weight zero should have been left out, since the minimum and the maximum would include them.
        """
        if len(block) == 0:
            return
        np.minimum(self._minimum, block.min(axis=0), out=self._minimum)
        np.maximum(self._maximum, block.max(axis=0), out=self._maximum)
        step = max(16, (1 << 20) // (8 * block.shape[1]))  # a float64 tile stays in a core's cache for all passes
        for start in range(0, len(block), step):
            rows = slice(start, start + step)
            self._add_moments(*_moments(block[rows], None if weight is None else weight[rows]))

    @np.errstate(over="ignore", invalid="ignore")
    def merge(self, other: StatisticsAccumulator) -> None:
        """Add the rows that ``other`` has accumulated."""
        np.minimum(self._minimum, other._minimum, out=self._minimum)
        np.maximum(self._maximum, other._maximum, out=self._maximum)
        if other.count:
            self._add_moments(other.count, other._mean, other._squares)

    def result(self) -> Statistics:
        """Return the statistics of all rows so far; raise ValueError if there were none."""
        if self.count == 0:
            raise ValueError("no rows")
        mean = np.clip(self._mean, self._minimum, self._maximum)
        return Statistics(self._minimum.copy(), self._maximum.copy(), mean, self._squares / self.count)

    def _add_moments(self, count: float, mean: npt.NDArray[np.float64], squares: npt.NDArray[np.float64]) -> None:
        total = self.count + count
        delta = mean - self._mean
        self._mean += delta * (count / total)
        self._squares += squares + delta * (self.count * count / total) * delta  # in this order: 0 · ∞ is NaN
        self.count = total


def _moments(
    tile: npt.NDArray[Any], weight: npt.NDArray[np.float64] | None
) -> tuple[float, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return count, mean and sum of squared deviations. They are exact if a feature is constant."""
    origin = tile[0].astype(np.float64)
    deviation = tile - origin
    if weight is None:
        shift = deviation.mean(axis=0)
        deviation -= shift
        return len(tile), origin + shift, np.einsum("ij,ij->j", deviation, deviation)
    shift = weight @ deviation / weight.sum()
    deviation -= shift
    return float(weight.sum()), origin + shift, np.einsum("i,ij,ij->j", weight, deviation, deviation)
