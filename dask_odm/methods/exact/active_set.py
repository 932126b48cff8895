"""Semismooth Newton on the primal for small or low-dimensional problems, solved to rounding.

The loss is piecewise quadratic. A step solves ``(I + Φᵀ diag(c) Φ) Δ = −∇P`` with c the curvature of the active rows.
`solve_dense` solves it in the coefficients of up to a few thousand rows, `solve_features` in the weights of up to a few
hundred features. Both end when a unit step leaves the active set as it was: that is the optimum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_odm.kernels.blocks import Rows, Tiling
from dask_odm.learning.line_search import least_row_step
from dask_odm.learning.problem.odm import RowLosses
from dask_odm.linalg.dense import solve_positive
from dask_odm.typing import Array

MAX_STEPS = 100


def solve_dense(losses: RowLosses, K: Array, a: Array) -> tuple[Array, int]:
    """Minimise P by Newton with Cholesky from coefficients ``a`` (n,), for a float64 Gram matrix (n, n).

    The step has a closed form: coefficients are zero on rows within the band, and ``(K_SS + D_S) a_S = t_S`` on the
    active rows S, with ``t_i = y_i (1 ∓ θ)``. Returns coefficients and the number of steps.
    """
    y = losses.y
    scores = K @ a
    for step in range(1, MAX_STEPS + 1):
        stiffness, target = _active(losses, scores)
        active = np.flatnonzero(stiffness)
        new = np.zeros_like(a)
        # scaling by √stiffness on both sides keeps the system well-conditioned for any λ
        root = np.sqrt(stiffness[active])
        system = root[:, None] * K[np.ix_(active, active)] * root + np.eye(len(active))
        if len(active):
            new[active] = root * _solved(system, root * (y * target)[active])
        after = K @ new
        if _same(_active(losses, after), (stiffness, target)):
            return new, step
        d = new - a
        Kd = after - scores
        length = least_row_step(losses, scores, Kd, float(a @ Kd), float(d @ Kd))
        a = a + length * d
        scores = scores + length * Kd
    return a, MAX_STEPS


def solve_features(losses: RowLosses, rows: Rows, bias: float, w: Array) -> tuple[Array, Array, int]:
    """Minimise P by Newton with Cholesky in the weights of the features, for the linear kernel ``x·z + bias``.

    ``w`` (d + 1,) is the start; its last entry is the weight of the constant feature √bias. The rows are read block by
    block, once per step. Returns dual variables s (n,), weights and the number of steps.
    """
    scores = _linear_scores(rows, bias, w)
    for step in range(1, MAX_STEPS + 1):
        stiffness, target = _active(losses, scores)
        hessian = np.eye(len(w))
        moment = np.zeros(len(w))
        for start, stop, X in _feature_blocks(rows, bias):
            weighted = X * stiffness[start:stop, None]
            hessian += weighted.T @ X
            moment += weighted.T @ (losses.y * target)[start:stop]
        new = _solved(hessian, moment)
        after = _linear_scores(rows, bias, new)
        if _same(_active(losses, after), (stiffness, target)):
            return losses.dual_candidate(losses.y * after), new, step
        d = new - w
        length = least_row_step(losses, scores, after - scores, float(w @ d), float(d @ d))
        w = w + length * d
        scores = scores + length * (after - scores)
    return losses.dual_candidate(losses.y * scores), w, MAX_STEPS


def _solved(A: Array, b: Array) -> Array:
    return solve_positive(A, b, np.finfo(float).eps * float(np.trace(A)))


def _active(losses: RowLosses, scores: Array) -> tuple[Array, Array]:
    """Return the curvature of every row's loss, and the end of the band nearest to the row."""
    margins = losses.y * scores
    return losses.curvature(margins), np.where(margins < 1.0, losses.settings.low, losses.settings.high)


def _same(one: tuple[Array, Array], other: tuple[Array, Array]) -> bool:
    active = one[0] > 0
    return np.array_equal(one[0], other[0]) and np.array_equal(one[1][active], other[1][active])


def _feature_blocks(rows: Rows, bias: float) -> Any:
    tiling = Tiling(rows.n, rows.d, rows.dtype.itemsize)
    for b in range(tiling.count):
        start, stop = tiling.span(b)
        constant = np.full((stop - start, 1), np.sqrt(bias))
        yield start, stop, np.hstack([rows.read(start, stop), constant])


def _linear_scores(rows: Rows, bias: float, w: Array) -> Array:
    return np.concatenate([X @ w for _, _, X in _feature_blocks(rows, bias)])
