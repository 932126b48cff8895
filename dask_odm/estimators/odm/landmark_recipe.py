"""Kernels by Newton over the span of landmarks, O(n r) a pass: of rows in memory, or of a store by Dask."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.sparse import SparseRows
from dask_odm.data.rows.stored import Labelling
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.passes import StorePasses
from dask_odm.errors import InputError, MemoryLimitError
from dask_odm.estimators.fitting.checkpoints import open_steps
from dask_odm.estimators.fitting.training import (
    FitSettings,
    Trained,
    is_small,
    named_kernel,
    read_store,
    store_statistics,
)
from dask_odm.estimators.fitting.training_rows import TrainingRows
from dask_odm.estimators.inputs.resolving import weight_per_class
from dask_odm.estimators.odm.certificate import is_cheap, relative_gap
from dask_odm.estimators.odm.kernel_products import Purpose, require_memory, row_products, store_products
from dask_odm.estimators.odm.newton_recipe import report_step, rescaling_advised
from dask_odm.kernels.blocks import ArrayRows
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import MemoryPivots, choose, choosing_bytes
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.problems.losses import BandLoss
from dask_odm.problems.odm import RowLosses
from dask_odm.problems.span import SpanProblem, SpanQuery, SpanSums, tile_bytes
from dask_odm.solvers.newton import PrimalSolution
from dask_odm.solvers.sketch import SKETCH
from dask_odm.solvers.span_newton import (
    LandmarkState,
    carried_over,
    rough_solution,
    solve_landmark,
    start_rows,
    with_support,
)
from dask_odm.strategies.pivot_passes import StorePivots
from dask_odm.strategies.predict import Predictor
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
LANDMARKS = 1000
WHOLE_VALUES = 1 << 28  # kernel values that a store's rows in memory may have at the landmarks
CERTIFICATE = Purpose("a certificate", lambda n, d, itemsize: 48 * 8 * n)
ADVICE = "Use a smaller n_landmarks, or more memory."
PIVOT_ROWS = 20  # candidate rows per landmark
FEW = 4  # a fit begins with one landmark in so many


def train_landmark_arrays(
    X: Any, y: Array, weight: Array, class_weights: tuple[float, float], settings: FitSettings
) -> Trained:
    """Train on rows in memory; parameters as `dask_odm.estimators.odm.tree_recipe.train_arrays`."""
    _check(settings)
    began = time.perf_counter()
    rows = TrainingRows.of(X, y, weight, class_weights).merged()
    kernel, scaling, scaled = named_kernel(rows.X, rows, settings)
    count, d = _count(rows.n, settings), rows.X.shape[1]
    cluster, pool = Cluster.local(settings.memory_limit), MemoryPivots(scaled, CPU_COUNT)
    needed = solver_bytes(count, d, rows.n, rows.X.dtype.itemsize) + 4 * 8 * rows.n
    _require(cluster, needed, pool.pass_bytes(count), count, d, settings)
    if settings.certify:  # told now, not after the fit
        require_memory((rows.n, d), rows.X.dtype, settings, CERTIFICATE, 0)
    with single_threaded_blas, rescaling_advised():
        loss = BandLoss(settings.odm, float(rows.total_weights.sum()), 1, *class_weights)
        weights = np.empty(0) if (rows.weight == 1.0).all() else rows.weight
        source = scaled if isinstance(scaled, SparseRows) else ArrayRows(scaled)
        codes, spare = (rows.y > 0).astype(np.int8), cluster.memory - needed

        def spanned(landmarks: Landmarks, *, keep: bool) -> SpanProblem:
            query = SpanQuery(kernel, landmarks.rows, loss)
            return SpanProblem.over_rows(query, source, codes, weights, spare if keep else 0, CPU_COUNT)

        chosen = choose(kernel, pool, **_choosing(settings, count, rows.n))
        landmarks, solution = _solve(chosen, spanned, rows.n, count, spare, settings, rows.fingerprint, began)
        gap = _gap_in_memory(rows, scaled, landmarks, solution.x, settings)
    return _finish(landmarks, scaling, rows.raw(landmarks.index), rows.kept[landmarks.index], solution, gap, settings)


def _gap_in_memory(
    rows: TrainingRows, scaled: Array | SparseRows, landmarks: Landmarks, a: Array, settings: FitSettings
) -> float:
    """What is known of the gap for the kernel itself: asked for, or for next to nothing."""
    if not settings.certify and not is_cheap(rows.n, len(landmarks)):
        return float("nan")
    losses = RowLosses(settings.odm, rows.y, rows.total_weights)
    try:
        with row_products(landmarks.kernel, scaled, settings, CERTIFICATE) as products:
            return relative_gap(
                losses, products, landmarks, landmarks.index, a, exact=settings.certify, threads=CPU_COUNT
            )
    except MemoryLimitError:
        if settings.certify:
            raise
        return float("nan")  # it was not asked for


def train_landmark_store(store: Store, labelling: Labelling, settings: FitSettings) -> Trained:
    """Train on a store: a small one in memory, any other by passes of Dask's workers over its chunks."""
    _check(settings)
    began = time.perf_counter()
    if is_small(store) and store.rows * min(store.rows, settings.n_landmarks or LANDMARKS) <= WHOLE_VALUES:
        return train_landmark_arrays(*read_store(store, labelling, settings), settings)
    settings.require_named_kernel("a store of this size")
    cluster = Cluster.current(settings.memory_limit)
    count, here = _count(store.rows, settings), Cluster.local(settings.memory_limit)
    itemsize = np.dtype(settings.dtype or store.dtype).itemsize
    needed = solver_bytes(count, store.features, store.rows, itemsize)
    _require(here, needed, 0, count, store.features, settings)
    if settings.certify:
        require_memory((store.rows, store.features), store.dtype, settings, CERTIFICATE, 0)
    statistics = store_statistics(store, labelling, cluster)
    scaling, kernel = settings.scaling(statistics), settings.make_kernel(statistics)
    source = StorePivots(store, labelling, scaling, cluster, np.dtype(settings.dtype or store.dtype).name)
    choosing = _choosing(settings, count, store.rows)
    source.require(choosing["count"], choosing["method"])
    with single_threaded_blas, rescaling_advised():
        chosen = choose(kernel, source, **choosing)
        class_weights = labelling.negative_weight, labelling.positive_weight
        total = float(weight_per_class(store) @ class_weights)
        loss = BandLoss(settings.odm, total, labelling.positive, *class_weights)

        def spanned(landmarks: Landmarks, *, keep: bool) -> SpanProblem:
            passes = StorePasses(store, cluster)
            span = SpanProblem.over_passes(SpanQuery(kernel, landmarks.rows, loss, scaling), passes)
            needed = span.pass_bytes(max(start_rows(store.rows, count), SKETCH * count))
            passes.require(needed, f"A pass over the store for {len(landmarks)} landmarks")
            return span

        logger.info("%d rows, %d landmarks, Newton by passes; %s", store.rows, count, cluster)
        data, spare = f"{store.digest} {labelling}", here.memory - needed
        landmarks, solution = _solve(chosen, spanned, store.rows, count, spare, settings, lambda: data, began)
        raw, gap = source.raw(landmarks.index), float("nan")
        if settings.certify:
            asked = store_products(store, labelling, scaling, kernel, cluster, settings, CERTIFICATE)
            with asked as (products, losses, kept):
                places = np.searchsorted(kept, landmarks.index)
                gap = relative_gap(losses, products, landmarks, places, solution.x, exact=True, threads=CPU_COUNT)
    return _finish(landmarks, scaling, raw, landmarks.index, solution, gap, settings)


def _check(settings: FitSettings) -> None:
    if settings.kernel == "precomputed":
        raise InputError("solver='landmark' needs rows, not kernel='precomputed'; choose solver='exact'.")
    if settings.kernel == "linear":
        raise InputError("solver='landmark' is for kernels other than 'linear', which solver='newton' learns exactly.")


def _count(rows: int, settings: FitSettings) -> int:
    """Landmarks among so many rows."""
    asked = settings.n_landmarks or LANDMARKS
    if settings.n_landmarks and asked > rows:
        logger.info("n_landmarks=%d is more than the %d different rows: each may be one", asked, rows)
    return min(rows, asked)


def _require(here: Cluster, newton: int, reading: int, count: int, d: int, settings: FitSettings) -> None:
    """Raise MemoryLimitError where Newton, or choosing landmarks before it, does not fit this process."""
    if settings.landmarks == "rp":
        here.require(choosing_bytes(count, d) + reading, 1, f"Choosing {count} landmarks", ADVICE)
    here.require(newton, 1, f"Newton over {count} landmarks", ADVICE)


def _choosing(settings: FitSettings, count: int, n: int) -> dict[str, Any]:
    """How the landmarks are chosen that a fit begins with."""
    if _by_support(settings, count, n):
        return {"method": "uniform", "seed": settings.solver.seed, "count": -(-count // FEW)}
    method = "uniform" if settings.landmarks == "support" else settings.landmarks
    # by their residual among so many rows that a pass costs no more than Newton's
    return {"method": method, "seed": settings.solver.seed, "count": count, "rows": PIVOT_ROWS * count}


def _by_support(settings: FitSettings, count: int, n: int) -> bool:
    """Whether landmarks are added by what the first of them leave to be done; not where every row is one."""
    return settings.landmarks == "support" and count < n


def solver_bytes(r: int, d: int, n: int, itemsize: int) -> int:
    """About what Newton over ``r`` landmarks of ``d`` features holds besides ``n`` rows and their vectors."""
    start = start_rows(n, r)
    sample = 3 * start * (d * itemsize + 24) if start < n // 2 else 0  # as it comes and as it is put together
    few = r // FEW + 1
    tiles = CPU_COUNT * max(tile_bytes(r, d, n, itemsize), tile_bytes(few, d, start, itemsize))
    # the Gram matrix, its factor and what made it; the preconditioner, its parts and the values they are made of
    return sample + tiles + 8 * ((9 + SKETCH) * r * r + (SKETCH + 4) * r * d)


def _solve(
    chosen: Landmarks,
    spanned: Callable[..., SpanProblem],
    n: int,
    count: int,
    memory: int,
    settings: FitSettings,
    data: Callable[[], str],
    began: float,
) -> tuple[Landmarks, PrimalSolution[SpanSums]]:
    """All landmarks, the ``chosen`` ones if no more are to come, and Newton's solution over them.

    ``spanned`` gives the span of landmarks over the ``n`` rows, which ``data`` tells a checkpoint; of a few of them a
    sample's solution is learned first, to start from, and to tell which rows have a dual variable.
    """
    seed, size = settings.solver.seed, start_rows(n, count)
    resume, save = open_steps("landmark", data, settings, LandmarkState)
    landmarks, start, by_support = chosen, np.zeros(len(chosen)), _by_support(settings, count, n)
    if by_support or (resume is None and 2 * size < n):
        few = chosen if by_support else Landmarks(chosen.kernel, chosen.rows[::FEW], chosen.index[::FEW])
        rough = spanned(few, keep=2 * size >= n)  # else values are read but twice: computed sooner than kept
        a = rough_solution(rough, few, n, size, seed, memory, CPU_COUNT)
        landmarks = with_support(rough, few, a, count, seed) if by_support else chosen
        start = carried_over(few, a, landmarks)
        del rough
    span = spanned(landmarks, keep=True)
    solution = solve_landmark(
        span,
        landmarks,
        start,
        tol=settings.solver.tol,
        max_iter=settings.solver.max_iter,
        seed=seed,
        threads=CPU_COUNT,
        began=began,
        resume=resume,
        on_step=report_step,
        on_state=save,
    )
    return landmarks, solution


def _finish(
    landmarks: Landmarks,
    scaling: Scaling,
    raw: Any,
    numbers: Array,
    solution: PrimalSolution[SpanSums],
    gap: float,
    settings: FitSettings,
) -> Trained:
    """The model of a solution: its landmarks are the support, ``raw`` rows with their ``numbers``."""
    a, kernel = solution.x, landmarks.kernel
    if not (np.isfinite(a).all() and np.isfinite(solution.gap)):
        raise InputError("the solution is not finite: rescale the rows (scale='minmax') or the weights.")
    intercept = np.array([kernel.bias * float(a.sum())])
    predictor = Predictor(replace(kernel, bias=0.0), scaling, raw, a[None], None, intercept)
    warning = None
    if not solution.converged:
        warning = (
            f"The solver stopped at a relative gap of {solution.gap:.1e} over the span of the landmarks, above "
            f"tol={settings.solver.tol:g}. Increase max_iter ({settings.solver.max_iter} steps), or decrease lam."
        )
    return Trained(predictor, numbers, gap, solution.history, max(1, solution.steps), warning)
