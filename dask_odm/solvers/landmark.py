"""Newton on the primal over the span of landmarks, for kernels: O(n r) a pass instead of O(n²).

A step solves ``(G + Kᵀ diag(c) K) Δ = −∇P`` by conjugate gradients, preconditioned by the same matrix summed over
a sample of the active rows only, drawn in proportion to their curvature c. Four to six steps from zero; unit steps,
and an exact line search where one does not lower P.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, lapack, solve_triangular

from dask_odm.kernels.base import Kernel
from dask_odm.problems.odm import RowLosses
from dask_odm.problems.span import Span
from dask_odm.solvers.newton import _line_search

Array = NDArray[Any]
SKETCH = 4  # rows a landmark that the preconditioner is made of
TIRED = 15  # iterations of conjugate gradients after which the preconditioner is made anew
MOST_PRODUCTS = 300
RANK_TOLERANCE = {"float32": 1e-9, "float64": 1e-13}  # a feature's rounding must stay small beside it


@dataclass(frozen=True, eq=False)
class Basis:
    """Independent landmarks z, which of the candidates they are, their Gram matrix G and its factor L, float64."""

    index: Array
    rows: Array
    gram: Array
    factor: Array

    @classmethod
    def of(cls, kernel: Kernel, candidates: Array) -> Basis:
        """The independent ones of ``candidates`` (m, d) as far as their dtype tells, by pivoted Cholesky in float64."""
        X = candidates.astype(np.float64)
        K = kernel.tile(X, X)
        K = 0.5 * (K + K.T)
        if not (np.isfinite(K).all() and K.diagonal().max() > 0):
            raise ValueError("the kernel of the landmarks overflows or is zero")
        least = RANK_TOLERANCE[candidates.dtype.name] * len(K) * float(K.diagonal().max())
        _, pivots, rank, _ = lapack.dpstrf(K, tol=least, lower=1)
        chosen = np.sort(pivots[: max(1, rank)] - 1)
        gram = K[np.ix_(chosen, chosen)].copy()
        return cls(chosen, np.ascontiguousarray(candidates[chosen]), gram, _factor(gram))


@dataclass(frozen=True, eq=False)
class LandmarkSolution:
    """Coefficients of the landmarks (r,), scores of the rows (n,), P, the gap over the span, one record a step."""

    coefficients: Array
    scores: Array
    primal: float
    gap: float
    converged: bool
    history: list[dict[str, Any]]


class _State:
    def __init__(self, losses: RowLosses, span: Span, basis: Basis, a: Array, scores: Array) -> None:
        self.a, self.scores = a, scores
        margins = losses.y * scores
        self.Ga = basis.gram @ a
        self.primal = 0.5 * float(a @ self.Ga) + float(losses.losses(margins).sum())
        self.gradient = self.Ga - span.adjoint(losses.y * losses.dual_candidate(margins))
        white = solve_triangular(basis.factor, self.gradient, lower=True)
        self.gap = 0.5 * float(white @ white) / max(self.primal, np.finfo(float).tiny)
        self.curvature = losses.curvature(margins)


def solve_landmark(
    losses: RowLosses,
    span: Span,
    basis: Basis,
    a: Array,
    *,
    tol: float,
    max_iter: int,
    seed: int,
    on_step: Callable[[dict[str, Any]], object] = lambda record: None,
) -> LandmarkSolution:
    """Minimise P over the span, from coefficients ``a`` (r,), until the gap over the span is at most ``tol`` of P."""
    began, rng = time.perf_counter(), np.random.default_rng(seed)
    state = _State(losses, span, basis, a, span.scores(a) if a.any() else np.zeros(span.n))
    history: list[dict[str, Any]] = []
    passes, factor, tired = 2, None, True
    while True:
        record = {
            "iteration": len(history),
            "gap": state.gap,
            "objective": state.primal,
            "passes": passes,
            "seconds": time.perf_counter() - began,
        }
        history.append(record)
        on_step(record)
        if state.gap <= tol or len(history) > max_iter:
            break
        if factor is None or tired:
            factor = _preconditioner(span, basis, state.curvature, rng)
        d, products = _direction(span, basis, state, factor)
        tired = products >= TIRED
        change = span.scores(d)
        length = _length(losses, basis, state, d, change)
        state = _State(losses, span, basis, state.a + length * d, state.scores + length * change)
        passes += products + 2
    return LandmarkSolution(state.a, state.scores, state.primal, state.gap, state.gap <= tol, history)


def _preconditioner(span: Span, basis: Basis, curvature: Array, rng: np.random.Generator) -> Array:
    """Cholesky factor of G plus the curvature summed over a sample of the active rows, reweighted."""
    active = np.flatnonzero(curvature)
    rows, weight = active, curvature[active]
    if len(active) > SKETCH * span.r:
        total = float(weight.sum())
        drawn = rng.choice(len(active), SKETCH * span.r, p=weight / total)
        picked, times = np.unique(drawn, return_counts=True)
        rows, weight = active[picked], times * (total / len(drawn))
    return _factor(basis.gram + span.squares(rows, weight))


def _factor(matrix: Array) -> Array:
    """Cholesky factor, with as much on the diagonal as it takes; ValueError where nothing helps."""
    jitter = 0.0
    while np.isfinite(jitter):
        factor, info = lapack.dpotrf(matrix + jitter * np.eye(len(matrix)), lower=1)
        if info == 0:
            return np.asarray(factor)
        trace = float(matrix.trace())
        jitter = max(100 * jitter, 1e-14 * trace) if np.isfinite(trace) and trace > 0 else np.inf
    raise ValueError("the landmarks' matrix is not positive definite")


def _direction(span: Span, basis: Basis, state: _State, factor: Array) -> tuple[Array, int]:
    """The Newton step, as exactly as the gap asks for, and the passes it took."""
    x, r = np.zeros(span.r), -state.gradient
    z = cho_solve((factor, True), r)
    p, rz = z, float(r @ z)
    enough = min(0.1, np.sqrt(state.gap)) ** 2 * rz
    for k in range(MOST_PRODUCTS):
        if rz <= enough:
            return x, k
        Hp = basis.gram @ p + span.product(state.curvature, p)
        step = rz / float(p @ Hp)
        x, r = x + step * p, r - step * Hp
        z = cho_solve((factor, True), r)
        rz, before = float(r @ z), rz
        p = z + (rz / before) * p
    return x, MOST_PRODUCTS


def _length(losses: RowLosses, basis: Basis, state: _State, d: Array, change: Array) -> float:
    """1 where the full step lowers P, else where P is least along it."""
    inner, norm = float(state.Ga @ d), float(d @ (basis.gram @ d))
    after = losses.losses(losses.y * (state.scores + change)).sum()
    quadratic = 0.5 * float(state.a @ state.Ga) + inner + 0.5 * norm
    if quadratic + after <= state.primal + 1e-4 * float(state.gradient @ d):
        return 1.0
    return _line_search(losses, state.scores, change, inner, norm)
