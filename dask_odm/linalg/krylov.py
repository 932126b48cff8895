"""Conjugate gradients and the largest eigenvalue, for solvers that only have products with a positive definite matrix.

Sources: Nocedal and Wright, *Numerical Optimization*, algorithm 5.3 (preconditioned) and section 7.1 (forcing: inexact
Newton steps ask for a residual that is a fixed share of the first one); Golub and Van Loan, *Matrix Computations*,
section 10.1 (Lanczos's method).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

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


def largest_eigenvalue(apply: Callable[[Array], Array], start: Array, products: int) -> float:
    """Return the largest eigenvalue of a positive semidefinite matrix, or slightly less, by Lanczos's method.

    ``apply`` returns ``A v`` of a unit vector v (n,); ``start`` (n,) is not zero; at most ``products`` products are
    taken. Each direction is made orthogonal to all before it, twice, which is cheap because they are few.
    """
    basis = np.empty((0, len(start)))
    images = np.empty((0, len(start)))
    following = start
    length = float(np.linalg.norm(start))
    while len(basis) < min(products, len(start)):
        basis = np.vstack([basis, following / length])
        images = np.vstack([images, apply(basis[-1])])
        following = images[-1] - basis.T @ (basis @ images[-1])
        following -= basis.T @ (basis @ following)
        length = float(np.linalg.norm(following))
        # next to nothing of the image is outside the directions so far: these are complete
        if length <= 1e-12 * float(np.linalg.norm(images[-1])):
            break
    within = basis @ images.T
    return max(0.0, float(np.linalg.eigvalsh(0.5 * (within + within.T))[-1]))
