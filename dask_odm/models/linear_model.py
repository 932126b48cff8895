"""Linear models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dask_odm.models.model import Model, checked_machines, require_finite_parts
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class LinearModel(Model):
    """The model ``f(x) = weights x + intercept`` on raw rows, with ``weights`` (machines, d), float64."""

    weights: Array
    intercept: Array
    pairs: int = 0
    lacking: tuple[int, ...] = ()
    wide: bool = False
    spread: bool = False
    kind: ClassVar[str] = "linear"
    slopes: ClassVar[str] = "weights"
    parts: ClassVar[tuple[str, ...]] = ("weights", "intercept")

    @property
    def features(self) -> int:
        return int(self.weights.shape[1])

    def machine_scores(self, X: Any, threads: int = 1) -> Array:
        if len(self.weights) == 1:  # BLAS and SciPy multiply faster with a vector than with a narrow matrix
            return np.asarray(X @ self.weights[0] + self.intercept[0])[None]
        return np.asarray(X @ self.weights.T + self.intercept).T

    @classmethod
    def from_parts(cls, description: dict[str, Any], arrays: dict[str, Any]) -> LinearModel:
        """Build the model from its `arrays` and `description`; raise ValueError if they do not fit each other."""
        weights, intercept = (arrays[name] for name in cls.parts)
        if weights.ndim != 2 or not weights.size or intercept.shape != (len(weights),):
            raise ValueError(f"weights of shape {weights.shape} and an intercept of shape {intercept.shape}")
        require_finite_parts(arrays)
        return cls(weights, intercept, **checked_machines(len(weights), description))
