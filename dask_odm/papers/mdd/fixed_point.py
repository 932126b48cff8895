"""The MDD fixed point: in rounds, every shard receives a mean of the others, until the fixed point is certified.

system    Shard i solves ``D_i w_i = b_i + p_i · o_i`` in every round. ``o_i`` is a mean over the other shards: of their
          weights (linear), or of their functions' values at the shard's rows (kernel). D_i is factored once
stop      ``q/(1 − q) · ‖Wᵗ − Wᵗ⁻¹‖ ≤ tol · ‖Wᵗ‖`` in the norm of D, q the factor by which a round shrinks the error

In that norm a round is self-adjoint. So its factor q is its largest eigenvalue in size, and the left-hand side bounds
the distance from the fixed point.

Source: *Max-Discrepancy Distributed Learning: Fast Risk Bounds and Algorithms*, algorithms 1 and 2. They have three
errors: ``A⁻¹v`` is not ``(vᵀA⁻¹b)./b`` (lemma 4), so a round takes the factor, O(d²), not O(d); algorithm 1 has γ where
its own closed form has γ/2; and the others' values take every pair of shards, O(N²) a round. The paper stops when the
mean makes a small step, which says nothing about the distance from the fixed point.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import blas, solve_triangular

from dask_odm.learning.solution import OnStep, Record, StepLog
from dask_odm.linalg.systems import largest_eigenvalue
from dask_odm.typing import Array

State = dict[str, Array]


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer of a shard after a round.

    ``w`` and ``side`` (k, t) are its solution, and the right-hand side that it solves for. ``change`` and ``square``
    are ``‖w − w_before‖²`` and ``‖w‖²`` in the norm of D, times the shard's share. ``error`` is the weighted sum of the
    squared errors of its own function on its own rows, over all targets.
    """

    w: Array
    side: Array
    change: float
    square: float
    error: float


@dataclass(frozen=True, eq=False)
class ShardSystem:
    """A shard between rounds.

    ``factor`` (k, k) is the lower Cholesky factor L of D, ``base`` (k, t) is b, and ``pull`` is p. ``first`` is the
    place of its first number among the K numbers of all shards. In the mean of the others, another shard's solution
    counts 1/``rest`` times that shard's ``share``, which is also its weight in norms over all shards.
    """

    factor: Array
    base: Array
    pull: float
    rest: float
    first: int
    share: float

    @abstractmethod
    def others(self, w: Array, side: Array, message: Array) -> Array:
        """Return o_i (k, t) from the message to all shards and the shard's own ``w`` and ``side``, D w."""

    @abstractmethod
    def error(self, w: Array, side: Array) -> float:
        """Return the shard's share of the squared error, `Answer.error`, at its ``w`` and ``side``, D w."""

    def part(self, message: Array) -> Array:
        """Return the shard's rows (k, t) of an array (K, t) of all shards."""
        return message[self.first : self.first + len(self.base)]

    def half_solve(self, side: Array, trans: str = "N") -> Array:
        """Return ``L⁻¹ side``, or ``L⁻ᵀ side`` if ``trans`` is "T"."""
        return solve_triangular(self.factor, side, lower=True, trans=trans, check_finite=False)

    def solve(self, side: Array) -> Array:
        """Return ``D⁻¹ side``."""
        return self.half_solve(self.half_solve(side), "T")

    def answer(self, before: State, after: State) -> Answer:
        """Return the answer after the shard's state changed."""
        w = after["w"]
        side = after["side"]
        change = float(((w - before["w"]) * (side - before["side"])).sum())
        square = float((w * side).sum())
        return Answer(w, side, self.share * max(change, 0.0), self.share * square, self.error(w, side))

    # What `dask_odm.engine.rounds.Rounds` begins with, and asks

    def begin(self) -> State:
        """Solve the shard's system by itself, without the others."""
        return {"w": self.solve(self.base), "side": self.base}

    def tell(self, state: State, _: Any = None) -> Answer:
        """Return the answer at the shard's present solution."""
        return self.answer(state, state)

    def move(self, state: State, message: Array) -> tuple[State, Answer]:
        """Solve the shard's system with the message of a round."""
        side = self.base + self.pull * self.others(state["w"], state["side"], message)
        after = {"w": self.solve(side), "side": side}
        return after, self.answer(state, after)

    def apply_root(self, state: State, v: Array) -> Array:
        """Return ``L⁻ᵀ v`` (k, 1) for the shard's part of v (K, 1)."""
        return self.half_solve(self.part(v), "T")

    def apply_coupling(self, state: State, asked: tuple[Array, Array, Array]) -> Array:
        """Return ``L⁻¹ o`` (k, 1), o being the mean of the others of u = ``L⁻ᵀ v``, given v, u and the message of u."""
        v, u, message = asked
        side = blas.dtrmv(self.factor.T, self.part(v)[:, 0], trans=1)[:, None]  # D u = L v, without a copy of L
        return self.half_solve(self.others(self.part(u), side, message))


@dataclass(frozen=True, eq=False)
class LinearSystem(ShardSystem):
    """The system of a linear model: ``D = scatter/weight + shift I``; messages are ``Σ share_j w_j`` (d, t).

    ``square`` is the sum of the squared targets over the sum of weights, and ``weight`` is that sum.
    """

    square: float
    weight: float
    shift: float

    def others(self, w: Array, side: Array, message: Array) -> Array:
        return (message - self.share * w) / self.rest

    def error(self, w: Array, side: Array) -> float:
        squares = (w * (side - self.shift * w)).sum()
        return self.weight * float(self.square - 2.0 * (w * self.base).sum() + squares)


@dataclass(frozen=True, eq=False)
class KernelSystem(ShardSystem):
    """The system of a kernel model: ``D = stretch K_ii + diag(shift)``; messages are ``K w`` of all rows (N, t).

    ``base`` (n, t) is y, ``weight`` (n,) the rows' weights, and ``shift`` (n, 1) is n_i λ over the rows' weights.
    """

    weight: Array
    shift: Array
    stretch: float

    def _values(self, w: Array, side: Array) -> Array:
        """Return ``K_ii w``, from ``D w = side``."""
        return (side - self.shift * w) / self.stretch

    def others(self, w: Array, side: Array, message: Array) -> Array:
        return (self.part(message) - self._values(w, side)) / self.rest

    def error(self, w: Array, side: Array) -> float:
        return float(self.weight @ ((self.base - self._values(w, side)) ** 2).sum(axis=1))


# Rounds --------------------------------------------------------------------------------------------------------------


def coupling_radius(rounds: Any, mix: Callable[[Array], Array], start: Array) -> float:
    """Return the largest absolute eigenvalue of ``L⁻¹ C L⁻ᵀ``; C is a round's coupling, the mean of the others.

    ``rounds`` and ``mix`` are as in `solve_exchange`, ``start`` (K,) is random.
    """

    def couple(v: Array) -> Array:
        v = v[:, None]
        u = np.concatenate(rounds.read(ShardSystem.apply_root, v))
        return np.concatenate(rounds.read(ShardSystem.apply_coupling, (v, u, mix(u))))[:, 0]

    return largest_eigenvalue(couple, start, products=200, tol=1e-10)


@dataclass(frozen=True, eq=False)
class ExchangeState:
    """The checkpoint of a run: solutions and right-hand sides of all shards, stacked, (K, t) each."""

    solutions: Array
    sides: Array
    history: list[Record]


def solve_exchange(
    rounds: Any,
    mix: Callable[[Array], Array],
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

    ``rounds`` are `dask_odm.engine.rounds.Rounds` over shards, and ``mix`` makes the message to all of them from their
    stacked solutions (K, t). ``factor`` is q < 1, or a bound of it, and 0 if nothing is exchanged. The objective is
    divided by ``rows_weight``, the sum of all rows' weights. ``passes`` over the rows were made before the first round.
    ``resumed`` is the history of the run that is resumed; the rounds have its states.

    Returns the solutions (k_i, t) of all shards, and the records: one before the first round, and one for each. The
    gap of a record bounds the distance from the fixed point, relative to its size, in the norm of D.
    """
    log = StepLog(on_step)
    answers = rounds.read(ShardSystem.tell)
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
        answers = rounds.ask(ShardSystem.move, mix(solutions))
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
