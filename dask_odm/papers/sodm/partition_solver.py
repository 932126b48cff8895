"""The solver of one partition: the exact one of `dask_odm.methods.exact.solver`, or Newton in the weights of features.

Up to a thousand rows are solved to rounding, as is the linear kernel of few features, in the weights of these.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import TILE_ROWS, Tiling
from dask_odm.kernels.shape import Shape
from dask_odm.learning.newton import least_row_step
from dask_odm.learning.problem.losses import Point, RowLosses, own_gap
from dask_odm.learning.problem.products import RangedRows, RowProducts
from dask_odm.learning.solution import Solution, SolverSettings
from dask_odm.linalg.rows import ArrayRows, Rows
from dask_odm.linalg.systems import solve_positive
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.exact.memory import solve_bytes
from dask_odm.methods.exact.solver import ExactSolution, solve_exact
from dask_odm.methods.exact.systems import NODE_LIMITS, ExactLimits
from dask_odm.typing import Array


def is_solved_in_weights(kernel: Kernel, d: int) -> bool:
    """Return whether no kernel value is computed: for the linear kernel of no more features than a tile has rows."""
    return kernel.name == "linear" and d <= TILE_ROWS


def partition_bytes(shape: Shape, *, certify: bool) -> int:
    """Return the peak bytes of solving a partition, beside the rows that are given and kept tiles."""
    n, d = shape.n, shape.d
    if is_solved_in_weights(shape.kernel, d):
        return 4 * Tiling(n, d, shape.itemsize).size * (d + 1) * 8 + 4 * 8 * (d + 1) ** 2 + 30 * 8 * n
    rows = shape.rows if NODE_LIMITS.holds(n, d, double=False) else 0  # as they are read for the matrix
    return rows + solve_bytes(shape, NODE_LIMITS, certify=certify or shape.itemsize == 8)


def solve_partition(
    kernel: Kernel,
    rows: Rows,
    losses: RowLosses,
    dual: Array,
    settings: SolverSettings,
    *,
    memory: int,
    threads: int = 1,
    certify: bool = False,
    limits: ExactLimits = NODE_LIMITS,
) -> Solution:
    """Solve the ODM of one partition from the dual variables ``dual`` (n,), zeros for a cold start.

    The solve may use ``memory`` bytes and ``threads``, which never change its result.

    A solve that is not to rounding returns a start unchanged if its gap is at most ``settings.tol``. With ``certify``
    the gap is computed from kernel values in float64, and the solve goes on until that gap is at most ``tol``. Without
    it, the gap comes from kernel values in the dtype of the rows.
    """
    began = time.perf_counter()
    if is_solved_in_weights(kernel, rows.d):
        with single_threaded_blas:
            return _solve_features(kernel, rows, losses, dual, settings, began)
    needed = partition_bytes(Shape(kernel, rows.n, rows.d, rows.dtype.itemsize, threads), certify=certify)
    source: Any = rows.X if isinstance(rows, ArrayRows) else RangedRows(rows)
    products = RowProducts(kernel, source, max(0, memory - needed), threads)
    begin = losses.y * dual if dual.any() else None
    certify = certify or rows.dtype == np.float64  # without it, products are in float32
    found = solve_exact(losses, products, settings, start=begin, threads=threads, certify=certify, limits=limits)
    return exact_result(losses, found, began, begin, certified=certify)


def exact_result(
    losses: RowLosses, found: ExactSolution, began: float, start: Array | None = None, *, certified: bool = True
) -> Solution:
    """Return what the exact solver found from coefficients ``start`` (n,), with its seconds since ``began``."""
    primal = found.history[0]["objective"]
    gap = found.history[0]["gap"]
    passes_through = start is not None and np.array_equal(start, found.coefficients)
    return Solution(
        (losses.y * found.coefficients)[None],
        losses.total_weight,
        len(losses.y),
        Point(primal, primal * (1.0 - gap), gap),
        found.point,
        sweeps=0 if passes_through else len(found.history) - 1,
        converged=found.converged,
        seconds=time.perf_counter() - began,
        half_norm=0.5 * float(found.coefficients @ found.scores) if certified else -1.0,
    )


def _solve_features(
    kernel: Kernel, rows: Rows, losses: RowLosses, dual: Array, settings: SolverSettings, began: float
) -> Solution:
    w = _weights(rows, kernel.bias, losses.y * dual)
    start = own_gap(losses, losses.y * dual, _linear_scores(rows, kernel.bias, w))
    s, _, steps = solve_features(losses, rows, kernel.bias, w)
    w = _weights(rows, kernel.bias, losses.y * s)
    point = own_gap(losses, losses.y * s, _linear_scores(rows, kernel.bias, w))
    seconds = time.perf_counter() - began
    reached = point.gap <= settings.tol
    return Solution(s[None], losses.total_weight, rows.n, start, point, 0, steps, reached, seconds)


def solve_features(
    losses: RowLosses, rows: Rows, bias: float, w: Array, max_iter: int = 100
) -> tuple[Array, Array, int]:
    """Minimise P by Newton with Cholesky in the weights of the features, for the linear kernel ``x·z + bias``.

    A step solves ``(I + Φᵀ diag(c) Φ) Δ = −∇P`` with c the curvature of the rows' losses. A unit step that leaves the
    active set as it was ends at the optimum. ``w`` (d + 1,) is the start; its last entry is the weight of the constant
    feature √bias. The rows are read block by block, once per step. Returns dual variables s (n,), weights and the
    number of steps.
    """
    scores = _linear_scores(rows, bias, w)
    for step in range(1, max_iter + 1):
        stiffness, target = _active(losses, scores)
        hessian = np.eye(len(w))
        moment = np.zeros(len(w))
        for start, stop, X in _feature_blocks(rows, bias):
            weighted = X * stiffness[start:stop, None]
            hessian += weighted.T @ X
            moment += weighted.T @ (losses.y * target)[start:stop]
        new = solve_positive(hessian, moment, np.finfo(float).eps * float(np.trace(hessian)))
        after = _linear_scores(rows, bias, new)
        now = _active(losses, after)
        active = stiffness > 0
        if np.array_equal(now[0], stiffness) and np.array_equal(now[1][active], target[active]):
            return losses.dual_candidate(losses.y * after), new, step
        d = new - w
        length = least_row_step(losses, scores, after - scores, float(w @ d), float(d @ d))
        w = w + length * d
        scores = scores + length * (after - scores)
    return losses.dual_candidate(losses.y * scores), w, max_iter


def _active(losses: RowLosses, scores: Array) -> tuple[Array, Array]:
    """Return the curvature of every row's loss, and the end of the band nearest to the row."""
    margins = losses.y * scores
    return losses.curvature(margins), losses.aims(margins)


def _feature_blocks(rows: Rows, bias: float) -> Any:
    tiling = Tiling(rows.n, rows.d, rows.dtype.itemsize)
    for b in range(tiling.count):
        start, stop = tiling.span(b)
        constant = np.full((stop - start, 1), np.sqrt(bias))
        yield start, stop, np.hstack([rows.read(start, stop), constant])


def _weights(rows: Rows, bias: float, coefficients: Array) -> Array:
    """Return the weights (d + 1,) of the features whose scores are those of the rows' ``coefficients`` (n,)."""
    total = np.zeros(rows.d + 1)
    if coefficients.any():
        for start, stop, X in _feature_blocks(rows, bias):
            total += coefficients[start:stop] @ X
    return total


def _linear_scores(rows: Rows, bias: float, w: Array) -> Array:
    return np.concatenate([X @ w for _, _, X in _feature_blocks(rows, bias)])
