"""Kernels by Newton over all rows, to a certified gap: in this process, or with its products spread over workers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.stored import Labelling
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.errors import InputError
from dask_odm.estimators.fitting.checkpoints import open_steps
from dask_odm.estimators.fitting.training import (
    FitSettings,
    Trained,
    finish_precomputed,
    finish_tree,
    is_small,
    named_kernel,
    precomputed_kernel,
    read_store,
    store_statistics,
)
from dask_odm.estimators.fitting.training_rows import TrainingRows
from dask_odm.estimators.odm.kernel_products import Purpose, row_products, store_products
from dask_odm.estimators.odm.newton_recipe import report_step, rescaling_advised
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.given import Precomputed
from dask_odm.problems.odm import RowLosses
from dask_odm.problems.products import Products
from dask_odm.solvers.exact import ExactSolution, ExactState, solve_exact, solver_bytes
from dask_odm.strategies.tree import TreeJob, TreeResult
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
NEWTON = Purpose("Newton", solver_bytes)
MANY_ENTRIES = 10**10  # of the kernel matrix, in a pass: from here on a fit may take hours


def train_exact_arrays(
    X: Any, y: Array, weight: Array, class_weights: tuple[float, float], settings: FitSettings
) -> Trained:
    """Train on rows in memory; parameters as `dask_odm.estimators.odm.tree_recipe.train_arrays`."""
    _require_kernel(settings)
    rows, given = TrainingRows.of(X, y, weight, class_weights), settings.kernel == "precomputed"
    rows = rows if given else rows.merged()
    _warn_of_entries(rows.n)
    kernel, scaling, scaled = (precomputed_kernel if given else named_kernel)(X, rows, settings)
    losses = RowLosses(settings.odm, rows.y, rows.total_weights)
    with row_products(kernel, scaled, settings, NEWTON) as products:
        solution = _solve(losses, products, settings, rows.fingerprint)
    return _finished(kernel, scaling, losses, solution, rows.raw, rows.kept, settings)


def train_exact_store(store: Store, labelling: Labelling, settings: FitSettings) -> Trained:
    """Train on a store: a small one in memory; of any other, the rows go to a file that workers map into memory."""
    _require_kernel(settings)
    if settings.kernel == "precomputed":
        settings.require_named_kernel("a store")
    if is_small(store):
        return train_exact_arrays(*read_store(store, labelling, settings), settings)
    settings.require_named_kernel("a store of this size")
    _warn_of_entries(store.rows)
    cluster = Cluster.current(settings.memory_limit)
    statistics = store_statistics(store, labelling, cluster)
    scaling, kernel = settings.scaling(statistics), settings.make_kernel(statistics)
    with store_products(store, labelling, scaling, kernel, cluster, settings, NEWTON) as (products, losses, kept):
        solution = _solve(losses, products, settings, lambda: f"{store.digest} {labelling}")
    return _finished(kernel, scaling, losses, solution, lambda chosen: store.read_rows(kept[chosen]).X, kept, settings)


def _require_kernel(settings: FitSettings) -> None:
    if settings.kernel == "linear":
        raise InputError("solver='exact' is for kernels other than 'linear', which solver='newton' learns exactly.")


def _warn_of_entries(n: int) -> None:
    """Say what so many rows cost; only who asks for this solver comes here with as many."""
    entries = n * (n + 1) // 2
    if entries > MANY_ENTRIES:
        logger.warning(
            "solver='exact' with %d rows: each of its passes, a hundred or more, computes %.1e kernel values. It may "
            "take hours where solver='landmark' takes minutes.",
            n,
            entries,
        )


def _solve(losses: RowLosses, products: Products, settings: FitSettings, data: Callable[[], str]) -> ExactSolution:
    """Solve, with checkpoints if they are asked for; ``data`` tells one which rows these are."""
    resume, save = open_steps("exact", data, settings, ExactState)
    with rescaling_advised():
        return solve_exact(
            losses,
            products,
            settings.solver,
            resume=resume,
            threads=CPU_COUNT,
            on_step=report_step,
            on_state=save,
        )


def _finished(
    kernel: Kernel,
    scaling: Scaling,
    losses: RowLosses,
    solution: ExactSolution,
    raw: Callable[[Array], Any],
    kept: Array,
    settings: FitSettings,
) -> Trained:
    """The model of a solution; ``raw`` gives raw rows by their numbers among those that count, which are ``kept``."""
    y, n = losses.y, len(losses.y)
    whole = MemoryPartitions(np.empty((n, len(scaling.factor))), y, losses.weight, np.arange(n), (n,))
    job = TreeJob(whole, scaling, kernel, settings.odm, settings.solver)
    result = TreeResult((y * solution.coefficients)[None], solution.point.gap, [], [])
    if isinstance(kernel, Precomputed):
        trained = finish_precomputed(job, result, kept, settings)
    else:
        trained = finish_tree(job, scaling, result, raw, kept, settings)
    warning = None
    if not solution.converged:
        start = f"The solver stopped at a relative gap of {solution.point.gap:.1e}, above tol={settings.solver.tol:g}."
        if len(solution.history) > settings.solver.max_iter:
            advice = f"Increase max_iter ({settings.solver.max_iter} steps), scale the features, or decrease lam."
        else:
            advice = "It has stalled: scale the features, decrease lam, or try another kernel width (gamma)."
        warning = f"{start} {advice}"
    return replace(trained, history=solution.history, n_iter=max(1, len(solution.history) - 1), warning=warning)
