"""Newton for one partition, in the variant that suits its size and kernel.

Partitions of up to `DENSE_ROWS` rows, and kernels of low rank, are solved to rounding error. Larger partitions of other
kernels are solved to a relative gap of ``tol`` by `dask_odm.methods.exact.solver`.
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

DENSE_ROWS = 1024  # rows whose kernel matrix is formed as a whole


@dataclass(frozen=True)
class Resources:
    """Memory in bytes and threads that a solve may use. They never change its result."""

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
    """Return the peak bytes of a solve, without its rows and kept tiles.

    ``low_rank`` is the answer of `is_low_rank`. If ``kernel`` is None, the figure holds for any kernel.
    """
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
    """Solve the ODM of one partition from the dual variables ``dual`` (n,), zeros for a cold start.

    A solve that is not to rounding error returns a start unchanged if its gap is at most ``settings.tol``. With
    ``certify`` the gap is computed from kernel values in float64, and the solve goes on until that gap is at most
    ``tol``. Without it, the gap comes from kernel values in the dtype of the rows.
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
    certify = certify or rows.dtype == np.float64  # without it, products are in float32
    found = solve_exact(losses, products, settings, start=begin, threads=resources.threads, certify=certify)
    primal = found.history[0]["objective"]
    gap = found.history[0]["gap"]
    start = Point(primal, primal * (1.0 - gap), gap)
    passes_through = begin is not None and np.array_equal(begin, found.coefficients)
    s = (losses.y * found.coefficients)[None]
    steps = 0 if passes_through else len(found.history) - 1
    return Solution(s, losses.total_weight, rows.n, start, found.point, steps, 0, found.converged)


def warm_up() -> None:
    """Solve a few rows, so that all loops are compiled or loaded, and their memory is taken, before it is measured."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        rows = ArrayRows(rng.standard_normal((32, 2)).astype(dtype))
        y = np.repeat([-1.0, 1.0], 16)
        losses = RowLosses(ODMSettings(1e3, 0.5, 0.5), y, np.ones(32))
        settings = SolverSettings(max_iter=2)
        resources = Resources(1 << 20)
        with single_threaded_blas:
            _solve_newton(RBF(), rows, losses, np.zeros(32), settings, resources, certify=False)
