"""Ridge regression on any embedding of the rows, by one shard or many: moments in one pass, then small systems.

The embedding of `MDDRidge` is the rows themselves, that of `MDDKernelRidge` their Nyström features.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Scaling
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partition.dealing import EvenDealer
from dask_odm.errors import InputError
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.scratch import scratch_folder
from dask_odm.learning.training.steps import report_step
from dask_odm.learning.training.trained import NOT_FINITE, require_finite_solution
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.ridge.fixed_point import ExchangeSolution, ExchangeState, solve_exchange
from dask_odm.methods.ridge.moments import Embedding, LeaveOutQuery, MomentQuery, ShardMoments, centred
from dask_odm.methods.ridge.settings import CONSENSUS, MDDFit
from dask_odm.methods.ridge.shard_systems import LinearPart
from dask_odm.methods.ridge.thresholds import contraction
from dask_odm.methods.ridge.workers import ShardExchange, linear_mix, linear_rounds, stacked_states
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
ROUNDING = 1e-15  # relative error of an eigenvalue, for each row of the matrix
LOOSE = 0.5  # effective parameters for each row, above which the leave-one-out error is too optimistic


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """The result of `learn`.

    ``w`` (width, t) is the mean of the shards' weights, for centred and scaled features. ``attributes`` are fitted
    attributes of the estimator.
    """

    w: Array
    moments: ShardMoments
    solution: ExchangeSolution
    attributes: dict[str, Any]
    warning: str | None


def learn(
    data: TrainingData, fit: MDDFit, embedding: Embedding, name: str, factor: Array, zero: Array | None
) -> LeastSquares:
    """Learn the weights of embedded rows.

    ``name`` is that of the checkpoint. Features are multiplied by ``factor`` (width,). A model without an intercept is
    0 at ``zero`` (width,); None means that it has an intercept.

    Raises
    ------
    InputError
        A shard has no rows, rows are too large for float64, or the discrepancy is beyond its threshold.
    MemoryLimitError
        The moments do not fit.
    """
    fit.require_rows(data.rows)
    moments = _moments(data, fit, embedding, factor, zero)
    _require_targets(moments)
    lam, found = _choose_lam(data, fit, embedding, moments, intercept=zero is None)
    parts = _parts(moments, fit, lam)
    solution, q = _exchange(data, fit, parts, name, passes=2.0 if found else 1.0)
    w = _mean(parts, solution.parts)
    require_finite_solution(w)
    attributes = found | {
        "lam_": lam,
        "gap_": solution.gap,
        "contraction_": q,
        "n_iter_": max(1, solution.rounds),
        "history_": solution.history,
    }
    return LeastSquares(w, moments, solution, attributes, warning_of(solution, fit))


def warning_of(solution: ExchangeSolution, fit: MDDFit) -> str | None:
    """Return the warning for rounds that stopped short of ``tol``; None if they converged."""
    if solution.converged:
        return None
    return (
        f"The rounds stopped at a relative distance of at most {solution.gap:.1e} from their fixed point, above "
        f"tol={fit.tol:g}. Increase max_iter ({fit.max_iter}), choose a smaller discrepancy, or dtype='float64'."
    )


def scaled_factor(data: TrainingData, fit: MDDFit) -> tuple[Array, Array]:
    """Return the factor and the shift of the feature scaling, (d,) each; ones and zeros if there is none."""
    if fit.run.scale is None:
        return np.ones(data.features), np.zeros(data.features)
    scaling = Scaling.of_features(data.statistics(), fit.run.scale)
    return scaling.factor, scaling.shift


def _moments(data: TrainingData, fit: MDDFit, embedding: Embedding, factor: Array, zero: Array | None) -> ShardMoments:
    m, (given, numbers) = fit.n_partitions, data.row_numbers
    shard_of = EvenDealer((given,), m, fit.run.seed).partition_of if m > 1 else None
    query = MomentQuery(embedding, data.origin()[1], m, shard_of, numbers if m > 1 else None)
    what = f"Moments of {m} shards of {embedding.width} features" if m > 1 else f"Moments of {embedding.width} features"
    data.require_pass(query.pass_bytes(), what)
    passes = data.passes(math.ceil(query.k * math.sqrt(m)), full=True)
    sums = passes.run(query, MomentQuery.sums, nbytes=8 * m * query.k * query.k)
    if not np.isfinite(sums).all():
        raise InputError(NOT_FINITE)
    empty = np.flatnonzero(~(sums[:, -1, -1] > 0))
    if len(empty) == m:
        raise InputError("no row has both a target and a positive weight.")
    if len(empty):
        raise InputError(
            f"shard {empty[0]} of {m} has no row with a target and a positive weight; use a smaller n_partitions."
        )
    with single_threaded_blas:
        return centred(sums, query, factor, zero)


def _require_targets(moments: ShardMoments) -> None:
    """Warn if a target is the same value in all rows, which the model then is, too."""
    if not (moments.spread > 0).all():
        warnings.warn(
            "y is constant: the model is that value, whatever the features are. Check which column y is.",
            UserWarning,
            stacklevel=2,
        )


def _choose_lam(
    data: TrainingData, fit: MDDFit, embedding: Embedding, moments: ShardMoments, *, intercept: bool
) -> tuple[float, dict[str, Any]]:
    """Choose λ by the leave-one-out error of ridge regression on all rows, whatever the shards.

    Returns it with the fitted attributes of the error. There is no such pass, and no attribute, for a single λ without
    ``loo``.
    """
    if len(fit.lams) == 1 and not fit.loo:
        return fit.lams[0], {}
    query = LeaveOutQuery.of(moments, embedding, np.array(fit.lams), intercept=intercept)
    data.require_pass(query.pass_bytes(), "A pass that leaves every row out")
    total = moments.total
    errors = data.passes(len(fit.lams)).run(query, LeaveOutQuery.sums) / total.weight[0]
    if np.isnan(errors).all():
        raise InputError(
            f"leaving one row out leaves nothing to learn from, with n_samples = {data.rows}; give more rows, or one "
            "lam without loo."
        )
    best = int(np.nanargmin(errors.mean(axis=1)))
    spread = total.spread / total.weight[0]
    score = float(np.mean([1.0 - e / s if s > 0 else 0.0 for e, s in zip(errors[best], spread, strict=True)]))
    freedom = query.effective(best)
    if freedom > LOOSE * total.weight[0]:
        warnings.warn(
            f"leaving one out is too hopeful here: {freedom:.0f} effective parameters for rows of weight "
            f"{total.weight[0]:g}. Choose larger values of lam.",
            UserWarning,
            stacklevel=2,
        )
    return fit.lams[best], {"loo_score_": score, "loo_errors_": np.sqrt(errors.mean(axis=1))}


def _parts(moments: ShardMoments, fit: MDDFit, lam: float) -> list[LinearPart]:
    m = fit.n_partitions
    n = moments.weight
    rows = float(moments.weight.sum())
    strength = lam * fit.discrepancy if m > 1 else 0.0
    consensus = fit.mode == CONSENSUS
    # with this pull, n_i times shard i's pull towards j equals n_j times j's towards i: the mean tends to ridge on all
    pulls = strength * m / max(1, m - 1) * (1.0 - n / rows) if consensus else np.full(m, -strength)
    return [
        LinearPart(
            moments.scatter[i] / n[i],
            moments.covariance[i] / n[i],
            float(moments.square[i].sum() / n[i]),
            float(n[i]),
            lam + (float(pulls[i]) if consensus else 0.0),
            float(pulls[i]),
            float(n[i]) if consensus else 1.0,
            (rows - float(n[i])) or 1.0 if consensus else max(1.0, m - 1.0),
            float(n[i]) if consensus else 1.0,
            i,
        )
        for i in range(m)
    ]


def _least_eigenvalue(A: Array) -> float:
    """Return a lower bound of the eigenvalues of a positive semi-definite matrix, less the rounding error."""
    values = np.linalg.eigvalsh(A)
    return max(0.0, float(values[0]) - ROUNDING * len(A) * float(values[-1]))


def _mean(parts: Sequence[LinearPart], solutions: Sequence[Array]) -> Array:
    """Return the mean of the shards' solutions, with the same shares as in the rounds."""
    found: Array = linear_mix(parts)(solutions) / math.fsum(part.share for part in parts)
    return found


def _exchange(
    data: TrainingData, fit: MDDFit, parts: Sequence[LinearPart], name: str, *, passes: float
) -> tuple[ExchangeSolution, float]:
    """Run the rounds. Returns their solution, and the factor by which a round shrinks the error."""
    d, t, sizes = len(parts[0].A), parts[0].base.shape[1], [len(part.A) for part in parts]
    resume, save = open_steps(name, data.fingerprint, fit, ExchangeState)
    require_state(fit, resume is None or resume.solutions.shape == resume.sides.shape == (sum(sizes), t))
    states = None if resume is None else stacked_states(resume.solutions, resume.sides, sizes)
    # without an exchange tasks would only cost time; the result is the same
    cluster = data.cluster if fit.exchanges else Cluster.local(fit.run.memory_limit)
    asks = cluster.client is not None
    with scratch_folder() if asks else nullcontext(None) as folder, single_threaded_blas:
        exchange = ShardExchange(linear_rounds(cluster, parts, states, folder), linear_mix(parts))

        def spread(v: Array) -> Array:
            return np.tile(v.reshape(len(parts), d, 1).sum(axis=0), (len(parts), 1))

        least = [part.shift + _least_eigenvalue(part.A) for part in parts] if fit.exchanges else [1.0] * len(parts)
        if fit.mode == CONSENSUS:
            q = max(part.pull / at_least for part, at_least in zip(parts, least, strict=True))
        else:
            bound = -parts[0].pull / min(least)
            q = contraction(fit, exchange, spread, sum(sizes), parts[0].shift, bound)
        solution = solve_exchange(
            exchange,
            q,
            math.fsum(part.weight for part in parts),
            tol=fit.tol,
            max_iter=fit.max_iter,
            resumed=() if resume is None else resume.history,
            passes=passes,
            on_step=report_step,
            on_state=save,
        )
    return solution, q
