"""User kernels: precomputed values, or a function; for rows in memory only.

Both have the interface of any kernel. The "rows" of a precomputed kernel are row numbers in a single column, and its
tiles are looked up.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dask_odm.errors import InputError
from dask_odm.kernels.base import BLOCK, Kernel
from dask_odm.typing import Array

_ASYMMETRY = 1e-4  # share of the largest value by which κ(x, z) and κ(z, x) may differ


@dataclass(frozen=True)
class _Given(Kernel):
    """Base of both user kernels, whose tiles come from `_values` of two sets of rows."""

    @abstractmethod
    def _values(self, left: Array, right: Array) -> Array:
        """Return the values (n, m) between rows, without the bias."""

    def tile_packed(self, left: Array, right: Array, out: Array | None = None) -> Array:
        out = np.empty((len(left), len(right)), left.dtype) if out is None else out
        out[...] = self._values(left, right)
        self.finish(out)
        return out

    def parameters(self) -> dict[str, Any]:
        raise InputError(f"a model of a {self.name} kernel cannot be saved, since its kernel is not known by name.")


@dataclass(frozen=True, eq=False)
class Precomputed(_Given):
    """κ(i, j) = matrix[i, j] + bias; a row is its number, in a float column of shape (n, 1)."""

    matrix: Array = None  # type: ignore[assignment]  # (n, n), symmetric and positive semi-definite
    name: ClassVar[str] = "precomputed"

    def _values(self, left: Array, right: Array) -> Array:
        return self.matrix[np.ix_(left[:, 0].astype(np.int64), right[:, 0].astype(np.int64))]

    def diagonal(self, X: Array) -> Array:
        numbers = X[:, 0].astype(np.int64)
        return self.matrix[numbers, numbers].astype(np.float64) + self.bias

    def check(self) -> None:
        """Raise InputError unless the matrix is square, symmetric and has no negative diagonal entry."""
        n, m = self.matrix.shape
        if n != m:
            raise InputError(
                f"Precomputed matrix must be a square matrix. Input is a {n}x{m} matrix; to predict, pass values of "
                "shape (rows, training rows)."
            )
        diagonal = self.matrix.diagonal()
        if n and diagonal.min() < 0:
            raise InputError(f"the precomputed kernel has a negative diagonal entry in row {int(diagonal.argmin())}.")
        for start in range(0, n, BLOCK):
            rows = self.matrix[start : start + BLOCK]
            difference = np.abs(rows - self.matrix[:, start : start + BLOCK].T)
            if difference.max() > _ASYMMETRY * max(float(np.abs(rows).max()), np.finfo(float).tiny):
                i, j = np.unravel_index(int(difference.argmax()), difference.shape)
                raise InputError(f"the precomputed kernel is not symmetric: see entry ({start + i}, {j}).")


@dataclass(frozen=True)
class CallableKernel(_Given):
    """κ(X, Z) = function(X, Z) + bias.

    ``function`` takes rows (n, d) and (m, d), and returns values (n, m) of a positive semi-definite kernel.
    """

    function: Callable[[Array, Array], Array] = None  # type: ignore[assignment]
    name: ClassVar[str] = "callable"

    def _values(self, left: Array, right: Array) -> Array:
        values = np.asarray(self.function(left, right))
        if values.shape != (len(left), len(right)) or values.dtype.kind not in "fiub":
            raise InputError(
                f"kernel must return numbers of shape {(len(left), len(right))} for rows of shape {left.shape} and "
                f"{right.shape}. Got shape {values.shape} and dtype {values.dtype} instead."
            )
        if not np.isfinite(values).all():
            raise InputError("kernel returned NaN or infinity.")
        return values

    def check(self, X: Any) -> None:
        """Raise InputError unless values between a sample of the rows ``X`` (n, d) are symmetric and semi-definite."""
        # values between 256 rows are checked
        rows = X[np.unique(np.linspace(0, len(X) - 1, min(len(X), 256)).astype(int))]
        values = self._values(rows, rows).astype(np.float64)
        size = max(float(np.abs(values).max()), np.finfo(float).tiny)
        if np.abs(values - values.T).max() > _ASYMMETRY * size:
            raise InputError("kernel: the function is not symmetric: κ(x, z) and κ(z, x) differ.")
        least = float(np.linalg.eigvalsh(0.5 * (values + values.T))[0])
        # float32 rounding of a positive semi-definite matrix gives smaller negative eigenvalues
        if least < -1e-5 * size * len(rows):
            raise InputError(
                f"kernel: the function is not positive semi-definite: of its values between {len(rows)} rows the least "
                f"eigenvalue is {least:.2g}."
            )

    def diagonal(self, X: Array) -> Array:
        found = np.empty(len(X))
        for start in range(0, len(X), 64):  # 64 rows per call, whose diagonal is wanted alone
            rows = X[start : start + 64]
            found[start : start + 64] = self._values(rows, rows).diagonal()
        return found + self.bias
