"""Loss of a fitted model's own predictions, summed in a pass over all rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import issparse

from dask_odm.learning.problem.losses import Loss
from dask_odm.linalg.row_passes import RowBlock

if TYPE_CHECKING:
    from dask_odm.models.base import Model


@dataclass(frozen=True, eq=False)
class PredictedLoss:
    """Losses of rows at the values that ``model``, of one output, predicts."""

    model: Model
    loss: Loss

    def total(self, blocks: Iterable[RowBlock]) -> float:
        """Return the sum of the losses of the blocks."""
        total = 0.0
        for block in blocks:
            X = block.X if issparse(block.X) else np.ascontiguousarray(block.X)
            scores = self.model.values(X)[:, 0].astype(np.float64)
            total += self.loss.evaluate(scores, block.y, block.weight)[0]
        return total
