"""Conjugate gradients on the face of the dual that coordinate descent has found.

With the signs of s held and its zeros left alone the dual is a quadratic, maximal where
``(K_SS + D_S) a_S = t_S`` with S the rows of s ≠ 0, D = ρ by sign and ``t_i = y_i (1 ∓ θ)``. Conjugate
gradients climb it from the current point; their direction is then followed as far as the true, concave dual
rises, so that a step never lowers it. Coordinate descent changes the face. This pairing is Moré and Toraldo's
GPCG (*On the solution of large quadratic programming problems with bound constraints*, 1991) with descent in
the place of projected gradients.

The preconditioner is ``(L_S L_Sᵀ + D_S)⁻¹`` by Woodbury, with ``L Lᵀ ≈ K`` from r landmark rows (Nyström).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigh

from dask_odm.kernels.blocks import Gram
from dask_odm.problems.odm import KernelProblem

Array = NDArray[Any]
MAX_STEPS = 60
STALE_AFTER = 12
BISECTIONS = 20


@dataclass(eq=False)
class LandmarkPreconditioner:
    """The low-rank part of the preconditioner, and its factor for one face.

    Attributes
    ----------
    coordinates : ndarray of shape (rank, n)
        Lᵀ for all rows, in the dtype of the Gram matrix, cut at the landmarks' numerical rank.
    stale : bool
        Whether `refresh` is due: the last solve took many steps, or there was none.
    """

    coordinates: Array
    stale: bool = True
    _factor: Any = None

    @classmethod
    def from_rows(cls, gram: Gram, index: Array) -> LandmarkPreconditioner:
        """Of the landmarks at ascending rows ``index`` (r,)."""
        rows = gram.columns(index)
        values, vectors = eigh(rows[:, index].astype(np.float64))
        keep = values > values[-1] * 1e-6
        whitening = vectors[:, keep] / np.sqrt(values[keep])
        return cls(whitening.T.astype(rows.dtype) @ rows)

    def refresh(self, face: Array, stiffness: Array) -> None:
        """Factor for the rows of ``face`` with ``stiffness`` 1/ρ."""
        L = self.coordinates[:, face]
        inside = ((L * stiffness.astype(L.dtype)) @ L.T).astype(np.float64)
        self._factor = cho_factor(np.eye(len(inside)) + inside, overwrite_a=True)
        self.stale = False

    def on(self, face: Array, stiffness: Array) -> Callable[[Array], Array]:
        """The preconditioner as a function of residuals on ``face``."""
        if self.stale:
            self.refresh(face, stiffness)
        L = self.coordinates[:, face]

        def apply(v: Array) -> Array:
            w = stiffness * v
            inside = cho_solve(self._factor, (L @ w.astype(L.dtype)).astype(np.float64))
            return w - stiffness * (inside.astype(L.dtype) @ L)

        return apply


def conjugate_gradients(
    apply: Callable[[Array], tuple[Array, Array]], b: Array, precondition: Callable[[Array], Array], enough: float = 0.1
) -> tuple[Array, Array, int]:
    """Solve ``A x = b`` until a step gains at most ``enough`` of the best one; returns x, ``K x`` and the steps.

    ``apply(p)`` returns ``A p`` and ``K p``, the scores of p on all rows.
    """
    x, r = np.zeros_like(b), b.copy()
    z = precondition(r)
    p, rz, best, steps = z, float(r @ z), 0.0, 0
    scores: Array = np.zeros(1)
    while steps < MAX_STEPS and rz > 0:
        Ap, Kp = apply(p)
        alpha = rz / float(p @ Ap)
        x += alpha * p
        scores = scores + alpha * Kp
        r -= alpha * Ap
        steps += 1
        gain = 0.5 * alpha * rz
        best = max(best, gain)
        if not gain > enough * best:
            break
        z = precondition(r)
        rz, last = float(r @ z), rz
        p = z + (rz / last) * p
    return x, scores, steps


def face_step(
    problem: KernelProblem[Gram], u: Array, preconditioner: LandmarkPreconditioner, enough: float = 0.1
) -> Array:
    """One solve on the face of ``u`` (2, n) and the line search after it; returns the new pair."""
    losses, n = problem.losses, problem.n
    face = np.flatnonzero(u[0])
    if not len(face):
        return u
    a, y = u[0, face], losses.y[face]
    positive = y * a > 0
    stiffness = np.where(positive, losses.stiffness_low[face], losses.stiffness_high[face])
    target = y * np.where(positive, losses.settings.low, losses.settings.high)

    def apply(p: Array) -> tuple[Array, Array]:
        full = np.zeros(n)
        full[face] = p
        Kp = problem.gram.matvec(full)
        return Kp[face] + p / stiffness, Kp

    residual = target - u[1, face] - a / stiffness
    x, scores, steps = conjugate_gradients(apply, residual, preconditioner.on(face, stiffness), enough)
    preconditioner.stale = steps >= STALE_AFTER
    if not steps:
        return u
    direction = np.zeros((2, n))
    direction[0, face] = x
    direction[1] = scores
    return u + _rise(problem, u, direction) * direction


def _rise(problem: KernelProblem[Gram], u: Array, direction: Array) -> float:
    """The step in [0, 1] that maximises the concave dual along ``direction``."""
    if problem.dual_slope(u, direction, 1.0) >= 0:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if problem.dual_slope(u, direction, middle) > 0 else (low, middle)
    return low
