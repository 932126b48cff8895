"""The linear systems of shards that learn beside each other: what one of them holds, is told, and answers.

Shard i solves ``D_i w_i = b_i + p_i · o_i`` again and again, with ``o_i`` a mean of what the others have: of their
weights (linear), or of their functions' values at the shard's rows (kernel). D_i is factored once.

Source: *Max-Discrepancy Distributed Learning: Fast Risk Bounds and Algorithms*, algorithms 1 and 2. They hold three
slips: ``A⁻¹v`` is not ``(vᵀA⁻¹b)./b`` (lemma 4), so a round takes the factor, O(d²), not O(d); algorithm 1 has γ where
its own closed form has γ/2; and the others' values take every pair of shards, O(N²) a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.linalg import blas, solve_triangular

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.landmarks import cholesky
from dask_odm.linalg.dense import factor_in_place
from dask_odm.linalg.threads import run_threads
from dask_odm.typing import Array

TILE_ROWS = 512  # of a shard's matrix that are computed at a time

State = dict[str, Array]


@dataclass(frozen=True, eq=False)
class Answer:
    """What a shard tells after a round.

    Attributes
    ----------
    w, side : ndarrays of shape (k, t)
        Its solution, and the right-hand side that it is of.
    change, square : float
        ``‖w − w_before‖²`` and ``‖w‖²`` in the norm of D, times the shard's weight in norms.
    error : float
        Sum of weighted squared errors of its own function on its own rows, over all targets.
    """

    w: Array
    side: Array
    change: float
    square: float
    error: float


class Held(Protocol):
    """What a shard holds: D factored, b, and what its answers need."""

    @property
    def factor(self) -> Array: ...
    @property
    def base(self) -> Array: ...
    @property
    def pull(self) -> float: ...
    @property
    def norm_weight(self) -> float: ...
    def others(self, w: Array, side: Array, message: Array) -> Array:
        """o_i (k, t), from what all are told."""
        ...

    def own(self, v: Array) -> Array:
        """The shard's own part (k, t) of what `others` leaves out, of ``v`` (k, t)."""
        ...

    def part(self, message: Array) -> Array:
        """The shard's rows (k, t) of an array of all shards' (K, t)."""
        ...

    def error(self, w: Array, side: Array) -> float: ...


@dataclass(frozen=True, eq=False)
class LinearPart:
    """One shard of a linear model: ``D = A + shift I``.

    Parameters
    ----------
    A : ndarray of shape (d, d)
        Scatter over the sum of weights.
    base : ndarray of shape (d, t)
        b, covariance over the sum of weights.
    square : float
        Sum of squared targets over the sum of weights.
    weight : float
        n_i.
    shift, pull : float
    share, rest : float
        The shard's weight in the mean of all, and that of the others together.
    norm_weight : float
    at : int
        The shard's number.
    """

    A: Array
    base: Array
    square: float
    weight: float
    shift: float
    pull: float
    share: float
    rest: float
    norm_weight: float
    at: int

    def hold(self) -> HeldLinear:
        """Factored."""
        return HeldLinear(self, cholesky(self.A + self.shift * np.eye(len(self.A))))

    def arrays(self) -> dict[str, Any]:
        """As `numpy.savez` takes it."""
        return dict(vars(self))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> LinearPart:
        """That of `arrays`, as it was read again."""
        plain: dict[str, Any] = {name: value if value.ndim else value.item() for name, value in arrays.items()}
        return cls(**plain)


@dataclass(frozen=True, eq=False)
class HeldLinear:
    """`Held` of a `LinearPart`; messages are ``Σ share_j w_j`` (d, t)."""

    told: LinearPart
    factor: Array

    @property
    def base(self) -> Array:
        return self.told.base

    @property
    def pull(self) -> float:
        return self.told.pull

    @property
    def norm_weight(self) -> float:
        return self.told.norm_weight

    def others(self, w: Array, side: Array, message: Array) -> Array:
        found: Array = (message - self.told.share * w) / self.told.rest
        return found

    def own(self, v: Array) -> Array:
        return v

    def part(self, message: Array) -> Array:
        d = len(self.told.A)
        return message[self.told.at * d : (self.told.at + 1) * d]

    def error(self, w: Array, side: Array) -> float:
        told = self.told
        return told.weight * float(told.square - 2.0 * (w * told.base).sum() + (w * (side - told.shift * w)).sum())


@dataclass(frozen=True, eq=False)
class HeldKernel:
    """`Held` of a shard of a kernel model: ``D = stretch K_ii + diag(shift)``; messages are ``K w`` of all rows (N, t).

    Parameters
    ----------
    factor : ndarray of shape (n, n)
    base : ndarray of shape (n, t)
        y.
    weight : ndarray of shape (n,)
        The rows'.
    shift : ndarray of shape (n, 1)
        n_i λ over the rows' weights.
    stretch, pull : float
    others_count : int
    first : int
        The place of its first row among all.
    """

    factor: Array
    base: Array
    weight: Array
    shift: Array
    stretch: float
    pull: float
    others_count: int
    first: int

    norm_weight = 1.0

    def _values(self, w: Array, side: Array) -> Array:
        """``K_ii w``, since ``D w`` is ``side``."""
        found: Array = (side - self.shift * w) / self.stretch
        return found

    def others(self, w: Array, side: Array, message: Array) -> Array:
        found: Array = (self.part(message) - self._values(w, side)) / self.others_count
        return found

    def own(self, v: Array) -> Array:
        upper = self.factor.T  # as BLAS has it: no copy is made, and what is below the diagonal is not read
        return self._values(v, blas.dtrmm(1.0, upper, blas.dtrmm(1.0, upper, v), trans_a=1))

    def part(self, message: Array) -> Array:
        return message[self.first : self.first + len(self.base)]

    def error(self, w: Array, side: Array) -> float:
        return float(self.weight @ ((self.base - self._values(w, side)) ** 2).sum(axis=1))


def factored_kernel(kernel: Kernel, X: Array, stretch: float, shift: Array, threads: int) -> Array | None:
    """Lower factor of ``stretch K + diag(shift)``, (n, n), of float64 rows ``X`` (n, d); None where there is none.

    Made and factored in one n × n array, whose upper half is no part of the factor. Threads change no bit.
    """
    matrix = np.empty((len(X), len(X)))
    right = kernel.pack_right(X)

    def fill(start: int) -> None:
        rows = slice(start, start + TILE_ROWS)
        kernel.tile_packed(kernel.pack_left(X[rows]), right, matrix[rows])

    run_threads(fill, range(0, len(X), TILE_ROWS), threads)
    if stretch != 1.0:
        matrix *= stretch
    matrix[np.diag_indices(len(X))] += shift
    return matrix if factor_in_place(matrix, threads) else None


# What is asked of shards: `begin`, `move` and questions of `dask_odm.engine.rounds.Rounds` ------------------------


def begin(held: Held) -> State:
    """The shard's solution by itself."""
    return {"w": solve(held, held.base), "side": held.base}


def tell(held: Held, state: State, _: Any = None) -> Answer:
    """Where the shard stands."""
    return _answer(held, state, state)


def move(held: Held, state: State, message: Array) -> tuple[State, Answer]:
    """Solve once more, told what all have."""
    side = held.base + held.pull * held.others(state["w"], state["side"], message)
    after = {"w": solve(held, side), "side": side}
    return after, _answer(held, state, after)


def apply_inverse(held: Held, state: State, message: Array) -> Array:
    """``D⁻¹ v`` of the shard's part of v."""
    return solve(held, held.part(message))


def apply_own(held: Held, state: State, message: Array) -> Array:
    """What `Held.own` makes of the shard's part of v."""
    return held.own(held.part(message))


def solve(held: Held, side: Array) -> Array:
    """``D⁻¹ side``."""
    half = solve_triangular(held.factor, side, lower=True, check_finite=False)
    return np.asarray(solve_triangular(held.factor, half, lower=True, trans="T", check_finite=False))


def _answer(held: Held, before: State, after: State) -> Answer:
    w = after["w"]
    side = after["side"]
    weight = held.norm_weight
    change = float(((w - before["w"]) * (side - before["side"])).sum())
    return Answer(w, side, weight * max(change, 0.0), weight * float((w * side).sum()), held.error(w, side))
