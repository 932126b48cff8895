"""The kernels that have a name: linear, polynomial, Gaussian radial basis function (RBF) and Laplacian.

`loops.fill_tile` computes tiles of the two that depend on the distance between rows; there, a distance stays in a
register until it has become a kernel value. For many features `RBF` uses BLAS, which is faster then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dask_odm.kernels.base import BLOCK, Kernel, Panels
from dask_odm.kernels.loops import COLUMNS, LOG2, ROWS, exp2, fill_tile
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.typing import Array


@dataclass(frozen=True)
class Linear(Kernel):
    """κ(x, z) = x·z + bias."""

    name: ClassVar[str] = "linear"
    takes_csr: ClassVar[bool] = True

    def diagonal(self, X: Any) -> Array:
        return _square_norms(X) + self.bias


@dataclass(frozen=True)
class Polynomial(Kernel):
    """κ(x, z) = (gamma x·z + coef0)^degree + bias; positive semi-definite for coef0 ≥ 0."""

    gamma: float = 1.0
    coef0: float = 1.0
    degree: int = 3
    name: ClassVar[str] = "poly"
    takes_csr: ClassVar[bool] = True

    @property
    def product_factor(self) -> float:
        return self.gamma

    def pack_left(self, X: Any) -> Any:
        if isinstance(X, CSRRows):
            return super().pack_left(X)
        return np.multiply(X, X.dtype.type(self.gamma), order="C")

    def finish(self, tile: Array) -> None:
        tile += tile.dtype.type(self.coef0)
        base = tile.copy()
        for _ in range(self.degree - 1):
            tile *= base
        super().finish(tile)

    def diagonal(self, X: Any) -> Array:
        return (self.gamma * _square_norms(X) + self.coef0) ** self.degree + self.bias

    def float64_errors(self, far: Array) -> tuple[float, float]:
        largest = (self.gamma * float(far @ far) + self.coef0) ** self.degree
        return self.degree * (len(far) + 4.0), largest + self.bias


def _square_norms(X: Any) -> Array:
    """Return ‖x‖² of every row of ``X`` (n, d), float64 (n,)."""
    return X.square_norms() if isinstance(X, CSRRows) else np.einsum("ij,ij->i", X, X, dtype=np.float64)


FLOAT32_UNIT = 0.5 * float(np.finfo(np.float32).eps)  # unit roundoff
WIDE = 128  # the fewest features for which BLAS computes RBF tiles faster than the loop


@dataclass(frozen=True)
class _Radial(Kernel):
    """Base of kernels of x − z alone: tiles by the compiled loop."""

    gamma: float = 1.0
    of_distances: ClassVar[bool] = True

    @property
    def _factor(self) -> float | None:
        """Factor of the Manhattan distances that the loop is to sum, or None if it is to sum products."""
        return None

    def makes_panels(self, d: int) -> bool:
        """Return whether tiles come from the loop. It depends on ``d`` alone, and so do the bits."""
        return True

    def tile_packed(self, left: Any, right: Any, out: Array | None = None) -> Array:
        if not isinstance(right, Panels):
            return super().tile_packed(left, right, out)
        number = left.dtype.type
        out = np.empty((len(left), len(right)), number) if out is None else out
        factor = None if self._factor is None else number(self._factor)
        flat = (factor, number(self.bias), np.empty(ROWS * COLUMNS, number), out.reshape(-1))
        fill_tile(left.reshape(-1), None, None, right.values.reshape(-1), len(left), len(right), *flat)
        return out

    def finish(self, tile: Array) -> None:
        exp2(tile.reshape(-1), tile.dtype.type(self.bias))

    def diagonal(self, X: Any) -> Array:
        return np.full(len(X), 1.0 + self.bias)

    def _errors(self, exponent: Array) -> Array:
        """Return `float32_errors` of rows that each add ``exponent`` units of rounding to log2 of the kernel value.

        Either row also has half of the other units: 12 of ``2**t``, and one for each of BLOCK products. No bound is
        known for a gamma with which squares of rows that matter leave the range of float32.
        """
        if not 2.0**-80 < self.gamma < 2.0**80:
            return np.full_like(exponent, np.inf)
        return FLOAT32_UNIT * (0.75 * exponent + 0.5 * (BLOCK + 12) * (1.0 + self.bias))  # 0.75 > log(2)


@dataclass(frozen=True)
class RBF(_Radial):
    """κ(x, z) = exp(−gamma ‖x − z‖²) + bias.

    Rows should be centred first, which does not change the kernel. The squared distance is expanded into norms and a
    dot product, and their difference loses digits if rows are far from zero.
    """

    name: ClassVar[str] = "rbf"
    takes_csr: ClassVar[bool] = True

    @property
    def scale(self) -> float:
        """Factor of the dot products of two rows, such that kernel values are powers of two."""
        return 2.0 * self.gamma / LOG2

    def norms(self, X: Array) -> Array:
        """Return the term of each row (n, d) in its log2 kernel values, ``−scale/2 ‖x‖²``, (n,)."""
        return -0.5 * self.scale * np.einsum("ij,ij->i", X, X)

    @property
    def product_factor(self) -> float:
        return self.scale

    def product_terms(self, X: CSRRows) -> Array:
        return -0.5 * self.scale * X.dots()  # the shift of both rows does not change their distance

    def makes_panels(self, d: int) -> bool:
        return d < WIDE

    def pack_left(self, X: Any) -> Any:
        if isinstance(X, CSRRows):
            return super().pack_left(X)
        return self._packed(X, self.scale, self.norms(X), 1.0)

    def pack_right(self, X: Any) -> Any:
        if isinstance(X, CSRRows):
            return super().pack_right(X)
        rows = self.with_norms(X)
        return Panels.of(rows) if self.makes_panels(X.shape[1]) else rows

    def float32_errors(self, X: Array) -> Array:
        # The dot product of at most d + 9 terms has 4 units of its factors and one of each term. The norms among them
        # have one of each term, too, and d + 5 of their own. Norms are negative.
        return self._errors(-(3.0 * X.shape[1] + 30.0) * self.norms(X))

    def float64_errors(self, far: Array) -> tuple[float, float]:
        # norms and products, which cancel for near rows; no row is longer
        return 4.0 * (len(far) + 6) * self.gamma * float(far @ far), 1.0 + self.bias

    def with_norms(self, X: Array) -> Array:
        """Return the rows ``X`` (n, d) with a column of ones and their `norms`, as the right of a tile has them."""
        return self._packed(X, 1.0, 1.0, self.norms(X))

    def _packed(self, X: Array, factor: float, *columns: Array | float) -> Array:
        """Return ``factor * X`` (n, d) with two further ``columns``."""
        n, d = X.shape
        packed = np.empty((n, d + 2), X.dtype)
        np.multiply(X, X.dtype.type(factor), out=packed[:, :d])
        for j, column in enumerate(columns, d):
            packed[:, j] = column
        return packed


@dataclass(frozen=True)
class Laplacian(_Radial):
    """κ(x, z) = exp(−gamma ‖x − z‖₁) + bias."""

    name: ClassVar[str] = "laplacian"

    @property
    def _factor(self) -> float:
        return -self.gamma / LOG2

    def float32_errors(self, X: Array) -> Array:
        # 1 unit of a row's numbers, one of a difference, of the factor and of a product, and one of each of d terms
        return self._errors((X.shape[1] + 5.0) * self.gamma / LOG2 * np.abs(X).sum(axis=1))

    def pack_right(self, X: Array) -> Panels:
        return Panels.of(X)

    def float64_errors(self, far: Array) -> tuple[float, float]:
        return len(far) + 2.0 * self.gamma * float(far.sum()), 1.0 + self.bias
