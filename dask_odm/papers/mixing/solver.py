"""Iterative parameter mixing: every epoch, each shard makes one pass from the common w, and the results are mixed.

epoch    ``w_i`` = the pass of shard i from w; ``w ← Σ α_i w_i`` over the M shards
KL       ``α_i = 1/M``
Beta     ``α = softmax(S)``, ``S_i = −(β/2) D_i``, with ``u_i = w_i/‖w_i‖``, μ and v the mean and the variance of u over
         shards, feature by feature, and the squared Mahalanobis distance ``D_i = Σ (u_ij − μ_j)²/v_j``

Source: Komiyama, Oiwa, Nakagawa, *Robust Distributed Training of Linear Classifiers Based on Divergence Minimization
Principle*, algorithm 1, (4) and (6). The mean of D over shards is d_eff, the number of features in its sum. So the
effect of β depends on d_eff; the effect of ``κ = β d_eff/2`` does not.

Departures: sums of exponentials are taken relative to the largest, since with many features exp(S) is 0 for every
shard. A feature that only one or two shards have is left out of D: a feature of a single shard would add M − 1 to that
shard's distance, however clean it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dask_odm.errors import InputError
from dask_odm.learning.solution import OnStep, Record, StepClock
from dask_odm.papers.mixing.mixtures import Centre, Moments
from dask_odm.typing import Array

if TYPE_CHECKING:
    from dask_odm.papers.mixing.workers import ShardRounds


@dataclass(frozen=True)
class Mixing:
    """The rule that weighs shards.

    ``kind`` is "kl" or "beta". ``kappa`` is β d_eff/2, and is used if ``beta`` is None; 5 to 10 did best for 100 to 200
    features. A feature counts in distances if ``least_shards`` have it.
    """

    kind: str = "beta"
    beta: float | None = None
    kappa: float = 6.0
    least_shards: int = 3

    def centre(self, moments: Moments, present: Array) -> Centre:
        """Return the centre of all shards; ``present`` (k,) counts the shards that have each feature."""
        variance = moments.squares / moments.count
        rounding = 1e-24 * (moments.mean**2 + variance)  # a deviation of 1e-12 of the root mean square
        counted = (variance > rounding) & (present >= min(self.least_shards, moments.count))
        precision = np.zeros(len(variance))
        precision[counted] = 1.0 / variance[counted]
        half_beta = 0.0
        if self.kind == "beta" and counted.any():
            half_beta = self.kappa / int(counted.sum()) if self.beta is None else 0.5 * self.beta
        return Centre(moments.mean, precision, half_beta)


@dataclass(frozen=True, eq=False)
class MixingState:
    """The state at the start of an epoch, which is the checkpoint.

    ``weights`` (epoch, M) are those of the shards in every epoch before.
    """

    epoch: int
    w: Array
    weights: Array
    history: list[Record] = field(default_factory=list)


def mix_parameters(
    problem: ShardRounds,
    mixing: Mixing,
    max_iter: int,
    resume: MixingState | None = None,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[MixingState], object] = lambda state: None,
) -> MixingState:
    """Run epochs until no row moves w, ``max_iter`` at most; raise InputError if w grows beyond all bounds.

    After every epoch ``on_state`` gets the state at the start of the next one, and ``on_step`` a record: iteration,
    gap, objective, passes and seconds so far, moved, the norm of w, and the effective number of shards 1/Σα². The gap
    is no bound here, but how far w moved, relative to its norm. The objective is the mean of the shards' losses, and
    "moved" that of the rows that moved w, both by the shards' weights.
    """
    state = MixingState(0, np.zeros(problem.k), np.empty((0, problem.shards))) if resume is None else resume
    clock = StepClock(state.history)
    while state.epoch < max_iter and not (state.history and state.history[-1]["moved"] == 0):
        moments = problem.walk(state.w, state.epoch)
        norms, moved, losses = moments.figures.T
        if not (norms < 1e150).all():  # squares of larger ones overflow
            largest = np.nan_to_num(norms, nan=np.inf).max()
            raise InputError(
                f"the weights grew beyond all bounds in epoch {state.epoch} (‖w‖ of a shard is {largest:.1e}): scale "
                "the rows (scale='minmax'), or choose a smaller beta or kappa, or local='pa1' with a small C."
            )
        centre = mixing.centre(moments, problem.present)
        mixture = problem.mix(centre)
        weights = centre.weights(mixture.distances)
        w = mixture.vector / mixture.total
        norm = float(np.linalg.norm(w))
        record = clock.record(
            state.epoch,
            gap=float(np.linalg.norm(w - state.w)) / norm if norm > 0 else 0.0,
            objective=float(weights @ losses),
            passes=state.epoch + 1.0,
            moved=float(weights @ moved),
            norm=norm,
            effective_shards=float(1.0 / (weights @ weights)),
        )
        history = [*state.history, record]
        state = MixingState(state.epoch + 1, w, np.vstack([state.weights, weights]), history)
        on_state(state)  # before `on_step`, so that whatever is reported is saved
        on_step(record)
    return state


def suspects(wrong: Array, sizes: Array, weights: Array, deviations: float = 4.0) -> Array:
    """Return the numbers of the shards that contradict the mixed w: too many of their rows are wrong for chance.

    ``wrong`` and ``sizes`` (M,) count the rows of each shard that w gets wrong, and all its rows; ``weights``
    (epochs, M) are the shards' weights, of which the later half of the epochs counts. The expected share of wrong rows,
    p, is the mean of the shards' shares by these weights, since shards that are left out of the mixture say nothing
    about it. A shard is a suspect if its own share is nearer to ½, a coin's, than to p, and above p by more than so
    many standard ``deviations`` of a share of so few rows.
    """
    late = weights[len(weights) // 2 :].mean(axis=0)
    shares = wrong / sizes
    p = min(0.5, float(late @ shares))
    deviation = np.sqrt((p * (1.0 - p) + 1.0 / sizes) / sizes)
    return np.flatnonzero((shares > 0.5 * (p + 0.5)) & (shares > p + deviations * deviation))
