"""Dense systems that are positive definite but for rounding: by Cholesky, mended by a ridge where that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, lapack

from dask_odm.kernels.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

T = TypeVar("T")
BLOCK = 512  # rows and columns of a large matrix that a thread takes at a time
GROWTH = 100.0  # each ridge is so many times the one before


def mended(attempt: Callable[[float], T | None], first_ridge: Callable[[], float]) -> T:
    """What ``attempt(ridge)`` returns for the first ridge that it does not return None for.

    Parameters
    ----------
    attempt : callable
        Factors a matrix with ``ridge`` added to its diagonal; None where it is not positive definite.
    first_ridge : callable
        The ridge that follows 0, asked for where 0 is not enough.

    Raises
    ------
    LinAlgError
        No finite ridge is enough.
    """
    ridge = 0.0
    while True:
        found = attempt(ridge)
        if found is not None:
            return found
        ridge = GROWTH * ridge if ridge else first_ridge()
        if not 0 < ridge < np.inf:
            raise LinAlgError("the matrix is not positive definite")


def solve_positive(A: Array, b: Array, first_ridge: float) -> Array:
    """``A⁻¹ b`` (n,); rounding may cost ``A`` (n, n) its definiteness, which a little on the diagonal mends."""

    def attempt(ridge: float) -> Array | None:
        try:
            return np.asarray(cho_solve(cho_factor(A + ridge * np.eye(len(A)) if ridge else A), b))
        except LinAlgError:
            return None

    return mended(attempt, lambda: first_ridge)


def factor_in_place(A: Array, threads: int = 1) -> bool:
    """Overwrite the lower half of ``A`` (n, n), C-contiguous, by its Cholesky factor; whether it is positive definite.

    The upper half is left in disorder. By blocks, of which each is a product of one thread's: no bit depends on the
    number of ``threads``, as it does of BLAS's own.
    """
    n = len(A)
    with single_threaded_blas:
        for k in range(0, n, BLOCK):
            end = min(n, k + BLOCK)
            corner, info = lapack.dpotrf(A[k:end, k:end], lower=1)
            if info or not np.isfinite(corner.diagonal()).all():
                return False
            A[k:end, k:end] = corner
            inverse = np.ascontiguousarray(lapack.dtrtri(corner, lower=1)[0].T)

            def below(start: int, k: int = k, end: int = end, inverse: Array = inverse) -> None:
                rows = A[start : start + BLOCK, k:end]
                rows[...] = rows @ inverse

            def beyond(start: int, k: int = k, end: int = end) -> None:
                stop = min(n, start + BLOCK)
                A[start:stop, end:stop] -= A[start:stop, k:end] @ A[end:stop, k:end].T

            starts = range(end, n, BLOCK)
            run_threads(below, starts, threads)
            run_threads(beyond, starts[::-1], threads)  # the longest first
    return True
