"""Linear models: the problem in the weights of features, and the sums over rows that it needs.

minimise ``P(w) = ½‖w‖² + Σ_i loss_i(w·φ_i)``. Let ``u_i`` be minus the derivative of the loss of row i at its score
under w, and ``v = Σ u_i φ_i``. Then the gradient is ``∇P(w) = w − v`` and the duality gap of (w, u) is ``½‖w − v‖²``:
the terms of the rows vanish because each loss and its conjugate touch at u_i. So one pass gives value, gradient,
Hessian and gap. For ODM ``u_i = y_i s_i``. A row φ is its scaled features, and √bias last if there is a bias.

A `Query` sums over blocks of rows at one w; the `PrimalProblem` runs it over all rows, by any `Passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.learning.problem.features import EntryRows, EntryScores, EntrySums, FeatureMap
from dask_odm.learning.problem.group_sums import GroupQuery, leave_groups_out
from dask_odm.learning.problem.losses import Loss
from dask_odm.learning.problem.sparse_linear import is_thin
from dask_odm.linalg.jit import compiled
from dask_odm.linalg.row_passes import PassBytes, Passes, RowBlock, ThreadPasses, rows_between
from dask_odm.typing import Array

SPARSE_ROWS = 4096  # rows of a CSR matrix per product
BLOCK_BYTES = 1 << 20  # bytes of rows per product by BLAS, and as many of active rows beside them
MOST_GROUPS = 16  # most groups of rows in memory; their sums are added in order
EXACT_FEATURES = 2048  # most weights for which a Hessian is formed


@dataclass(frozen=True, eq=False)
class PrimalSums:
    """Sums over rows at one w: the loss, v = Σ u φ (k,), which is minus its gradient, and the curvature.

    ``curvature`` is Σ c φφᵀ (k, k) with c the second derivative of the loss, its diagonal (k,), or empty.
    ``predicted`` is the loss with scores rounded to the rows' dtype, as a model predicts unscaled rows; NaN if it was
    not summed.
    """

    loss: float
    dual_image: Array
    curvature: Array
    predicted: float = np.nan

    def times(self, factor: float) -> PrimalSums:
        """Return the sums for a loss that weighs ``factor`` times as much."""
        return PrimalSums(*(factor * each for each in vars(self).values()))

    def __add__(self, other: PrimalSums) -> PrimalSums:
        return PrimalSums(*map(add, vars(self).values(), vars(other).values()))


def hessian_stride(n: int, k: int) -> int:
    """Return m if one row in m suffices for the Hessian of ``k`` weights; its error is about √(k / rows taken)."""
    # a sampled Hessian takes 250,000 rows at least, and one row in 32
    return max(1, min(32, n // max(250_000, 10_000 * k)))


def block_rows(d: int, X: Any) -> int:
    """Return the number of rows per product."""
    if issparse(X):
        if not is_thin(X) or d > EXACT_FEATURES:
            return SPARSE_ROWS
        n = X.shape[0]  # enough rows to have more entries than their Hessian, since summing it costs as much per entry
        # four entries of mostly-zero rows per product, for every entry of their Hessian
        return int(max(SPARSE_ROWS, min(n // 2 + 1, 4 * d * d * n // max(1, X.nnz))))
    if d > EXACT_FEATURES:  # fewer calls, of rows that are long
        return max(64, 4 * BLOCK_BYTES // (d * X.dtype.itemsize))
    # a sum of d² entries costs as much as the rows of a block
    return max(64, BLOCK_BYTES // max(1, d * X.dtype.itemsize), d // 2)


def block_bytes(d: int, X: Any) -> int:
    """Return the bytes in which a thread makes sums over a block of rows of ``X``: scaled, and gathered in float64."""
    rows = min(X.shape[0], block_rows(d, X))
    if issparse(X):
        return rows * min(d, EXACT_FEATURES) * 8
    return rows * d * (X.dtype.itemsize + 8)


def dense_rows(d: int, X: Any) -> int:
    """Return the number of rows per product if sparse rows are made dense for it, in float64."""
    return max(64, BLOCK_BYTES // (8 * max(1, d))) if issparse(X) else block_rows(d, X)


def row_groups(k: int, *, full: bool = False) -> int:
    """Return the most groups of rows in memory; it depends on the number of weights alone.

    Sums have k² entries up to `EXACT_FEATURES` weights, and for any number of weights if they are ``full``.
    """
    return groups_of_sums(8 * k * k) if full or k <= EXACT_FEATURES else MOST_GROUPS


def groups_of_sums(nbytes: int) -> int:
    """Return the most groups whose sums, of so many bytes each, may be held until they are added up."""
    return max(2, min(MOST_GROUPS, (256 << 20) // max(1, nbytes)))  # 256 MB for the sums of all groups together


@dataclass(frozen=True, eq=False)
class Query:
    """Sums over blocks of rows at one ``w`` (k,). Tasks carry it.

    ``double_precision`` computes in float64 for rows of any dtype: slower, for what float32 cannot resolve.
    """

    features: FeatureMap
    loss: Loss
    w: Array
    double_precision: bool = False

    def sums(self, blocks: Iterable[RowBlock], curvature: str, hessian_stride: int = 1) -> PrimalSums:
        """Sum loss, dual image and ``curvature`` ("full", "diagonal" or "none") over the blocks.

        With "none", the loss is summed over dense rows in float64 for rows of any dtype, and also as predicted. The
        full curvature may be that of one row in ``hessian_stride``, scaled up.
        """
        found: PrimalSums | None = None
        entries: EntrySums | None = None
        total = 0.0
        for X, y, weight in self._pieces(blocks, losses_alone=curvature == "none", by_entry=curvature != "full"):
            if not isinstance(X, EntryRows):
                part = self._piece_sums(X, y, weight, curvature, hessian_stride)
                found = part if found is None else found + part  # not from zeros: filling fresh k² entries takes time
                continue
            if entries is None:
                scores = EntryScores(self.features, self.w)
                entries = EntrySums(self.features, squares=curvature == "diagonal")
            value, dual, c = self.loss.evaluate(scores(X), y, weight)
            total += value
            entries.add(X, dual, c if curvature == "diagonal" else None)
        if entries is not None:
            second = entries.squares() if curvature == "diagonal" else np.zeros(0)
            return PrimalSums(total, entries.result(), second)
        if found is None:
            k = self.features.k
            found = PrimalSums(0.0, np.zeros(k), np.zeros({"full": (k, k), "diagonal": (k,), "none": (0,)}[curvature]))
        return found

    def _piece_sums(self, X: Any, y: Array, weight: Array, curvature: str, hessian_stride: int) -> PrimalSums:
        dtype = X.dtype
        if curvature == "none" and not issparse(X):
            X = X.astype(np.float64, copy=False)
        scores = self.features.scores(X, self.w)
        value, dual, c = self.loss.evaluate(scores, y, weight)
        predicted = value
        if X.dtype != dtype:
            predicted = self.loss.evaluate(scores.astype(dtype).astype(np.float64), y, weight)[0]
        second = np.zeros(0)
        if curvature != "none":
            second = self._second(X, c, hessian_stride) if curvature == "full" else self.features.squares(X, c)
        return PrimalSums(value, self.features.weighted_sum(X, dual), second, predicted)

    def curvatures(self, blocks: Iterable[RowBlock]) -> list[list[Array]]:
        """Return the curvature c of every row at w, in the pieces of `product`; in a list, so that groups add up."""
        scores = self._scores(self.w)
        return [[self.loss.evaluate(scores(X), y, weight)[2] for X, y, weight in self._pieces(blocks, by_entry=True)]]

    def product(self, blocks: Iterable[RowBlock], v: Array, curvatures: Iterable[Array] | None = None) -> Array:
        """Return ``Σ c φ (φ·v)``, (k,), with c the curvature at w; known ``curvatures`` save computing them."""
        total = np.zeros(self.features.k)
        entries: EntrySums | None = None
        scores_at_w = self._scores(self.w)
        scores_along = self._scores(v)
        known = iter(()) if curvatures is None else iter(curvatures)
        for X, y, weight in self._pieces(blocks, by_entry=True):
            along = scores_along(X)
            c = self.loss.evaluate(scores_at_w(X), y, weight)[2] if curvatures is None else next(known)
            if isinstance(X, EntryRows):
                entries = entries or EntrySums(self.features)
                entries.add(X, c * along)
            else:
                total += self.features.weighted_sum(X, c * along)
        return total if entries is None else entries.result()

    def leverages(self, blocks: Iterable[RowBlock], inverse: Array) -> list[Array]:
        """Return scores of the rows at w, and ``‖inverse · φ‖²`` of those with a curvature: a list of (2, n) arrays."""
        found = []
        for X, y, weight in self._pieces(blocks):
            scores = self.features.scores(X, self.w)
            active = np.flatnonzero(self.loss.evaluate(scores, y, weight)[2])
            pair = np.zeros((2, len(y)))
            step = dense_rows(self.features.d, X)
            pair[0] = scores
            for i in range(0, len(active), step):
                rows = active[i : i + step]
                white = self.features.dense(X[rows]) @ inverse[:, : self.features.d].T
                if self.features.k > self.features.d:
                    white += self.features.constant * inverse[:, -1]
                pair[1, rows] = np.einsum("ij,ij->i", white, white)
            found.append(pair)
        return found

    def feature_rows(self, block: RowBlock) -> Iterator[tuple[slice, Array]]:
        """Yield features (m, k) of the rows of a block, a bounded number at a time, with their places."""
        step = dense_rows(self.features.d, block.X)
        for start in range(0, len(block), step):
            rows = slice(start, min(len(block), start + step))
            X = self.features.dense(self.features.block(block.X[rows]))
            if self.features.k > self.features.d:
                X = np.column_stack([X, np.full(len(X), self.features.constant, X.dtype)])
            yield rows, X

    def slopes(self, blocks: Iterable[RowBlock], direction: Array, steps: Array) -> Array:
        """Return the derivatives of the loss by the step, at ``w + step · direction`` for each of ``steps``."""
        total = np.zeros(len(steps))
        scores_at_w = self._scores(self.w)
        scores_along = self._scores(direction)
        for X, y, weight in self._pieces(blocks, by_entry=True):
            total += self.loss.slopes(scores_at_w(X), scores_along(X), y, weight, steps)
        return total

    def _scores(self, w: Array) -> Callable[[Any], Array]:
        """Return a function that returns φ·w of a piece's rows, (n,)."""
        of_entries: list[EntryScores] = []

        def scores(X: Any) -> Array:
            if not isinstance(X, EntryRows):
                return self.features.scores(X, w)
            if not of_entries:  # weights of raw features are made once for all pieces
                of_entries.append(EntryScores(self.features, w))
            return of_entries[0](X)

        return scores

    def _pieces(
        self, blocks: Iterable[RowBlock], *, losses_alone: bool = False, by_entry: bool = False
    ) -> Iterable[tuple[Any, Array, Array]]:
        """Yield features, targets and weights of every block, a bounded number of rows at a time.

        ``losses_alone`` says that no curvature is summed. With ``by_entry``, sparse rows come as `EntryRows`.
        """
        for block in blocks:
            n = len(block.y)
            if by_entry and issparse(block.X):
                for rows, X in EntryRows.of(block.X).pieces():
                    yield X, block.y[rows], block.weight[rows]
                continue
            # losses alone are summed in float64 in any case, and predicted in the dtype of unscaled rows
            widens = self.double_precision and not (losses_alone and self.features.scaling is None)
            # loops over entries sum in float64 in any case; a Hessian may be summed by BLAS
            widens &= not issparse(block.X) or self.features.k <= EXACT_FEATURES
            step = block_rows(self.features.d, block.X)
            for start in range(0, n, step):
                rows = slice(start, min(n, start + step))
                X = block.X if n <= step else rows_between(block.X, rows.start, rows.stop)
                if widens and X.dtype != np.float64:
                    X = X.astype(np.float64)
                    yield self.features.block(X, out=X), block.y[rows], block.weight[rows]
                    continue
                yield self.features.block(X), block.y[rows], block.weight[rows]

    def _second(self, X: Any, c: Array, stride: int = 1) -> Array:
        """Return Σ c φφᵀ, (k, k): by BLAS over the active rows, or entry by entry if sparse rows have few.

        It may be summed over one row in ``stride``, and scaled up.
        """
        if stride > 1:
            some = slice(None, None, stride)
            return len(c) / len(c[some]) * self._second(X[some], c[some])
        if issparse(X) and is_thin(X) and X.has_sorted_indices:
            return self.features.products(X, c)
        X = np.ascontiguousarray(self.features.dense(X))
        active = np.empty((len(X), self.features.k), X.dtype)
        count = _gather_active(X, c, self.features.constant, active)
        return (active[:count].T @ active[:count]).astype(np.float64)


class PrimalProblem:
    """A linear problem over all rows, for Newton's method; `sums`, `product` and `slopes` take one pass of raw rows
    each.
    """

    def __init__(self, features: FeatureMap, loss: Loss, passes: Passes) -> None:
        self._features = features
        self._loss = loss
        self._passes = passes
        self._curved_at: tuple[Array, bool] | None = None
        self._curvatures: Sequence[Any] = ()

    @classmethod
    def over_rows(
        cls, features: FeatureMap, loss: Loss, X: Any, y: Array, weight: Array, threads: int = 1
    ) -> PrimalProblem:
        """Build the problem over rows in memory: ``X`` (n, d) dense or CSR, targets (n,), weights (n,) or empty."""
        passes = ThreadPasses.cut(X, y, weight, block_rows(features.d, X), row_groups(features.k), threads)
        return cls(features, loss, passes)

    def with_lam(self, lam: float) -> PrimalProblem:
        """Return the problem over the same rows for another λ."""
        other = copy(self)
        other._loss = self._loss.with_lam(lam)
        other._curved_at = None
        other._curvatures = ()
        return other

    @property
    def k(self) -> int:
        """Number of weights."""
        return self._features.k

    @property
    def hessian_stride(self) -> int:
        """One row in this many suffices for the Hessian; 1 takes all rows."""
        return hessian_stride(self._passes.rows, self.k)

    @property
    def nbytes(self) -> int:
        """Approximate bytes that Newton holds besides rows in memory: sums, the Hessian, its factor and vectors."""
        k = self.k
        return 8 * ((self._passes.groups + 4) * (k * k if k <= EXACT_FEATURES else 4 * k) + self._passes.rows)

    def pass_bytes(self, curvature: str) -> PassBytes:
        """Return the bytes that a task holds in a pass with that ``curvature``."""
        sums = self.k * self.k if curvature == "full" else 2 * self.k  # dual image and diagonal
        return PassBytes(8 * sums, 16, 5 * BLOCK_BYTES)

    def sums(self, w: Array, curvature: str, *, double_precision: bool = False, hessian_stride: int = 1) -> PrimalSums:
        """Return `Query.sums` of all rows."""
        nbytes = self.pass_bytes(curvature).sums
        query = self._query(w, double_precision)
        return self._passes.run(query, Query.sums, curvature, hessian_stride, nbytes=nbytes)

    def product(self, w: Array, v: Array, *, double_precision: bool = False) -> Array:
        """Return ``Σ c φ (φ·v)``, (k,), over all rows, with c the curvature at w."""
        query = self._query(w, double_precision)
        known = self._curved_at is not None and self._curved_at[0] is w and self._curved_at[1] is double_precision
        if not self._passes.streamed and not known:  # once, since conjugate gradients take many products at one w
            self._curvatures = self._passes.run(query, Query.curvatures, nbytes=None)
            self._curved_at = w, double_precision
        return self._passes.run(query, Query.product, v, of_groups=self._curvatures, nbytes=8 * self.k)

    def leverages(self, w: Array, inverse: Array) -> Array:
        """Return scores of all rows at ``w``, and ``‖inverse · φ‖²`` of those with a curvature: float64 (2, n)."""
        return np.concatenate(self._passes.run(self._query(w, False), Query.leverages, inverse, nbytes=None), axis=1)

    def without_groups(self, w: Array, hessian: Array, inverse: Array, groups: Array, count: int) -> Array:
        """Return the value (n,) of every row by the model without its group; see `leave_groups_out`."""
        query = GroupQuery(self._query(w, False), w, groups, count)
        return leave_groups_out(query, self._passes, hessian, inverse)

    def slopes(self, w: Array, direction: Array, steps: Array, *, double_precision: bool = False) -> Array:
        """Return the derivatives of the loss by the step, at ``w + step · direction`` for each of ``steps``."""
        return self._passes.run(self._query(w, double_precision), Query.slopes, direction, steps)

    def _query(self, w: Array, double_precision: bool) -> Query:
        return Query(self._features, self._loss, w, double_precision)


@compiled
def _gather_active(features: Array, second: Array, constant: float, out: Array) -> int:
    """Copy rows of positive curvature c, times √c, to the front of ``out``, and return how many.

    ``out`` has one column more than ``features`` if there is a constant feature.
    """
    count = 0
    d = features.shape[1]
    for i in range(second.size):
        if second[i] > 0:
            root = np.sqrt(second[i])
            row = features[i]
            target = out[count]
            for j in range(d):
                target[j] = row[j] * root
            if target.size > d:
                target[d] = constant * root
            count += 1
    return count
