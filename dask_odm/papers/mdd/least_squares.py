"""Least squares from the moments of shards: their systems, the choice of λ, and the exchange between them."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import numpy as np

from dask_odm.engine.rounds import Rounds
from dask_odm.errors import InputError
from dask_odm.kernels.landmarks import cholesky
from dask_odm.learning.training.recipe import require_finite_solution
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.papers.mdd.exchange import Attributes, run_exchange
from dask_odm.papers.mdd.fixed_point import LinearSystem, ShardSystem
from dask_odm.papers.mdd.leave_one_out import LeaveOutQuery
from dask_odm.papers.mdd.moments import Embedding, ShardMoments
from dask_odm.papers.mdd.settings import CONSENSUS, MDDFit
from dask_odm.typing import Array


def learn(
    data: TrainingData | None, fit: MDDFit, embedding: Embedding, moments: ShardMoments, name: str, *, intercept: bool
) -> tuple[Array, tuple[Attributes, str | None]]:
    """Learn the weights of embedded rows, (width, t), the mean of the shards', for centred and scaled features.

    Returns them with the fitted attributes, and a warning perhaps. ``name`` is that of the checkpoint. ``data`` may be
    None if there is neither a checkpoint nor leaving one out. Raises InputError if the discrepancy is beyond its
    threshold.
    """
    if not (moments.spread > 0).all():
        warnings.warn(
            "y is constant: the model is that value, whatever the features are. Check which column y is.",
            UserWarning,
            stacklevel=2,
        )
    lam, loo = (fit.lams[0], {}) if data is None else _choose_lam(data, fit, embedding, moments, intercept=intercept)
    systems = [_system(moments, fit, lam, i) for i in range(fit.n_partitions)]
    shares = [system.share for system in systems]

    def mix(solutions: Array) -> Array:
        """Sum ``share_i w_i`` (d, t) in the order of the shards."""
        total = np.zeros((embedding.width, solutions.shape[1]))
        for share, w in zip(shares, solutions.reshape(len(shares), *total.shape), strict=True):
            total += share * w
        return total

    here = fit.run.here()
    parts, attributes, warning = run_exchange(
        data,
        fit,
        name,
        [system.base.shape for system in systems],
        partial(Rounds, here, systems, ShardSystem.begin, name="shards"),
        mix,
        pull=systems[0].pull,
        bound=_contraction_bound(moments, systems) if fit.exchanges else 0.0,
        weight=math.fsum(system.weight for system in systems),
        passes=2.0 if loo else 1.0,
    )
    w = mix(np.concatenate(parts)) / math.fsum(shares)
    require_finite_solution(w)
    return w, (loo | {"lam_": lam} | attributes, warning)


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
    # the effective number of parameters is the sum of all leverages
    freedom = float((1.0 - query.penalties[best] * query.inverse[:, best]).sum()) + intercept
    if freedom > 0.5 * total:
        warnings.warn(
            f"leaving one out is too hopeful here: {freedom:.0f} effective parameters for rows of weight "
            f"{total:g}. Choose larger values of lam.",
            UserWarning,
            stacklevel=2,
        )
    return fit.lams[best], {"loo_score_": score, "loo_errors_": np.sqrt(errors.mean(axis=1))}


def _system(moments: ShardMoments, fit: MDDFit, lam: float, i: int) -> LinearSystem:
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
