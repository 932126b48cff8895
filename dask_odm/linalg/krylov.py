"""For solvers that have products with a positive definite matrix alone: conjugate gradients, the largest eigenvalue.

Sources: Nocedal and Wright, *Numerical Optimization*, algorithm 5.3, preconditioned; inexact Newton steps ask for a
residual that is a fixed share of the first one (forcing, section 7.1). Golub and Van Loan, *Matrix Computations*,
section 10.1: Lanczos's method.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_odm.typing import Array

INVARIANT = 1e-12  # of an image: what is left of it where it is within the directions so far


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
    """Solve ``A x = b`` from zero, until one of the rules says that it is enough.

    Parameters
    ----------
    apply : callable
        ``A p`` of a direction p (n,).
    b : ndarray of shape (n,)
    precondition : callable
        An approximation of ``A⁻¹ r``, as a positive definite matrix.
    most : int
        The most products.
    forcing : float
        Stop where ``rᵀM⁻¹r`` of the residual r is at most this share of its first value.
    least : float, optional
        Stop where ``rᵀr`` is at most that.
    gain : float, optional
        Stop after a step that lowers ``½ xᵀAx − bᵀx`` by at most this share of the best step.
    on_step : callable
        Told of the length of every step along the direction that was applied last.

    Returns
    -------
    x : ndarray of shape (n,)
    products : int
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
    """The largest eigenvalue of a positive semidefinite matrix, or somewhat less, by Lanczos's method.

    Directions are made orthogonal to all before them, twice: they are few.

    Parameters
    ----------
    apply : callable
        ``A v`` of a unit vector v (n,).
    start : ndarray of shape (n,)
        Not zero.
    products : int
        At most so many.
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
        if length <= INVARIANT * float(np.linalg.norm(images[-1])):
            break
    within = basis @ images.T
    return max(0.0, float(np.linalg.eigvalsh(0.5 * (within + within.T))[-1]))
