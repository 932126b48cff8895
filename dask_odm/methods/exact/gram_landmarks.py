"""Landmarks of a Gram matrix in memory: they give its Newton solver a start and a preconditioner.

Take r of the n rows as landmarks. ``WᵀW`` with ``W = L⁻¹ K_rn`` and ``L Lᵀ = K_rr`` is the Nyström approximation of K.
Newton in r numbers solves the Nyström problem, whose solution starts the solve over all rows. Each of its steps factors
``1 + W C Wᵀ``, which by Woodbury's formula gives the inverse of ``1 + √C WᵀW √C``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError, get_blas_funcs, get_lapack_funcs

from dask_odm.learning.line_search import few_rows_step
from dask_odm.learning.problem.odm import RowLosses
from dask_odm.typing import Array

SHARE = 10  # one row in so many is a landmark
RIDGE = 1e-5  # added to the diagonal of K_rr, times its mean; float32 resolves no less
FALL = 0.03  # a step that lowers P by a smaller share ends the Nyström solve
STEPS = 8  # most steps of the Nyström solve


class GramSpan:
    """The Nyström problem of the landmark rows ``index`` (r,) of a Gram matrix ``K`` (n, n), in its dtype.

    Raises LinAlgError if their part of the matrix is not positive definite.
    """

    def __init__(self, K: Array, index: Array) -> None:
        self._potrf, self._potrs, self._trtrs = get_lapack_funcs(("potrf", "potrs", "trtrs"), dtype=K.dtype)
        self._syrk = get_blas_funcs("syrk", dtype=K.dtype)
        rows = K[index]
        self.index = index
        inner = rows[:, index]
        inner.flat[:: len(index) + 1] += RIDGE * inner.trace() / len(index)
        self._landmarks = self._factor(inner)
        self.W: Array = np.ascontiguousarray(self._trtrs(self._landmarks, rows, lower=1)[0])

    def left(self, diagonal: Array) -> float:
        """Return the mean Nyström residual of the matrix's ``diagonal`` (n,)."""
        return float(diagonal.mean() - np.square(self.W).sum(axis=0).mean())

    def start(self, losses: RowLosses) -> Array:
        """Return coefficients (n,) that are zero except for landmarks', and nearly minimise P over the landmarks."""
        y = losses.y
        b = np.zeros(len(self.index))
        f = np.zeros(len(losses.y))
        primal = _primal(losses, b, f)
        for _ in range(STEPS):
            margins = y * f
            before = primal
            c = losses.curvature(margins)
            target = y * np.where(margins < 1.0, losses.settings.low, losses.settings.high)
            new = self._solved(self._inner(c), self._project(c * target))
            d = new - b
            change = self._scores(new) - f
            length = 1.0
            if not _primal(losses, b + d, f + change) < before:
                length = few_rows_step(losses, f, change, float(b @ d), float(d @ d))
            b = b + length * d
            f = f + length * change
            primal = _primal(losses, b, f)
            if not before - primal > FALL * primal:
                break
        a = np.zeros(len(y))
        a[self.index] = self._trtrs(self._landmarks, b.astype(self.W.dtype), lower=1, trans=1)[0]
        return a

    def preconditioner(self, stiffness: Array) -> Callable[[Array], Array]:
        """Return the Nyström ``(1 + √c K √c)⁻¹`` for c = ``stiffness`` (n,), as a function of residuals (n,)."""
        factor, root = self._inner(stiffness), np.sqrt(stiffness)

        def apply(v: Array) -> Array:
            return v - root * self._scores(self._solved(factor, self._project(root * v)))

        return apply

    def _inner(self, c: Array) -> Array:
        """Return the factor of ``1 + W diag(c) Wᵀ``."""
        scaled = self.W * np.sqrt(c).astype(self.W.dtype)
        inner = self._syrk(1.0, scaled.T, trans=1, lower=1)
        inner.flat[:: len(inner) + 1] += 1
        return self._factor(inner)

    def _factor(self, A: Array) -> Array:
        factor, info = self._potrf(A, lower=1)
        if info or not np.isfinite(factor.diagonal()).all():
            raise LinAlgError("not positive definite")
        return np.asarray(factor)

    def _solved(self, factor: Array, v: Array) -> Array:
        return np.asarray(self._potrs(factor, v, lower=1)[0])

    def _project(self, v: Array) -> Array:
        projected: Array = self.W @ v.astype(self.W.dtype)
        return projected

    def _scores(self, b: Array) -> Array:
        """Return ``Wᵀ b`` in float64."""
        return np.asarray(b @ self.W, dtype=np.float64)


def _primal(losses: RowLosses, b: Array, scores: Array) -> float:
    """Return P of the Nyström model of weights ``b`` (r,)."""
    return 0.5 * float(b @ b) + float(losses.losses(losses.y * scores).sum())
