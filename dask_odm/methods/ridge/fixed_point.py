"""The MDD fixed point: in rounds, every shard receives a mean of the others, until the fixed point is certified.

iterate   ``w_i ← D_i⁻¹ (b_i + p_i · mean of the others)``, all shards at once; see
          `dask_odm.methods.ridge.shard_systems`
stop      ``q/(1 − q) · ‖Wᵗ − Wᵗ⁻¹‖ ≤ tol · ‖Wᵗ‖`` in the norm of D, q the factor by which a round shrinks the error

In that norm a round is self-adjoint. So its factor q is its largest eigenvalue in size, and the left-hand side bounds
the distance from the fixed point. `spectral_radius` finds the eigenvalue by Lanczos's method if no bound is known.

Source: *Max-Discrepancy Distributed Learning*, algorithms 1 and 2. The paper stops when the mean makes a small step,
which says nothing about the distance from the fixed point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dask_odm.learning.step_log import OnStep, Record, StepLog
from dask_odm.methods.ridge.shard_systems import Answer
from dask_odm.typing import Array


class Exchange(Protocol):
    """All shards, asked together."""

    def tell(self) -> Sequence[Answer]:
        """Return the answers of the shards at their present solutions."""
        ...

    def move(self, solutions: Array) -> Sequence[Answer]:
        """Make a round: every shard solves with the others' ``solutions``, which are stacked (K, t), and answers."""
        ...


@dataclass(frozen=True, eq=False)
class ExchangeState:
    """The checkpoint of a run: solutions and right-hand sides of all shards, stacked, (K, t) each."""

    solutions: Array
    sides: Array
    history: list[Record]


@dataclass(frozen=True, eq=False)
class ExchangeSolution:
    """Solutions (k_i, t) of all shards, with a certificate.

    ``gap`` bounds the distance from the fixed point, relative to its size, in the norm of D.
    """

    parts: list[Array]
    gap: float
    rounds: int
    converged: bool
    history: list[Record]


def solve_exchange(
    exchange: Exchange,
    factor: float,
    rows_weight: float,
    *,
    tol: float,
    max_iter: int,
    resumed: Sequence[Record] = (),
    passes: float = 1.0,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[ExchangeState], object] = lambda state: None,
) -> ExchangeSolution:
    """Run rounds until the fixed point is certified to ``tol``, ``max_iter`` at most.

    ``factor`` is q < 1, or a bound of it, and 0 if nothing is exchanged. The objective is divided by ``rows_weight``,
    the sum of all rows' weights. ``passes`` over the rows were made before the first round. ``resumed`` is the history
    of the run that is resumed; the exchange has its states.
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
    parts = [answer.w for answer in answers]
    return ExchangeSolution(parts, gap, len(log.history) - 1, gap <= tol, log.history)


def _stalls(history: Sequence[Record], factor: float) -> bool:
    """Whether rounds that should have shrunk the error by e⁴ did not halve it, so that only rounding is left."""
    window = 10 + math.ceil(4.0 / (1.0 - factor))
    if len(history) <= window:
        return False
    return bool(history[-1]["gap"] > 0.5 * history[-1 - window]["gap"])


def _sum(answers: Sequence[Answer], name: str) -> float:
    return math.fsum(getattr(answer, name) for answer in answers)


def spectral_radius(
    couple: Callable[[Array, Array], Array],
    inverse: Callable[[Array], Array],
    start: Array,
    *,
    tol: float = 1e-10,
    max_iter: int = 200,
) -> float:
    """Return the largest absolute eigenvalue of ``D⁻¹C``, for C symmetric and D positive definite.

    ``couple`` returns ``C v`` from v and ``D v``, (K, 1) each, and ``inverse`` returns ``D⁻¹ v``; ``start`` is a random
    v. Lanczos's method runs in the inner product of D, with full reorthogonalisation, and never applies D itself. It
    ends when the residual of the eigenvalue is below ``tol`` of it, since an eigenvalue is within the residual.
    """
    side = start
    v = inverse(start)
    norm = math.sqrt(float((v * side).sum()))
    basis: list[tuple[Array, Array]] = []  # v and D v
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        v = v / norm
        side = side / norm
        basis.append((v, side))
        side = couple(v, side)
        diagonal.append(float((v * side).sum()))
        v = inverse(side)
        for _ in range(2):  # twice, to remove what rounding left
            for other, other_side in basis:
                overlap = float((other_side * v).sum())
                v = v - overlap * other
                side = side - overlap * other_side
        norm = math.sqrt(max(0.0, float((v * side).sum())))
        T = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        values, vectors = np.linalg.eigh(T)
        top = int(np.argmax(np.abs(values)))
        radius = abs(float(values[top]))
        if norm * abs(vectors[-1, top]) <= tol * radius or len(basis) >= min(max_iter, len(start)):
            return radius
        beside.append(norm)
