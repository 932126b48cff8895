"""Landmarks: a few rows that represent all rows. They define strata, and Nyström features with a residual.

Landmarks of models are drawn by `dask_odm.kernels.pivots.choose`. Those of strata are the greedy ones of this module.
Source: SODM, section on stratified partitions. The first landmark is the row of largest κ(x, x). Every next one is the
row of largest Schur complement ``κ(z, z) − k_z K⁻¹ k_zᵀ`` given those chosen. This is the pivoted Cholesky
factorisation of the Gram matrix. A row's stratum is its nearest landmark in the kernel's space.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from dask_odm.errors import InputError
from dask_odm.kernels.base import BLOCK, Kernel
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.linalg.systems import Triangle, mended
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

VANISHES = (
    "the kernel overflows or is zero on the landmarks: rescale the rows (scale='minmax'), or choose another kernel."
)


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Landmark rows z_1 … z_r (r, d), with their Gram matrix and its factor, which are computed on first use.

    Strata, the landmark solver, preconditioners and certificates share this record. It pickles as kernel, rows and
    index, since computing a factor takes less time than sending it. Rows are as the kernel sees them. ``index`` (r,)
    are row numbers in the data, or numbers from the caller. They ascend, except that greedy landmarks are in order of
    choice.
    """

    kernel: Kernel
    rows: Any  # an array or `CSRRows`
    index: NDArray[np.int64]

    @classmethod
    def of(cls, kernel: Kernel, candidates: Any, index: Array | None = None, *, trace: float = 0.0) -> Landmarks:
        """Choose those of the ``candidates`` (m, d) that are linearly independent to the precision of their dtype.

        It uses pivoted Cholesky in float64. ``index`` (m,) has the candidates' row numbers, by default 0 … m−1. With a
        positive ``trace``, it stops once the other candidates have at most this share of the trace of their Gram matrix
        left. Raises InputError if the kernel overflows or is zero.
        """
        numbers = np.arange(len(candidates)) if index is None else np.asarray(index, np.int64)
        everyone = cls(kernel, _contiguous(candidates), numbers)
        K = everyone.gram
        with single_threaded_blas:
            L, pivots, rank, _ = lapack.dpstrf(K, tol=rank_floor(K.diagonal(), candidates.dtype, len(K)), lower=1)
        if trace > 0:
            left = K.trace() - np.cumsum(np.square(np.tril(L)[:, :rank]).sum(axis=0))
            rank = min(rank, 1 + np.count_nonzero(left > trace * K.trace()))
        if rank >= len(K):
            return everyone
        chosen = np.sort(pivots[: max(1, rank)] - 1)
        return cls(kernel, everyone.rows[chosen], numbers[chosen])

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "rows": self.rows, "index": self.index}

    @cached_property
    def gram(self) -> Array:
        """Kernel matrix of the landmarks, float64 (r, r), symmetric; raises InputError if it overflows or is zero."""
        X = self.rows.astype(np.float64)
        with single_threaded_blas:
            K = self.kernel.tile(X, X)
        K += K.T.copy()
        K *= 0.5
        if not (np.isfinite(K).all() and K.diagonal().max(initial=0.0) > 0):
            raise InputError(VANISHES)
        return K

    @cached_property
    def factor(self) -> Array:
        """Lower Cholesky factor L with ``L Lᵀ = gram``, float64 (r, r), zero above the diagonal."""
        with single_threaded_blas:
            return cholesky(self.gram)

    @cached_property
    def packed(self) -> Any:
        """The landmarks in float64, packed for the right of a tile."""
        return self.kernel.pack_right_in(self.rows, np.float64)

    @cached_property
    def triangle(self) -> Triangle:
        """The factor in blocks."""
        return Triangle.of(self.factor)

    @cached_property
    def narrow(self) -> tuple[Any, Triangle]:
        """The landmarks packed for the right of a tile, and the factor in blocks, both in float32."""
        return self.kernel.pack_right_in(self.rows, np.float32), self.triangle.in_float32()

    def prepare(self, dtype: Any = np.float64) -> None:
        """Compute the cached arrays that `features` needs, before several threads ask for them at once."""
        _ = (self.triangle, self.packed) if dtype == np.float64 else self.narrow

    def features(self, X: Any, dtype: Any = np.float64) -> Array:
        """Return the Nyström features ``L⁻¹ k(x)`` of every row of ``X`` (n, d), (n, r), computed in ``dtype``.

        It uses matrix products, since SciPy's triangular solve would block other threads.
        """
        packed, triangle = (self.packed, self.triangle) if dtype == np.float64 else self.narrow
        values = self.kernel.tile_packed(self.kernel.pack_left(X.astype(dtype, copy=False)), packed)
        triangle.solve(values)
        return values

    def whiten(self, values: Array) -> None:
        """Replace every row k of ``values``, float64 (n, r), by ``L⁻¹ k``, in place."""
        self.triangle.solve(values)

    def residual(self, X: Any, threads: int = 1) -> NDArray[np.float64]:
        """Return ``κ(x, x) − ‖L⁻¹ k(x)‖²`` of every row of ``X`` (n, d), dense or sparse: float64 (n,), never negative.

        It is the squared distance of φ(x) from the span of the landmarks. It takes O(n r²) time, and each thread holds
        O(BLOCK · (r + d)) numbers.
        """
        step = residual_rows(X.shape[1])

        def block(start: int) -> Array:
            rows = _contiguous(X[start : start + step].astype(np.float64, copy=False))
            white = self.features(rows)
            return np.maximum(self.kernel.diagonal(rows) - np.einsum("ij,ij->i", white, white), 0.0)

        with single_threaded_blas:
            self.prepare()
            parts = run_threads(block, range(0, len(X), step), threads, "residuals")
        return np.concatenate(parts) if parts else np.empty(0)


def residual_rows(d: int) -> int:
    """Return the rows of ``d`` features that a thread computes residuals of at a time."""
    # up to 8 MiB in float64, if these are more than 64; rows without features are counted alone
    return max(64, min(BLOCK, (8 << 20) // (8 * max(1, d))))


def _contiguous(rows: Any) -> Any:
    return rows if isinstance(rows, CSRRows) else np.ascontiguousarray(rows)


def rank_floor(diagonal: Array, dtype: np.dtype[Any], count: int) -> float:
    """Return the residual below which a row of ``dtype`` cannot be told from the rounding of ``count`` other rows."""
    tolerance = 1e-9 if dtype == np.float32 else 1e-13  # the rounding of a feature must stay small beside it
    return tolerance * count * float(diagonal.max(initial=0.0))


def cholesky(matrix: Array) -> Array:
    """Return the lower Cholesky factor, with jitter on the diagonal if needed; raise LinAlgError if none suffices."""

    def attempt(jitter: float) -> Array | None:
        factor, info = lapack.dpotrf(matrix + jitter * np.eye(len(matrix)) if jitter else matrix, lower=1)
        return None if info else np.asarray(factor)

    return mended(attempt, lambda: 1e-14 * float(matrix.trace()))


def greedy_landmarks(kernel: Kernel, sample: Any, count: int) -> Landmarks:
    """Choose greedy landmarks from a ``sample`` of rows (m, d), in order of choice: at least one, at most ``count``.

    They are the pivots of the pivoted Cholesky factorisation of the sample's Gram matrix, of which only their rows are
    computed. There are fewer than ``count`` if the numerical rank is reached first.
    """
    X = sample.astype(np.float64)
    residual = kernel.diagonal(X)
    # a residual below this share of the largest κ(x, x) is rounding
    floor = 1e-10 * residual.max(initial=0.0)
    packed = kernel.pack_right(X)
    factor = np.zeros((len(X), min(count, len(X))))
    pivots: list[int] = []
    with single_threaded_blas:
        for k in range(factor.shape[1]):
            pivot = int(np.argmax(residual))
            if residual[pivot] <= floor:
                break
            row = kernel.tile_packed(kernel.pack_left(X[pivot : pivot + 1]), packed)[0]
            factor[:, k] = (row - factor[:, :k] @ factor[pivot, :k]) / np.sqrt(residual[pivot])
            residual = np.maximum(residual - factor[:, k] ** 2, 0.0)
            residual[pivot] = 0.0
            pivots.append(pivot)
    chosen = np.array(pivots or [0], dtype=np.int64)
    return Landmarks(kernel, _contiguous(sample[chosen]), chosen)
