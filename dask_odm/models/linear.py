"""The linear model: weights of raw features and an intercept for every output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dask_odm.models.base import require_finite_parts
from dask_odm.models.pairs import class_scores, require_pairs
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class LinearModel:
    """The model ``f(x) = weights x + intercept`` on raw rows; a `dask_odm.models.base.Model`.

    There are ``weights`` (machines, d) and an ``intercept`` (machines,), float64. With ``pairs`` classes, machines are
    one against one, and an output is the score of a class, see `dask_odm.models.pairs`; with 0, that of a machine.
    """

    weights: Array
    intercept: Array
    pairs: int = 0
    kind: ClassVar[str] = "linear"
    parts: ClassVar[tuple[str, ...]] = ("weights", "intercept")  # names of the arrays of its record

    @property
    def outputs(self) -> int:
        return self.pairs or len(self.weights)

    @property
    def features(self) -> int:
        return int(self.weights.shape[1])

    @property
    def nbytes(self) -> int:
        return int(self.weights.nbytes + self.intercept.nbytes)

    def values(self, X: Any, threads: int = 1) -> Array:
        """Return the values of raw rows ``X`` (n, d), dense or CSR: (n, outputs), in the rows' dtype."""
        if len(self.weights) == 1:  # BLAS and SciPy multiply faster with a vector than with a narrow matrix
            return np.asarray(X @ self.weights[0] + self.intercept[0]).astype(X.dtype)[:, None]
        if self.pairs:
            step = 1 << 14  # rows whose scores of all machines are held at a time: machines may be many
            slabs = (X[start : start + step] for start in range(0, max(1, X.shape[0]), step))
            return np.concatenate([self._of_classes(slab) for slab in slabs])
        return np.asarray(X @ self.weights.T + self.intercept).astype(X.dtype)

    def _of_classes(self, X: Any) -> Array:
        scores = np.asarray(X @ self.weights.T + self.intercept)
        return class_scores(np.ascontiguousarray(scores.T), self.pairs).T.astype(X.dtype)

    def arrays(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.parts}

    def description(self) -> dict[str, Any]:
        return {"kind": self.kind} | ({"pairs": self.pairs} if self.pairs else {})

    @classmethod
    def from_parts(cls, description: dict[str, Any], arrays: dict[str, Any]) -> LinearModel:
        """Build the model from its `arrays` and `description`; raise ValueError if they do not fit each other."""
        weights, intercept = (arrays[name] for name in cls.parts)
        if weights.ndim != 2 or not weights.size or intercept.shape != (len(weights),):
            raise ValueError(f"weights of shape {weights.shape} and an intercept of shape {intercept.shape}")
        require_finite_parts(arrays)
        return cls(weights, intercept, require_pairs(len(weights), description.get("pairs", 0)))
