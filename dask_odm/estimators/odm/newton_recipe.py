"""The linear kernel by Newton in the weights of its features: a pass over the rows a step, wherever they are."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Scaling
from dask_odm.engine.passes import StoreProblem
from dask_odm.errors import InputError
from dask_odm.estimators.fitting.checkpoints import open_steps
from dask_odm.estimators.fitting.steps import report_step, rescaling_advised
from dask_odm.estimators.fitting.trained import Trained
from dask_odm.estimators.fitting.training_data import TrainingData
from dask_odm.estimators.odm.finishing import finish_weights
from dask_odm.estimators.odm.settings import ODMFit
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.problems.primal import FeatureMap
from dask_odm.problems.primal_arrays import EXACT_FEATURES
from dask_odm.solvers.newton import NewtonState, solve_newton
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


def train_newton(data: TrainingData, fit: ODMFit) -> Trained:
    """Train in the weights of the features."""
    if fit.lams and fit.run.checkpoint is not None:
        raise InputError("lam_path has no checkpoint; set checkpoint to None.")
    features = FeatureMap(data.features, fit.kernel.bias, scaling_asked_for(data, fit))
    problem = data.linear_problem(features, fit.loss(data))
    with single_threaded_blas:  # once for all passes: entering it looks for libraries
        return _solve_path(problem, features, data, fit, _forms_hessian(problem))


def _forms_hessian(problem: Any) -> bool | None:
    """Whether the Hessian of a store's problem is formed: where it is not large and fits the workers' memory."""
    if not isinstance(problem, StoreProblem):
        return None
    exact = problem.k <= EXACT_FEATURES
    if exact and not problem.fits("full"):
        logger.warning(
            "A Hessian of %d weights does not fit the workers' memory: conjugate gradients instead, a pass each.",
            problem.k,
        )
        exact = False
    problem.require("full" if exact else "diagonal")
    return exact


def scaling_asked_for(data: TrainingData, fit: ODMFit) -> Scaling | None:
    """How features are scaled; None where they are not, and no pass over the rows is spent on statistics."""
    if fit.kernel.scale is None:
        return None
    statistics = data.statistics()
    fit.kernel.make(statistics)  # for what it refuses
    return fit.kernel.scaling(statistics)


def _solve_path(problem: Any, features: FeatureMap, data: TrainingData, fit: ODMFit, exact: bool | None) -> Trained:
    """The model for the settings' λ; or for each λ of a path, from the solution of the one before."""
    w, found = start_weights(features, fit), []
    start, before = None, 1.0
    resume, save = open_steps("newton", data.fingerprint, fit, NewtonState, ("w",))
    for lam in fit.lams or (fit.odm.lam,):
        problem = problem.with_lam(lam)
        with rescaling_advised():
            solution = solve_newton(
                problem,
                w,
                tol=fit.solver.tol,
                max_iter=fit.solver.max_iter,
                exact=exact,
                precise=fit.run.dtype == "float64",
                start=None if start is None else start.times(lam / before),
                resume=resume,
                on_state=save,
                on_step=report_step,
            )
        found.append(finish_weights(features, solution, fit.solver.tol, fit.solver.max_iter))
        w, start, before = solution.w, solution.sums, lam
    return replace(found[-1], path=tuple(found))


def start_weights(features: FeatureMap, fit: ODMFit) -> Array:
    """Where a linear solver starts: weights (k,) of the model to start from, or zeros."""
    w = np.zeros(features.k)
    if fit.start is None:
        return w
    raw, intercept = fit.start
    if len(raw) != features.d:
        raise InputError(f"warm_start: X has {features.d} features, but the fitted model has {len(raw)}.")
    factor, shift = np.ones(features.d), np.zeros(features.d)
    if features.scaling is not None:
        factor, shift = features.scaling.factor, features.scaling.shift
    w[: features.d] = np.divide(raw, factor, out=np.zeros(features.d), where=factor != 0)
    if features.bias > 0:
        w[-1] = (intercept + shift @ raw) / features.constant
    return w
