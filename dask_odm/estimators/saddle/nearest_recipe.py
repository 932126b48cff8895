"""The nearest points of the two hulls by Wolfe's method: a pass over the rows an iteration, wherever they are."""

from __future__ import annotations

from dask_odm.estimators.fitting.checkpoints import open_steps
from dask_odm.estimators.fitting.steps import rescaling_advised
from dask_odm.estimators.fitting.trained import Trained
from dask_odm.estimators.fitting.training_data import TrainingData
from dask_odm.estimators.saddle.hulls_of_data import finish, hulls_of, tell
from dask_odm.estimators.saddle.saddle_settings import SaddleFit
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.solvers.nearest_point import CorralState, find_nearest_point


def train_nearest_point(data: TrainingData, fit: SaddleFit) -> Trained:
    """Train by `dask_odm.solvers.nearest_point`."""
    with single_threaded_blas, rescaling_advised():  # once for all passes: entering it looks for libraries
        problem = hulls_of(data, fit)
        resume, save = open_steps("mnp", data.fingerprint, fit, CorralState)
        solution = find_nearest_point(
            problem, tol=fit.tol, max_iter=fit.max_iter, resume=resume, on_step=tell, on_state=save
        )
        return finish(problem, solution, data, fit)
