"""Recipe of the two hulls' nearest points by Wolfe's method, which makes a pass over the rows in each iteration."""

from __future__ import annotations

from dataclasses import replace

from dask_odm.errors import InputError
from dask_odm.learning.training.checkpoints import open_steps
from dask_odm.learning.training.steps import rescaling_advised
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.hulls.corral import CorralState
from dask_odm.methods.hulls.hulls_of_data import finish, hulls_of, tell
from dask_odm.methods.hulls.nearest_point import HullSolution, find_nearest_point, find_nearest_points
from dask_odm.methods.hulls.problem.hulls import HullProblem
from dask_odm.methods.hulls.settings import SaddleFit


def train_nearest_point(data: TrainingData, fit: SaddleFit) -> Trained:
    """Train by `dask_odm.methods.hulls.nearest_point`."""
    with single_threaded_blas, rescaling_advised():  # once for all passes, since entering it looks for libraries
        problem = hulls_of(data, fit)
        if fit.alphas:
            return _path(problem, data, fit)
        return finish(problem, solved(problem, data, fit), data, fit)


def _path(problem: HullProblem, data: TrainingData, fit: SaddleFit) -> Trained:
    """Train a model for every alpha of the settings."""
    if fit.run.checkpoint is not None:
        raise InputError("alpha_path has no checkpoint; set checkpoint to None.")
    found = find_nearest_points(problem, fit.alphas, tol=fit.tol, max_iter=fit.max_iter, on_step=tell)
    models = [finish(hulls, solution, data, replace(fit, alpha=hulls.alpha)) for hulls, solution in found]
    return replace(models[-1], path=tuple(models))


def solved(problem: HullProblem, data: TrainingData, fit: SaddleFit) -> HullSolution:
    """Find the nearest points; report every step, and save it if there is a checkpoint."""
    resume, save = open_steps("mnp", data.fingerprint, fit, CorralState)
    on_state = None if fit.run.checkpoint is None else save
    return find_nearest_point(
        problem, tol=fit.tol, max_iter=fit.max_iter, resume=resume, on_step=tell, on_state=on_state
    )
