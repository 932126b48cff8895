"""The trained model of the nearest points of two reduced hulls, and the warning if there is none to be had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dask_odm.learning.training.trained import Trained, require_finite_solution
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.hulls.feasibility import Verdict, judge
from dask_odm.methods.hulls.nearest_point import HullSolution, find_nearest_point
from dask_odm.methods.hulls.problem.hulls import HullProblem
from dask_odm.methods.hulls.solver_objects import SaddleFit
from dask_odm.models.kernel import KernelModel
from dask_odm.models.linear import LinearModel
from dask_odm.typing import Array


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
    if solution.entries is not None and data.held is not None:
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
    found = [alpha for w in directions if (alpha := problem.separating_alpha(w)) is not None]
    if found:
        return min(found)
    smallest = problem.with_alpha(1.0)
    verdict = judge(smallest)
    if verdict.overlap is None:
        run = find_nearest_point(smallest, tol=1 - 1e-9, max_iter=200)
        return None if run.overlap else problem.separating_alpha(run.direction)
    return None if verdict.overlap else problem.separating_alpha(verdict.direction)
