"""What scores and probabilities are worth, gathered block by block: ROC, log loss, Brier score, reliability.

No score is kept. Decision values are counted in a million bins of their leading bits, which order them as they are:
the area under the ROC is exact but for pairs of rows within a bin, whose scores agree to three digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dask_odm.typing import Array

BITS = 20  # of a float32 that tell its bin: sign, exponent and 11 bits of the mantissa
RELIABILITY_BINS = 15
SMALLEST = 1e-15  # the smallest probability that the log loss knows


@dataclass
class RocCounts:
    """Weights of negative and of positive rows by their scores, (2, bins)."""

    counts: Array = field(default_factory=lambda: np.zeros((2, 1 << BITS)))

    def add(self, positive: NDArray[np.bool_], scores: Array, weight: Array) -> None:
        """Add rows of two classes."""
        bins = bins_of(scores)
        for row, mine in ((0, ~positive), (1, positive)):
            np.add.at(self.counts[row], bins[mine], weight[mine])

    def curve(self) -> tuple[Array, Array]:
        """Shares of the negative and of the positive rows above each score that was met, from 0 to 1."""
        met = np.flatnonzero(self.counts.any(axis=0))[::-1]
        above = np.concatenate([np.zeros((2, 1)), np.cumsum(self.counts[:, met], axis=1)], axis=1)
        above /= np.maximum(above[:, -1:], np.finfo(np.float64).tiny)
        return above[0], above[1]

    @property
    def area(self) -> float | None:
        """Area under the curve; None where a class has no row."""
        if not self.counts.any(axis=1).all():
            return None
        false, true = self.curve()
        return float(np.trapezoid(true, false))


@dataclass
class ProbabilityCounts:
    """Sums over rows of what their probabilities say of their classes.

    Attributes
    ----------
    weight, log_loss_sum, brier_sum : float
        Of all rows; losses before they are divided by the weight.
    bins : ndarray of shape (3, RELIABILITY_BINS)
        By the probability of the second of two classes, else of the most probable class: weight, sum of these
        probabilities, weight of the rows that are of that class.
    """

    weight: float = 0.0
    log_loss_sum: float = 0.0
    brier_sum: float = 0.0
    bins: Array = field(default_factory=lambda: np.zeros((3, RELIABILITY_BINS)))

    def add(self, true: Array, found: Array, weight: Array) -> None:
        """Add rows: numbers of their classes (n,), probabilities (n, classes) and weights (n,)."""
        rows = np.arange(len(true))
        own = found[rows, true]
        self.weight += float(weight.sum())
        self.log_loss_sum -= float(weight @ np.log(np.maximum(own, SMALLEST)))
        squares = (found**2).sum(axis=1) - 2.0 * own + 1.0  # Σ over classes of (p − 1[true])²
        self.brier_sum += float(weight @ squares) / (2.0 if found.shape[1] == 2 else 1.0)
        chosen = np.ones(len(true), np.int64) if found.shape[1] == 2 else found.argmax(axis=1)
        said = found[rows, chosen]
        at = np.minimum((said * RELIABILITY_BINS).astype(np.int64), RELIABILITY_BINS - 1)
        for row, values in enumerate((weight, weight * said, weight * (true == chosen))):
            self.bins[row] += np.bincount(at, values, RELIABILITY_BINS)

    @property
    def log_loss(self) -> float:
        """Mean of −log of the probability of a row's own class."""
        return self.log_loss_sum / self.weight

    @property
    def brier(self) -> float:
        """Mean squared error of the probability, of two classes; of more, summed over the classes."""
        return self.brier_sum / self.weight

    @property
    def calibration_error(self) -> float:
        """Mean distance of probabilities from shares, bin by bin: the expected calibration error."""
        return float(np.abs(self.bins[1] - self.bins[2]).sum() / self.weight)

    def reliability(self) -> tuple[Array, Array, Array]:
        """Of bins that have rows: mean probability, share of rows of the class, and weight."""
        met = self.bins[:, self.bins[0] > 0]
        return met[1] / met[0], met[2] / met[0], met[0]


def bins_of(scores: Array) -> NDArray[np.int64]:
    """The bin of every score, ascending as scores are."""
    bits = np.ascontiguousarray(scores, dtype=np.float32) + np.float32(0.0)  # −0 becomes 0
    words = bits.view(np.uint32)
    ordered = np.where(words >> 31, ~words, words | np.uint32(1 << 31))
    found: NDArray[np.int64] = (ordered >> (32 - BITS)).astype(np.int64)
    return found
