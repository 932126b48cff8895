"""Kernels by Newton over the span of landmarks, O(n r) a pass: of rows in memory, or of a store by Dask."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from dask_odm.data.partitioned import Labelling
from dask_odm.data.scaling import Scaling
from dask_odm.data.sparse_rows import SparseRows
from dask_odm.data.store import Store
from dask_odm.errors import InputError, MemoryLimitError
from dask_odm.estimators.certificate import is_cheap, relative_gap
from dask_odm.estimators.checkpoints import find_checkpoint
from dask_odm.estimators.inputs import weight_per_class
from dask_odm.estimators.linear import report_step, rescaling_advised
from dask_odm.estimators.products import Purpose, require_memory, row_products, store_products
from dask_odm.estimators.rows import TrainingRows
from dask_odm.estimators.training import (
    FitSettings,
    Trained,
    is_small,
    named_kernel,
    plain_parameters,
    read_store,
    store_statistics,
)
from dask_odm.kernels.blocks import ArrayRows
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import MemorySource, choose
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.persistence import save_state
from dask_odm.problems.linear import LinearLoss
from dask_odm.problems.odm import RowLosses
from dask_odm.problems.span import RowSpan, Span, SpanQuery
from dask_odm.solvers.landmark import (
    SKETCH,
    LandmarkSolution,
    LandmarkState,
    solve_landmark,
    start_rows,
    warm_start,
)
from dask_odm.strategies.cluster import Cluster
from dask_odm.strategies.landmarks import choose_over_store
from dask_odm.strategies.passes import StoreSpan
from dask_odm.strategies.predict import Predictor

Array = NDArray[Any]
logger = logging.getLogger("dask_odm")
LANDMARKS = 1000
WHOLE_VALUES = 1 << 28  # kernel values that a store's rows in memory may have at the landmarks
CERTIFICATE = Purpose("a certificate", lambda n, d, itemsize: 48 * 8 * n)
ADVICE = "Use a smaller n_landmarks, or more memory."
PIVOT_ROWS = 20  # a landmark, that it is sought among


def train_landmark_arrays(
    X: Any, y: Array, weight: Array, class_weights: tuple[float, float], settings: FitSettings
) -> Trained:
    """Train on rows in memory; parameters as `dask_odm.estimators.sodm.train_arrays`."""
    _check(settings)
    began = time.perf_counter()
    rows = TrainingRows.of(X, y, weight, class_weights).merged()
    kernel, scaling, scaled = named_kernel(rows.X, rows, settings)
    count = min(rows.n, settings.n_landmarks or LANDMARKS)
    cluster = Cluster.local(settings.memory_limit)
    needed = solver_bytes(count, rows.X.shape[1]) + 4 * 8 * rows.n
    cluster.require(needed, 1, f"Newton over {count} landmarks", ADVICE)
    if settings.certify:  # told now, not after the fit
        require_memory((rows.n, rows.X.shape[1]), rows.X.dtype, settings, CERTIFICATE, 0)
    with single_threaded_blas, rescaling_advised():
        landmarks = choose(kernel, MemorySource(scaled, CPU_COUNT), count, **_choosing(settings, count))
        loss = LinearLoss(settings.odm, float(rows.total_weights.sum()), 1, *class_weights)
        query = SpanQuery(kernel, landmarks.rows, loss)
        weights = np.empty(0) if (rows.weight == 1.0).all() else rows.weight
        source = scaled if isinstance(scaled, SparseRows) else ArrayRows(scaled)
        spare = cluster.memory - needed
        span = RowSpan(query, source, (rows.y > 0).astype(np.int8), weights, spare, CPU_COUNT)
        solution = _solve(span, query, landmarks, rows.n, spare - span.nbytes, settings, rows.fingerprint, began)
        del span  # its kernel values make room for the certificate's
        gap = _gap_in_memory(rows, scaled, landmarks, solution.a, settings)
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
    count = min(store.rows, settings.n_landmarks or LANDMARKS)
    here = Cluster.local(settings.memory_limit)
    needed = solver_bytes(count, store.features)
    here.require(needed, 1, f"Newton over {count} landmarks", ADVICE)
    if settings.certify:
        require_memory((store.rows, store.features), store.dtype, settings, CERTIFICATE, 0)
    statistics = store_statistics(store, labelling, cluster)
    scaling, kernel = settings.scaling(statistics), settings.make_kernel(statistics)
    with single_threaded_blas, rescaling_advised():
        landmarks, raw = choose_over_store(
            store,
            labelling,
            scaling,
            kernel,
            count,
            cluster=cluster,
            dtype=settings.dtype,
            **_choosing(settings, count),
        )
        class_weights = labelling.negative_weight, labelling.positive_weight
        total = float(weight_per_class(store) @ class_weights)
        query = SpanQuery(kernel, landmarks.rows, LinearLoss(settings.odm, total, labelling.positive, *class_weights))
        span = StoreSpan(query, scaling, store, cluster)
        span.require(max(start_rows(store.rows, len(landmarks)), SKETCH * len(landmarks)))
        logger.info("%d rows, %d landmarks, Newton by passes; %s", store.rows, len(landmarks), cluster)
        data = f"{store.digest} {labelling}"
        solution = _solve(span, query, landmarks, store.rows, here.memory - needed, settings, lambda: data, began)
        gap = float("nan")
        if settings.certify:
            asked = store_products(store, labelling, scaling, kernel, cluster, settings, CERTIFICATE)
            with asked as (products, losses, kept):
                places = np.searchsorted(kept, landmarks.index)
                gap = relative_gap(losses, products, landmarks, places, solution.a, exact=True, threads=CPU_COUNT)
    return _finish(landmarks, scaling, raw, landmarks.index, solution, gap, settings)


def _check(settings: FitSettings) -> None:
    if settings.kernel == "precomputed":
        raise InputError("solver='landmark' needs rows, not kernel='precomputed'; choose solver='exact'.")
    if settings.kernel == "linear":
        raise InputError("solver='landmark' is for kernels other than 'linear', which solver='newton' learns exactly.")


def _choosing(settings: FitSettings, count: int) -> dict[str, Any]:
    """How landmarks are chosen; by their residual among so many rows that a pass costs no more than Newton's."""
    return {"method": settings.landmarks, "seed": settings.solver.seed, "rows": PIVOT_ROWS * count}


def solver_bytes(r: int, d: int) -> int:
    """About what Newton over ``r`` landmarks of ``d`` features holds besides the rows and their vectors."""
    # the Gram matrix, its factor and what made it; the preconditioner, its parts and the values they are made of
    return 8 * ((9 + SKETCH) * r * r + (SKETCH + 4) * r * d)


def _solve(
    span: Span,
    query: SpanQuery,
    landmarks: Landmarks,
    n: int,
    memory: int,
    settings: FitSettings,
    data: Callable[[], str],
    began: float,
) -> LandmarkSolution:
    """Newton from a sample's solution, or from a checkpoint; ``data`` tells it which rows these are."""
    seed = settings.solver.seed
    resume: LandmarkState | None = None
    save: Callable[[LandmarkState], object] = _no_state
    if settings.checkpoint is not None:
        resume, save = _checkpoint(settings, f"landmark {data()}")
    start = np.zeros(len(landmarks))
    if resume is None:
        start = warm_start(span, query, landmarks, n, seed, memory, CPU_COUNT)
    return solve_landmark(
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


def _no_state(state: LandmarkState) -> None:
    pass


def _checkpoint(settings: FitSettings, data: str) -> tuple[LandmarkState | None, Callable[[LandmarkState], object]]:
    """Where to go on from, if a fit of the same data and parameters was lost, and what saves a state."""
    path, plain, seed = str(settings.checkpoint), plain_parameters(settings), settings.solver.seed
    fit, found = find_checkpoint(path, data, plain, seed, resume=settings.resume)

    def save(state: LandmarkState) -> None:
        arrays = {"a": state.a[None], "sketched": state.sketched[None]}
        attributes = {"drawn": state.drawn, "steps": state.steps, "history": state.history, "fit": fit, "seed": seed}
        save_state(path, arrays, attributes)

    if found is None:
        return None, save
    arrays, attributes = found
    figures = (attributes[name] for name in ("drawn", "steps", "history"))
    return LandmarkState(arrays["a"][0], arrays["sketched"][0], *figures), save


def _finish(
    landmarks: Landmarks,
    scaling: Scaling,
    raw: Any,
    numbers: Array,
    solution: LandmarkSolution,
    gap: float,
    settings: FitSettings,
) -> Trained:
    """The model of a solution: its landmarks are the support, ``raw`` rows with their ``numbers``."""
    a, kernel = solution.a, landmarks.kernel
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
