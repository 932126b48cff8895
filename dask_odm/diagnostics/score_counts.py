"""Sums over rows from which scores are told: the ROC, probabilities, and a regressor's errors.

No score is kept for the ROC. Decision values are counted in a million bins by their leading bits, which keep their
order. The area under the curve is exact except for pairs of rows within a bin, whose scores agree to three digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_odm.data.store.statistics import StatisticsAccumulator
from dask_odm.diagnostics.summaries import Results
from dask_odm.linalg.rows import uniforms_of
from dask_odm.typing import Array

SHOWN_POINTS = 2000  # of a picture of predictions; more hide each other
SCORE_BITS = 20  # leading bits of a float32 that decide its bin: sign, exponent and 11 bits of the mantissa


@dataclass
class RocCounts:
    """Weights of negative and of positive rows by the bins of their scores, (2, bins)."""

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


def bins_of(scores: Array) -> NDArray[np.int64]:
    """Return the bin of every score. Bins ascend as scores do."""
    bits = np.ascontiguousarray(scores, dtype=np.float32) + np.float32(0.0)  # −0 becomes 0
    words = bits.view(np.uint32)
    ordered = np.where(words >> 31, ~words, words | np.uint32(1 << 31))
    return (ordered >> (32 - SCORE_BITS)).astype(np.int64)


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

    def facts(self) -> dict[str, float]:
        """Return log loss, Brier score (of more than two classes their sum) and expected calibration error."""
        error = float(np.abs(self.bins[1] - self.bins[2]).sum())
        sums = {"log_loss": self.log_loss_sum, "brier": self.brier_sum, "calibration_error": error}
        return {name: value / self.weight for name, value in sums.items()}

    def reliability(self) -> tuple[Array, Array, Array]:
        """Return mean probability, share of rows of the class, and weight of the bins that have rows."""
        met = self.bins[:, self.bins[0] > 0]
        return met[1] / met[0], met[2] / met[0], met[0]


@dataclass
class Errors(Results):
    """A regressor's errors, prediction minus target, over the rows that have a target and a positive weight.

    ``moments`` are the weighted statistics of the target, the error, its size and its square. ``intervals`` has, by
    coverage, the weight of all rows, that of rows with their target inside, and the summed widths. ``points`` (3, n)
    are target, prediction and a hash of up to `SHOWN_POINTS` rows, drawn by their hashes.
    """

    rows: int = 0
    unlabelled: int = 0
    moments: StatisticsAccumulator = field(default_factory=lambda: StatisticsAccumulator(4))
    intervals: dict[float, Array] = field(default_factory=dict)
    points: Array = field(default_factory=lambda: np.empty((3, 0)))

    def add(
        self, y: Array, predicted: Array, weight: Array | None, intervals: Mapping[float, Array] | None = None
    ) -> None:
        """Add rows: targets (n,), NaN if unknown; predictions (n,); weights (n,), or None if all are 1.

        ``intervals`` are their ends (n, 2), by coverage.
        """
        hashes = uniforms_of(self.rows + self.unlabelled + np.arange(len(y)), 0)
        known = ~np.isnan(y)
        self.unlabelled += len(y) - int(known.sum())
        known &= True if weight is None else weight > 0
        y = y[known].astype(np.float64)
        error = predicted[known].astype(np.float64) - y
        self.rows += len(y)
        points = np.concatenate([self.points, np.stack([y, y + error, hashes[known]])], axis=1)
        self.points = points[:, np.argsort(points[2], kind="stable")[:SHOWN_POINTS]]
        shares = np.ones(len(y)) if weight is None else weight[known]
        for coverage, ends in (intervals or {}).items():
            low, high = ends[known].T.astype(np.float64)
            sums = np.stack([np.ones(len(y)), (low <= y) & (y <= high), high - low]) @ shares
            self.intervals[coverage] = self.intervals.get(coverage, np.zeros(3)) + sums
        columns = np.column_stack([y, error, np.abs(error), error**2])
        self.moments.update(columns, None if weight is None else weight[known])

    def facts(self) -> dict[str, Any]:
        """Return all results as plain values; ``r2`` is the share of the targets' variance that is explained."""
        error, size, square = self.moments.result().mean[1:].tolist() if self.rows else [math.nan] * 3
        spread = self.variance
        return {
            "rows": self.rows,
            "r2": 1.0 - square / spread if spread > 0 else float(square == 0),
            "rmse": math.sqrt(square),
            "mean_absolute_error": size,
            "mean_error": error,
            "unlabelled_rows": self.unlabelled,
            # by coverage, how many rows' intervals hold their target, and how wide they are on average
            **({"intervals": coverage_facts(self.intervals, ("held", "width"))} if self.intervals else {}),
            **({"targets": range_facts(self.moments)} if self.rows else {}),
        }

    @property
    def variance(self) -> float:
        """Weighted variance of the targets."""
        return float(self.moments.result().variance[0]) if self.rows else 0.0

    def table(self) -> str:
        """Return one line with the root mean squared error and that of predicting the mean."""
        spread = math.sqrt(self.variance) if self.rows else math.nan
        return f"root mean squared error {self.facts()['rmse']:.6g}, by the mean alone {spread:.6g}"


def coverage_facts(sums: Mapping[float, Array], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return means by name for each coverage, from the weight of all rows and weighted sums."""
    told = {f"{coverage:g}": each[1:] / each[0] for coverage, each in sums.items() if each[0] > 0}
    return {coverage: dict(zip(names, means.tolist(), strict=True)) for coverage, means in told.items()}


def range_facts(values: StatisticsAccumulator) -> dict[str, float]:
    """Return least, mean and largest value of a column, and its variance."""
    found = values.result()
    return {name: float(getattr(found, name)[0]) for name in ("minimum", "mean", "variance", "maximum")}
