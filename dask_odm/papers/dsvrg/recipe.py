"""Recipes of the stochastic solvers of the linear kernel: SVRG and CSVRG in memory, DSVRG on a ring of workers."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from dask.system import CPU_COUNT
from dask.utils import format_bytes
from scipy.sparse import issparse

from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.engine.partitioners import RandomPartitioner, StratifiedPartitioner
from dask_odm.engine.shuffle import groups_of_arrays
from dask_odm.errors import InputError
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.recipe import Recipe, Trained, finish_weights, report_step
from dask_odm.learning.training.run import read_limit
from dask_odm.learning.training.training_data import KernelData, TrainingData
from dask_odm.methods.as_predicted import weights_as_predicted
from dask_odm.methods.linear.recipe import start_weights
from dask_odm.methods.odm_fit import ODMFit, has_partitions
from dask_odm.papers.dsvrg.solver import SVRG, ArraySteps, StochasticProblem, SVRGState, draw_coreset
from dask_odm.papers.dsvrg.workers import Ring, RingJob, ring_partitions
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


class SVRGRecipe(Recipe[ODMFit]):
    """Train by SVRG on rows in memory."""

    linear: ClassVar[bool] = True

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        held = _in_memory("svrg", data)
        features = _features(held.seen_by(fit.kernel), fit)
        return _run("svrg", _steps(held, features, fit), features, held, fit)


class CSVRGRecipe(Recipe[ODMFit]):
    """Train by CSVRG on rows in memory."""

    linear: ClassVar[bool] = True

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        held = _in_memory("csvrg", data)
        seen = held.seen_by(fit.kernel)
        features = _features(seen, fit)
        size = fit.own.coreset_size
        few = min(fit.own.n_strata, size)
        strata, _ = groups_of_arrays(seen.scaled, StratifiedPartitioner(seen.kernel, few, 1, fit.run.seed))
        coreset = draw_coreset(strata, size, fit.run.seed)
        problem = _steps(held, features, fit, coreset)
        trained = _run("csvrg", problem, features, held, fit, biased=True)
        if trained.warning is None or trained.history[-1]["iteration"] >= fit.solver.max_iter:
            return trained
        warning = (
            f"solver='csvrg' stalled at a relative gap of {trained.attributes['dual_gap_']:.1e}, above "
            f"tol={fit.solver.tol:g}: its {len(coreset[0])} of {held.rows} rows have an optimum of their own. Increase "
            "coreset_size, or use solver='svrg'."
        )
        return replace(trained, warning=warning)


class DSVRGRecipe(Recipe[ODMFit]):
    """Train by DSVRG: partition the rows, then run epochs on the workers or in this process."""

    linear: ClassVar[bool] = True
    sparse: ClassVar[bool] = True

    def train(self, data: TrainingData, fit: ODMFit) -> Trained:
        parts = ring_partitions(data.rows if fit.own.n_partitions else data.labelled_rows, fit.own.n_partitions)
        seen = data.seen_by(fit.kernel)
        features = _features(seen, fit)
        logger.info("%d rows in %d partitions, DSVRG; %s", data.rows, parts, data.cluster)
        of_entries = data.is_sparse and not data.in_memory
        # strata of sparse rows would cost a pass, and dense landmarks
        partitioner = RandomPartitioner(parts, fit.run.seed) if of_entries else fit.partitioner(seen.kernel, parts)
        with seen.partitions(partitioner, always=True) as rows:
            partitions = rows.partitions
            scaling = None if features.scaling is None else rows.scaling
            if isinstance(partitions, MemoryPartitions):
                scaling = partitions.left_to_scale
            job = RingJob(
                partitions,
                None if partitions.is_sparse else scaling,
                FeatureMap(features.d, features.bias, scaling if partitions.is_sparse else None),
                BandLoss(fit.odm, data.total_weight),
                fit.own.stage_steps,
                fit.run.seed,
            )
            return _run("dsvrg", Ring(job, rows.cluster), features, data, fit, f"dsvrg {parts}")

    def reads(self, store: TrainingData, fit: ODMFit) -> bool:
        return False

    def spreads(self, fit: ODMFit) -> bool:
        return has_partitions(fit)


def _features(seen: KernelData, fit: ODMFit) -> FeatureMap:
    """Return the map from raw rows to features, which scales if the fit asks for it."""
    return FeatureMap(seen.data.features, fit.kernel.bias, None if fit.kernel.scale is None else seen.scaling)


def _in_memory(name: str, data: TrainingData) -> MemoryData:
    """Return rows in memory; raise InputError if the data is a store that was too large to be read."""
    if isinstance(data, MemoryData):
        return data
    size = data.rows * data.features * data.dtype.itemsize
    raise InputError(
        f"solver={name!r} works in memory, on stores of up to {format_bytes(read_limit())}; this one has "
        f"{format_bytes(size)}. Use solver='dsvrg' or 'newton'."
    )


def _steps(
    data: MemoryData, features: FeatureMap, fit: ODMFit, coreset: tuple[Array, Array] | None = None
) -> ArraySteps:
    """Return the steps over rows in memory: a scaled copy of dense rows, or sparse rows as they are."""
    X: Any = data.X
    if not issparse(X):
        X = np.ascontiguousarray(X) if features.scaling is None else features.scaling(X)
        features = FeatureMap(features.d, features.bias)
    return ArraySteps(features, fit.loss(data), X, *data.columns(), fit.run.seed, CPU_COUNT, coreset=coreset)


def _run(
    name: str,
    problem: StochasticProblem,
    features: FeatureMap,
    data: TrainingData,
    fit: ODMFit,
    steps: str | None = None,
    *,
    biased: bool = False,
) -> Trained:
    """Run the epochs. Only a fit by the same ``steps``, by default ``name``, resumes from their checkpoints."""
    resume, save = open_steps(steps or name, data.fingerprint, fit, SVRGState)
    if resume is not None:
        shaped = resume.w.shape == (features.k,) and resume.before.shape == (2, features.k)
        counted = resume.epoch == len(resume.history) and min(resume.passes, resume.hops) >= 0
        require_state(fit, shaped and counted and (resume.smoothness is None or resume.smoothness > 0))
    solver = SVRG(name, problem, fit.solver, fit.own.step_size, biased, on_step=report_step, on_state=save)
    found = solver.run(resume or SVRGState.start(start_weights(features, fit)))
    trained = finish_weights(features, found, fit.solver.tol, fit.solver.max_iter)
    return weights_as_predicted(trained, found, features, data, fit)


RECIPES: dict[str, Recipe[ODMFit]] = {"dsvrg": DSVRGRecipe(), "svrg": SVRGRecipe(), "csvrg": CSVRGRecipe()}
