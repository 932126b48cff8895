"""Conjugate gradients on the face of the dual that coordinate descent has found.

With the signs of s held and its zeros left alone the dual is a quadratic, maximal where
``(K_SS + D_S) a_S = t_S`` with S the rows of s ≠ 0, D = ρ by sign and ``t_i = y_i (1 ∓ θ)``. Conjugate
gradients climb it from the current point; their direction is then followed as far as the true, concave dual
rises, so that a step never lowers it. Coordinate descent changes the face. This pairing is Moré and Toraldo's
GPCG (*On the solution of large quadratic programming problems with bound constraints*, 1991) with descent in
the place of projected gradients.

The preconditioner is ``(L_S L_Sᵀ + D_S)⁻¹`` by Woodbury, with ``L Lᵀ ≈ K`` from r landmark rows (Nyström). Newton
on the primal (`dask_odm.solvers.exact`) solves the same systems to more digits, with `Woodbury`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh, solve_triangular

from dask_odm.kernels.blocks import Gram
from dask_odm.kernels.jit import compiled
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.threads import run_threads
from dask_odm.problems.odm import KernelProblem
from dask_odm.solvers.krylov import conjugate_gradients
from dask_odm.solvers.line_search import bracket
from dask_odm.typing import Array

MAX_STEPS = 60  # products of one system
STALE_AFTER = 12  # products of a system after which the preconditioner is made anew
BISECTIONS = 20  # of the line search


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


FEATURE_ROWS = 1024  # whose features are computed or summed at a time
GROUPS = 8  # of rows, whose sums are added in order


class Woodbury:
    """``(I + √c L Lᵀ √c)⁻¹`` on any active rows, exact in float64 for the float32 features L that it is made of.

    At a stiffness c of 10⁷ digits cancel that float32 does not have. The inner matrix ``I + Lᵀ diag(c) L`` follows c by
    the rows whose c changed.

    Parameters
    ----------
    features : float32 ndarray of shape (n, r)
        L, with ``L Lᵀ ≈ K``.
    threads : int
    inner, stiffness : ndarrays of shape (r, r) and (n,), optional
        The state of another one to go on from.
    """

    def __init__(
        self, features: Array, threads: int, inner: Array | None = None, stiffness: Array | None = None
    ) -> None:
        n, r = features.shape
        self._features, self._threads = features, threads
        self.inner = np.eye(r) if inner is None else inner
        self.stiffness = np.zeros(n) if stiffness is None else stiffness

    def follow(self, stiffness: Array) -> None:
        """Make ``stiffness`` (n,) the c of the inner matrix."""
        change = stiffness - self.stiffness
        moved = np.flatnonzero(change)
        if 2 * len(moved) > np.count_nonzero(stiffness):
            self.inner, change, moved = np.eye(len(self.inner)), stiffness, np.flatnonzero(stiffness)

        def group(rows: Array) -> Array:
            total = np.zeros_like(self.inner)
            for start in range(0, len(rows), FEATURE_ROWS):
                some = rows[start : start + FEATURE_ROWS]
                values = self._features[some].astype(np.float64)
                total += (values * change[some, None]).T @ values
            return total

        for part in run_threads(group, np.array_split(moved, GROUPS // 2), self._threads):
            self.inner = self.inner + part
        self.stiffness = stiffness

    def on(self, face: Array) -> Callable[[Array], Array]:
        """The preconditioner as a function of residuals on the rows ``face``."""
        factor, root = cho_factor(self.inner), np.sqrt(self.stiffness[face])
        spans = [slice(len(face) * g // GROUPS, len(face) * (g + 1) // GROUPS) for g in range(GROUPS)]

        def apply(v: Array) -> Array:
            w = root * v

            def gather(span: slice) -> Array:
                out = np.zeros(len(self.inner))
                _gather(self._features, face[span], w[span], out)
                return out

            inside = cho_solve(factor, sum(run_threads(gather, spans, self._threads)))
            run_threads(lambda s: _spread(self._features, face[s], inside, w[s]), spans, self._threads)
            return v - root * w

        return apply


@compiled
def _gather(features: Array, index: Array, v: Array, out: Array) -> None:
    """``out += features[index].T @ v`` in float64."""
    for i in range(index.size):
        row, x = features[index[i]], v[i]
        for j in range(row.size):
            out[j] += x * row[j]


@compiled
def _spread(features: Array, index: Array, c: Array, out: Array) -> None:
    """``out <- features[index] @ c`` in float64."""
    for i in range(index.size):
        row, total = features[index[i]], 0.0
        for j in range(row.size):
            total += c[j] * row[j]
        out[i] = total


def nystrom_features(landmarks: Landmarks, rows: Callable[[Array], Array], n: int, threads: int) -> Array:
    """L of all n rows, float32 (n, r), with ``L Lᵀ`` the Nyström approximation of the Gram matrix."""
    whitening = solve_triangular(landmarks.factor, np.eye(len(landmarks)), lower=True).T
    right = landmarks.kernel.pack_right(landmarks.rows.astype(np.float32))
    whitening = whitening.astype(np.float32)
    features = np.empty((n, len(landmarks)), np.float32)

    def fill(start: int) -> None:
        index = np.arange(start, min(n, start + FEATURE_ROWS))
        tile = landmarks.kernel.tile_packed(landmarks.kernel.pack_left(rows(index).astype(np.float32)), right)
        features[index[0] : index[-1] + 1] = tile @ whitening

    run_threads(fill, range(0, n, FEATURE_ROWS), threads)
    return features


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

    residual = target - u[1, face] - a / stiffness
    direction, applied = np.zeros((2, n)), np.zeros(n)

    def apply(p: Array) -> Array:
        nonlocal applied
        full = np.zeros(n)
        full[face] = p
        applied = problem.gram.matvec(full)
        return applied[face] + p / stiffness

    def follow(length: float) -> None:
        direction[1] += length * applied

    x, steps = conjugate_gradients(
        apply, residual, preconditioner.on(face, stiffness), most=MAX_STEPS, gain=enough, on_step=follow
    )
    preconditioner.stale = steps >= STALE_AFTER
    if not steps:
        return u
    direction[0, face] = x
    return u + _rise(problem, u, direction) * direction


def _rise(problem: KernelProblem[Gram], u: Array, direction: Array) -> float:
    """The step in [0, 1] that maximises the concave dual along ``direction``."""
    if problem.dual_slope(u, direction, 1.0) >= 0:
        return 1.0
    return bracket(lambda step: problem.dual_slope(u, direction, step) > 0, BISECTIONS)[0]
