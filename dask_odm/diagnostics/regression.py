"""Errors of a regressor's predictions, summed over the chunks of a store."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_odm.data.store.statistics import StatisticsAccumulator
from dask_odm.typing import Array


@dataclass
class Errors:
    """Sums of the errors of predictions, which are prediction minus target.

    Attributes
    ----------
    rows : int
        Rows that count.
    unlabelled : int
        Rows without a target; they do not count.
    weight, square, size, bias : float
        Sums over these rows of the weight, and of the squared, absolute and plain errors times the weight.
    """

    rows: int = 0
    unlabelled: int = 0
    weight: float = 0.0
    square: float = 0.0
    size: float = 0.0
    bias: float = 0.0
    _targets: StatisticsAccumulator = field(default_factory=lambda: StatisticsAccumulator(1))

    def add(self, y: Array, predicted: Array, weight: Array | None) -> None:
        """Add rows: targets (n,), NaN if unknown; predictions (n,); weights (n,), or None if all are 1."""
        known = ~np.isnan(y)
        self.unlabelled += len(y) - int(known.sum())
        known &= True if weight is None else weight > 0
        y, error = y[known].astype(np.float64), predicted[known].astype(np.float64) - y[known]
        weight = np.ones(len(y)) if weight is None else weight[known]
        self.rows += len(y)
        self.weight += float(weight.sum())
        self.square += float(weight @ error**2)
        self.size += float(weight @ np.abs(error))
        self.bias += float(weight @ error)
        self._targets.update(y[:, None], weight)

    @property
    def rmse(self) -> float:
        """Root mean squared error."""
        return math.sqrt(self.square / self.weight) if self.weight else math.nan

    @property
    def r2(self) -> float:
        """Share of the targets' variance that is explained, as in `score`."""
        spread = float(self._targets.result().variance[0]) * self.weight if self.weight else 0.0
        return 1.0 - self.square / spread if spread > 0 else float(self.square == 0)

    def facts(self) -> dict[str, Any]:
        """Return all results as plain values."""
        mean = (lambda total: total / self.weight) if self.weight else (lambda total: math.nan)
        facts: dict[str, Any] = {
            "rows": self.rows,
            "r2": self.r2,
            "rmse": self.rmse,
            "mean_absolute_error": mean(self.size),
            "mean_error": mean(self.bias),
            "unlabelled_rows": self.unlabelled,
        }
        if self.weight:
            found = self._targets.result()
            names = ("minimum", "mean", "variance", "maximum")
            facts["targets"] = {name: float(getattr(found, name)[0]) for name in names}
        return facts

    def table(self) -> str:
        """Return one line with the root mean squared error and that of predicting the mean."""
        spread = math.sqrt(float(self._targets.result().variance[0])) if self.weight else math.nan
        return f"root mean squared error {self.rmse:.6g}, by the mean alone {spread:.6g}"
