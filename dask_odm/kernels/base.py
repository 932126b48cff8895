"""What a kernel is: values on blocks of rows, the diagonal, a name and parameters.

A kernel splits its work so that BLAS does most of it: ``pack_left(X) @ pack_right(Z).T`` is a matrix
product, and ``finish`` turns it into kernel values in place. Labels and Dask are unknown here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Kernel(ABC):
    """A positive semi-definite function of two rows.

    Parameters
    ----------
    bias : float
        A constant added to every value; 1.0 is the regularised intercept (a constant feature).
    """

    bias: float = 0.0
    name: ClassVar[str]

    @abstractmethod
    def width(self, d: int) -> int:
        """Columns k of packed rows of ``d`` features."""

    @abstractmethod
    def pack_left(self, X: Array, out: Array | None = None) -> Array:
        """Rows ``X`` (n, d) as the left factor (n, k) of the matrix product, C-contiguous."""

    @abstractmethod
    def pack_right(self, X: Array, out: Array | None = None) -> Array:
        """Rows ``X`` (n, d) as the right factor (n, k), C-contiguous."""

    @abstractmethod
    def finish(self, tile: Array) -> None:
        """Turn a C-contiguous product (n, m) into kernel values, in place."""

    @abstractmethod
    def diagonal(self, X: Array) -> Array:
        """κ(x, x) of every row, float64 (n,)."""

    def tile(self, X: Array, Z: Array, out: Array | None = None) -> Array:
        """κ(X, Z), shape (len(X), len(Z)), in the dtype of ``X``; ``out`` must be C-contiguous."""
        return self.tile_packed(self.pack_left(X), self.pack_right(Z), out)

    def tile_packed(self, left: Array, right: Array, out: Array | None = None) -> Array:
        """As `tile`, of rows packed before."""
        out = np.matmul(left, right.T, out=out)
        self.finish(out)
        return out

    def parameters(self) -> dict[str, Any]:
        """Name and parameters as plain values; `dask_odm.kernels.from_parameters` reverses it."""
        return {"name": self.name, **asdict(self)}
