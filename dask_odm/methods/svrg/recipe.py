"""Recipes of the stochastic solvers of the linear kernel: SVRG and CSVRG in memory, DSVRG on a ring of workers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from dask.utils import format_bytes
from scipy.sparse import issparse

from dask_odm.data.rows.sparse import SparseRows
from dask_odm.engine.partition.strata import StratifiedPartitioner
from dask_odm.engine.shuffle import groups_of_arrays
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.model_building import finish_weights
from dask_odm.learning.training.run import read_limit
from dask_odm.learning.training.steps import report_step
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.as_predicted import weights_as_predicted
from dask_odm.methods.linear.recipe import start_weights
from dask_odm.methods.settings import ODMFit
from dask_odm.methods.svrg.solver import SVRG, StochasticProblem, SVRGSettings, SVRGState
from dask_odm.methods.svrg.steps import ArraySteps, CoresetSteps, draw_coreset
from dask_odm.methods.svrg.workers import Ring, RingJob, ring_partitions
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


def train_svrg(data: TrainingData, fit: ODMFit) -> Trained:
    """Train by SVRG on rows in memory."""
    held, features, _, scaled = _held_rows("svrg", data, fit)
    problem = ArraySteps(**_in_memory(held, features, scaled, fit))
    return _run("svrg", problem, features, held, fit, held.fingerprint)


def train_csvrg(data: TrainingData, fit: ODMFit) -> Trained:
    """Train by CSVRG on rows in memory."""
    held, features, kernel, scaled = _held_rows("csvrg", data, fit)
    size = fit.own.coreset_size
    seed = fit.run.seed
    few = min(fit.own.n_strata, size)
    strata, _ = groups_of_arrays(scaled, StratifiedPartitioner(kernel, few, 1, seed))
    chosen, factor = draw_coreset(strata, size, seed)
    problem = CoresetSteps(**_in_memory(held, features, scaled, fit), chosen=chosen, factor=factor)
    trained = _run("csvrg", problem, features, held, fit, held.fingerprint, biased=True)
    if trained.warning is None or trained.history[-1]["iteration"] >= fit.solver.max_iter:
        return trained
    warning = (
        f"solver='csvrg' stalled at a relative gap of {trained.attributes['dual_gap_']:.1e}, above "
        f"tol={fit.solver.tol:g}: its {len(chosen)} of {held.rows} rows have an optimum of their own. Increase "
        "coreset_size, or use solver='svrg'."
    )
    return replace(trained, warning=warning)


def train_dsvrg(data: TrainingData, fit: ODMFit) -> Trained:
    """Train by DSVRG: partition the rows, then run epochs on the workers or in this process."""
    parts = ring_partitions(data.rows if fit.own.n_partitions else data.labelled_rows, fit.own.n_partitions)
    seen = data.seen_by(fit.kernel)
    scaling = None if fit.kernel.scale is None else seen.scaling
    features = FeatureMap(data.features, fit.kernel.bias, scaling)
    logger.info("%d rows in %d partitions, DSVRG; %s", data.rows, parts, data.cluster)
    with seen.partitions(fit.partitioner(seen.kernel, parts), always=True) as rows:
        job = RingJob(
            rows.partitions,
            None if data.in_memory or scaling is None else rows.scaling,
            FeatureMap(features.d, features.bias),
            BandLoss(fit.odm, data.total_weight),
            fit.own.stage_steps,
            fit.run.seed,
        )
        ring = Ring(job, rows.cluster)
        return _run("dsvrg", ring, features, data, fit, lambda: f"{parts} {data.fingerprint()}")


def require_in_memory(name: str, data: TrainingData) -> MemoryData:
    """Return rows in memory; raise InputError if the data is a store that was too large to be read."""
    if isinstance(data, MemoryData):
        return data
    size = data.rows * data.features * data.dtype.itemsize
    raise InputError(
        f"solver={name!r} works in memory, on stores of up to {format_bytes(read_limit())}; this one has "
        f"{format_bytes(size)}. Use solver='dsvrg' or 'newton'."
    )


def _held_rows(name: str, data: TrainingData, fit: ODMFit) -> tuple[MemoryData, FeatureMap, Kernel, Array | SparseRows]:
    """Return the rows that take part, their feature map, the kernel, and the scaled rows."""
    held = require_in_memory(name, data)
    statistics = held.statistics()
    kernel = fit.kernel.make(statistics)
    X: Any = held.held.X
    scaling = None if fit.kernel.scale is None else fit.kernel.scaling(statistics, sparse=bool(issparse(X)))
    if issparse(X):
        scaled: Any = SparseRows(X, scaling)
    else:
        scaled = np.ascontiguousarray(X) if scaling is None else scaling(X)
    return held, FeatureMap(held.features, fit.kernel.bias, scaling), kernel, scaled


def _in_memory(data: MemoryData, features: FeatureMap, scaled: Array | SparseRows, fit: ODMFit) -> dict[str, Any]:
    """Return the constructor arguments of `ArraySteps`."""
    return {
        "features": features if isinstance(scaled, SparseRows) else FeatureMap(features.d, features.bias),
        "loss": fit.loss(data),
        "X": scaled.X if isinstance(scaled, SparseRows) else scaled,
        "codes": data.held.codes,
        "weight": data.held.block_weights,
        "seed": fit.run.seed,
        "threads": CPU_COUNT,
    }


def _run(
    name: str,
    problem: StochasticProblem,
    features: FeatureMap,
    data: TrainingData,
    fit: ODMFit,
    fingerprint: Callable[[], str],
    *,
    biased: bool = False,
) -> Trained:
    resume, save = open_steps(name, fingerprint, fit, SVRGState)
    require_state(fit, resume is None or _fits(resume, features.k))
    solver = SVRG(
        name, problem, fit.solver, SVRGSettings(fit.own.step_size), biased, on_step=report_step, on_state=save
    )
    found = solver.run(resume or SVRGState.start(start_weights(features, fit)))
    trained = finish_weights(features, found, fit.solver.tol, fit.solver.max_iter)
    return weights_as_predicted(trained, found, features, data, fit)


def _fits(state: SVRGState, k: int) -> bool:
    """Whether a state from a checkpoint is sound and has ``k`` weights."""
    shaped = state.w.shape == (k,) and state.before.shape == (2, k)
    counted = state.epoch == len(state.history) and min(state.passes, state.seconds, state.hops) >= 0
    return shaped and counted and (state.smoothness is None or state.smoothness > 0)
