"""Rounds of exchange between shards, run to their fixed point with checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dask_odm.engine.rounds import Rounds
from dask_odm.errors import InputError
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.recipe import report_step
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.papers.mdd.fixed_point import ExchangeState, coupling_radius, solve_exchange
from dask_odm.papers.mdd.settings import CONSENSUS, MDDFit
from dask_odm.typing import Array

Attributes = dict[str, Any]
Exchanged = tuple[list[Array], Attributes, str | None]


def run_exchange(
    data: TrainingData | None,
    fit: MDDFit,
    name: str,
    shapes: Sequence[tuple[int, int]],
    rounds_of: Callable[..., Rounds],
    mix: Callable[[Array], Array],
    *,
    pull: float,
    bound: float,
    weight: float,
    passes: float = 1.0,
) -> Exchanged:
    """Run the rounds to their fixed point, with checkpoints.

    Returns the shards' solutions, the estimator's attributes, and a warning perhaps.
    ``name`` is that of the checkpoint, and ``shapes`` (k_i, t) are those of the shards' solutions.
    ``rounds_of(states=…)`` makes the rounds, from the shards' states of a checkpoint or from None, and ``mix`` their
    messages. ``pull`` is what all shards have in common, and ``bound`` that of the factor by which a round shrinks the
    error, 0 if nothing is exchanged. ``weight`` is that of all rows, and ``passes`` over them were made before.
    """
    resume, save = open_steps(name, str if data is None else data.fingerprint, fit, ExchangeState)
    bounds = np.cumsum([0, *(k for k, _ in shapes)])
    all_numbers = int(bounds[-1]), shapes[0][1]
    require_state(fit, resume is None or resume.solutions.shape == resume.sides.shape == all_numbers)
    states = None
    if resume is not None:
        states = [{"w": resume.solutions[a:b], "side": resume.sides[a:b]} for a, b in pairwise(bounds)]
    rounds = rounds_of(states=states)
    q = bound
    if fit.exchanges and fit.mode != CONSENSUS and fit.discrepancy >= 1.0:
        # below, and by consensus, a shard's regularised system dominates what it takes from the others
        q = abs(pull) * coupling_radius(rounds, mix, np.random.default_rng(fit.run.seed).normal(size=bounds[-1]))
        if q >= 1.0:
            raise InputError(
                f"discrepancy={fit.discrepancy:g} is beyond the threshold of these shards, {fit.discrepancy / q:.6g}, "
                "above which the rounds diverge; choose a smaller one. Below 1 it always converges."
            )
    parts, history = solve_exchange(
        rounds,
        mix,
        q,
        weight,
        tol=fit.tol,
        max_iter=fit.max_iter,
        resumed=() if resume is None else resume.history,
        passes=passes,
        on_step=report_step,
        on_state=save,
    )
    gap = history[-1]["gap"]
    warning = None
    if not gap <= fit.tol:
        warning = (
            f"The rounds stopped at a relative distance of at most {gap:.1e} from their fixed point, above "
            f"tol={fit.tol:g}. Increase max_iter ({fit.max_iter}), choose a smaller discrepancy, or dtype='float64'."
        )
    attributes = {"gap_": gap, "contraction_": q, "n_iter_": max(1, len(history) - 1), "history_": history}
    return parts, attributes, warning
