"""MDD rounds: every shard keeps its factor, solutions travel, and the rounds run to their fixed point.

A round sends one message to all shards, of d numbers for a linear model and a number a row for a kernel model. Every
shard answers with its solution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dask_odm.engine.rounds import Rounds
from dask_odm.errors import InputError
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.steps import report_step
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.ridge.fixed_point import ExchangeState, ShardExchange, solve_exchange
from dask_odm.methods.ridge.settings import CONSENSUS, MDDFit
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Exchanged:
    """The shards' solutions at the fixed point, with the estimator's attributes of it, and a warning perhaps."""

    parts: list[Array]
    attributes: dict[str, Any]
    warning: str | None


def run_exchange(
    data: TrainingData,
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

    ``name`` is that of the checkpoint, and ``shapes`` (k_i, t) are those of the shards' solutions.
    ``rounds_of(states=…)`` makes the rounds, from the shards' states of a checkpoint or from None, and ``mix`` their
    messages. ``pull`` and ``bound`` are as in `_contraction`; ``weight`` is that of all rows, and ``passes`` over them
    were made before.
    """
    resume, save = open_steps(name, data.fingerprint, fit, ExchangeState)
    bounds = np.cumsum([0, *(k for k, _ in shapes)])
    all_numbers = int(bounds[-1]), shapes[0][1]
    require_state(fit, resume is None or resume.solutions.shape == resume.sides.shape == all_numbers)
    states = None
    if resume is not None:
        states = [{"w": resume.solutions[a:b], "side": resume.sides[a:b]} for a, b in pairwise(bounds)]
    exchange = ShardExchange(rounds_of(states=states), mix)
    q = _contraction(fit, exchange, int(bounds[-1]), pull, bound)
    parts, history = solve_exchange(
        exchange,
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
    return Exchanged(parts, attributes, warning)


def _contraction(fit: MDDFit, exchange: ShardExchange, size: int, pull: float, bound: float) -> float:
    """Return the factor by which a round shrinks the error, or a ``bound`` of it below 1.

    Consensus and a ``discrepancy`` below 1 always converge, because a shard's regularised system dominates what it
    takes from the others. For larger values Lanczos's method finds the factor of all ``size`` numbers, given the
    shards' common ``pull``; InputError is raised if it is not below 1.
    """
    if not fit.exchanges:
        return 0.0
    if fit.mode == CONSENSUS or fit.discrepancy < 1.0:
        return bound
    q = abs(pull) * exchange.radius(np.random.default_rng(fit.run.seed).normal(size=size))
    if q >= 1.0:
        raise InputError(
            f"discrepancy={fit.discrepancy:g} is beyond the threshold of these shards, {fit.discrepancy / q:.6g}, "
            "above which the rounds diverge; choose a smaller one. Below 1 it always converges."
        )
    return q
