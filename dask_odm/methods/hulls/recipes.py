"""Recipes of `SaddleSVC`: Wolfe's method, the paper's solvers with or without clients, and kernels by landmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.scaling import Scaling
from dask_odm.errors import InputError
from dask_odm.kernels.blocks import ArrayRows
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import choose
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import block_rows, group_count
from dask_odm.learning.problem.nystrom_features import KernelFeatures, coordinates, landmark_weights, span_bytes
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.recipe import Choice, Recipe, is_small
from dask_odm.learning.training.scratch import scratch_folder
from dask_odm.learning.training.steps import report_step, rescaling_advised
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.learning.training.trained import NOT_FINITE, Trained
from dask_odm.learning.training.training_data import KernelData, TrainingData
from dask_odm.linalg.row_passes import Passes, ThreadPasses
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.hulls.clients.preparation import Preparation
from dask_odm.methods.hulls.clients.problem import ClientHulls, Clients
from dask_odm.methods.hulls.clients.rows import ClientState
from dask_odm.methods.hulls.clients.workers import ArrayRange, ClientSource, StoreRange, WorkerClients, row_ranges
from dask_odm.methods.hulls.corral import CorralState
from dask_odm.methods.hulls.gilbert import GilbertState, solve_gilbert
from dask_odm.methods.hulls.hull_model import finish
from dask_odm.methods.hulls.nearest_point import HullSolution, find_nearest_point, find_nearest_points
from dask_odm.methods.hulls.problem.hulls import HullProblem, hull_pass_bytes
from dask_odm.methods.hulls.problem.query import HullQuery
from dask_odm.methods.hulls.saddle_point import SaddleState, solve_saddle_point
from dask_odm.methods.hulls.solver_objects import SaddleFit
from dask_odm.models.kernel import KernelModel
from dask_odm.typing import Array


def hulls_of(data: TrainingData, fit: SaddleFit) -> HullProblem:
    """Build the problem of the two classes' reduced hulls, with scaled features."""
    scaling = None if fit.run.scale is None else Scaling.of_features(data.statistics(), fit.run.scale)
    data.require_pass(hull_pass_bytes(data.features), "A pass over the rows")
    return _problem(FeatureMap(data.features, 0.0, scaling), data.passes(data.features), data, fit)


def _problem(features: FeatureMap, passes: Passes, data: TrainingData, fit: SaddleFit) -> HullProblem:
    """Build the problem of ``features``; raise InputError if rows are not finite, or a class has no positive weight."""
    negative, positive = data.class_weights
    query = HullQuery(features, 1, (negative, positive))
    problem = HullProblem(query, passes, fit.alpha, slack=0.02 * fit.tol)  # saves passes, and costs next to no steps
    if not np.isfinite(problem.totals.square) or not np.isfinite(problem.totals.sums).all():
        raise InputError(NOT_FINITE)
    for weight, which in zip(problem.totals.weight, ("second", "first"), strict=True):
        if not weight > 0:
            raise InputError(f"no row of the {which} class has a positive weight; two classes are needed.")
    return problem


# Wolfe's method ----------------------------------------------------------------------------------------------------


def train_nearest_point(data: TrainingData, fit: SaddleFit) -> Trained:
    """Train by `dask_odm.methods.hulls.nearest_point`: a model, or one for every alpha of the settings."""
    with single_threaded_blas, rescaling_advised():  # once for all passes, since entering it looks for libraries
        problem = hulls_of(data, fit)
        if not fit.alphas:
            return finish(problem, _nearest(problem, data, fit), data, fit)
        if fit.run.checkpoint is not None:
            raise InputError("alpha_path has no checkpoint; set checkpoint to None.")
        found = find_nearest_points(problem, fit.alphas, tol=fit.tol, max_iter=fit.max_iter, on_step=report_step)
        models = [finish(hulls, solution, data, replace(fit, alpha=hulls.alpha)) for hulls, solution in found]
        return replace(models[-1], path=tuple(models))


def _nearest(problem: HullProblem, data: TrainingData, fit: SaddleFit) -> HullSolution:
    """Find the nearest points; report every step, and save it if there is a checkpoint."""
    resume, save = open_steps("mnp", data.fingerprint, fit, CorralState)
    on_state = None if fit.run.checkpoint is None else save
    return find_nearest_point(
        problem, tol=fit.tol, max_iter=fit.max_iter, resume=resume, on_step=report_step, on_state=on_state
    )


def train_in_span(data: TrainingData, fit: SaddleFit) -> Trained:
    """Train another kernel than the linear one, on Nyström features.

    These are kept for rows in memory, and computed anew in every pass over a store. The gap is certified for them. They
    are the rows' projections on the span of the landmarks, whose hulls are no farther from each other than those of the
    rows. So `margin_` is a lower bound of the rows' own margin, whose quality depends on the landmarks.

    Raises MemoryLimitError if the features of rows in memory, or a pass over a store, do not fit.
    """
    count = min(data.rows, fit.n_landmarks)
    with single_threaded_blas, rescaling_advised():
        _require_span(data, count)
        seen = data.seen_by(fit.kernel)
        pool = seen.pivots(count, fit.choice)
        landmarks = choose(seen.kernel, pool, count, method=fit.choice, seed=fit.run.seed, rows=20 * count)
        raw, numbers = seen.chosen_pivots(landmarks.index)
        problem = _span_problem(seen, landmarks, fit)
        trained = finish(problem, _nearest(problem, data, fit), data, fit, partial(_span_model, seen, landmarks, raw))
    return replace(trained, attributes=trained.attributes | {"support_": numbers})


def _require_span(data: TrainingData, count: int) -> None:
    """Raise MemoryLimitError unless the Nyström features of ``count`` landmarks fit."""
    work = span_bytes(count, data.features)
    if data.in_memory:
        kept = data.rows * count * data.dtype.itemsize
        advice = "Use a smaller n_landmarks, more memory, or a store that is not read into memory."
        data.cluster.require(kept + CPU_COUNT * work, 1, f"{data.rows} rows at {count} landmarks", advice)
    else:
        needed = hull_pass_bytes(count)
        data.require_pass(replace(needed, work=needed.work + work), f"A pass over the rows at {count} landmarks")


def _span_problem(seen: KernelData, landmarks: Landmarks, fit: SaddleFit) -> HullProblem:
    data = seen.data
    r = len(landmarks)
    held = data.held
    if held is None:
        return _problem(KernelFeatures.of(landmarks, seen.scaling), data.passes(r), data, fit)
    rows = ArrayRows(seen.scaled) if isinstance(seen.scaled, np.ndarray) else seen.scaled
    found = coordinates(landmarks, rows, data.dtype, CPU_COUNT)
    step = block_rows(r, found)
    passes = ThreadPasses.cut(found, held.codes, held.block_weights, step, group_count(r), CPU_COUNT)
    return _problem(FeatureMap(r, 0.0), passes, data, fit)


def _span_model(
    seen: KernelData, landmarks: Landmarks, raw: Array, problem: HullProblem, w: Array, offset: float
) -> KernelModel:
    a = landmark_weights(landmarks, w)
    return KernelModel(seen.kernel, seen.scaling, raw, a[None], np.array([offset]))


# The paper's solvers -----------------------------------------------------------------------------------------------


def train_gilbert(data: TrainingData, fit: SaddleFit) -> Trained:
    """Train by `dask_odm.methods.hulls.gilbert`: by passes, or if ``n_clients`` is given by clients' best points.

    Raises InputError if there are fewer rows than clients, and MemoryLimitError if the workers together cannot hold
    the rows.
    """
    with single_threaded_blas, rescaling_advised():
        problem = hulls_of(data, fit)
        settings: dict[str, Any] = {"tol": fit.tol, "max_iter": fit.max_iter, "on_step": report_step}
        if fit.n_clients is None:
            resume, save = open_steps("gilbert", data.fingerprint, fit, GilbertState)
            return finish(problem, solve_gilbert(problem, resume=resume, on_state=save, **settings), data, fit)
        count = client_count(data, fit)
        resume, save = open_steps(f"gilbert {count}", data.fingerprint, fit, GilbertState)
        with _by_clients(data, fit, problem, count) as hulls:
            solution = solve_gilbert(hulls, resume=resume, on_state=save, **settings)
        return finish(problem, solution, data, fit)


def train_saddle_point(data: TrainingData, fit: SaddleFit) -> Trained:
    """Train by `dask_odm.methods.hulls.saddle_point`. Raises as `train_gilbert`."""
    with single_threaded_blas, rescaling_advised():
        problem = hulls_of(data, fit)
        count = client_count(data, fit)
        resume, save = open_steps(f"saddle {count}", data.fingerprint, fit, SaddleState)
        with _by_clients(data, fit, problem, count, resume) as hulls:
            solution = solve_saddle_point(
                hulls,
                tol=fit.tol,
                max_iter=fit.max_iter,
                block_size=fit.block_size,
                seed=fit.run.seed,
                resume=resume,
                on_step=report_step,
                on_state=_saver(fit, hulls.clients, save),
            )
        points = hulls.preparation.back(solution.points)
        return finish(problem, replace(solution, points=points), data, fit)


def client_count(data: TrainingData, fit: SaddleFit) -> int:
    """Return ``n_clients``, or without it 1 for rows in memory and else the paper's 20, whatever the workers."""
    if fit.n_clients is None:
        return 1 if data.in_memory else min(20, data.rows)
    if fit.n_clients > data.rows:
        raise InputError(f"n_clients must be at most the number of rows, {data.rows}. Got {fit.n_clients} instead.")
    return fit.n_clients


@contextmanager
def _by_clients(
    data: TrainingData, fit: SaddleFit, problem: HullProblem, count: int, resume: SaddleState | None = None
) -> Iterator[ClientHulls]:
    """Provide the hulls by ``count`` clients, or by this process if ``n_clients`` is not given for rows in memory."""
    preparation = Preparation.of(problem, fit.block_size, fit.run.seed)
    states = None
    if resume is not None:
        require_state(fit, _is_sound(resume, preparation.size, count))
        at = resume.bounds.astype(np.int64)[1:-1]
        states = [ClientState(*parts) for parts in zip(np.split(resume.logs, at), np.split(resume.p, at), strict=True)]
    sources = _sources(data, count)
    in_memory = [source.X for source in sources if isinstance(source, ArrayRange)]
    largest = max(in_memory, key=lambda X: X.nnz) if in_memory and preparation.keeps_sparse(in_memory[0]) else None
    cluster = data.cluster
    held = preparation.nbytes(largest, -(-data.rows // count)) * -(-count // cluster.workers)
    advice = "Use more workers or more memory, or solver='mnp', which holds no rows."
    here = fit.n_clients is None and data.in_memory
    where = "in this process" if here else f"as {count} clients on {cluster.workers} workers"
    cluster.require(held, 1, f"Holding {data.rows} rows {where}", advice)
    if here:
        held_here = [preparation(source.blocks()) for source in sources]
        yield ClientHulls(Clients(held_here, states, counted=False), problem, preparation)
    elif cluster.client is None:
        yield ClientHulls(WorkerClients(cluster, preparation, sources, states), problem, preparation)
    else:
        with scratch_folder() as folder:
            clients = WorkerClients(cluster, preparation, sources, states, folder)
            yield ClientHulls(clients, problem, preparation)


def _sources(data: TrainingData, count: int) -> list[ClientSource]:
    ranges = row_ranges(data.rows, count)
    if isinstance(data, StoredData):
        return [StoreRange(data.store, data.targets.columns, *each) for each in ranges]
    held = data.held
    assert held is not None
    return [ArrayRange(held.X[a:b], held.codes[a:b], held.block_weights[a:b]) for a, b in ranges]


def _saver(fit: SaddleFit, clients: Clients, save: Callable[[SaddleState], None]) -> Callable[[SaddleState], object]:
    """Return the function that saves the server's state with the clients'. It fetches them only for a checkpoint."""
    if fit.run.checkpoint is None:
        return lambda state: None

    def saved(state: SaddleState) -> None:
        states = clients.states()
        bounds = np.cumsum([0.0, *(len(each.p) for each in states)])
        logs, p = (np.concatenate([getattr(each, name) for each in states]) for name in ("logs", "p"))
        save(replace(state, logs=logs, p=p, bounds=bounds))

    return saved


def _is_sound(state: SaddleState, size: int, count: int) -> bool:
    bounds = state.bounds
    n = len(state.logs)
    whole = state.p.shape == (n,) and bounds.shape == (count + 1,) and bounds[0] == 0 and bounds[-1] == n
    shaped = state.w.shape == (size,) and state.points.shape == (2, size) and state.now.shape == state.before.shape
    return bool(whole and shaped and (np.diff(bounds) >= 0).all() and state.shift.shape == (2,))


# The choice -------------------------------------------------------------------------------------------------------


def _client_recipe(train: Callable[[TrainingData, SaddleFit], Trained]) -> Recipe[SaddleFit]:
    """Return the recipe of a solver that can deal rows to clients."""

    def reads(store: TrainingData, fit: SaddleFit) -> bool:
        return is_small(store) and fit.n_clients is None

    return Recipe(train, linear=True, reads=reads, spreads=lambda fit: fit.n_clients is not None)


HULL_RECIPES: dict[str, Recipe[SaddleFit]] = {
    "mnp": Recipe(train_nearest_point, linear=True),
    "saddle": _client_recipe(train_saddle_point),
    "gilbert": _client_recipe(train_gilbert),
}


def choose_hull_solver(solver: str, fit: SaddleFit) -> Choice[SaddleFit]:
    """Choose the recipe that ``solver`` names. "auto" is "mnp", the fastest or nearly so in all measurements.

    Raises InputError for another solver than "mnp" if the kernel is not linear.
    """
    if fit.kernel.kernel != "linear":
        if solver not in ("auto", "mnp"):
            raise InputError(f"solver={solver!r} is for kernel='linear'; leave solver='auto' for other kernels.")
        return Choice("mnp", "over the span of landmarks", Recipe(train_in_span))
    name, why = (solver, "asked for") if solver != "auto" else ("mnp", "the fewest passes")
    return Choice(name, why, HULL_RECIPES[name])
