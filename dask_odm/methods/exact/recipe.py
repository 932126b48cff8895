"""Recipe of the exact solver: kernels by Newton over all rows, to a certified gap, in this process or on workers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.errors import InputError
from dask_odm.kernels.base import BLOCK
from dask_odm.kernels.shape import Shape
from dask_odm.learning.problem.losses import RowLosses
from dask_odm.learning.problem.products import CHUNK_BYTES, Products, Purpose
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.recipe import Trained, finish_kernel, report_step, rescaling_advised, stopped_at
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.as_predicted import Claim, held_as_predicted, require_prediction
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.exact.gram import scaled_gram
from dask_odm.methods.exact.memory import leaving_bytes, solve_bytes
from dask_odm.methods.exact.preconditioners import landmark_count
from dask_odm.methods.exact.solver import ExactSolution, ExactState, solve_exact
from dask_odm.methods.exact.systems import LIMITS
from dask_odm.methods.left_out import attributes_of, inverse_factor
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.models.kernel_model import predicting_bytes
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


def fit_bytes(shape: Shape) -> int:
    """Return the peak bytes of a fit, beside its rows: of the solve, or of the model that is made and checked."""
    return max(solve_bytes(shape), shape.rows + predicting_bytes(shape, shape.n))


def most_fit_bytes(shape: Shape) -> int:
    """Return the most of `fit_bytes` for any number of rows up to the shape's: of fewer, more is held at a time."""
    packed = CHUNK_BYTES * BLOCK // shape.packed(BLOCK, 8)
    blocks = range(BLOCK, shape.n, BLOCK)
    sizes = (shape.n, *blocks, LIMITS.rounding_rows, LIMITS.whole_numbers // shape.d, packed)
    return max(fit_bytes(shape.of(size)) for size in sizes if 0 < size <= shape.n)


NEWTON = Purpose("Newton", fit_bytes, "Use solver='landmark', fewer rows or more memory.")
LEFT_ADVICE = "Use more memory, solver='landmark', or loo=False where it is a choice."


LeftOut = Callable[..., dict[str, Any]]  # arguments as of `left_out_values`


def train_exact(data: TrainingData, fit: ODMFit, left_out: LeftOut = attributes_of) -> Trained:
    """Train over all rows; equal rows are merged first. ``left_out`` makes attributes of scores and leverages."""
    if fit.kernel.kernel == "linear":
        raise InputError("solver='exact' is for kernels other than 'linear', which solver='newton' learns exactly.")
    given = data
    if fit.kernel.kernel != "precomputed" and fit.groups is None:
        data = data.merged()
    entries = data.rows * (data.rows + 1) // 2
    if entries > AUTO.many_entries:  # only users who ask for this solver have as many
        logger.warning(
            "solver='exact' with %d rows: each of its passes, a hundred or more, computes %.1e kernel values. It may "
            "take hours where solver='landmark' takes minutes.",
            data.rows,
            entries,
        )
    seen = data.seen_by(fit.kernel)
    require_prediction(seen.kernel, data)
    with seen.products(NEWTON) as products:
        rows, y, weight = data.taking_part
        losses = fit.row_losses(y, weight)
        resume, save = open_steps("exact", data.fingerprint, fit, ExactState)
        require_state(fit, resume is None or _fits(resume, products.n))
        with rescaling_advised():
            solution = solve_exact(
                losses,
                products,
                fit.solver,
                start=fit.start_of_rows(data),
                resume=resume,
                threads=CPU_COUNT,
                certify=not fit.trial,
                on_step=report_step,
                on_state=save,
            )
        left = {}
        if fit.loo:
            left = left_out(fit, given, data, *_leverages(losses, products, solution.scores, data, fit))
        a = solution.coefficients
        norm = float(solution.coefficients @ solution.scores)
    attributes = left | {
        "dual_gap_": float(solution.point.gap),
        "history_": solution.history,
        "n_iter_": max(1, len(solution.history) - 1),
    }
    trained = finish_kernel(seen.kernel, seen.scaling, a, rows, seen.chosen_pivots, attributes)
    trained = replace(trained, warning=_warning(solution, fit))
    if fit.trial:
        return trained
    claim = Claim(solution.point.primal, solution.point.dual, 0.5 * norm)
    return held_as_predicted(trained, claim, seen.kernel, data, fit)


def _leverages(
    losses: RowLosses, products: Products, scores: Array, data: TrainingData, fit: ODMFit
) -> tuple[Array, Array | None]:
    """Return scores and leverages (2, n) of all rows of ``data``, and values (n,) without their groups, if any.

    Let A be the rows with a curvature and ``b`` the diagonal of ``(I + √c K_AA √c)⁻¹``; then ``h = (1 − b)/c``. Takes
    O(|A|³) time and `leaving_bytes`.
    """
    curvature = losses.curvature(losses.y * scores)
    active = np.flatnonzero(curvature)
    here = data.run.here()
    shape = Shape(products.kernel, len(active), data.features, data.dtype.itemsize, here.threads)
    data.cluster.require(leaving_bytes(shape), 1, f"Leaving out each of {len(active)} rows", LEFT_ADVICE)
    groups = fit.groups_of(data)
    found = np.stack([scores, np.zeros(len(scores))])
    without = None if groups is None else scores.copy()
    if len(active):
        root = np.sqrt(curvature[active])
        system = scaled_gram(products.kernel, products.rows(active), root, here.threads)
        system.flat[:: len(active) + 1] += 1.0
        inverse = inverse_factor(system)
        found[1, active] = (1.0 - np.einsum("ij,ij->j", inverse, inverse)) / curvature[active]
        if groups is not None:
            dual = losses.y * losses.dual_candidate(losses.y * scores)
            own = groups[0][data.taking_part[0]]
            without = _without_groups(products, active, inverse * root, dual, curvature, scores, own)
    return data.of_passes(found), None if without is None else data.of_passes(without)


def _without_groups(
    products: Products, active: Array, inverse: Array, dual: Array, curvature: Array, scores: Array, groups: Array
) -> Array:
    """Return the values (n,) of rows without their groups, ``f_G − H_GA (I − C H_AA)⁻¹ u_A`` of a group's rows G.

    A are the active rows of the group, and ``H = K − Kᵀ M K`` the leverages of all rows with each other, with
    ``M = inverseᵀ inverse`` over the active rows of all groups.
    """
    out = scores.copy()
    order = np.argsort(groups, kind="stable")
    learned = products.rows(active).astype(np.float64)
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        own = np.flatnonzero(curvature[rows])
        if not len(own):
            continue
        X = products.rows(rows).astype(np.float64)
        through = inverse @ products.kernel.tile(learned, X)
        H = products.kernel.tile(X, X[own]) - through.T @ through[:, own]
        c = curvature[rows[own]]
        out[rows] -= H @ np.linalg.solve(np.eye(len(own)) - c[:, None] * H[own], dual[rows[own]])
    return out


def _fits(state: ExactState, n: int) -> bool:
    """Return whether a state has the shapes of one of ``n`` rows."""
    vectors = all(vector.shape == (n,) for vector in (state.coefficients, state.scores, state.stiffness))
    r = len(state.inner)
    return vectors and state.inner.shape == (r, r) and 1 <= r <= landmark_count(n)


def _warning(solution: ExactSolution, fit: ODMFit) -> str | None:
    if solution.converged:
        return None
    if np.isinf(solution.point.gap):
        return stopped_at(solution.point.gap, fit.solver.tol)
    if len(solution.history) > fit.solver.max_iter:
        advice = f"Increase max_iter ({fit.solver.max_iter} steps), scale the features, or decrease lam."
    else:
        advice = "It has stalled: scale the features, decrease lam, or try another kernel width (gamma)."
    return f"{stopped_at(solution.point.gap, fit.solver.tol)} {advice}"
