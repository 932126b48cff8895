"""The linear kernel in the weights of its features: rows in memory, dense or sparse, on the spot; stores by Dask."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.stored import Labelling
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.passes import StorePasses
from dask_odm.errors import DaskODMError, InputError
from dask_odm.estimators.fitting.checkpoints import open_steps
from dask_odm.estimators.fitting.training import (
    FitSettings,
    Trained,
    is_small,
    read_store,
    store_statistics,
)
from dask_odm.estimators.fitting.training_rows import TrainingRows
from dask_odm.estimators.inputs.resolving import weight_per_class
from dask_odm.events import IterationFinished, report
from dask_odm.kernels.dot import Linear
from dask_odm.kernels.threads import single_threaded_blas
from dask_odm.problems.features import FeatureMap
from dask_odm.problems.losses import BandLoss
from dask_odm.problems.primal import EXACT_FEATURES, PrimalProblem, PrimalSums
from dask_odm.solvers.linear_newton import NewtonState, solve_newton
from dask_odm.solvers.newton import PrimalSolution
from dask_odm.strategies.predict import Predictor
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


def train_linear_arrays(
    X: Any, y: Array, weight: Array, class_weights: tuple[float, float], settings: FitSettings
) -> Trained:
    """Train on rows in memory; parameters as `dask_odm.estimators.odm.tree_recipe.train_arrays`."""
    rows = TrainingRows.of(X, y, weight, class_weights)
    features = FeatureMap(rows.X.shape[1], settings.bias, _scaling(rows, settings))
    loss = BandLoss(settings.odm, float(rows.total_weights.sum()), 1, *class_weights)
    weights = np.empty(0) if (rows.weight == 1.0).all() else rows.weight
    problem = PrimalProblem.over_rows(features, loss, rows.X, (rows.y > 0).astype(np.int8), weights, CPU_COUNT)
    Cluster.local(settings.memory_limit).require(problem.nbytes, 1, f"Newton over {features.k} weights")
    with single_threaded_blas:  # once for all passes: entering it looks for libraries
        return _solve_path(problem, features, rows.X.dtype, settings, rows.fingerprint)


def train_linear_store(store: Store, labelling: Labelling, settings: FitSettings) -> Trained:
    """Train on a store: a small one in memory, any other by passes of Dask's workers over its chunks."""
    if is_small(store):
        return train_linear_arrays(*read_store(store, labelling, settings), settings)
    cluster = Cluster.current(settings.memory_limit)
    scaling = None
    if settings.scale is not None:
        statistics = store_statistics(store, labelling, cluster)
        settings.make_kernel(statistics)  # for what it refuses
        scaling = settings.scaling(statistics)
    features = FeatureMap(store.features, settings.bias, scaling)
    class_weights = labelling.negative_weight, labelling.positive_weight
    total = float(weight_per_class(store) @ class_weights)
    loss = BandLoss(settings.odm, total, labelling.positive, *class_weights)
    exact = features.k <= EXACT_FEATURES
    passes = StorePasses(store, cluster)
    problem = PrimalProblem(features, loss, passes)
    if exact and not passes.fits(problem.pass_bytes("full")):
        logger.warning(
            "A Hessian of %d weights does not fit the workers' memory: conjugate gradients instead, a pass each.",
            features.k,
        )
        exact = False
    passes.require(problem.pass_bytes("full" if exact else "diagonal"))
    logger.info("%d rows of %d features, Newton by passes; %s", store.rows, store.features, cluster)
    return _solve_path(problem, features, store.dtype, settings, lambda: f"{store.digest} {labelling}", exact)


def _solve_path(
    problem: PrimalProblem,
    features: FeatureMap,
    dtype: np.dtype[Any],
    settings: FitSettings,
    data: Callable[[], str],
    exact: bool | None = None,
) -> Trained:
    """The model for the settings' λ; or for each λ of a path, from the solution of the one before.

    ``data`` tells a checkpoint which rows these are.
    """
    w, found = start_weights(features, settings), []
    start, before = None, 1.0
    if settings.lams and settings.checkpoint is not None:
        raise InputError("lam_path has no checkpoint; set checkpoint to None.")
    resume, save = open_steps("newton", data, settings, NewtonState)
    for lam in settings.lams or (settings.odm.lam,):
        problem = problem.with_lam(lam)
        with rescaling_advised():
            solution = solve_newton(
                problem,
                w,
                tol=settings.solver.tol,
                max_iter=settings.solver.max_iter,
                exact=exact,
                double_precision=settings.dtype == "float64",
                start=None if start is None else start.times(lam / before),
                resume=resume,
                on_state=save,
                on_step=report_step,
            )
        found.append(finish_linear(features, solution, dtype, settings))
        w, start, before = solution.x, solution.sums, lam
    return replace(found[-1], path=tuple(found))


@contextmanager
def rescaling_advised() -> Iterator[None]:
    """Tell features whose squares are too large from other mistakes."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except ValueError as error:
        if isinstance(error, DaskODMError):
            raise
        raise InputError("the solution is not finite: rescale the rows (scale='minmax') or the weights.") from error


def start_weights(features: FeatureMap, settings: FitSettings) -> Array:
    """Where a linear solver starts: weights (k,) of the model to start from, or zeros."""
    w = np.zeros(features.k)
    if settings.start is None:
        return w
    raw, intercept = settings.start
    if len(raw) != features.d:
        raise InputError(f"warm_start: X has {features.d} features, but the fitted model has {len(raw)}.")
    factor, shift = np.ones(features.d), np.zeros(features.d)
    if features.scaling is not None:
        factor, shift = features.scaling.factor, features.scaling.shift
    w[: features.d] = np.divide(raw, factor, out=np.zeros(features.d), where=factor != 0)
    if features.bias > 0:
        w[-1] = (intercept + shift @ raw) / features.constant
    return w


def _scaling(rows: TrainingRows, settings: FitSettings) -> Scaling | None:
    if settings.scale is None:
        return None
    statistics = rows.statistics()
    settings.make_kernel(statistics)  # for what it refuses
    return settings.scaling(statistics)


def report_step(record: dict[str, Any]) -> None:
    """Tell listeners of a step of a linear solver."""
    report(IterationFinished(**record))


def finish_linear(
    features: FeatureMap, solution: PrimalSolution[PrimalSums], dtype: np.dtype[Any], settings: FitSettings
) -> Trained:
    """The model of the weights that a linear solver found."""
    weights, intercept = features.raw_weights(solution.x)
    if not (np.isfinite(weights).all() and np.isfinite(intercept) and np.isfinite(solution.gap)):
        raise InputError("the solution is not finite: rescale the rows (scale='minmax') or the weights.")
    d = features.d
    scaling = features.scaling if isinstance(features.scaling, Scaling) else Scaling(np.zeros(d), np.ones(d))
    predictor = Predictor(
        Linear(), scaling, np.empty((0, d), dtype), np.empty((1, 0)), weights[None], np.array([intercept])
    )
    warning = None
    if not solution.converged:
        warning = (
            f"The solver stopped at a relative gap of {solution.gap:.1e}, above tol={settings.solver.tol:g}. Increase "
            f"max_iter ({settings.solver.max_iter} steps), scale the features, or decrease lam."
        )
    n_iter = max(1, solution.steps)
    return Trained(predictor, np.empty(0, np.int64), solution.gap, solution.history, n_iter, warning)
