"""Recipes of `SaddleSVC`: Wolfe's method, the paper's solvers with or without clients, and kernels by landmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.errors import InputError
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import choose
from dask_odm.learning.machines import Scheme
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.nystrom_features import KernelFeatures, coordinates, landmark_weights, span_bytes
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.family import Family
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.recipe import (
    NOT_FINITE,
    Choice,
    Recipe,
    Trained,
    advice_on_features,
    report_step,
    require_finite_solution,
    rescaling_advised,
)
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.learning.training.training_data import KernelData, TrainingData
from dask_odm.linalg.row_passes import Passes, RowBlock
from dask_odm.linalg.rows import ArrayRows
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.linear_model import LinearModel
from dask_odm.papers.saddle.client_hulls import ClientHulls, GroupHere
from dask_odm.papers.saddle.client_rows import ClientState, Preparation
from dask_odm.papers.saddle.feasibility import Verdict, judge, separating_alpha
from dask_odm.papers.saddle.nearest_point import CorralState, HullSolution, find_nearest_point, find_nearest_points
from dask_odm.papers.saddle.problem import HullProblem, HullQuery, hull_pass_bytes
from dask_odm.papers.saddle.saddle_point import SaddleState, solve_saddle_point
from dask_odm.papers.saddle.solver_objects import SaddleFit
from dask_odm.papers.saddle.workers import StoreRange, groups_of, prepare_all, row_ranges
from dask_odm.typing import Array


def hulls_of(data: TrainingData, fit: SaddleFit) -> HullProblem:
    """Build the problem of the two classes' reduced hulls, with scaled features."""
    scaling = None if fit.run.scale is None else Scaling.of_features(data.statistics(), fit.run.scale, fit.run.marks)
    data.require_pass(hull_pass_bytes(data.features), "A pass over the rows")
    return _problem(FeatureMap(data.features, 0.0, scaling), data.passes(data.features), data, fit)


def _problem(features: FeatureMap, passes: Passes, data: TrainingData, fit: SaddleFit) -> HullProblem:
    """Build the problem of ``features``; raise InputError if rows are not finite."""
    negative, positive = data.class_weights
    query = HullQuery(features, (negative, positive))
    problem = HullProblem(query, passes, fit.alpha, slack=0.02 * fit.tol)  # saves passes, and costs next to no steps
    if not np.isfinite(problem.totals.square) or not np.isfinite(problem.totals.sums).all():
        raise InputError(NOT_FINITE)
    return problem


def _nearest(
    problem: HullProblem | ClientHulls, data: TrainingData, fit: SaddleFit, name: str, *, forgetful: bool = False
) -> HullSolution:
    """Find the nearest points; report every step, and save it if there is a checkpoint of this ``name``."""
    resume, save = open_steps(name, data.fingerprint, fit, CorralState)
    return find_nearest_point(
        problem,
        tol=fit.tol,
        max_iter=fit.max_iter,
        forgetful=forgetful,
        resume=resume,
        on_step=report_step,
        on_state=None if fit.run.checkpoint is None else save,
    )


class NearestPointRecipe(Recipe[SaddleFit]):
    """Train by Wolfe's method: one model, or one for every alpha of the settings."""

    linear: ClassVar[bool] = True

    def train(self, data: TrainingData, fit: SaddleFit) -> Trained:
        with rescaling_advised():
            problem = hulls_of(data, fit)
            if not fit.alphas:
                return finish(problem, _nearest(problem, data, fit, "mnp"), data, fit)
            if fit.run.checkpoint is not None:
                raise InputError("alpha_path has no checkpoint; set checkpoint to None.")
            found = find_nearest_points(problem, fit.alphas, tol=fit.tol, max_iter=fit.max_iter, on_step=report_step)
            models = [finish(hulls, solution, data, replace(fit, alpha=hulls.alpha)) for hulls, solution in found]
            return replace(models[-1], path=tuple(models))


class SpanRecipe(Recipe[SaddleFit]):
    """Train a kernel other than the linear one, by Wolfe's method on Nyström features.

    These are kept for rows in memory, and computed anew in every pass over a store. The gap is certified for them. They
    are the rows' projections on the span of the landmarks, whose hulls are no farther from each other than those of the
    rows. So `margin_` is a lower bound of the rows' own margin, whose quality depends on the landmarks.

    Raises MemoryLimitError if the features of rows in memory, or a pass over a store, do not fit.
    """

    def train(self, data: TrainingData, fit: SaddleFit) -> Trained:
        count = min(data.rows, fit.own.n_landmarks)
        with rescaling_advised():
            _require_features(data, count)
            seen = data.seen_by(fit.kernel)
            pool = seen.pivots(count, fit.own.choice)
            landmarks = choose(seen.kernel, pool, count, method=fit.own.choice, seed=fit.run.seed, rows=20 * count)
            raw, numbers = seen.chosen_pivots(landmarks.index)
            problem = _problem_in_span(seen, landmarks, fit)
            trained = finish(problem, _nearest(problem, data, fit, "mnp"), data, fit)
            assert isinstance(trained.model, LinearModel)  # of the Nyström features
            a = landmark_weights(landmarks, trained.model.weights[0])
            model = KernelModel(seen.kernel, seen.scaling, raw, a[None], trained.model.intercept)
            return replace(trained, model=model, attributes=trained.attributes | {"support_": numbers})


def _require_features(data: TrainingData, count: int) -> None:
    """Raise MemoryLimitError unless the Nyström features of ``count`` landmarks fit."""
    work = span_bytes(count, data.features)
    if data.in_memory:
        kept = data.rows * count * data.dtype.itemsize
        advice = "Use a smaller n_landmarks, more memory, or a store that is not read into memory."
        data.cluster.require(kept + CPU_COUNT * work, 1, f"{data.rows} rows at {count} landmarks", advice)
    else:
        needed = hull_pass_bytes(count)
        data.require_pass(replace(needed, work=needed.work + work), f"A pass over the rows at {count} landmarks")


def _problem_in_span(seen: KernelData, landmarks: Landmarks, fit: SaddleFit) -> HullProblem:
    data = seen.data
    r = len(landmarks)
    if not isinstance(data, MemoryData):
        return _problem(KernelFeatures.of(landmarks, seen.scaling), data.passes(r), data, fit)
    rows = ArrayRows(seen.scaled) if isinstance(seen.scaled, np.ndarray) else seen.scaled
    found = coordinates(landmarks, rows, data.dtype, CPU_COUNT)
    return _problem(FeatureMap(r, 0.0), replace(data, X=found).passes(r), data, fit)


# Clients -----------------------------------------------------------------------------------------------------------


class ClientRecipe(Recipe[SaddleFit]):
    """A solver that can deal rows to clients."""

    linear: ClassVar[bool] = True

    def reads(self, store: TrainingData, fit: SaddleFit) -> bool:
        return super().reads(store, fit) and fit.own.n_clients is None

    def spreads(self, fit: SaddleFit) -> bool:
        return fit.own.n_clients is not None


class GilbertRecipe(ClientRecipe):
    """Train by Gilbert's algorithm: in passes, or by the clients' best points if ``n_clients`` is given."""

    def train(self, data: TrainingData, fit: SaddleFit) -> Trained:
        with rescaling_advised():
            problem = hulls_of(data, fit)
            if fit.own.n_clients is None:
                return finish(problem, _nearest(problem, data, fit, "gilbert", forgetful=True), data, fit)
            count = client_count(data, fit)
            with _by_clients(data, problem, Preparation.of(problem), count) as hulls:
                solution = _nearest(hulls, data, fit, f"gilbert {count}", forgetful=True)
            return finish(problem, solution, data, fit)


class SaddlePointRecipe(ClientRecipe):
    """Train by Saddle-SVC or Saddle-DSVC; for rows in memory, this process is the only client by default."""

    def train(self, data: TrainingData, fit: SaddleFit) -> Trained:
        with rescaling_advised():
            problem = hulls_of(data, fit)
            count = client_count(data, fit)
            preparation = Preparation.of(problem, fit.own.block_size, fit.run.seed)
            resume, save = open_steps(f"saddle {count}", data.fingerprint, fit, SaddleState)
            states = None if resume is None else _client_states(resume, preparation.size, count, fit)
            here = data.in_memory and fit.own.n_clients is None
            with _by_clients(data, problem, preparation, count, states, here=here) as hulls:
                solution = solve_saddle_point(
                    hulls,
                    tol=fit.tol,
                    max_iter=fit.max_iter,
                    resume=resume,
                    on_step=report_step,
                    on_state=None if fit.run.checkpoint is None else partial(_save, hulls, save),
                )
            return finish(problem, replace(solution, points=preparation.back(solution.points)), data, fit)


def client_count(data: TrainingData, fit: SaddleFit) -> int:
    """Return ``n_clients``, or without it 1 for rows in memory and else the paper's 20, whatever the workers."""
    if fit.own.n_clients is None:
        return 1 if data.in_memory else min(20, data.rows)
    if fit.own.n_clients > data.rows:
        raise InputError(f"n_clients must be at most the number of rows, {data.rows}. Got {fit.own.n_clients} instead.")
    return fit.own.n_clients


@contextmanager
def _by_clients(
    data: TrainingData,
    problem: HullProblem,
    preparation: Preparation,
    count: int,
    states: Sequence[ClientState] | None = None,
    *,
    here: bool = False,
) -> Iterator[ClientHulls]:
    """Provide the hulls by ``count`` clients on the workers, or ``here``, by this process alone.

    ``states`` are those of a resumed run. Raises MemoryLimitError if a worker cannot hold the rows of its clients.
    """
    ranges = row_ranges(data.rows, count)
    most = -(-data.rows // count)
    sources: list[Iterable[RowBlock]]
    if isinstance(data, StoredData):
        sources = [StoreRange(data.store, data.targets.columns, a, b) for a, b in ranges]
        each = preparation.nbytes(None, most)
    else:
        codes, weights = data.columns()
        blocks = [RowBlock(data.X[a:b], codes[a:b], weights[a:b]) for a, b in ranges]
        sources = [[block] for block in blocks]
        each = max(preparation.nbytes(block.X, most) for block in blocks)
    cluster = data.cluster
    where = "in this process" if here else f"as {count} clients on {cluster.workers} workers"
    advice = "Use more workers or more memory, or solver='mnp', which holds no rows."
    cluster.require(each * -(-count // cluster.workers), 1, f"Holding {data.rows} rows {where}", advice)
    with scratch_folder() if cluster.client is not None else nullcontext(None) as folder:
        groups: Any
        if here:
            groups = GroupHere(prepare_all(preparation, sources), states)
        else:
            groups = groups_of(cluster, preparation, sources, states, folder)
        yield ClientHulls(groups, count, problem, preparation, counted=not here)


def _save(hulls: ClientHulls, save: Callable[[SaddleState], None], state: SaddleState) -> None:
    logs, p = zip(*hulls.states(), strict=True)
    bounds = np.cumsum([0.0, *map(len, p)])
    save(replace(state, logs=np.concatenate(logs), p=np.concatenate(p), bounds=bounds))


def _client_states(state: SaddleState, size: int, count: int, fit: SaddleFit) -> list[ClientState]:
    """Return the states of the clients in a checkpoint; raise StoreError unless it is one of ``count`` clients."""
    bounds = state.bounds
    n = len(state.logs)
    whole = state.p.shape == (n,) and bounds.shape == (count + 1,) and bounds[0] == 0 and bounds[-1] == n
    shaped = state.w.shape == (size,) and state.points.shape == (2, size) and state.now.shape == state.before.shape
    require_state(fit, bool(whole and shaped and (np.diff(bounds) >= 0).all() and state.shift.shape == (2,)))
    at = bounds.astype(np.int64)[1:-1]
    return list(zip(np.split(state.logs, at), np.split(state.p, at), strict=True))


# The model ---------------------------------------------------------------------------------------------------------


def finish(problem: HullProblem, solution: HullSolution, data: TrainingData, fit: SaddleFit) -> Trained:
    """Build the linear model of the hulls' nearest points, or of the class means if the hulls overlap."""
    points = problem.start.points if solution.overlap else solution.points
    w, offset = plane(problem, points, None if solution.overlap else solution.thresholds, fit.offset)
    require_finite_solution(w, np.array([offset]))
    iterations = int(solution.history[-1].get("sweeps", len(solution.history)))
    attributes: dict[str, Any] = {
        "dual_gap_": 1.0 if solution.overlap else solution.gap,
        "margin_": 0.0 if solution.overlap else float(np.linalg.norm(solution.direction)),
        "nu_": 2.0 * (problem.mass or 1.0) / float(problem.totals.weight.sum()),
        "n_iter_": max(1, iterations),
        "history_": solution.history,
    }
    if solution.support is not None and data.in_memory:
        _, numbers = data.row_numbers
        attributes["support_"] = solution.support if numbers is None else numbers[solution.support]
    weights, shift = problem.query.features.raw_weights(w)
    model = LinearModel(weights[None], np.array([shift + offset]))
    return Trained(model, attributes, _warning(problem, solution, fit))


def plane(
    problem: HullProblem, points: Array, thresholds: tuple[float, float] | None, offset: str
) -> tuple[Array, float]:
    """Return weights (d,) and offset of scores that differ by 2 between the nearest ``points`` (2, d) of the hulls.

    The score is zero half way between the ``thresholds`` (``offset="kkt"``), which are the weighted quantiles of the
    scores at which each capped simplex is filled, or half way between the points ("midpoint"). Thresholds of None are
    computed.
    """
    w = points[0] - points[1]
    square = float(w @ w)
    if not square > 0:
        return np.zeros(problem.d), 0.0
    if thresholds is None:
        thresholds = problem.vertex(w, exact=True).thresholds
    middle = 0.5 * sum(thresholds) if offset == "kkt" else 0.5 * float(w @ points.sum(axis=0))
    return w * (2.0 / square), -middle * (2.0 / square)


def _warning(problem: HullProblem, solution: HullSolution, fit: SaddleFit) -> str | None:
    if solution.converged:
        return None
    if not solution.overlap:
        return (
            f"The solver stopped at a relative gap of {solution.gap:.1e}, above tol={fit.tol:g}. Increase max_iter "
            f"({fit.max_iter}), scale the features, or use solver='mnp'."
        )
    hulls = "hulls" if fit.alpha is None else f"reduced hulls (alpha={fit.alpha:g})"
    verdict = solution.verdict or judge(problem)
    shown = "" if verdict.overlap else f", as far as {len(solution.history)} iterations show"
    return (
        f"The {hulls} of the two classes overlap{shown}: the model is that of the class means. "
        f"{_advice(problem, verdict)}"
    )


def _advice(problem: HullProblem, verdict: Verdict) -> str:
    alpha = apart_alpha(problem, verdict)
    if alpha is not None:
        return f"They are apart for alpha={alpha:.2f}."
    positive, negative = problem.totals.weight
    if np.linalg.norm(problem.start.difference) <= 1e-9 * problem.scale:
        return "No alpha parts them, since the class means are equal: a linear model cannot tell these classes apart."
    if not np.isclose(positive, negative):
        return "No alpha up to 1 was found that parts them; with class_weight='balanced', alpha=1 does."
    return "They are apart for alpha=1."


def apart_alpha(problem: HullProblem, verdict: Verdict) -> float | None:
    """Return an alpha above the problem's for which its hulls are disjoint; None if none up to 1 was found.

    It is the least alpha that separates the hulls along the difference of the class means or along the direction of
    ``verdict``. If there is none, the direction comes from the feasibility test of the smallest hulls (alpha=1) or, if
    that is undecided, from some iterations on them, which end as soon as a lower bound is above zero.
    """
    directions = problem.start.difference, verdict.direction
    found = [alpha for w in directions if (alpha := separating_alpha(problem, w)) is not None]
    if found:
        return min(found)
    smallest = problem.with_alpha(1.0)
    verdict = judge(smallest)
    if verdict.overlap is None:
        run = find_nearest_point(smallest, tol=1 - 1e-9, max_iter=200)
        return None if run.overlap else separating_alpha(problem, run.direction)
    return None if verdict.overlap else separating_alpha(problem, verdict.direction)


# The choice -------------------------------------------------------------------------------------------------------


HULL_RECIPES: dict[str, Recipe[SaddleFit]] = {
    "mnp": NearestPointRecipe(),
    "saddle": SaddlePointRecipe(),
    "gilbert": GilbertRecipe(),
}


class HullFamily(Family[SaddleFit]):
    """Nearest points of reduced hulls."""

    def scheme(self, fit: SaddleFit) -> Scheme:
        return fit.scheme

    def choose(self, fit: SaddleFit, rows: int, features: int) -> Choice[SaddleFit]:
        """Choose the recipe of the solver asked for. "auto" is "mnp", the fastest or nearly so in all measurements.

        Raises InputError for another solver than "mnp" if the kernel is not linear.
        """
        if fit.kernel.kernel != "linear":
            if fit.word not in ("auto", "mnp"):
                raise InputError(f"solver={fit.word!r} is for kernel='linear'; leave solver='auto' for other kernels.")
            return Choice("mnp", "over the span of landmarks", SpanRecipe())
        name, why = (fit.word, "asked for") if fit.word != "auto" else ("mnp", "the fewest passes")
        return Choice(name, why, HULL_RECIPES[name], "take ODMClassifier(kernel='linear') instead, ")

    def train(self, choice: Choice[SaddleFit], data: TrainingData, fit: SaddleFit) -> Trained:
        return replace(super().train(choice, data, fit), advice=advice_on_features(data, fit.kernel))
