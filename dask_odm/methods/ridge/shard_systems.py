"""The linear system of one shard of MDD: what the shard holds, receives and answers.

Shard i solves ``D_i w_i = b_i + p_i · o_i`` in every round. ``o_i`` is a mean over the other shards: of their weights
(linear), or of their functions' values at the shard's rows (kernel). D_i is factored once.

Source: *Max-Discrepancy Distributed Learning: Fast Risk Bounds and Algorithms*, algorithms 1 and 2. They have three
errors: ``A⁻¹v`` is not ``(vᵀA⁻¹b)./b`` (lemma 4), so a round takes the factor, O(d²), not O(d); algorithm 1 has γ where
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
from dask_odm.linalg.dense import factored
from dask_odm.linalg.threads import run_threads
from dask_odm.typing import Array

TILE_ROWS = 512  # rows of a shard's matrix that are computed at a time

State = dict[str, Array]


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer of a shard after a round.

    Attributes
    ----------
    w, side : ndarrays of shape (k, t)
        Its solution, and the right-hand side that it solves for.
    change, square : float
        ``‖w − w_before‖²`` and ``‖w‖²`` in the norm of D, times the shard's weight in norms.
    error : float
        Weighted sum of the squared errors of its own function on its own rows, over all targets.
    """

    w: Array
    side: Array
    change: float
    square: float
    error: float


class Held(Protocol):
    """A shard between rounds: the factor of D, b, and what its answers need."""

    @property
    def factor(self) -> Array: ...
    @property
    def base(self) -> Array: ...
    @property
    def pull(self) -> float: ...
    @property
    def norm_weight(self) -> float: ...
    def others(self, w: Array, side: Array, message: Array) -> Array:
        """Return o_i (k, t), from the message to all shards."""
        ...

    def own(self, v: Array) -> Array:
        """Return the shard's own contribution (k, t) for ``v`` (k, t), which `others` subtracts."""
        ...

    def part(self, message: Array) -> Array:
        """Return the shard's rows (k, t) of an array (K, t) of all shards."""
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
        b, the covariance over the sum of weights.
    square : float
        Sum of squared targets over the sum of weights.
    weight : float
        n_i.
    shift, pull : float
        What is added to A's diagonal, and p_i.
    share, rest : float
        The shard's weight in the mean of all, and that of the others together.
    norm_weight : float
        The shard's weight in norms over all shards.
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
        """Factor D."""
        return HeldLinear(self, cholesky(self.A + self.shift * np.eye(len(self.A))))

    def arrays(self) -> dict[str, Any]:
        """Return the fields as keyword arguments of `numpy.savez`."""
        return dict(vars(self))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> LinearPart:
        """Build the shard from `arrays` after they were saved and loaded."""
        plain: dict[str, Any] = {name: value if value.ndim else value.item() for name, value in arrays.items()}
        return cls(**plain)


@dataclass(frozen=True, eq=False)
class HeldLinear:
    """A factored `LinearPart`; messages are ``Σ share_j w_j`` (d, t)."""

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
    """A factored shard of a kernel model: ``D = stretch K_ii + diag(shift)``; messages are ``K w`` of all rows (N, t).

    ``base`` (n, t) is y, ``weight`` (n,) the rows' weights, and ``shift`` (n, 1) is n_i λ over the rows' weights.
    ``first`` is the place of the shard's first row among all rows.
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
        """Return ``K_ii w``, from ``D w = side``."""
        found: Array = (side - self.shift * w) / self.stretch
        return found

    def others(self, w: Array, side: Array, message: Array) -> Array:
        found: Array = (self.part(message) - self._values(w, side)) / self.others_count
        return found

    def own(self, v: Array) -> Array:
        upper = self.factor.T  # in BLAS's layout, so that there is no copy; BLAS does not read below the diagonal
        return self._values(v, blas.dtrmm(1.0, upper, blas.dtrmm(1.0, upper, v), trans_a=1))

    def part(self, message: Array) -> Array:
        return message[self.first : self.first + len(self.base)]

    def error(self, w: Array, side: Array) -> float:
        return float(self.weight @ ((self.base - self._values(w, side)) ** 2).sum(axis=1))


def factored_kernel(kernel: Kernel, X: Array, stretch: float, shift: Array, threads: int) -> Array | None:
    """Return the lower Cholesky factor (n, n) of ``stretch K + diag(shift)`` for float64 rows ``X`` (n, d).

    Returns None if that is not positive definite. The matrix is made and factored in one array, whose upper half is no
    part of the factor. The number of threads does not change the result.
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
    return matrix if factored(matrix, threads) else None


# Questions to shards: `begin`, `move` and `read` of `dask_odm.engine.rounds.Rounds` -------------------------------


def begin(held: Held) -> State:
    """Solve the shard's system by itself, without the others."""
    return {"w": solve(held, held.base), "side": held.base}


def tell(held: Held, state: State, _: Any = None) -> Answer:
    """Return the answer at the shard's present solution."""
    return _answer(held, state, state)


def move(held: Held, state: State, message: Array) -> tuple[State, Answer]:
    """Solve the shard's system with the message of a round."""
    side = held.base + held.pull * held.others(state["w"], state["side"], message)
    after = {"w": solve(held, side), "side": side}
    return after, _answer(held, state, after)


def apply_inverse(held: Held, state: State, message: Array) -> Array:
    """Return ``D⁻¹ v`` for the shard's part of v."""
    return solve(held, held.part(message))


def apply_own(held: Held, state: State, message: Array) -> Array:
    """Return `Held.own` for the shard's part of v."""
    return held.own(held.part(message))


def solve(held: Held, side: Array) -> Array:
    """Return ``D⁻¹ side``."""
    half = solve_triangular(held.factor, side, lower=True, check_finite=False)
    return np.asarray(solve_triangular(held.factor, half, lower=True, trans="T", check_finite=False))


def _answer(held: Held, before: State, after: State) -> Answer:
    w = after["w"]
    side = after["side"]
    weight = held.norm_weight
    change = float(((w - before["w"]) * (side - before["side"])).sum())
    return Answer(w, side, weight * max(change, 0.0), weight * float((w * side).sum()), held.error(w, side))
