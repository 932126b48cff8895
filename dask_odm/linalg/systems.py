"""Solve positive definite systems: by Cholesky, and by conjugate gradients.

A ridge is added if rounding makes a Cholesky factorisation fail. Large matrices are factored in place, block by block.
Threads share the blocks, and their number changes no bit.

Conjugate gradients, and the largest eigenvalue, are for solvers that only have products with a symmetric matrix.
Sources: Nocedal and Wright, *Numerical Optimization*, algorithm 5.3 (preconditioned) and section 7.1 (forcing: inexact
Newton steps ask for a residual that is a fixed share of the first one); Golub and Van Loan, *Matrix Computations*,
section 10.1 (Lanczos's method).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh_tridiagonal

from dask_odm.linalg.lapack import lapack
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

T = TypeVar("T")


def mended(attempt: Callable[[float], T | None], first_ridge: Callable[[], float]) -> T:
    """Call ``attempt(ridge)`` with growing ridges, from 0 on, and return the first result that is not None.

    ``attempt`` factors a matrix with ``ridge`` added to its diagonal, and returns None if the sum is not positive
    definite. ``first_ridge()`` gives the ridge after 0; it is called only if 0 fails. Raises LinAlgError if no finite
    ridge is enough.
    """
    ridge = 0.0
    while True:
        found = attempt(ridge)
        if found is not None:
            return found
        ridge = 100.0 * ridge if ridge else first_ridge()
        if not 0 < ridge < np.inf:
            raise LinAlgError("the matrix is not positive definite")


def solve_positive(A: Array, b: Array, first_ridge: float) -> Array:
    """Return ``A⁻¹ b`` (n,) for a positive definite ``A`` (n, n).

    If rounding has cost ``A`` its definiteness, a small ridge is added to the diagonal; ``first_ridge`` is the first
    tried.
    """

    def attempt(ridge: float) -> Array | None:
        try:
            return np.asarray(cho_solve(cho_factor(A + ridge * np.eye(len(A)) if ridge else A), b))
        except LinAlgError:
            return None

    return mended(attempt, lambda: first_ridge)


def factored(A: Array, threads: int = 1, *, whole: int = 1024, rows: int = 256, columns: int = 128) -> bool:
    """Overwrite the lower half of ``A`` (n, n), float32 or float64, by its Cholesky factor; return whether one exists.

    The upper half is left undefined. ``A`` is C-contiguous or, for which LAPACK is faster, Fortran-contiguous. The
    factor is built one column of blocks at a time, and each block is updated only once, by all blocks to its left. The
    number of ``threads`` changes no bit. Up to ``whole`` rows are left to LAPACK, since threads gain nothing there; a
    block of a larger matrix has so many ``rows`` and ``columns``.
    """
    n = len(A)
    if n <= whole:
        half = "L" if A.flags.f_contiguous else "U"  # LAPACK sees the transpose of a C-contiguous array
        return not lapack("potrf", half, n, A, n) and bool(np.isfinite(A.diagonal()).all())
    inverse = np.empty((0, 0))
    sound = True

    # set per thread, here and for `finish`: a factor that is not finite is found by `sound`
    @np.errstate(over="ignore", invalid="ignore")
    def update(start: int, k: int, end: int) -> None:
        nonlocal inverse, sound
        part = A[start : end if start == k else min(n, start + rows), k:end]
        if k:
            part -= A[start : start + len(part), :k] @ A[k:end, :k].T
        if start == k:
            corner = np.array(np.tril(part), order="F")
            sound = not lapack("potrf", "L", end - k, corner, end - k) and bool(np.isfinite(corner.diagonal()).all())
            part[...] = corner
            lapack("trtri", "L", "N", end - k, corner, end - k)
            inverse = np.ascontiguousarray(corner.T)

    @np.errstate(over="ignore", invalid="ignore")
    def finish(start: int, k: int, end: int) -> None:
        part = A[start : min(n, start + rows), k:end]
        part[...] = part @ inverse

    with single_threaded_blas:
        for k in range(0, n, columns):
            end = min(n, k + columns)
            starts = range(end, n, rows)
            run_threads(partial(update, k=k, end=end), [k, *starts], threads)
            if not sound:
                return False
            run_threads(partial(finish, k=k, end=end), starts, threads)
    return True


@dataclass(frozen=True, eq=False)
class Triangle:
    """A lower triangular matrix L (n, n) in blocks, to solve with it for the rows of matrices, in place.

    Solving takes matrix products alone, since SciPy's triangular solve would keep all other threads waiting. A block
    has the rows of L left of its corner, the inverse of the corner, and the columns below, all transposed.
    """

    blocks: list[tuple[Array, Array, Array]]

    @classmethod
    def of(cls, lower: Array) -> Triangle:
        """Cut the lower half of a matrix."""
        L = np.ascontiguousarray(lower)
        spans = [slice(start, min(start + 128, len(L))) for start in range(0, len(L), 128)]
        inverses = [np.ascontiguousarray(np.linalg.inv(np.tril(L[s, s])).T) for s in spans]
        return cls([(L[s, : s.start].T, inverse, L[s.stop :, s].T) for s, inverse in zip(spans, inverses, strict=True)])

    def in_float32(self) -> Triangle:
        """Return the same blocks in float32."""
        return Triangle([(a.astype(np.float32), b.astype(np.float32), c.astype(np.float32)) for a, b, c in self.blocks])

    def solve(self, rows: Array) -> None:
        """Replace every row v of ``rows`` (m, n) by ``L⁻¹ v``."""
        start = 0
        for left, inverse, _ in self.blocks:
            part = rows[:, start : start + len(inverse)]
            part[...] = (part - rows[:, :start] @ left if start else part) @ inverse
            start += len(inverse)

    def solve_transposed(self, rows: Array) -> None:
        """Replace every row v of ``rows`` (m, n) by ``L⁻ᵀ v``."""
        stop = rows.shape[1]
        for _, inverse, below in reversed(self.blocks):
            start = stop - len(inverse)
            part = rows[:, start:stop]
            part[...] = (part - rows[:, stop:] @ below.T if below.size else part) @ inverse.T
            stop = start


def times_transpose(A: Array, lower: Array) -> Array:
    """Return ``A @ lower.T`` (m, n) for a lower triangular matrix (n, n), without the products by most of its zeros.

    SciPy's triangular products and solves keep all other threads waiting; NumPy's products do not.
    """
    out = np.empty(A.shape, A.dtype)
    for k in range(0, len(lower), 128):
        out[:, k : k + 128] = A[:, : k + 128] @ lower[k : k + 128, : k + 128].T
    return out


def times_lower(A: Array, lower: Array) -> Array:
    """Return ``A @ lower`` (m, n) for a lower triangular matrix (n, n), without the products by most of its zeros."""
    out = np.empty(A.shape, A.dtype)
    for k in range(0, len(lower), 128):
        out[:, k : k + 128] = A[:, k:] @ lower[k:, k : k + 128]
    return out


def conjugate_gradients(
    apply: Callable[[Array], Array],
    b: Array,
    precondition: Callable[[Array], Array],
    *,
    most: int,
    forcing: float = 0.0,
    least: float = 0.0,
) -> tuple[Array, Array, int]:
    """Solve ``A x = b`` (n,) from zero until a stopping rule holds; return x, the residual and the number of products.

    ``apply`` returns ``A p``, and ``precondition`` an approximation of ``A⁻¹ r`` that acts as a positive definite
    matrix. It stops after ``most`` products, when ``rᵀM⁻¹r`` of the residual r is at most the share ``forcing`` of its
    first value, or when ``rᵀr`` is at most ``least``.
    """
    x = np.zeros_like(b)
    r = b.copy()
    z = precondition(r)
    p = z
    rz = float(r @ z)
    products = 0
    enough = forcing * rz if forcing else 0.0
    while products < most and rz > enough and float(r @ r) > least:
        Ap = apply(p)
        length = rz / float(p @ Ap)
        x += length * p
        r -= length * Ap
        products += 1
        z = precondition(r)
        rz, last = float(r @ z), rz
        p = z + (rz / last) * p
    return x, r, products


def largest_eigenvalue(apply: Callable[[Array], Array], start: Array, products: int, tol: float = 0.0) -> float:
    """Return the largest absolute eigenvalue of a symmetric matrix, or slightly less, by Lanczos's method.

    ``apply`` returns ``A v`` of a unit vector v (n,); ``start`` (n,) is not zero. It ends after ``products`` products,
    or when the residual is at most the share ``tol`` of the eigenvalue, which is within the residual. Each direction is
    made orthogonal to all before it, twice, which is cheap because they are few.
    """
    basis = np.empty((0, len(start)))
    diagonal: list[float] = []
    beside: list[float] = []
    following = start
    length = float(np.linalg.norm(start))
    while True:
        basis = np.vstack([basis, following / length])
        image = apply(basis[-1])
        diagonal.append(float(basis[-1] @ image))
        following = image - basis.T @ (basis @ image)
        following -= basis.T @ (basis @ following)
        length = float(np.linalg.norm(following))
        values, vectors = eigh_tridiagonal(diagonal, beside)
        top = int(np.argmax(np.abs(values)))
        found = abs(float(values[top]))
        # next to nothing of the image is outside the directions so far: these are complete
        complete = length <= 1e-12 * float(np.linalg.norm(image))
        if complete or length * abs(vectors[-1, top]) <= tol * found or len(basis) >= min(products, len(start)):
            return found
        beside.append(length)
