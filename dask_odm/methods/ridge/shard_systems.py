"""The linear system of one shard of MDD: what the shard holds, receives and answers.

Shard i solves ``D_i w_i = b_i + p_i · o_i`` in every round. ``o_i`` is a mean over the other shards: of their weights
(linear), or of their functions' values at the shard's rows (kernel). D_i is factored once.

Source: *Max-Discrepancy Distributed Learning: Fast Risk Bounds and Algorithms*, algorithms 1 and 2. They have three
errors: ``A⁻¹v`` is not ``(vᵀA⁻¹b)./b`` (lemma 4), so a round takes the factor, O(d²), not O(d); algorithm 1 has γ where
its own closed form has γ/2; and the others' values take every pair of shards, O(N²) a round.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from dask_odm.kernels.base import Kernel
from dask_odm.linalg.dense import factored
from dask_odm.linalg.threads import run_threads
from dask_odm.typing import Array

State = dict[str, Array]


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer of a shard after a round.

    ``w`` and ``side`` (k, t) are its solution, and the right-hand side that it solves for. ``change`` and ``square``
    are ``‖w − w_before‖²`` and ``‖w‖²`` in the norm of D, times the shard's weight in norms. ``error`` is the weighted
    sum of the squared errors of its own function on its own rows, over all targets.
    """

    w: Array
    side: Array
    change: float
    square: float
    error: float


@dataclass(frozen=True, eq=False)
class ShardSystem:
    """A shard between rounds.

    ``factor`` (k, k) is the lower Cholesky factor of D, ``base`` (k, t) is b, and ``pull`` is p. ``first`` is the place
    of its first number among the K numbers of all shards. Another shard's solution counts 1/``rest`` in the mean of the
    others, times that shard's share.
    """

    factor: Array
    base: Array
    pull: float
    rest: float
    first: int

    @property
    @abstractmethod
    def norm_weight(self) -> float:
        """The shard's weight in norms over all shards."""

    @abstractmethod
    def others(self, w: Array, side: Array, message: Array) -> Array:
        """Return o_i (k, t) from the message to all shards and the shard's own ``w`` and ``side``, D w."""

    @abstractmethod
    def error(self, w: Array, side: Array) -> float:
        """Return the `Answer.error`."""

    def part(self, message: Array) -> Array:
        """Return the shard's rows (k, t) of an array (K, t) of all shards."""
        return message[self.first : self.first + len(self.base)]

    def solve(self, side: Array) -> Array:
        """Return ``D⁻¹ side``."""
        half = solve_triangular(self.factor, side, lower=True, check_finite=False)
        return np.asarray(solve_triangular(self.factor, half, lower=True, trans="T", check_finite=False))

    def answer(self, before: State, after: State) -> Answer:
        """Return the answer after the shard's state changed."""
        w = after["w"]
        side = after["side"]
        weight = self.norm_weight
        change = float(((w - before["w"]) * (side - before["side"])).sum())
        return Answer(w, side, weight * max(change, 0.0), weight * float((w * side).sum()), self.error(w, side))


@dataclass(frozen=True, eq=False)
class LinearSystem(ShardSystem):
    """The system of a linear model: ``D = scatter/weight + shift I``; messages are ``Σ share_j w_j`` (d, t).

    ``square`` is the sum of the squared targets over the sum of weights, and ``weight`` is that sum.
    """

    square: float
    weight: float
    shift: float
    share: float

    @property
    def norm_weight(self) -> float:
        return self.share

    def others(self, w: Array, side: Array, message: Array) -> Array:
        found: Array = (message - self.share * w) / self.rest
        return found

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

    @property
    def norm_weight(self) -> float:
        return 1.0

    def _values(self, w: Array, side: Array) -> Array:
        """Return ``K_ii w``, from ``D w = side``."""
        found: Array = (side - self.shift * w) / self.stretch
        return found

    def others(self, w: Array, side: Array, message: Array) -> Array:
        found: Array = (self.part(message) - self._values(w, side)) / self.rest
        return found

    def error(self, w: Array, side: Array) -> float:
        return float(self.weight @ ((self.base - self._values(w, side)) ** 2).sum(axis=1))


def factored_kernel(
    kernel: Kernel, X: Array, stretch: float, shift: Array, threads: int, tile_rows: int = 512
) -> Array | None:
    """Return the lower Cholesky factor (n, n) of ``stretch K + diag(shift)`` for float64 rows ``X`` (n, d).

    Returns None if that is not positive definite. The matrix is made, ``tile_rows`` at a time, and factored in one
    array, whose upper half is no part of the factor. The number of threads does not change the result.
    """
    matrix = np.empty((len(X), len(X)))
    right = kernel.pack_right(X)

    def fill(start: int) -> None:
        rows = slice(start, start + tile_rows)
        kernel.tile_packed(kernel.pack_left(X[rows]), right, matrix[rows])

    run_threads(fill, range(0, len(X), tile_rows), threads)
    if stretch != 1.0:
        matrix *= stretch
    matrix[np.diag_indices(len(X))] += shift
    return matrix if factored(matrix, threads) else None


# Questions to shards: `begin`, `move` and `read` of `dask_odm.engine.rounds.Rounds` -------------------------------


def begin(system: ShardSystem) -> State:
    """Solve the shard's system by itself, without the others."""
    return {"w": system.solve(system.base), "side": system.base}


def tell(system: ShardSystem, state: State, _: Any = None) -> Answer:
    """Return the answer at the shard's present solution."""
    return system.answer(state, state)


def move(system: ShardSystem, state: State, message: Array) -> tuple[State, Answer]:
    """Solve the shard's system with the message of a round."""
    side = system.base + system.pull * system.others(state["w"], state["side"], message)
    after = {"w": system.solve(side), "side": side}
    return after, system.answer(state, after)


def apply_inverse(system: ShardSystem, state: State, v: Array) -> Array:
    """Return ``D⁻¹ v`` for the shard's part of v."""
    return system.solve(system.part(v))


def apply_coupling(system: ShardSystem, state: State, asked: tuple[Array, Array, Array]) -> Array:
    """Return the mean of the others for v of all shards, given v, D v and the message of v."""
    v, side, message = asked
    return system.others(system.part(v), system.part(side), message)
