"""Quality of scores and probabilities, computed block by block: ROC, log loss, Brier score, reliability.

No score is kept. Decision values are counted in a million bins by their leading bits, which keep their order. The area
under the ROC is exact except for pairs of rows within a bin, whose scores agree to three digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dask_odm.typing import Array

SCORE_BITS = 20  # leading bits of a float32 that decide its bin: sign, exponent and 11 bits of the mantissa


@dataclass
class RocCounts:
    """Weights of negative and of positive rows by their scores, (2, bins)."""

    counts: Array = field(default_factory=lambda: np.zeros((2, 1 << SCORE_BITS)))

    def add(self, positive: NDArray[np.bool_], scores: Array, weight: Array) -> None:
        """Add rows of two classes."""
        bins = bins_of(scores)
        for row, mine in ((0, ~positive), (1, positive)):
            np.add.at(self.counts[row], bins[mine], weight[mine])

    def curve(self) -> tuple[Array, Array]:
        """Return the shares of negative and of positive rows above each score that occurred, from 0 to 1."""
        met = np.flatnonzero(self.counts.any(axis=0))[::-1]
        above = np.concatenate([np.zeros((2, 1)), np.cumsum(self.counts[:, met], axis=1)], axis=1)
        above /= np.maximum(above[:, -1:], np.finfo(np.float64).tiny)
        return above[0], above[1]

    @property
    def area(self) -> float | None:
        """Area under the curve; None if a class has no row."""
        if not self.counts.any(axis=1).all():
            return None
        false, true = self.curve()
        return float(np.trapezoid(true, false))


@dataclass
class ProbabilityCounts:
    """Sums over rows that compare probabilities with classes.

    For each bin of the probability (of the second of two classes, else of the most probable class), ``bins`` (3, 15)
    has the weight, the weighted sum of the probabilities, and the weight of the rows of that class.
    """

    weight: float = 0.0
    log_loss_sum: float = 0.0
    brier_sum: float = 0.0
    bins: Array = field(default_factory=lambda: np.zeros((3, 15)))

    def add(self, true: Array, found: Array, weight: Array) -> None:
        """Add rows: indices of their classes (n,), probabilities (n, classes) and weights (n,)."""
        rows = np.arange(len(true))
        own = found[rows, true]
        self.weight += float(weight.sum())
        self.log_loss_sum -= float(weight @ np.log(np.maximum(own, 1e-15)))
        squares = (found**2).sum(axis=1) - 2.0 * own + 1.0  # Σ over classes of (p − 1[true])²
        self.brier_sum += float(weight @ squares) / (2.0 if found.shape[1] == 2 else 1.0)
        chosen = np.ones(len(true), np.int64) if found.shape[1] == 2 else found.argmax(axis=1)
        said = found[rows, chosen]
        count = self.bins.shape[1]
        at = np.minimum((said * count).astype(np.int64), count - 1)
        for row, values in enumerate((weight, weight * said, weight * (true == chosen))):
            self.bins[row] += np.bincount(at, values, count)

    @property
    def log_loss(self) -> float:
        """Mean of −log of the probability of each row's own class."""
        return self.log_loss_sum / self.weight

    @property
    def brier(self) -> float:
        """Mean squared error of the probability of two classes; for more classes, summed over them."""
        return self.brier_sum / self.weight

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: the mean over rows of how far probability and share differ in their bin."""
        return float(np.abs(self.bins[1] - self.bins[2]).sum() / self.weight)

    def reliability(self) -> tuple[Array, Array, Array]:
        """Return mean probability, share of rows of the class, and weight of the bins that have rows."""
        met = self.bins[:, self.bins[0] > 0]
        return met[1] / met[0], met[2] / met[0], met[0]


def bins_of(scores: Array) -> NDArray[np.int64]:
    """Return the bin of every score. Bins ascend as scores do."""
    bits = np.ascontiguousarray(scores, dtype=np.float32) + np.float32(0.0)  # −0 becomes 0
    words = bits.view(np.uint32)
    ordered = np.where(words >> 31, ~words, words | np.uint32(1 << 31))
    found: NDArray[np.int64] = (ordered >> (32 - SCORE_BITS)).astype(np.int64)
    return found
