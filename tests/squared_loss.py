"""A second loss, which shows what a loss needs: the square of ridge regression, whose solution is in closed form."""

from dataclasses import dataclass, replace

import numpy as np

from dask_odm.learning.problem.losses import Loss
from dask_odm.typing import Array


@dataclass(frozen=True)
class SquaredLoss(Loss):
    """``½ λ c (score − y)²`` of a row of weight c with a real target: ridge regression, with λ the inverse of its α."""

    lam: float = 1.0

    def with_lam(self, lam: float) -> "SquaredLoss":
        return replace(self, lam=lam)

    def of_stiff_rows(self) -> "SquaredLoss":
        return SquaredLoss()

    def row_stiffness(self, y: Array, weight: Array) -> Array:
        return self.lam * weight if weight.size else np.full(len(y), self.lam)

    def evaluate(self, scores: Array, y: Array, weight: Array) -> tuple[float, Array, Array]:
        left = y - scores.astype(np.float64)
        stiffness = self.row_stiffness(y, weight)
        dual = stiffness * left
        return 0.5 * float(dual @ left), dual.astype(scores.dtype), stiffness.astype(scores.dtype)

    def slopes(self, scores: Array, change: Array, y: Array, weight: Array, steps: Array) -> Array:
        left = y - scores.astype(np.float64)
        wide = change.astype(np.float64)
        stiff = self.row_stiffness(y, weight) * wide
        return steps * float(stiff @ wide) - float(stiff @ left)

    def pack(self, curvature: Array, y: Array, weight: Array) -> Array:
        return np.empty(0)  # weights alone determine it

    def unpack(self, packed: Array, y: Array, weight: Array) -> Array:
        return self.row_stiffness(y, weight)
