"""Ridge regression on any embedding of the rows, by one shard or many: moments in one pass, then small systems.

The embedding of `MDDRidge` is the rows themselves, that of `MDDKernelRidge` their Nyström features. This process holds
the shards' systems: their moments are here, and a worker would be told of a round for longer than it computes.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dask_odm.engine.cluster import Cluster
from dask_odm.engine.dealing import EvenDealer, require_rows
from dask_odm.engine.rounds import Rounds
from dask_odm.errors import InputError
from dask_odm.kernels.landmarks import cholesky
from dask_odm.learning.training.trained import NOT_FINITE, require_finite_solution
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.ridge.exchange import Exchanged, run_exchange
from dask_odm.methods.ridge.moments import Embedding, LeaveOutQuery, MomentQuery, ShardMoments, centred
from dask_odm.methods.ridge.settings import CONSENSUS, MDDFit
from dask_odm.methods.ridge.shard_systems import LinearSystem, begin
from dask_odm.typing import Array


def learn(
    data: TrainingData, fit: MDDFit, embedding: Embedding, name: str, factor: Array, zero: Array | None
) -> tuple[Array, ShardMoments, Exchanged]:
    """Learn the weights of embedded rows, (width, t), the mean of the shards', for centred and scaled features.

    ``name`` is that of the checkpoint. Features are multiplied by ``factor`` (width,). A model without an intercept is
    0 at ``zero`` (width,); None means that it has an intercept. Raises InputError if a shard has no rows, rows are too
    large for float64, or the discrepancy is beyond its threshold, and MemoryLimitError if the moments do not fit.
    """
    require_rows(data.rows, fit.n_partitions)
    moments = _moments(data, fit, embedding, factor, zero)
    if not (moments.spread > 0).all():
        warnings.warn(
            "y is constant: the model is that value, whatever the features are. Check which column y is.",
            UserWarning,
            stacklevel=2,
        )
    lam, loo = _choose_lam(data, fit, embedding, moments, intercept=zero is None)
    systems = [_system(moments, fit, lam, i) for i in range(fit.n_partitions)]
    shares = [system.share for system in systems]

    def mix(solutions: Array) -> Array:
        """Sum ``share_i w_i`` (d, t) in the order of the shards."""
        total = np.zeros((len(factor), solutions.shape[1]))
        for share, w in zip(shares, solutions.reshape(len(shares), *total.shape), strict=True):
            total += share * w
        return total

    here = Cluster.local(fit.run.memory_limit)
    found = run_exchange(
        data,
        fit,
        name,
        [system.base.shape for system in systems],
        partial(Rounds, here, systems, begin, name="shards"),
        mix,
        pull=systems[0].pull,
        bound=_contraction_bound(moments, systems) if fit.exchanges else 0.0,
        weight=math.fsum(system.weight for system in systems),
        passes=2.0 if loo else 1.0,
    )
    w = mix(np.concatenate(found.parts)) / math.fsum(shares)
    require_finite_solution(w)
    return w, moments, replace(found, attributes=loo | {"lam_": lam} | found.attributes)


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
    return centred(sums, query, factor, zero)


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
    total = moments.weight.sum()
    errors = data.passes(len(fit.lams)).run(query, LeaveOutQuery.sums) / total
    if np.isnan(errors).all():
        raise InputError(
            f"leaving one row out leaves nothing to learn from, with n_samples = {data.rows}; give more rows, or one "
            "lam without loo."
        )
    best = int(np.nanargmin(errors.mean(axis=1)))
    spread = moments.spread / total
    score = float(np.mean([1.0 - e / s if s > 0 else 0.0 for e, s in zip(errors[best], spread, strict=True)]))
    freedom = query.effective(best)
    if freedom > 0.5 * total:
        warnings.warn(
            f"leaving one out is too hopeful here: {freedom:.0f} effective parameters for rows of weight "
            f"{total:g}. Choose larger values of lam.",
            UserWarning,
            stacklevel=2,
        )
    return fit.lams[best], {"loo_score_": score, "loo_errors_": np.sqrt(errors.mean(axis=1))}


def _system(moments: ShardMoments, fit: MDDFit, lam: float, i: int) -> LinearSystem:
    """Return the factored system of shard ``i``."""
    m = fit.n_partitions
    n = float(moments.weight[i])
    rows = float(moments.weight.sum())
    strength = lam * fit.discrepancy if m > 1 else 0.0
    if fit.mode == CONSENSUS:
        # with this pull, n_i times shard i's pull towards j is n_j times j's towards i: the mean tends to ridge on all
        pull = strength * m / max(1, m - 1) * (1.0 - n / rows)
        shift = lam + pull
        share = n
        rest = rows - n or 1.0
    else:
        pull = -strength
        shift = lam
        share = 1.0
        rest = max(1.0, m - 1.0)
    d = len(moments.factor)
    return LinearSystem(
        factor=cholesky(moments.scatter[i] / n + shift * np.eye(d)),
        base=moments.covariance[i] / n,
        pull=pull,
        rest=rest,
        first=i * d,
        square=float(moments.square[i].sum() / n),
        weight=n,
        shift=shift,
        share=share,
    )


def _contraction_bound(moments: ShardMoments, systems: list[LinearSystem]) -> float:
    """Return a bound of the factor by which a round shrinks the error, from the least eigenvalues of the systems."""
    found = []
    for i, system in enumerate(systems):
        values = np.linalg.eigvalsh(moments.scatter[i] / system.weight)
        rounding = 1e-15 * len(values) * float(values[-1])
        found.append(abs(system.pull) / (system.shift + max(0.0, float(values[0]) - rounding)))
    return max(found)
