"""Dense systems that are positive definite but for rounding: by Cholesky, mended by a ridge where that fails.

Large matrices are factored in place and by blocks, so that threads share the work and no bit depends on their number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, lapack

from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

T = TypeVar("T")
BLOCK = 512  # rows and columns that a thread takes at a time in `factor_in_place`
WHOLE = 1024  # rows up to which `factored` leaves a matrix to LAPACK: threads gain nothing
# of its blocks of a larger one
COLUMNS = 128
ROWS = 256
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


def factored(A: Array, threads: int = 1) -> bool:
    """Overwrite the lower half of ``A`` (n, n), float32 or float64, by its Cholesky factor; whether there is one.

    The upper half is left in disorder. Column by column of blocks, each the product of all before it, so that entries
    are written once; no bit depends on the number of ``threads``.
    """
    n = len(A)
    single = A.dtype == np.float32
    potrf, trtri = (lapack.spotrf, lapack.strtri) if single else (lapack.dpotrf, lapack.dtrtri)
    if n <= WHOLE:
        # the transpose is as Fortran has it: factored where it lies
        return not potrf(A.T, lower=0, clean=0, overwrite_a=1)[1] and bool(np.isfinite(A.diagonal()).all())
    inverse = np.empty((0, 0))
    sound = True

    @np.errstate(over="ignore", invalid="ignore")  # of its thread, as for `finish`: what is not finite is not sound
    def update(start: int, k: int, end: int) -> None:
        nonlocal inverse, sound
        part = A[start : end if start == k else min(n, start + ROWS), k:end]
        if k:
            part -= A[start : start + len(part), :k] @ A[k:end, :k].T
        if start == k:
            corner, info = potrf(part, lower=1)
            sound = not info and bool(np.isfinite(corner.diagonal()).all())
            part[...], inverse = corner, np.ascontiguousarray(trtri(corner, lower=1)[0].T)

    @np.errstate(over="ignore", invalid="ignore")
    def finish(start: int, k: int, end: int) -> None:
        part = A[start : min(n, start + ROWS), k:end]
        part[...] = part @ inverse

    with single_threaded_blas:
        for k in range(0, n, COLUMNS):
            end = min(n, k + COLUMNS)
            starts = range(end, n, ROWS)
            run_threads(partial(update, k=k, end=end), [k, *starts], threads)
            if not sound:
                return False
            run_threads(partial(finish, k=k, end=end), starts, threads)
    return True


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
