"""Ridge regression of any embedding of the rows, by one shard or many: moments in one pass, then small systems.

`MDDRidge` has the rows themselves, `MDDKernelRidge` their coordinates in the span of landmarks.
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
ROUNDING = 1e-15
LOOSE = 0.5  # effective parameters a row, above which leaving one out is too hopeful


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """What was learned of embedded rows.

    Attributes
    ----------
    w : ndarray of shape (width, t)
        Of centred and scaled features, the mean of the shards'.
    moments : ShardMoments
    solution : ExchangeSolution
    attributes : dict
        Fitted attributes.
    warning : str or None
    """

    w: Array
    moments: ShardMoments
    solution: ExchangeSolution
    attributes: dict[str, Any]
    warning: str | None


def learn(
    data: TrainingData, fit: MDDFit, embedding: Embedding, name: str, factor: Array, zero: Array | None
) -> LeastSquares:
    """Learn weights of embedded rows.

    Parameters
    ----------
    data : TrainingData
    fit : MDDFit
    embedding : Embedding
    name : str
        Of the checkpoint.
    factor : ndarray of shape (width,)
        What features are multiplied by.
    zero : ndarray of shape (width,) or None
        Where a model without an intercept is 0; None: it has one.

    Raises
    ------
    InputError
        A shard without rows, rows too large for float64, or a discrepancy beyond its threshold.
    MemoryLimitError
        Moments that do not fit.
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
    """What to warn of where the rounds stopped short of ``tol``."""
    if solution.converged:
        return None
    return (
        f"The rounds stopped at a relative distance of at most {solution.gap:.1e} from their fixed point, above "
        f"tol={fit.tol:g}. Increase max_iter ({fit.max_iter}), choose a smaller discrepancy, or dtype='float64'."
    )


def scaled_factor(data: TrainingData, fit: MDDFit) -> tuple[Array, Array]:
    """What features are multiplied by, and the point that is 0 then, (d,) each."""
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
    """Warn of targets that are one value in all rows: the model is that value."""
    if not (moments.spread > 0).all():
        warnings.warn(
            "y is constant: the model is that value, whatever the features are. Check which column y is.",
            UserWarning,
            stacklevel=2,
        )


def _choose_lam(
    data: TrainingData, fit: MDDFit, embedding: Embedding, moments: ShardMoments, *, intercept: bool
) -> tuple[float, dict[str, Any]]:
    """λ, and what is known of leaving one out: of ridge regression on all rows, whatever the shards."""
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
    # so that, times n_i, what shard i takes of shard j is what j takes of i: then the mean tends to ridge on all rows
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
    """A lower bound of the eigenvalues of a positive semi-definite matrix, rounding taken off."""
    values = np.linalg.eigvalsh(A)
    return max(0.0, float(values[0]) - ROUNDING * len(A) * float(values[-1]))


def _mean(parts: Sequence[LinearPart], solutions: Sequence[Array]) -> Array:
    """The mean of the shards' weights, weighted as they are in rounds."""
    found: Array = linear_mix(parts)(solutions) / math.fsum(part.share for part in parts)
    return found


def _exchange(
    data: TrainingData, fit: MDDFit, parts: Sequence[LinearPart], name: str, *, passes: float
) -> tuple[ExchangeSolution, float]:
    """The rounds, and the factor by which each shrinks the error."""
    d, t, sizes = len(parts[0].A), parts[0].base.shape[1], [len(part.A) for part in parts]
    resume, save = open_steps(name, data.fingerprint, fit, ExchangeState)
    require_state(fit, resume is None or resume.solutions.shape == resume.sides.shape == (sum(sizes), t))
    states = None if resume is None else stacked_states(resume.solutions, resume.sides, sizes)
    # where nothing is exchanged, tasks would only take time; the bits are the same
    cluster = data.cluster if fit.exchanges else Cluster.local(fit.run.memory_limit)
    asks = cluster.client is not None
    with scratch_folder(fit.run.scratch) if asks else nullcontext(None) as folder, single_threaded_blas:
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
