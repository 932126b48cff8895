"""Build a model from what a solver found: dual variables, coefficients of landmarks, or weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.stored import Partitions
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.user_kernels import Precomputed
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.solution import Solution
from dask_odm.learning.training.trained import Trained, require_finite_solution
from dask_odm.models.kernel import KernelModel
from dask_odm.models.linear import LinearModel
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
SUMMED_ROWS = 4096  # rows read at a time to sum the linear kernel's weights
Chosen = Callable[[Array], tuple[Any, Array]]


def finish_kernel(
    kernel: Kernel, scaling: Scaling, coefficients: Array, rows: Array, chosen: Chosen, attributes: dict[str, Any]
) -> Trained:
    """Build the model ``f = Σ coefficients_i κ(x_i, ·)`` from the rows with a coefficient.

    ``kernel`` and ``scaling`` are those of the training. ``rows`` (n,) identify rows for ``chosen``, which takes
    ascending ones and returns raw rows and their numbers in the given data. ``attributes`` are further fitted
    attributes.
    """
    a, support = with_coefficients(coefficients, rows)
    intercept = np.array([kernel.bias * float(coefficients.sum())])
    require_finite_solution(a, intercept)
    if isinstance(kernel, Precomputed):
        _, numbers = chosen(support)
        weights = np.zeros((1, len(kernel.matrix)))  # one weight for the column of every training row
        weights[0, numbers] = a[0]
        return Trained(LinearModel(weights, intercept), {"dual_coef_": a, "support_": numbers} | attributes)
    raw, numbers = chosen(support)
    model = KernelModel(replace(kernel, bias=0.0), scaling, raw, a, intercept)
    return Trained(model, {"support_": numbers} | attributes)


def with_coefficients(coefficients: Array, rows: Array) -> tuple[Array, Array]:
    """Return the nonzero coefficients, (1, n_support), and their rows in ascending order."""
    order = np.argsort(rows, kind="stable")
    chosen = order[coefficients[order] != 0]
    return coefficients[chosen][None], rows[chosen]


def finish_linear_kernel(
    partitions: Partitions, kernel: Kernel, scaling: Scaling, task_scaling: Any, coefficients: Array, chosen: Chosen,
    attributes: dict[str, Any],
) -> Trained:  # fmt: skip
    """Build the model of `finish_kernel` for the linear kernel, as weights of raw features."""
    a, support = with_coefficients(coefficients, partitions.row_numbers(0, len(partitions.counts)))
    weights = (_weights_of(partitions, task_scaling, coefficients) * scaling.factor)[None]
    intercept = np.array([kernel.bias * float(coefficients.sum())]) - weights @ scaling.shift
    require_finite_solution(a, intercept, weights)
    _, numbers = chosen(support)
    return Trained(LinearModel(weights, intercept), {"dual_coef_": a, "support_": numbers} | attributes)


def _weights_of(partitions: Partitions, scaling: Any, coefficients: Array) -> Array:
    """Return ``Σ a_i x_i`` over scaled rows, read partition by partition."""
    total = np.zeros(partitions.features)
    start = 0
    for k, count in enumerate(partitions.counts):
        rows, _ = partitions.rows(k, k + 1, scaling, 0)
        for i in range(0, count, SUMMED_ROWS):
            stop = min(count, i + SUMMED_ROWS)
            total += coefficients[start + i : start + stop] @ rows.read(i, stop).astype(np.float64)
        start += count
    return total


def linear_scores(partitions: Partitions, kernel: Kernel, scaling: Any, coefficients: Array) -> Array:
    """Return ``K a`` of the linear kernel on all rows (n,), through the weights of its features."""
    weights = _weights_of(partitions, scaling, coefficients)
    found = []
    for k, count in enumerate(partitions.counts):
        rows, _ = partitions.rows(k, k + 1, scaling, 0)
        starts = range(0, count, SUMMED_ROWS)
        found += [rows.read(i, min(count, i + SUMMED_ROWS)).astype(np.float64) @ weights for i in starts]
    scores: Array = np.concatenate(found) + kernel.bias * float(coefficients.sum())
    return scores


def finish_weights(features: FeatureMap, solution: PrimalSolution[Any], tol: float, max_iter: int) -> Trained:
    """Build the model from the weights that a linear solver found."""
    weights, intercept = features.raw_weights(solution.x)
    require_finite_solution(weights, intercept, solution.gap)
    attributes = {"dual_gap_": solution.gap, "history_": solution.history, "n_iter_": max(1, solution.steps)}
    warning = None
    if not solution.converged:
        warning = (
            f"{stopped_at(solution.gap, tol)} Increase max_iter ({max_iter} steps), scale the features, or decrease "
            "lam."
        )
    return Trained(LinearModel(weights[None], np.array([intercept])), attributes, warning)


def stopped_at(gap: float, tol: float) -> str:
    """Return the first sentence of the warning of a solver that stopped short."""
    return f"The solver stopped at a relative gap of {gap:.1e}, above tol={tol:g}."


def unfinished(solutions: list[Solution], tol: float, max_iter: int) -> str | None:
    """Return a warning if the solve of any partition ended above ``tol``, else None."""
    left = [solution for solution in solutions if not solution.converged]
    if not left:
        return None
    start = stopped_at(max(solution.point.gap for solution in left), tol)
    if any(solution.sweeps for solution in left):
        return f"{start} Increase max_iter ({max_iter} steps), scale the features, or decrease lam."
    return f"{start} Newton's method gets no closer in float64: scale the features, or decrease lam."


def warn_of_nothing(history: Sequence[Mapping[str, Any]], lam: float) -> None:
    """Log a warning if the last objective is close to λ/2, which is that of the zero model."""
    last = history[-1].get("objective") if history else None
    if last is not None and last > 0.99 * 0.5 * lam:
        logger.warning(
            "next to nothing was learned with lam=%g: the objective is within 1 %% of that of a model that is zero. %s",
            lam,
            "Choose a larger lam, such as 1e4, unless the features say nothing of the labels."
            if lam < 1e4
            else "The features seem to say nothing of the labels, as they are scaled and as the kernel sees them.",
        )
