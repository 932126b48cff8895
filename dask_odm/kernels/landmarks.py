"""Landmarks: a few rows that stand for all, and the strata they make.

Source: SODM, section on stratified partitions. The first landmark is the row of largest κ(x, x); every next
one the row of largest Schur complement ``κ(z, z) − k_z K⁻¹ k_zᵀ`` given those chosen, which is the pivoted
Cholesky factorisation of the Gram matrix. A row's stratum is its nearest landmark in the kernel's space.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.threads import single_threaded_blas

Array = NDArray[Any]
_RANK_TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Landmark rows as the kernel sees them.

    Attributes
    ----------
    rows : ndarray of shape (r, d)
    """

    rows: Array

    def strata(self, kernel: Kernel, X: Array) -> NDArray[np.int32]:
        """Index of the landmark nearest to each row of ``X`` (n, d), ``argmin_s ‖φ(x) − φ(z_s)‖²``; int32 (n,)."""
        with single_threaded_blas:
            similarity = kernel.tile(X, self.rows).astype(np.float64)
        return np.argmin(kernel.diagonal(self.rows) - 2.0 * similarity, axis=1).astype(np.int32)


def pivoted_cholesky(kernel: Kernel, X: Array, rank: int) -> tuple[NDArray[np.int64], Array, Array]:
    """Greedy pivoted Cholesky of the Gram matrix of ``X`` (n, d).

    Returns
    -------
    pivots : int64 ndarray of shape (r,)
        Chosen rows in order; r < ``rank`` where the numerical rank is reached first.
    factor : ndarray of shape (n, r)
        L with ``L Lᵀ ≈ K``, float64.
    residual : ndarray of shape (n,)
        Diagonal of ``K − L Lᵀ``, never negative.
    """
    X = X.astype(np.float64)
    residual = kernel.diagonal(X)
    floor = _RANK_TOLERANCE * residual.max(initial=0.0)
    packed = kernel.pack_right(X)
    factor = np.zeros((len(X), min(rank, len(X))))
    pivots: list[int] = []
    for k in range(factor.shape[1]):
        pivot = int(np.argmax(residual))
        if residual[pivot] <= floor:
            break
        row = kernel.tile_packed(kernel.pack_left(X[pivot : pivot + 1]), packed)[0]
        column = (row - factor[:, :k] @ factor[pivot, :k]) / np.sqrt(residual[pivot])
        factor[:, k] = column
        residual = np.maximum(residual - column**2, 0.0)
        residual[pivot] = 0.0
        pivots.append(pivot)
    return np.array(pivots, dtype=np.int64), factor[:, : len(pivots)], residual


def choose_landmarks(kernel: Kernel, sample: Array, count: int) -> Landmarks:
    """The greedy landmarks of a ``sample`` of rows (m, d): at most ``count``, at least one."""
    with single_threaded_blas:
        pivots, _, _ = pivoted_cholesky(kernel, sample, count)
    return Landmarks(np.ascontiguousarray(sample[pivots if len(pivots) else [0]]))
