"""The solver of one partition: Newton, in the way that suits its size and kernel.

Partitions of up to `DENSE_ROWS` rows, and the linear kernel of few features, end at the optimum to rounding. Larger
ones of other kernels end at a relative gap of ``tol`` by Newton over all rows (`dask_odm.methods.exact.solver`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import ArrayRows, Gram, Rows, Tiling
from dask_odm.kernels.low_rank import LowRankGram, is_low_rank
from dask_odm.kernels.radial import RBF
from dask_odm.learning.problem.odm import KernelProblem, ODMSettings, Point, RowLosses
from dask_odm.learning.problem.products import RangedRows, RowProducts
from dask_odm.learning.solution import Solution, SolverSettings
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.exact.active_set import solve_dense, solve_features
from dask_odm.methods.exact.solver import solve_exact
from dask_odm.methods.exact.solver import solver_bytes as exact_bytes
from dask_odm.typing import Array

DENSE_ROWS = 1024


@dataclass(frozen=True)
class Resources:
    """What a solve may use; no bit of a result depends on it.

    ``memory`` bytes for the solve as a whole, ``threads`` for its kernel passes.
    """

    memory: int
    threads: int = 1


def solver_bytes(
    n: int,
    d: int,
    itemsize: int,
    threads: int,
    *,
    certify: bool,
    low_rank: bool = False,
    kernel: Kernel | None = None,
) -> int:
    """Peak bytes of a solve, rows and kept tiles aside; ``low_rank`` as `is_low_rank` says, any kernel without."""
    if n <= DENSE_ROWS:
        return Tiling(n, d, 8).scratch_bytes(1, kernel) + 5 * 8 * n * n
    if low_rank:
        return 4 * Tiling(n, d, itemsize).size * (d + 1) * 8 + 4 * 8 * (d + 1) ** 2 + 30 * 8 * n
    passes = max(Tiling(n, d, size).scratch_bytes(threads, kernel) for size in (itemsize, 8 if certify else itemsize))
    return passes + exact_bytes(n, d, itemsize)


def solve_partition(
    kernel: Kernel,
    rows: Rows,
    losses: RowLosses,
    dual: Array,
    settings: SolverSettings,
    resources: Resources,
    *,
    certify: bool = False,
) -> Solution:
    """Solve the ODM of one partition from the dual variables ``dual`` (n,).

    Parameters
    ----------
    kernel : Kernel
    rows : Rows
        The partition's n rows.
    losses : RowLosses
    dual : ndarray of shape (n,)
        Start; zeros for a cold one. Where the solve is not to rounding, a start whose gap is at most
        ``settings.tol`` is returned as it is.
    settings : SolverSettings
    resources : Resources
    certify : bool
        Hold the gap against the kernel in float64, and go on until that one is at most ``tol``. Without
        it the gap is that of the kernel as computed in the dtype of the rows.

    Returns
    -------
    Solution
    """
    began = time.perf_counter()
    with single_threaded_blas:
        if rows.n <= DENSE_ROWS:
            solution = _solve_small(kernel, rows, losses, dual, settings)
        elif is_low_rank(kernel, rows.d):
            solution = _solve_linear(kernel, rows, losses, dual, settings)
        else:
            solution = _solve_newton(kernel, rows, losses, dual, settings, resources, certify)
    return replace(solution, seconds=time.perf_counter() - began)


def _solve_small(kernel: Kernel, rows: Rows, losses: RowLosses, dual: Array, settings: SolverSettings) -> Solution:
    K = Gram(kernel, rows, budget=0).in_float64().dense()
    problem = KernelProblem(losses, _Dense(K))
    a = losses.y * dual
    start = problem.evaluate(problem.function(a))
    a, steps = solve_dense(losses, K, a)
    point = problem.evaluate(problem.function(a))
    return Solution(
        (losses.y * a)[None], losses.total_weight, rows.n, start, point, 0, steps, point.gap <= settings.tol
    )


@dataclass(frozen=True, eq=False)
class _Dense:
    K: Array

    @property
    def n(self) -> int:
        return len(self.K)

    def matvec(self, v: Array) -> Array:
        return self.K @ v


def _solve_linear(kernel: Kernel, rows: Rows, losses: RowLosses, dual: Array, settings: SolverSettings) -> Solution:
    gram = LowRankGram(kernel, rows, budget=0).in_float64()
    problem = KernelProblem(losses, gram)
    u = problem.function(losses.y * dual)
    weights = gram.weights(u[0])
    s, _, steps = solve_features(losses, rows, kernel.bias, weights)
    point = problem.evaluate(problem.function(losses.y * s))
    start = problem.evaluate(u)
    reached = point.gap <= settings.tol
    return Solution(s[None], losses.total_weight, rows.n, start, point, 0, steps, reached)


def _solve_newton(
    kernel: Kernel,
    rows: Rows,
    losses: RowLosses,
    dual: Array,
    settings: SolverSettings,
    resources: Resources,
    certify: bool,
) -> Solution:
    needed = solver_bytes(rows.n, rows.d, rows.dtype.itemsize, resources.threads, certify=certify)
    source: Any = rows.X if isinstance(rows, ArrayRows) else RangedRows(rows)
    products = RowProducts(kernel, source, max(0, resources.memory - needed), resources.threads)
    begin = losses.y * dual if dual.any() else None
    certify = certify or rows.dtype == np.float64  # products are of float32 until then
    found = solve_exact(losses, products, settings, start=begin, threads=resources.threads, certify=certify)
    primal = found.history[0]["objective"]
    gap = found.history[0]["gap"]
    start = Point(primal, primal * (1.0 - gap), gap)
    passes_through = begin is not None and np.array_equal(begin, found.coefficients)
    s = (losses.y * found.coefficients)[None]
    steps = 0 if passes_through else len(found.history) - 1
    return Solution(s, losses.total_weight, rows.n, start, found.point, steps, 0, found.converged)


def warm_up() -> None:
    """Solve a few rows, so that every loop is compiled or loaded and what that takes of memory is taken."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        rows = ArrayRows(rng.standard_normal((32, 2)).astype(dtype))
        y = np.repeat([-1.0, 1.0], 16)
        losses = RowLosses(ODMSettings(1e3, 0.5, 0.5), y, np.ones(32))
        settings = SolverSettings(max_iter=2)
        resources = Resources(1 << 20)
        with single_threaded_blas:
            _solve_newton(RBF(), rows, losses, np.zeros(32), settings, resources, certify=False)
