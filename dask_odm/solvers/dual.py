"""The solver of one partition: coordinate descent, helped by conjugate gradients where descent is slow.

Coordinate descent removes what oscillates from row to row in a sweep or two and is slow at what is smooth over
many rows, the more so the larger λ; conjugate gradients preconditioned by landmarks remove just that. The two
take turns until the relative gap is at most ``tol``; neither ever lowers the dual. What `SWEEPS` of them leave is for
Newton over all rows (`dask_odm.solvers.exact`), which no λ slows down. Partitions of up to `DENSE_ROWS` rows, and the
linear kernel of few features, end at the optimum to rounding instead, by Newton, too.
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
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.problems.odm import KernelProblem, ODMSettings, Point, RowLosses
from dask_odm.problems.products import RangedRows, RowProducts
from dask_odm.solvers.active_set import solve_dense, solve_features
from dask_odm.solvers.base import Solution, SolverSettings
from dask_odm.solvers.dual_cd import sweep
from dask_odm.solvers.exact import solve_exact
from dask_odm.solvers.pcg import LandmarkPreconditioner, face_step
from dask_odm.typing import Array

DENSE_ROWS = 1024
PRECONDITIONER_ROWS = 1024
SLOW = 0.25
SWEEPS = 8  # of coordinate descent before Newton takes over


@dataclass(frozen=True)
class Resources:
    """What a solve may use; no bit of a result depends on it.

    ``memory`` bytes for the solve as a whole, ``threads`` for its kernel passes.
    """

    memory: int
    threads: int = 1


def preconditioner_rows(n: int) -> int:
    """Rows the preconditioner is made of in a partition of ``n``."""
    return min(PRECONDITIONER_ROWS, n // 24 + 64, n)


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
    r = preconditioner_rows(n)
    landmarks = 2 * r * (d + 2) * itemsize + 4 * r * n * itemsize + 4 * 8 * r * r
    passes = max(Tiling(n, d, size).scratch_bytes(threads, kernel) for size in (itemsize, 8 if certify else itemsize))
    return passes + landmarks + 30 * 8 * n


@dataclass(eq=False)
class _Descent:
    """One solve in progress: the pair ``u`` (coefficients, scores) and what it took so far."""

    problem: KernelProblem[Gram]
    settings: SolverSettings
    rng: np.random.Generator
    u: Array
    sweeps: int = 0
    face_steps: int = 0
    enough: float = 0.1
    preconditioner: LandmarkPreconditioner | None = None

    def climb(self) -> None:
        if self.preconditioner is None:
            n = self.problem.n
            rows = np.sort(self.rng.choice(n, preconditioner_rows(n), replace=False))
            self.preconditioner = LandmarkPreconditioner.from_rows(self.problem.gram, rows)
        self.u = face_step(self.problem, self.u, self.preconditioner, self.enough)
        self.face_steps += 1

    def until(self, point: Point) -> Point:
        """Sweep until the gap is at most tol or the rounds are used up; climb after a sweep that gained little.

        Where rounds of both gain little as well, the next climb is solved more exactly.
        """
        climbed = False
        while self.sweeps < min(self.settings.max_iter, SWEEPS):
            last = point.gap
            sweep(self.problem, self.u, self.rng)
            self.sweeps += 1
            point = self.problem.evaluate(self.u)
            if point.gap <= self.settings.tol or self.sweeps == min(self.settings.max_iter, SWEEPS):
                break
            if climbed and point.gap > 0.5 * last:
                self.enough = max(0.5 * self.enough, 1e-6)
            climbed = point.gap > SLOW * last
            if climbed:
                self.climb()
        return point

    def certify(self) -> Point:
        """Replace the scores by those of the kernel in float64, whose gap is a gap for the kernel itself."""
        self.u = np.stack([self.u[0], self.problem.gram.in_float64().matvec(self.u[0])])
        return self.problem.evaluate(self.u)


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
            solution = _solve_dense(kernel, rows, losses, dual, settings)
        elif is_low_rank(kernel, rows.d):
            solution = _solve_linear(kernel, rows, losses, dual, settings)
        else:
            solution = _solve_tiled(kernel, rows, losses, dual, settings, resources, certify)
    return replace(solution, seconds=time.perf_counter() - began)


def _solve_dense(kernel: Kernel, rows: Rows, losses: RowLosses, dual: Array, settings: SolverSettings) -> Solution:
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
    start, reached = problem.evaluate(u), point.gap <= settings.tol
    return Solution(s[None], losses.total_weight, rows.n, start, point, 0, steps, reached)


def _solve_tiled(
    kernel: Kernel,
    rows: Rows,
    losses: RowLosses,
    dual: Array,
    settings: SolverSettings,
    resources: Resources,
    certify: bool,
) -> Solution:
    needed = solver_bytes(rows.n, rows.d, rows.dtype.itemsize, resources.threads, certify=certify)
    spare = resources.memory - needed
    problem = KernelProblem(losses, Gram(kernel, rows, max(0, spare), resources.threads))
    run = _Descent(problem, settings, np.random.default_rng(settings.seed), problem.function(losses.y * dual))
    exact = certify and rows.dtype == np.float32
    start = point = run.certify() if exact and dual.any() else problem.evaluate(run.u)
    while point.gap > settings.tol and run.sweeps < settings.max_iter:
        if run.sweeps >= SWEEPS:
            return _hand_over(run, kernel, rows, start, spare, resources.threads, certify)
        point = run.until(point)
        if exact:
            point = run.certify()
    return Solution(
        (losses.y * run.u[0])[None],
        losses.total_weight,
        rows.n,
        start,
        point,
        run.sweeps,
        run.face_steps,
        point.gap <= settings.tol,
    )


def _hand_over(
    run: _Descent, kernel: Kernel, rows: Rows, start: Point, spare: int, threads: int, certify: bool
) -> Solution:
    """Go on by Newton over all rows, from where descent got to."""
    losses, a, left = run.problem.losses, run.u[0], run.settings.max_iter - run.sweeps
    source: Any = rows.X if isinstance(rows, ArrayRows) else RangedRows(rows)
    products = RowProducts(kernel, source, max(0, spare), threads)
    run.preconditioner, run.problem.gram._tiles = None, None
    settings = replace(run.settings, max_iter=left)
    certify = certify or rows.dtype == np.float64  # its products are of float32 until then
    found = solve_exact(losses, products, settings, start=a, threads=threads, certify=certify)
    steps = run.face_steps + len(found.history) - 1
    s, reached = losses.y * found.coefficients, found.converged
    return Solution(s[None], losses.total_weight, rows.n, start, found.point, run.sweeps, steps, reached)


def warm_up() -> None:
    """Solve a few rows, so that every loop is compiled or loaded and what that takes of memory is taken."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        rows, y = ArrayRows(rng.standard_normal((32, 2)).astype(dtype)), np.repeat([-1.0, 1.0], 16)
        losses = RowLosses(ODMSettings(1e3, 0.5, 0.5), y, np.ones(32))
        settings, resources = SolverSettings(max_iter=2), Resources(1 << 20)
        with single_threaded_blas:
            _solve_tiled(RBF(), rows, losses, np.zeros(32), settings, resources, certify=False)
