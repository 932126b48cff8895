"""The problem of two reduced hulls of the training data, and the model of the hulls' nearest points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Scaling
from dask_odm.errors import InputError
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.step_log import Record
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.steps import report_step
from dask_odm.learning.training.trained import NOT_FINITE, Trained, require_finite_solution
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.hulls.feasibility import Verdict, judge
from dask_odm.methods.hulls.nearest_point import HullSolution, find_nearest_point
from dask_odm.methods.hulls.problem.hulls import HullProblem, hull_pass_bytes
from dask_odm.methods.hulls.problem.query import HullQuery
from dask_odm.methods.hulls.settings import SaddleFit
from dask_odm.models.kernel import KernelModel
from dask_odm.models.linear import LinearModel
from dask_odm.typing import Array

REPORTED = ("iteration", "gap", "objective", "passes", "seconds")
SLACK = 0.02  # share of the tolerance by which a vertex may miss the best, to save passes over a store
SEARCHED = 200  # iterations to search for an alpha whose hulls are disjoint
ANY_BOUND = 1 - 1e-9  # tolerance of a run that ends as soon as a lower bound is above zero


def hulls_of(data: TrainingData, fit: SaddleFit) -> HullProblem:
    """Build the problem of the two classes' reduced hulls, with scaled features."""
    scaling = None if fit.run.scale is None else Scaling.of_features(data.statistics(), fit.run.scale)
    features = FeatureMap(data.features, 0.0, scaling)
    data.require_pass(hull_pass_bytes(data.features), "A pass over the rows")
    negative, positive = data.class_weights
    query = HullQuery(features, 1, (negative, positive))
    return checked(HullProblem(query, data.passes(data.features), fit.alpha, slack=SLACK * fit.tol))


def checked(problem: HullProblem) -> HullProblem:
    """Return the problem; raise InputError if rows are not finite, or a class has no positive weight."""
    if not np.isfinite(problem.totals.square) or not np.isfinite(problem.totals.sums).all():
        raise InputError(NOT_FINITE)
    for weight, which in zip(problem.totals.weight, ("second", "first"), strict=True):
        if not weight > 0:
            raise InputError(f"no row of the {which} class has a positive weight; two classes are needed.")
    return problem


def tell(record: Record) -> None:
    """Report a step to listeners, with the figures that all solvers have."""
    report_step({name: record[name] for name in REPORTED})


def linear_model(problem: HullProblem, w: Array, offset: float) -> LinearModel:
    """Build the model of raw features from weights (d,) of the problem's features."""
    weights, shift = problem.query.features.raw_weights(w)
    return LinearModel(weights[None], np.array([shift + offset]))


def finish(
    problem: HullProblem,
    solution: HullSolution,
    data: TrainingData,
    fit: SaddleFit,
    model_of: Callable[[HullProblem, Array, float], LinearModel | KernelModel] = linear_model,
) -> Trained:
    """Build the model of the hulls' nearest points, or of the class means if the hulls overlap.

    ``model_of(problem, w, offset)`` makes it from weights (d,) of the problem's features.
    """
    iterations = int(solution.history[-1].get("sweeps", len(solution.history)))
    if solution.overlap:
        (w, offset), margin = plane(problem, problem.start.points, None, fit.offset), 0.0
    else:
        w, offset = plane(problem, solution.points, solution.thresholds, fit.offset)
        margin = float(np.linalg.norm(solution.direction))
    require_finite_solution(w, np.array([offset]))
    model = model_of(problem, w, offset)
    attributes: dict[str, Any] = {
        "dual_gap_": 1.0 if solution.overlap else solution.gap,
        "margin_": margin,
        "nu_": 2.0 * (problem.mass or 1.0) / float(problem.totals.weight.sum()),
        "n_iter_": max(1, iterations),
        "history_": solution.history,
    }
    if solution.entries is not None and isinstance(data, MemoryData):
        attributes["support_"] = data.held.kept[np.flatnonzero(solution.entries > 0)]
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


def apart_alpha(problem: HullProblem, verdict: Verdict) -> float | None:
    """Return an alpha above the problem's for which its hulls are disjoint; None if none up to 1 was found.

    It is the least alpha that separates the hulls along the difference of the class means or along the direction of
    ``verdict``. If there is none, the direction comes from the feasibility test of the smallest hulls (alpha=1) or, if
    that is undecided, from a run of `SEARCHED` iterations on them.
    """
    directions = problem.start.difference, verdict.direction
    found = [alpha for w in directions if (alpha := problem.separating_alpha(w)) is not None]
    if found:
        return min(found)
    smallest = problem.with_alpha(1.0)
    verdict = judge(smallest)
    if verdict.overlap is None:
        run = find_nearest_point(smallest, tol=ANY_BOUND, max_iter=SEARCHED)
        return None if run.overlap else problem.separating_alpha(run.direction)
    return None if verdict.overlap else problem.separating_alpha(verdict.direction)


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
