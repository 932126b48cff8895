"""The linear kernel by Newton in the weights of its features: a pass over the rows a step, wherever they are."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from dask_odm.data.rows.scaling import Scaling
from dask_odm.engine.passes import StorePasses
from dask_odm.errors import InputError
from dask_odm.estimators.fitting.checkpoints import open_steps, require_state
from dask_odm.estimators.fitting.steps import report_step, rescaling_advised
from dask_odm.estimators.fitting.trained import Trained
from dask_odm.estimators.fitting.training_data import TrainingData
from dask_odm.estimators.odm.finishing import finish_weights
from dask_odm.estimators.odm.left_out import attributes_of
from dask_odm.estimators.odm.settings import ODMFit
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.problems.features import FeatureMap
from dask_odm.problems.primal import EXACT_FEATURES, PrimalProblem
from dask_odm.solvers.leave_one_out import linear_leverages
from dask_odm.solvers.linear_newton import NewtonState, solve_newton
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


def train_newton(data: TrainingData, fit: ODMFit) -> Trained:
    """Train in the weights of the features."""
    if fit.lams and fit.run.checkpoint is not None:
        raise InputError("lam_path has no checkpoint; set checkpoint to None.")
    features = FeatureMap(data.features, fit.kernel.bias, scaling_asked_for(data, fit))
    passes = data.passes(features.k)
    problem = PrimalProblem(features, fit.loss(data), passes)
    forms_hessian = _forms_hessian(problem, passes) if isinstance(passes, StorePasses) else None
    if data.in_memory:
        data.cluster.require(problem.nbytes, 1, f"Newton over {features.k} weights")
    leaves_out = _forms_for_leaving_out(problem, data, fit, forms_hessian)
    with single_threaded_blas:  # once for all passes: entering it looks for libraries
        return _solve_path(problem, features, data, fit, forms_hessian, leaves_out)


def _forms_hessian(problem: PrimalProblem, passes: StorePasses) -> bool:
    """Whether the Hessian is formed: where it is not large and fits the workers' memory."""
    forms = problem.k <= EXACT_FEATURES
    if forms and not passes.fits(problem.pass_bytes("full")):
        logger.warning(
            "A Hessian of %d weights does not fit the workers' memory: conjugate gradients instead, a pass each.",
            problem.k,
        )
        forms = False
    passes.require(problem.pass_bytes("full" if forms else "diagonal"))
    return forms


def scaling_asked_for(data: TrainingData, fit: ODMFit) -> Scaling | None:
    """How features are scaled; None where they are not, and no pass over the rows is spent on statistics."""
    if fit.kernel.scale is None:
        return None
    statistics = data.statistics()
    fit.kernel.make(statistics)  # for what it refuses
    return fit.kernel.scaling(statistics)


def _solve_path(
    problem: PrimalProblem,
    features: FeatureMap,
    data: TrainingData,
    fit: ODMFit,
    exact: bool | None,
    leaves_out: bool,
) -> Trained:
    """The model for the settings' λ; or for each λ of a path, from the solution of the one before."""
    w, found = start_weights(features, fit), []
    start, before = None, 1.0
    resume, save = open_steps("newton", data.fingerprint, fit, NewtonState)
    require_state(fit, resume is None or (resume.w.shape == (features.k,) and resume.hessian_stride > 0))
    for lam in fit.lams or (fit.odm.lam,):
        problem = problem.with_lam(lam)
        with rescaling_advised():
            solution = solve_newton(
                problem,
                w,
                tol=fit.solver.tol,
                max_iter=fit.solver.max_iter,
                exact=exact,
                double_precision=fit.run.dtype == "float64",
                start=None if start is None else start.times(lam / before),
                resume=resume,
                on_state=save,
                on_step=report_step,
            )
        trained = finish_weights(features, solution, fit.solver.tol, fit.solver.max_iter)
        if leaves_out:
            pairs = linear_leverages(problem, solution.x)
            trained.attributes.update(attributes_of(fit, data, data, fit.loss(data).with_lam(lam), pairs))
        found.append(trained)
        w, start, before = solution.x, solution.sums, lam
    return replace(found[-1], path=tuple(found))


def _forms_for_leaving_out(problem: PrimalProblem, data: TrainingData, fit: ODMFit, forms: bool | None) -> bool:
    """Whether rows are left out; InputError where that is asked for and the Hessian is not formed."""
    forms = problem.k <= EXACT_FEATURES if forms is None else forms
    if fit.loo and not forms:
        raise InputError(
            f"loo=True needs the Hessian of the features, and {problem.k} are too many: set loo to False, or take "
            f"fewer than {EXACT_FEATURES} features, or workers with more memory."
        )
    return fit.loo


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
