"""Conjugate gradients and the largest eigenvalue, for solvers that only have products with a symmetric matrix.

Sources: Nocedal and Wright, *Numerical Optimization*, algorithm 5.3 (preconditioned) and section 7.1 (forcing: inexact
Newton steps ask for a residual that is a fixed share of the first one); Golub and Van Loan, *Matrix Computations*,
section 10.1 (Lanczos's method).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import eigh_tridiagonal

from dask_odm.typing import Array


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
