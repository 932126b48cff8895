"""Kernels by Newton over the span of landmarks, for rows that fit in memory: no graph, O(rows · landmarks) a pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from dask_odm.data.partitioned import Labelling
from dask_odm.data.sparse_rows import SparseRows
from dask_odm.data.store import Store
from dask_odm.errors import InputError
from dask_odm.estimators.linear import report_step, rescaling_advised
from dask_odm.estimators.rows import TrainingRows
from dask_odm.estimators.training import FitSettings, Trained, read_store
from dask_odm.kernels.blocks import ArrayRows
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.problems.odm import RowLosses
from dask_odm.problems.span import RowSpan
from dask_odm.solvers.landmark import Basis, solve_landmark
from dask_odm.strategies.cluster import Cluster
from dask_odm.strategies.predict import Predictor

Array = NDArray[Any]
LANDMARKS = 1000


def train_landmark_arrays(
    X: Any, y: Array, weight: Array, class_weights: tuple[float, float], settings: FitSettings
) -> Trained:
    """Train on rows in memory; parameters as `dask_odm.estimators.training.train_arrays`."""
    if settings.kernel == "precomputed":
        raise InputError("solver='landmark' needs rows, not kernel='precomputed'; choose solver='sodm'.")
    if settings.kernel == "linear":
        raise InputError("solver='landmark' is for kernels other than 'linear', which solver='newton' learns exactly.")
    if settings.checkpoint is not None:
        raise InputError("solver='landmark' writes no checkpoint; set checkpoint to None.")
    rows = TrainingRows.of(X, y, weight, class_weights)
    statistics = rows.statistics()
    scaling, kernel = settings.scaling(statistics), settings.make_kernel(statistics)
    scaled = rows.scaled(scaling)
    count = min(rows.n, settings.n_landmarks or LANDMARKS)
    drawn = np.sort(np.random.default_rng(settings.solver.seed).choice(rows.n, count, replace=False))
    cluster = Cluster.local(settings.memory_limit)
    # the Gram matrix, its factor, the preconditioner's parts; vectors of n
    needed = 10 * 8 * count**2 + 20 * 8 * rows.n
    cluster.require(needed, 1, f"Newton over {count} landmarks")
    with single_threaded_blas, rescaling_advised():
        basis = Basis.of(kernel, scaled[drawn])
        source = scaled if isinstance(scaled, SparseRows) else ArrayRows(scaled)
        span = RowSpan(kernel, source, basis.rows, cluster.memory - needed, CPU_COUNT)
        solution = solve_landmark(
            RowLosses(settings.odm, rows.y, rows.total_weights),
            span,
            basis,
            np.zeros(span.r),
            tol=settings.solver.tol,
            max_iter=settings.solver.max_iter,
            seed=settings.solver.seed,
            on_step=report_step,
        )
    a, chosen = solution.coefficients, drawn[basis.index]
    if not (np.isfinite(a).all() and np.isfinite(solution.gap)):
        raise InputError("the solution is not finite: rescale the rows (scale='minmax') or the weights.")
    intercept = np.array([kernel.bias * float(a.sum())])
    predictor = Predictor(replace(kernel, bias=0.0), scaling, rows.raw(chosen), a[None], None, intercept)
    warning = None
    if not solution.converged:
        warning = (
            f"The solver stopped at a relative gap of {solution.gap:.1e} over the span of the landmarks, above "
            f"tol={settings.solver.tol:g}. Increase max_iter ({settings.solver.max_iter} steps), or decrease lam."
        )
    steps = max(1, len(solution.history) - 1)
    return Trained(predictor, rows.kept[chosen], float("nan"), solution.history, steps, warning)


def train_landmark_store(store: Store, labelling: Labelling, settings: FitSettings) -> Trained:
    """Train on a store that fits in this process's memory; of a larger one, refuse with both figures."""
    Cluster.local(settings.memory_limit).require(
        3 * store.rows * store.features * store.dtype.itemsize, 1, "Reading the store for solver='landmark'"
    )
    return train_landmark_arrays(*read_store(store, labelling, settings), settings)
