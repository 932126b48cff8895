"""The linear kernel by stochastic steps: SVRG and CSVRG over rows in memory, DSVRG round the workers' partitions."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from dask.utils import format_bytes
from scipy.sparse import issparse

from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import Labelling
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.errors import InputError
from dask_odm.estimators.fitting.checkpoints import EpochCheckpoint, open_epochs
from dask_odm.estimators.fitting.training import (
    STRATA,
    WHOLE_BYTES,
    FitSettings,
    Trained,
    is_small,
    read_store,
    scratch_folder,
    store_statistics,
)
from dask_odm.estimators.fitting.training_rows import TrainingRows
from dask_odm.estimators.inputs.resolving import weight_per_class
from dask_odm.estimators.odm.newton_recipe import finish_linear, report_step, start_weights
from dask_odm.kernels.base import Kernel
from dask_odm.partition.strata import StratifiedPartitioner
from dask_odm.problems.primal import FeatureMap, LinearLoss
from dask_odm.solvers.svrg import SVRG, StochasticProblem, SVRGState
from dask_odm.solvers.svrg_steps import ArraySteps, CoresetSteps, draw_coreset
from dask_odm.strategies.ring import Ring, RingJob, ring_partitions
from dask_odm.strategies.shuffle import groups_of_arrays, landmarks_path, partition_arrays, partition_store
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


def train_svrg_arrays(
    X: Any, y: Array, weight: Array, class_weights: tuple[float, float], settings: FitSettings
) -> Trained:
    """Train by SVRG on rows in memory; parameters as `dask_odm.estimators.odm.tree_recipe.train_arrays`."""
    rows, features, _, scaled = _dense_rows("svrg", X, y, weight, class_weights, settings)
    problem = ArraySteps(*_in_memory(rows, features, scaled, settings))
    return _solve("svrg", problem, features, rows, settings)


def train_csvrg_arrays(
    X: Any, y: Array, weight: Array, class_weights: tuple[float, float], settings: FitSettings
) -> Trained:
    """Train by CSVRG on rows in memory; parameters as `dask_odm.estimators.odm.tree_recipe.train_arrays`."""
    rows, features, kernel, scaled = _dense_rows("csvrg", X, y, weight, class_weights, settings)
    size, seed = settings.svrg.coreset_size, settings.solver.seed
    few = min(settings.n_landmarks or STRATA, size)
    strata, _ = groups_of_arrays(scaled, StratifiedPartitioner(kernel, few, 1, seed))
    chosen, factor = draw_coreset(strata, size, seed)
    problem = CoresetSteps(*_in_memory(rows, features, scaled, settings), chosen, factor)
    trained = _solve("csvrg", problem, features, rows, settings, biased=True)
    if trained.warning is None or trained.history[-1]["iteration"] >= settings.solver.max_iter:
        return trained
    warning = (
        f"solver='csvrg' stalled at a relative gap of {trained.gap:.1e}, above tol={settings.solver.tol:g}: its "
        f"{len(chosen)} of {rows.n} rows have an optimum of their own. Increase coreset_size, or use solver='svrg'."
    )
    return replace(trained, warning=warning)


def train_svrg_store(store: Store, labelling: Labelling, settings: FitSettings) -> Trained:
    """Train by SVRG on a store that fits in memory."""
    return train_svrg_arrays(*_read("svrg", store, labelling, settings), settings)


def train_csvrg_store(store: Store, labelling: Labelling, settings: FitSettings) -> Trained:
    """Train by CSVRG on a store that fits in memory."""
    return train_csvrg_arrays(*_read("csvrg", store, labelling, settings), settings)


def train_ring_arrays(
    X: Any, y: Array, weight: Array, class_weights: tuple[float, float], settings: FitSettings
) -> Trained:
    """Train by DSVRG on rows in memory, in this process; as `dask_odm.estimators.odm.tree_recipe.train_arrays`."""
    rows, features, kernel, scaled = _dense_rows("dsvrg", X, y, weight, class_weights, settings)
    parts = ring_partitions(rows.n, settings.n_partitions)
    partitions = partition_arrays(scaled, rows.y, rows.total_weights, settings.partitioner(kernel, parts))
    loss = LinearLoss(settings.odm, float(rows.total_weights.sum()))
    job = RingJob(
        partitions,
        None,
        FeatureMap(features.d, features.bias),
        loss,
        settings.svrg.stage_steps,
        settings.solver.seed,
    )
    return _solve("dsvrg", Ring(job, Cluster.local(settings.memory_limit)), features, rows, settings)


def train_ring_store(store: Store, labelling: Labelling, settings: FitSettings) -> Trained:
    """Train by DSVRG on a store of any size: the shuffle, then the ring, on Dask."""
    cluster = Cluster.current(settings.memory_limit)
    labelled = sum(store.class_counts or ())
    parts = ring_partitions(store.rows if settings.n_partitions else labelled, settings.n_partitions)
    statistics = store_statistics(store, labelling, cluster)
    scaling, kernel = settings.scaling(statistics), settings.make_kernel(statistics)
    weights = labelling.negative_weight, labelling.positive_weight
    loss = LinearLoss(settings.odm, float(weight_per_class(store) @ weights))
    features = FeatureMap(store.features, settings.bias, None if settings.scale is None else scaling)
    checkpoint = open_epochs("dsvrg", lambda: f"{parts} {store.digest} {labelling}", settings)
    logger.info("%d rows in %d partitions, DSVRG; %s", store.rows, parts, cluster)
    with scratch_folder(settings.scratch) as folder:
        partitioner = settings.partitioner(kernel, parts)
        partitions = partition_store(store, labelling, scaling, partitioner, folder, cluster, settings.dtype)
        job = RingJob(
            partitions,
            None if features.scaling is None else StoredScaling(landmarks_path(folder)),
            FeatureMap(features.d, features.bias),
            loss,
            settings.svrg.stage_steps,
            settings.solver.seed,
        )
        return _run("dsvrg", Ring(job, cluster), features, store.dtype, settings, checkpoint)


def _read(name: str, store: Store, labelling: Labelling, settings: FitSettings) -> tuple[Array, Array, Array, Any]:
    if not is_small(store):
        size = store.rows * store.features * store.dtype.itemsize
        raise InputError(
            f"solver={name!r} works in memory, on stores of up to {format_bytes(WHOLE_BYTES)}; '{store.path}' has "
            f"{format_bytes(size)}. Use solver='dsvrg' or 'newton'."
        )
    return read_store(store, labelling, settings)


def _dense_rows(
    name: str, X: Any, y: Array, weight: Array, class_weights: tuple[float, float], settings: FitSettings
) -> tuple[TrainingRows, FeatureMap, Kernel, Array]:
    """Rows that count, their features, the kernel, and scaled rows."""
    if issparse(X):
        raise InputError(f"solver={name!r} takes dense rows only; use solver='newton' for sparse ones.")
    rows = TrainingRows.of(X, y, weight, class_weights)
    statistics = rows.statistics()
    kernel = settings.make_kernel(statistics)
    scaling: Scaling | None = None if settings.scale is None else settings.scaling(statistics)
    scaled = np.ascontiguousarray(rows.X) if scaling is None else scaling(rows.X)
    return rows, FeatureMap(rows.X.shape[1], settings.bias, scaling), kernel, scaled


def _in_memory(
    rows: TrainingRows, features: FeatureMap, scaled: Array, settings: FitSettings
) -> tuple[FeatureMap, LinearLoss, Array, Array, Array, int, int]:
    """What `ArraySteps` takes."""
    loss = LinearLoss(settings.odm, float(rows.total_weights.sum()), 1, *rows.class_weights)
    weights = np.empty(0) if (rows.weight == 1.0).all() else rows.weight
    plain = FeatureMap(features.d, features.bias)
    return plain, loss, scaled, (rows.y > 0).astype(np.int8), weights, settings.solver.seed, CPU_COUNT


def _solve(
    name: str,
    problem: StochasticProblem,
    features: FeatureMap,
    rows: TrainingRows,
    settings: FitSettings,
    *,
    biased: bool = False,
) -> Trained:
    checkpoint = open_epochs(name, rows.fingerprint, settings)
    return _run(name, problem, features, rows.X.dtype, settings, checkpoint, biased=biased)


def _run(
    name: str,
    problem: StochasticProblem,
    features: FeatureMap,
    dtype: np.dtype[Any],
    settings: FitSettings,
    checkpoint: EpochCheckpoint | None,
    *,
    biased: bool = False,
) -> Trained:
    solver = SVRG(name, problem, settings.solver, settings.svrg, biased, on_step=report_step)
    state, history = SVRGState.start(start_weights(features, settings)), []
    if checkpoint is not None:
        solver = replace(solver, on_epoch=checkpoint.save)
        state, history = checkpoint.start or state, checkpoint.history
    return finish_linear(features, solver.run(state, history), dtype, settings)
