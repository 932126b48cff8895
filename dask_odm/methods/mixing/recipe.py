"""Recipe of parameter mixing: shard the rows, run the epochs, and build the model from the last w."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np

from dask_odm.errors import InputError
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.steps import report_step
from dask_odm.learning.training.trained import Trained, require_finite_solution
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.mixing.settings import MixingFit
from dask_odm.methods.mixing.shards import NamedShards, fingerprint_of, shards_of
from dask_odm.methods.mixing.solver import MixingState, mix_parameters, suspects
from dask_odm.methods.mixing.workers import ShardRounds
from dask_odm.models.linear import LinearModel
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


def train_mixing(data: TrainingData, fit: MixingFit) -> Trained:
    """Train by `dask_odm.methods.mixing.solver`."""
    quiet = np.errstate(over="ignore", invalid="ignore")  # the solver raises if weights overflow
    with quiet, shards_of(data, fit) as named:
        logger.info("%d rows in %d shards; %s", data.rows, len(named.names), data.cluster)
        scaling = named.stored
        problem = ShardRounds(data.cluster, named.partitions, scaling, fit.rule, fit.fit_intercept, named.folder)
        _look_at_classes(problem.rows, named.names)
        resume, save = open_steps("mixing", lambda: fingerprint_of(data, fit), fit, MixingState)
        if resume is not None:
            epochs = resume.epoch, len(resume.history), len(resume.weights)
            sound = resume.w.shape == (problem.k,) and resume.weights.shape[1:] == (problem.shards,)
            require_state(fit, sound and len(set(epochs)) == 1)
        end = mix_parameters(problem, fit.mixing, fit.max_iter, resume, report_step, save)
        return _finish(problem, named, end, fit)


def _finish(problem: ShardRounds, named: NamedShards, end: MixingState, fit: MixingFit) -> Trained:
    features = FeatureMap(named.partitions.features, float(fit.fit_intercept), named.scaling)
    weights, intercept = features.raw_weights(end.w)
    require_finite_solution(weights, intercept)
    wrong = problem.judge(end.w)
    sizes = problem.rows.sum(axis=1)
    attributes: dict[str, Any] = {
        "shards_": named.names,
        "shard_weights_": end.weights,
        "shard_errors_": wrong / sizes,
        "suspects_": [named.names[i] for i in suspects(wrong, sizes, end.weights)],
        "n_iter_": end.epoch,
        "history_": end.history,
    }
    last = end.weights[-1]
    first = int(last.argmax())
    if len(last) > 2 and last[first] > 0.99:
        warnings.warn(
            f"shard {named.names[first]!r} holds {last[first]:.1%} of the weight in the last epoch, so the model is "
            "its alone: choose a smaller beta or kappa.",
            UserWarning,
            stacklevel=2,
        )
    return Trained(LinearModel(weights[None], np.array([intercept])), attributes)


def _look_at_classes(rows: Array, names: list[Any]) -> None:
    """Warn of shards that hold only one class; raise InputError if all shards do."""
    single = np.flatnonzero((rows == 0).any(axis=1))
    if len(single) == len(names):
        raise InputError(
            "every shard holds rows of one class only, and learns nothing: rows sorted by class cannot be cut into "
            "shards by their place. Give shard= (who sent each row), or leave it out: rows are then dealt at random."
        )
    if len(single):
        shown = ", ".join(repr(names[i]) for i in single[:5]) + (", …" if len(single) > 5 else "")
        warnings.warn(
            f"{len(single)} of {len(names)} shards hold rows of one class only ({shown}): what they learn says nothing "
            "of the other. Join them to others, or use fewer shards.",
            UserWarning,
            stacklevel=2,
        )
