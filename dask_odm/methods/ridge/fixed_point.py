"""The MDD fixed point: in rounds, every shard receives a mean of the others, until the fixed point is certified.

iterate   ``w_i ← D_i⁻¹ (b_i + p_i · mean of the others)``, all shards at once; see
          `dask_odm.methods.ridge.shard_systems`
stop      ``q/(1 − q) · ‖Wᵗ − Wᵗ⁻¹‖ ≤ tol · ‖Wᵗ‖`` in the norm of D, q the factor by which a round shrinks the error

In that norm a round is self-adjoint. So its factor q is its largest eigenvalue in size, and the left-hand side bounds
the distance from the fixed point.

Source: *Max-Discrepancy Distributed Learning*, algorithms 1 and 2. The paper stops when the mean makes a small step,
which says nothing about the distance from the fixed point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.learning.step_log import OnStep, Record, StepLog
from dask_odm.linalg.krylov import largest_eigenvalue
from dask_odm.methods.ridge.shard_systems import Answer, apply_coupling, apply_root, move, tell
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class ShardExchange:
    """All shards, asked together.

    ``rounds`` are `dask_odm.engine.rounds.Rounds` over shards. ``mix`` makes the message to all shards from their
    stacked solutions (K, t).
    """

    rounds: Any
    mix: Callable[[Array], Array]

    def tell(self) -> list[Answer]:
        """Return the answers of the shards at their present solutions."""
        return self.rounds.read(tell)

    def move(self, solutions: Array) -> list[Answer]:
        """Make a round: every shard solves with the others' ``solutions``, which are stacked (K, t), and answers."""
        return self.rounds.ask(move, self.mix(solutions))

    def radius(self, start: Array) -> float:
        """Return the largest absolute eigenvalue of ``L⁻¹ C L⁻ᵀ``; C is a round's coupling, the mean of the others.

        ``start`` (K,) is random.
        """

        def couple(v: Array) -> Array:
            v = v[:, None]
            u = np.concatenate(self.rounds.read(apply_root, v))
            return np.concatenate(self.rounds.read(apply_coupling, (v, u, self.mix(u))))[:, 0]

        return largest_eigenvalue(couple, start, products=200, tol=1e-10)


@dataclass(frozen=True, eq=False)
class ExchangeState:
    """The checkpoint of a run: solutions and right-hand sides of all shards, stacked, (K, t) each."""

    solutions: Array
    sides: Array
    history: list[Record]


def solve_exchange(
    exchange: ShardExchange,
    factor: float,
    rows_weight: float,
    *,
    tol: float,
    max_iter: int,
    resumed: Sequence[Record] = (),
    passes: float = 1.0,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[ExchangeState], object] = lambda state: None,
) -> tuple[list[Array], list[Record]]:
    """Run rounds until the fixed point is certified to ``tol``, ``max_iter`` at most.

    ``factor`` is q < 1, or a bound of it, and 0 if nothing is exchanged. The objective is divided by ``rows_weight``,
    the sum of all rows' weights. ``passes`` over the rows were made before the first round. ``resumed`` is the history
    of the run that is resumed; the exchange has its states.

    Returns the solutions (k_i, t) of all shards, and the records: one before the first round, and one for each. The
    gap of a record bounds the distance from the fixed point, relative to its size, in the norm of D.
    """
    log = StepLog(on_step)
    answers = exchange.tell()
    if resumed:
        last = log.take_up(resumed)
        log.add(last["gap"], last["objective"], last["passes"])
    else:
        gap = factor / (1.0 - factor) if _sum(answers, "square") else 0.0
        log.add(gap, _sum(answers, "error") / rows_weight, passes)
    while True:
        gap = log.history[-1]["gap"]
        solutions = np.concatenate([answer.w for answer in answers])
        sides = np.concatenate([answer.side for answer in answers])
        on_state(ExchangeState(solutions, sides, list(log.history)))
        if gap <= tol or len(log.history) > max_iter or not math.isfinite(gap) or _stalls(log.history, factor):
            break
        answers = exchange.move(solutions)
        change = _sum(answers, "change")
        square = _sum(answers, "square")
        gap = factor / (1.0 - factor) * math.sqrt(change / square) if square > 0 else 0.0
        log.add(gap, _sum(answers, "error") / rows_weight, passes)
    log.settle()
    return [answer.w for answer in answers], log.history


def _stalls(history: Sequence[Record], factor: float) -> bool:
    """Whether rounds that should have shrunk the error by e⁴ did not halve it, so that only rounding is left."""
    window = 10 + math.ceil(4.0 / (1.0 - factor))
    return len(history) > window and bool(history[-1]["gap"] > 0.5 * history[-1 - window]["gap"])


def _sum(answers: Sequence[Answer], name: str) -> float:
    return math.fsum(getattr(answer, name) for answer in answers)
