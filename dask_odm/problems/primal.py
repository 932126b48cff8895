"""The ODM of the linear kernel in the weights of its features: sums over rows, block by block.

With ``s_i`` the dual variable that the optimality conditions give at the margin of row i under w, and
``v = Σ y_i s_i φ_i``, the gradient is ``∇P(w) = w − v`` and the duality gap of (w, s) is ``½‖w − v‖²``: the
terms of the rows vanish, since each s_i is where its loss and its conjugate touch. So one pass gives value,
gradient, Hessian and gap. A row φ is its scaled features and, last, √bias where the kernel has a bias.

A `Query` is what is asked of the rows at one w. Whoever has the rows (arrays in memory, a Dask pass over a
store) hands it blocks and adds up the answers in a fixed order, so that no bit depends on who added what where.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from scipy.sparse import issparse

from dask_odm.problems.odm import ODMSettings
from dask_odm.problems.primal_loops import (
    MOST_FEATURES,
    gather_active,
    line_slopes,
    precise_sums,
    row_losses,
    small_sums,
)
from dask_odm.typing import Array

SPARSE_ROWS = 4096
SAMPLED_ROWS = 250_000  # that a sampled Hessian has at least
MOST_SKIPPED = 32
BLOCK_BYTES = 1 << 20  # rows whose products BLAS takes at a time, and the active ones beside them


class Affine(Protocol):
    """``(x − shift) · factor``, feature by feature."""

    @property
    def shift(self) -> Array: ...
    @property
    def factor(self) -> Array: ...
    def __call__(self, X: Array, out: Array | None = None) -> Array: ...


@dataclass(frozen=True)
class LinearLoss:
    """The loss of a row as a function of its label code and its score.

    Parameters
    ----------
    settings : ODMSettings
    total_weight : float
        M, the sum of all rows' weights.
    positive : int
        Label code of the positive class; other codes are negative, those below 0 (unknown) are dropped.
    negative_weight, positive_weight : float
        What a row of either class weighs, times its own weight.
    """

    settings: ODMSettings
    total_weight: float
    positive: int = 1
    negative_weight: float = 1.0
    positive_weight: float = 1.0

    def with_lam(self, lam: float) -> LinearLoss:
        """The same loss, weighed by another λ."""
        return replace(self, settings=replace(self.settings, lam=lam))

    @property
    def stiffness(self) -> Array:
        """λ/(M(1−θ)²) times the weight of a negative and of a positive row, (2,)."""
        unit = self.settings.lam / (self.total_weight * self.settings.low**2)
        return np.array([unit * self.negative_weight, unit * self.positive_weight])

    def row_stiffness(self, codes: Array, weight: Array) -> Array:
        """Second derivative of the loss below the band, of every row by its code and weight, (n,)."""
        negative, positive = self.stiffness
        unit = np.where(codes == self.positive, positive, np.where(codes < 0, 0.0, negative))
        return unit * weight if weight.size else unit

    @property
    def band(self) -> Array:
        """1 − θ, 1 + θ and υ, (3,)."""
        return np.array([self.settings.low, self.settings.high, self.settings.upsilon])


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Raw rows to features: scaled or as they are, and a constant feature √bias if ``bias`` is positive.

    Dense rows are scaled into a buffer, the subtraction in float64, since it could cancel. Sparse rows stay as
    they are, and sums over them are mended.
    """

    d: int
    bias: float
    scaling: Affine | None = None

    @property
    def k(self) -> int:
        """Weights: one a feature, and the constant one's."""
        return self.d + (self.bias > 0)

    @property
    def constant(self) -> float:
        return float(np.sqrt(self.bias))

    def block(self, X: Any, out: Array | None = None) -> Any:
        """What products are taken with, (n, d), without the constant feature."""
        return X if issparse(X) or self.scaling is None else self.scaling(X, out)

    def dense(self, block: Any) -> Array:
        """All of d features of what `block` returned, if it is sparse, as an array."""
        if not issparse(block):
            return block
        values = np.ascontiguousarray(block.toarray())
        return values if self.scaling is None else self.scaling(values, values)

    def raw_weights(self, w: Array) -> tuple[Array, float]:
        """Weights of raw features (d,) and the intercept, of weights ``w`` (k,)."""
        u, b = self.plain_weights(w)
        if self.scaling is None:
            return u, b
        u = u * self.scaling.factor
        return u, b - float(self.scaling.shift @ u)

    def plain_weights(self, w: Array) -> tuple[Array, float]:
        """Weights of scaled features (d,) and the intercept, of weights ``w`` (k,)."""
        return w[: self.d], self.constant * float(w[-1]) if self.bias > 0 else 0.0

    def scores(self, block: Any, w: Array) -> Array:
        """φ·w of every row of what `block` returned, in its dtype; (n,)."""
        u, b = self.raw_weights(w) if issparse(block) else self.plain_weights(w)
        return block @ u.astype(block.dtype) + block.dtype.type(b)

    def pull(self, block: Any, r: Array) -> Array:
        """Σ r φ, float64 (k,)."""
        total = float(r.sum(dtype=np.float64))
        out = np.empty(self.k)
        out[: self.d] = block.T @ r
        if issparse(block) and self.scaling is not None:
            out[: self.d] = self.scaling.factor * (out[: self.d] - self.scaling.shift * total)
        if self.bias > 0:
            out[-1] = self.constant * total
        return out

    def squares(self, block: Any, c: Array) -> Array:
        """Σ c φ², float64 (k,)."""
        total = float(c.sum(dtype=np.float64))
        out = np.empty(self.k)
        if issparse(block):
            exact, c = block.astype(np.float64), c.astype(np.float64)  # the terms cancel
            out[: self.d] = exact.power(2).T @ c
            if self.scaling is not None:
                mixed = self.scaling.shift * (exact.T @ c)
                out[: self.d] += self.scaling.shift**2 * total - 2.0 * mixed
                out[: self.d] = np.maximum(out[: self.d], 0.0) * self.scaling.factor**2
        else:
            out[: self.d] = np.einsum("i,ij,ij->j", c, block, block)
        if self.bias > 0:
            out[-1] = self.bias * total
        return out


@dataclass(frozen=True, eq=False)
class PrimalSums:
    """Sums over rows at one w.

    Attributes
    ----------
    loss : float
    pull : float64 ndarray of shape (k,)
        v = Σ y s φ.
    curvature : float64 ndarray of shape (k, k), (k,) or (0,)
        Σ c φφᵀ with c the second derivative of the loss, its diagonal, or nothing.
    """

    loss: float
    pull: Array
    curvature: Array

    def times(self, factor: float) -> PrimalSums:
        """The sums for a loss that weighs ``factor`` as much."""
        return PrimalSums(factor * self.loss, factor * self.pull, factor * self.curvature)

    def __add__(self, other: PrimalSums) -> PrimalSums:
        return PrimalSums(self.loss + other.loss, self.pull + other.pull, self.curvature + other.curvature)


def hessian_share(n: int, k: int) -> int:
    """Of how many rows one is enough for the Hessian of ``k`` weights: its error is some √(k / rows taken)."""
    return max(1, min(MOST_SKIPPED, n // max(SAMPLED_ROWS, 10_000 * k)))


def block_rows(d: int, X: Any) -> int:
    """Rows that products are taken of at a time."""
    if issparse(X):
        return SPARSE_ROWS
    rows = max(64, BLOCK_BYTES // max(1, d * X.dtype.itemsize))
    return rows if d <= MOST_FEATURES else max(rows, d // 2)  # sums of d² cost as much as the rows of a block


@dataclass(frozen=True)
class RowBlock:
    """Some rows: X (n, d) dense or CSR, label codes (n,) and weights (n,), or none: all 1; the first one's number."""

    X: Any
    codes: Array
    weight: Array
    first: int = 0


@dataclass(frozen=True, eq=False)
class Query:
    """What is asked of all rows at one w; tasks carry it.

    Parameters
    ----------
    features : FeatureMap
    loss : LinearLoss
    w : float64 ndarray of shape (k,)
    precise : bool
        Compute in float64 whatever the rows' type: slower, for what float32 cannot resolve.
    """

    features: FeatureMap
    loss: LinearLoss
    w: Array
    precise: bool = False

    def sums(self, blocks: Iterable[RowBlock], curvature: str, every: int = 1) -> PrimalSums:
        """Loss, pull and ``curvature`` ("full", "diagonal" or "none") of the blocks.

        With "none" the sums over dense rows are in float64 whatever the rows' type. Of few features, a full
        curvature may be that of one row in ``every``, scaled up.
        """
        k = self.features.k
        shape = {"full": (k, k), "diagonal": (k,), "none": (0,)}[curvature]
        total = PrimalSums(0.0, np.zeros(k), np.zeros(shape))
        for X, codes, weight in self._pieces(blocks):
            if not issparse(X) and (curvature == "none" or (curvature == "full" and k <= MOST_FEATURES)):
                total += self._looped(X, codes, weight, curvature, every)
                continue
            loss, r, c = self._losses(self.features.scores(X, self.w), codes, weight)
            second = np.zeros(0)
            if curvature != "none":
                second = self._second(X, c) if curvature == "full" else self.features.squares(X, c)
            total += PrimalSums(loss, self.features.pull(X, r), second)
        return total

    def curvatures(self, blocks: Iterable[RowBlock]) -> list[Array]:
        """The curvature c of every row at w, piece by piece as `product` goes."""
        return [
            self._losses(self.features.scores(X, self.w), codes, weight)[2] for X, codes, weight in self._pieces(blocks)
        ]

    def product(self, blocks: Iterable[RowBlock], v: Array, curvatures: Iterable[Array] | None = None) -> Array:
        """``Σ c φ (φ·v)`` with c the curvature at w, (k,); ``curvatures`` spares finding it anew."""
        total = np.zeros(self.features.k)
        known = iter(()) if curvatures is None else iter(curvatures)
        for X, codes, weight in self._pieces(blocks):
            c = next(known, None)
            if c is None:
                c = self._losses(self.features.scores(X, self.w), codes, weight)[2]
            total += self.features.pull(X, c * self.features.scores(X, v))
        return total

    def slopes(self, blocks: Iterable[RowBlock], direction: Array, steps: Array) -> Array:
        """Derivatives by step of the loss at ``w + step · direction``, for every one of ``steps``."""
        total = np.zeros(len(steps))
        for X, codes, weight in self._pieces(blocks):
            scores, change = self.features.scores(X, self.w), self.features.scores(X, direction)
            total += line_slopes(
                scores, change, codes, weight, self.loss.positive, self.loss.stiffness, self.loss.band, steps
            )
        return total

    def _pieces(self, blocks: Iterable[RowBlock]) -> Iterable[tuple[Any, Array, Array]]:
        """Features of every block, a bounded number of rows at a time, with codes and weights."""
        whole = self.features.d <= MOST_FEATURES and self.features.scaling is None and not self.precise
        for block in blocks:
            n = len(block.codes)
            # rows that are taken as they are, and cut by the loops themselves, come in one piece
            step = n if whole and not issparse(block.X) else block_rows(self.features.d, block.X)
            for start in range(0, n, step):
                rows = slice(start, min(n, start + step))
                X = block.X if n <= step else block.X[rows]
                if self.precise:
                    X = X.astype(np.float64)
                yield self.features.block(X), block.codes[rows], block.weight[rows]

    def _losses(self, scores: Array, codes: Array, weight: Array) -> tuple[float, Array, Array]:
        r, c = np.empty_like(scores), np.empty_like(scores)
        loss = self.loss
        return row_losses(scores, codes, weight, loss.positive, loss.stiffness, loss.band, r, c), r, c

    def _second(self, X: Any, c: Array) -> Array:
        """Σ c φφᵀ, (k, k), by BLAS over the active rows."""
        X = self.features.dense(X)
        active = np.empty((len(X), self.features.k), X.dtype)
        count = gather_active(X, c, self.features.constant, active)
        return (active[:count].T @ active[:count]).astype(np.float64)

    def _looped(self, X: Array, codes: Array, weight: Array, curvature: str, every: int) -> PrimalSums:
        k, d, loss = self.features.k, self.features.d, self.loss
        X = np.ascontiguousarray(X)
        u, b = self.features.plain_weights(self.w)
        pull = np.zeros(d + 1)
        second = np.zeros((d + 1, d + 1) if curvature == "full" else (0, 0))
        if curvature == "full":
            total = small_sums(X, codes, weight, u, b, loss.positive, loss.stiffness, loss.band, pull, second, every)
        else:
            total = precise_sums(X, codes, weight, u, b, loss.positive, loss.stiffness, loss.band, pull)
        if k > d:
            pull[d] *= self.features.constant
            second[d:] *= self.features.constant
            second[:, d:] *= self.features.constant
        return PrimalSums(total, pull[:k], second[:k, :k] if curvature == "full" else np.zeros(0))


class LinearProblem(Protocol):
    """What Newton asks of rows it never sees; every method but `k` is one pass over all of them."""

    @property
    def k(self) -> int: ...
    @property
    def every(self) -> int:
        """Of how many rows one is enough for the Hessian; 1: all are taken."""
        ...

    def sums(self, w: Array, curvature: str, *, precise: bool, every: int) -> PrimalSums: ...
    def product(self, w: Array, v: Array, *, precise: bool) -> Array: ...
    def slopes(self, w: Array, direction: Array, steps: Array, *, precise: bool) -> Array: ...
