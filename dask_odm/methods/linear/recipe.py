"""Recipe of the linear kernel: Newton in the weights of the features, a pass over the rows per step, wherever they
are.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.engine.passes import StorePasses
from dask_odm.errors import InputError
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import EXACT_FEATURES, PrimalProblem, PrimalSums, block_bytes
from dask_odm.learning.solution import record_after
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.recipe import Trained, finish_weights, report_step, rescaling_advised
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.as_predicted import weights_as_predicted
from dask_odm.methods.left_out import LEFT_OUT_BYTES, attributes_of, linear_leverages
from dask_odm.methods.linear import routes
from dask_odm.methods.linear.solver import NewtonState, solve_newton
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


def train_newton(data: TrainingData, fit: ODMFit) -> Trained:
    """Train in the weights of the features."""
    if fit.lams and fit.run.checkpoint is not None:
        raise InputError("lam_path has no checkpoint; set checkpoint to None.")
    features = FeatureMap(data.features, fit.kernel.bias, routes.scaling_asked_for(data, fit))
    data = routes.read_sparsely(data, fit)
    passes = data.passes(features.k)
    problem = PrimalProblem(features, fit.loss(data), passes)
    exact = _forms_hessian(problem, passes) if isinstance(passes, StorePasses) else routes.forms_hessian(data, fit)
    if data.X is not None:
        left_out = LEFT_OUT_BYTES * data.rows if fit.loo else 0
        blocks = CPU_COUNT * block_bytes(data.features, data.X)
        needed = problem.nbytes + blocks + left_out + data.held_bytes(scaled=False)
        data.cluster.require(needed, 1, f"Newton over {features.k} weights")
    if fit.loo and not (problem.k <= EXACT_FEATURES if exact is None else exact):
        raise InputError(
            f"leaving rows out needs the Hessian of the features, and {problem.k} are too many: take fewer than "
            f"{EXACT_FEATURES} features, or workers with more memory, or hold rows out (--test-size) instead of loo."
        )
    return _solve_path(problem, features, data, fit, exact)


def _forms_hessian(problem: PrimalProblem, passes: StorePasses) -> bool:
    """Return whether the Hessian is formed: if it is not large and fits the workers' memory."""
    forms = problem.k <= EXACT_FEATURES
    if forms and not passes.fits(problem.pass_bytes("full")):
        logger.warning(
            "A Hessian of %d weights does not fit the workers' memory: conjugate gradients instead, a pass each.",
            problem.k,
        )
        forms = False
    passes.require(problem.pass_bytes("full" if forms else "diagonal"))
    return forms


def _solve_path(
    problem: PrimalProblem, features: FeatureMap, data: TrainingData, fit: ODMFit, exact: bool | None
) -> Trained:
    """Solve for the settings' λ, or for each λ of a path from the solution before, and return the model."""
    few = routes.FewRows.of(features, data, fit)
    thin = None if few is not None else routes.thin_problem(features, data, fit)
    resume, save = open_steps("newton", data.fingerprint, fit, NewtonState)
    require_state(fit, resume is None or (resume.w.shape == (features.k,) and resume.hessian_stride > 0))

    def solved(own: ODMFit, w: Array, start: PrimalSums | None) -> PrimalSolution[Any]:
        """Solve from ``w`` (k,), whose sums ``start`` may be known; first by a cheaper route if one suits the rows."""
        ahead: PrimalSolution[Any] | None = None
        if few is not None and resume is None:
            ahead = few.solve(own, data)
        elif thin is not None:
            ahead = routes.solve_thin(thin.with_lam(own.odm.lam), w, own)
        if ahead is not None and ahead.converged:
            return ahead
        before = [] if ahead is None else ahead.history
        return solve_newton(
            problem.with_lam(own.odm.lam),
            w if ahead is None else ahead.x,
            tol=own.solver.tol,
            max_iter=own.solver.max_iter,
            exact=exact,
            double_precision=own.run.dtype == "float64" or (thin is not None and data.dtype == np.float64),
            start=start if ahead is None else None,
            resume=resume,
            on_state=save,
            on_step=lambda record: report_step(record_after(before, record)),
        ).after(ahead)

    w = start_weights(features, fit)
    found = []
    sums = None
    before = 1.0
    for lam in fit.lams or (fit.odm.lam,):
        own = replace(fit, odm=replace(fit.odm, lam=lam))
        with rescaling_advised():
            solution = solved(own, w, None if sums is None else sums.times(lam / before))
        trained = finish_weights(features, solution, fit.solver.tol, fit.solver.max_iter)
        trained = weights_as_predicted(trained, solution, features, data, own)
        if fit.loo:
            left = linear_leverages(problem.with_lam(lam), solution.x, own.groups_of(data))
            trained.attributes.update(attributes_of(own, data, data, *left))
        found.append(trained)
        w = solution.x
        sums = solution.sums
        before = lam
    return replace(found[-1], path=tuple(found))


def start_weights(features: FeatureMap, fit: ODMFit) -> Array:
    """Return weights (k,) at which a linear solver starts: those of the model to start from, or zeros."""
    w = np.zeros(features.k)
    if not fit.starts:
        return w
    fit.require_machines(1)
    raw, intercept = fit.starts[0]
    if len(raw) != features.d:
        raise InputError(f"warm_start: X has {features.d} features, but the fitted model has {len(raw)}.")
    factor = np.ones(features.d)
    shift = np.zeros(features.d)
    if features.scaling is not None:
        factor = features.scaling.factor
        shift = features.scaling.shift
    w[: features.d] = np.divide(raw, factor, out=np.zeros(features.d), where=factor != 0)
    if features.bias > 0:
        w[-1] = (intercept + shift @ raw) / features.constant
    return w
