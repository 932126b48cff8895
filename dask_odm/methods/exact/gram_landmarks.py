"""Landmarks of a Gram matrix in memory: they give its Newton solver a start and a preconditioner.

Take r of the n rows as landmarks. ``WᵀW`` with ``W = L⁻¹ K_rn`` and ``L Lᵀ = K_rr`` is the Nyström approximation of K.
Newton in r numbers solves the Nyström problem, whose solution starts the solve over all rows. Each of its steps factors
``1 + W C Wᵀ``, which by Woodbury's formula gives the inverse of ``1 + √C WᵀW √C``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from scipy.linalg import LinAlgError, get_blas_funcs, get_lapack_funcs

from dask_odm.learning.line_search import few_rows_step
from dask_odm.learning.problem.odm import RowLosses
from dask_odm.typing import Array


class GramLandmarks:
    """The Nyström problem of the landmark rows ``index`` (r,) of a Gram matrix ``K`` (n, n), in its dtype.

    Raises LinAlgError if their part of the matrix is not positive definite.
    """

    def __init__(self, K: Array, index: Array) -> None:
        self._potrf, self._potrs, self._trtrs = get_lapack_funcs(("potrf", "potrs", "trtrs"), dtype=K.dtype)
        self._syrk = get_blas_funcs("syrk", dtype=K.dtype)
        rows = K[index]
        inner = rows[:, index]
        inner.flat[:: len(index) + 1] += 1e-5 * inner.trace() / len(index)  # float32 resolves no less
        self.index = index
        self._factor = self._factored(inner)
        self.W: Array = np.ascontiguousarray(self._trtrs(self._factor, rows, lower=1)[0])

    @classmethod
    def drawn(cls, K: Array, losses: RowLosses, seed: int) -> GramLandmarks | None:
        """Draw a tenth of the rows; None if they would leave too much of K for conjugate gradients to be fast."""
        n = len(K)
        index = np.sort(np.random.default_rng(seed).choice(n, n // 10, replace=False))
        with suppress(LinAlgError):
            found = cls(K, index)
            left = float(K.diagonal().mean() - np.square(found.W).sum(axis=0).mean())
            if float(losses.stiffness_low.max()) * left < 10.0:
                return found
        return None

    def start(self, losses: RowLosses) -> Array:
        """Return coefficients (n,) that are zero except for landmarks', and nearly minimise P over the landmarks."""
        y = losses.y
        b = np.zeros(len(self.index))
        scores = np.zeros(len(y))
        primal = np.inf
        for _ in range(8):
            before = primal
            margins = y * scores
            c = losses.curvature(margins)
            target = y * np.where(margins < 1.0, losses.settings.low, losses.settings.high)
            factor = self._inner(self.W * np.sqrt(c).astype(self.W.dtype))
            d = self._solved(factor, self.W @ (c * target).astype(self.W.dtype)) - b
            change = np.asarray(d.astype(self.W.dtype) @ self.W, dtype=np.float64)
            length = 1.0
            primal = self._primal(losses, b + d, scores + change)
            if not primal < before:
                length = few_rows_step(losses, scores, change, float(b @ d), float(d @ d))
                primal = self._primal(losses, b + length * d, scores + length * change)
            b = b + length * d
            scores = scores + length * change
            if not before - primal > 0.03 * primal:
                break
        a = np.zeros(len(y))
        a[self.index] = self._trtrs(self._factor, b.astype(self.W.dtype), lower=1, trans=1)[0]
        return a

    def by_landmarks(self, active: Array, stiffness: Array) -> Callable[[Array], Array]:
        """Return the Nyström ``(1 + √c K √c)⁻¹`` on the active rows (m,), as a function of residuals there."""
        scaled = self.W[:, active] * np.sqrt(stiffness[active]).astype(self.W.dtype)
        factor = self._inner(scaled)

        def apply(v: Array) -> Array:
            inside = self._solved(factor, scaled @ v.astype(scaled.dtype))
            return v - inside.astype(scaled.dtype) @ scaled

        return apply

    def _inner(self, scaled: Array) -> Array:
        """Return the factor of ``1 + W C Wᵀ`` from ``W √C``."""
        inner = self._syrk(1.0, scaled.T, trans=1, lower=1)
        inner.flat[:: len(inner) + 1] += 1
        return self._factored(inner)

    def _factored(self, A: Array) -> Array:
        factor, info = self._potrf(A, lower=1)
        if info or not np.isfinite(factor.diagonal()).all():
            raise LinAlgError("not positive definite")
        return np.asarray(factor)

    def _solved(self, factor: Array, v: Array) -> Array:
        return np.asarray(self._potrs(factor, v, lower=1)[0], dtype=np.float64)

    def _primal(self, losses: RowLosses, b: Array, scores: Array) -> float:
        return 0.5 * float(b @ b) + float(losses.losses(losses.y * scores).sum())
