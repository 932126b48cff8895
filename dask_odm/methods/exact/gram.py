"""Gram matrices that are held whole: how they are computed, and products with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.user_kernels import CallableKernel
from dask_odm.learning.problem.odm import Operator
from dask_odm.learning.problem.products import Products
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

ROWS_OF_THREAD = 512  # rows of a matrix that a thread takes at a time


def gram_of(kernel: Kernel, X: Array, dtype: np.dtype[Any], threads: int = 1) -> Array:
    """Return the Gram matrix (n, n) of the rows ``X`` (n, d) in ``dtype``.

    A kernel of the user is evaluated in float64 if the rows are.
    """
    out = np.empty((len(X), len(X)), dtype)
    rows = X.astype(np.result_type(X, out) if isinstance(kernel, CallableKernel) else dtype, copy=False)
    left = kernel.pack_left(rows)
    right = kernel.pack_right(rows)

    def fill(start: int) -> None:
        part = slice(start, min(start + ROWS_OF_THREAD, len(X)))
        with np.errstate(over="ignore", invalid="ignore"):  # set per thread
            if rows.dtype == dtype:
                kernel.tile_packed(left[part], right, out[part])
            else:
                out[part] = kernel.tile_packed(left[part], right)

    with single_threaded_blas:
        run_threads(fill, range(0, len(X), ROWS_OF_THREAD), threads)
    return out


@dataclass(frozen=True, eq=False)
class HeldProducts:
    """`Products` with a matrix ``K`` (n, n) in memory. If it is float32, ``source`` computes float64 entries."""

    K: Array
    source: Products
    threads: int

    @property
    def kernel(self) -> Kernel:
        return self.source.kernel

    @property
    def n(self) -> int:
        return len(self.K)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.source.dtype

    def rows(self, index: Array) -> Array:
        return self.source.rows(index)

    def among(self, index: Array, *, double_precision: bool | None = False) -> Operator:
        if double_precision and self.K.dtype == np.float32:
            return self.source.among(index, double_precision=True)
        return _HeldGram(self, index)

    def cross(self, targets: Array, sources: Array, v: Array, *, double_precision: bool = False) -> Array:
        if double_precision and self.K.dtype == np.float32:
            return self.source.cross(targets, sources, v, double_precision=True)
        return self.image(sources, v)[targets]

    def image(self, index: Array, v: Array) -> Array:
        """Return ``K[:, index] @ v``, float64 (n,); sums over a row are in the dtype of the matrix."""
        spread = np.zeros(self.n, self.K.dtype)
        spread[index] = v
        if not len(index) or self.n <= 2 * ROWS_OF_THREAD:
            return np.asarray(self.K @ spread if len(index) else spread, dtype=np.float64)
        out = np.empty(self.n)

        def multiply(first: int) -> None:
            part = slice(first, first + ROWS_OF_THREAD)
            with np.errstate(over="ignore", invalid="ignore"):  # set per thread
                out[part] = self.K[part] @ spread

        run_threads(multiply, range(0, self.n, ROWS_OF_THREAD), self.threads)
        return out


@dataclass(frozen=True, eq=False)
class _HeldGram:
    products: HeldProducts
    index: Array

    @property
    def n(self) -> int:
        return len(self.index)

    def matvec(self, v: Array) -> Array:
        return self.products.image(self.index, v)[self.index]
