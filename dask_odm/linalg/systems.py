"""Solve positive definite systems: by Cholesky, by conjugate gradients, and by the Woodbury identity.

A ridge is added if rounding makes a Cholesky factorisation fail. Large matrices are factored in place, block by block.
Threads share the blocks, and their number changes no bit.

Conjugate gradients, and the largest eigenvalue, are for solvers that only have products with a symmetric matrix.
Sources: Nocedal and Wright, *Numerical Optimization*, algorithm 5.3 (preconditioned) and section 7.1 (forcing: inexact
Newton steps ask for a residual that is a fixed share of the first one); Golub and Van Loan, *Matrix Computations*,
section 10.1 (Lanczos's method).

`Woodbury` is the Nyström preconditioner of Newton's systems over rows, ``(L_S L_Sᵀ + D_S)⁻¹``: ``L Lᵀ ≈ K`` comes from
r landmark rows, S are the active rows, and D has ρ by side on its diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh_tridiagonal, lapack

from dask_odm.linalg.jit import compiled
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

    The upper half is left undefined. The factor is built one column of blocks at a time, and each block is updated only
    once, by all blocks to its left. The number of ``threads`` changes no bit. Up to ``whole`` rows are left to LAPACK,
    since threads gain nothing there; a block of a larger matrix has so many ``rows`` and ``columns``.
    """
    n = len(A)
    single = A.dtype == np.float32
    potrf, trtri = (lapack.spotrf, lapack.strtri) if single else (lapack.dpotrf, lapack.dtrtri)
    if n <= whole:
        # the transpose is in Fortran's order, so LAPACK factors it in place
        return not potrf(A.T, lower=0, clean=0, overwrite_a=1)[1] and bool(np.isfinite(A.diagonal()).all())
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
            corner, info = potrf(part, lower=1)
            sound = not info and bool(np.isfinite(corner.diagonal()).all())
            part[...], inverse = corner, np.ascontiguousarray(trtri(corner, lower=1)[0].T)

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


def conjugate_gradients(
    apply: Callable[[Array], Array],
    b: Array,
    precondition: Callable[[Array], Array],
    *,
    most: int,
    forcing: float = 0.0,
    least: float | None = None,
    gain: float | None = None,
    on_step: Callable[[float], object] = lambda length: None,
) -> tuple[Array, int]:
    """Solve ``A x = b`` (n,) from zero until one of the stopping rules holds; return x and the number of products.

    ``apply`` returns ``A p``, and ``precondition`` an approximation of ``A⁻¹ r`` that acts as a positive definite
    matrix. It stops after ``most`` products, when ``rᵀM⁻¹r`` of the residual r is at most the share ``forcing`` of its
    first value, when ``rᵀr`` is at most ``least``, or after a step that lowers ``½ xᵀAx − bᵀx`` by at most the share
    ``gain`` of the best step. ``on_step`` is called with the length of every step along the direction applied last.
    """
    x = np.zeros_like(b)
    r = b.copy()
    z = precondition(r)
    p = z
    rz = float(r @ z)
    best = 0.0
    products = 0
    enough = forcing * rz if forcing else 0.0
    while products < most and rz > enough and not (least is not None and float(r @ r) <= least):
        Ap = apply(p)
        length = rz / float(p @ Ap)
        x += length * p
        r -= length * Ap
        products += 1
        on_step(length)
        gained = 0.5 * length * rz
        best = max(best, gained)
        if gain is not None and not gained > gain * best:
            break
        z = precondition(r)
        rz, last = float(r @ z), rz
        p = z + (rz / last) * p
    return x, products


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


class Woodbury:
    """The operator ``(I + √c L Lᵀ √c)⁻¹`` on any active rows, for float32 features L (n, r) with ``L Lᵀ ≈ K``.

    It computes in float64: for a stiffness c of 10⁷, more digits cancel than float32 has. When c changes, the inner
    matrix ``I + Lᵀ diag(c) L`` is updated by the rows whose c changed. Sums over ``groups`` of rows are added in order.
    """

    def __init__(self, features: Array, threads: int, groups: int = 8) -> None:
        n, r = features.shape
        self.features = features
        self._threads = threads
        self._groups = groups
        self.inner, self.stiffness = np.eye(r), np.zeros(n)

    def go_on(self, inner: Array, stiffness: Array) -> None:
        """Take over the state of another operator: ``inner`` (r, r) and ``stiffness`` (n,)."""
        self.inner = inner
        self.stiffness = stiffness

    def follow(self, stiffness: Array) -> None:
        """Update the inner matrix to the c of ``stiffness`` (n,)."""
        change = stiffness - self.stiffness
        moved = np.flatnonzero(change)
        if 2 * len(moved) > np.count_nonzero(stiffness):
            self.inner, change, moved = np.eye(len(self.inner)), stiffness, np.flatnonzero(stiffness)

        def group(rows: Array) -> Array:
            total = np.zeros_like(self.inner)
            for start in range(0, len(rows), 1024):
                some = rows[start : start + 1024]
                values = self.features[some].astype(np.float64)
                total += (values * change[some, None]).T @ values
            return total

        for part in run_threads(group, np.array_split(moved, self._groups // 2), self._threads):
            self.inner = self.inner + part
        self.stiffness = stiffness

    def on(self, active: Array) -> Callable[[Array], Array]:
        """Return the preconditioner on the rows ``active`` as a function of residuals there."""
        factor, root = cho_factor(self.inner), np.sqrt(self.stiffness[active])
        bounds = [len(active) * g // self._groups for g in range(self._groups + 1)]
        spans = [slice(a, b) for a, b in pairwise(bounds)]

        def apply(v: Array) -> Array:
            w = root * v

            def gather(span: slice) -> Array:
                out = np.zeros(len(self.inner))
                gather_features(self.features, active[span], w[span], out)
                return out

            inside = cho_solve(factor, sum(run_threads(gather, spans, self._threads)))
            run_threads(lambda s: spread_features(self.features, active[s], inside, w[s]), spans, self._threads)
            return v - root * w

        return apply


@compiled
def gather_features(features: Array, index: Array, v: Array, out: Array) -> None:
    """Compute ``out += features[index].T @ v`` in float64."""
    for i in range(index.size):
        row = features[index[i]]
        x = v[i]
        for j in range(row.size):
            out[j] += x * row[j]


@compiled
def spread_features(features: Array, index: Array, c: Array, out: Array) -> None:
    """Compute ``out <- features[index] @ c`` in float64."""
    for i in range(index.size):
        row = features[index[i]]
        total = 0.0
        for j in range(row.size):
            total += c[j] * row[j]
        out[i] = total
