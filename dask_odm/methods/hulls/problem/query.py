"""The query to the rows of two classes for their reduced hulls: totals, scores, points of the hulls, looks.

Tasks carry it to the holder of the rows. `dask_odm.methods.hulls.problem.hulls` makes bounds of the answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import block_rows
from dask_odm.linalg.jit import compiled, frozen
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.methods.hulls.problem.weighted_quantile import CLASSES, Look, Looked, look_at
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Totals:
    """Weights (2,) and weighted sums of rows (2, d) of both classes, the positive one first.

    ``square`` is the largest squared norm of a row.
    """

    weight: Array
    sums: Array
    square: float

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.weight + other.weight, self.sums + other.sums, max(self.square, other.square))

    @property
    def means(self) -> Array:
        """The class means, (2, d)."""
        return self.sums / self.weight[:, None]


@dataclass(frozen=True, eq=False)
class HullQuery:
    """The query to all rows; tasks carry it.

    ``features`` have no constant one. Rows of the code 1 are positive, those of a code below zero are left out, and all
    others are negative. ``class_weights`` are those of the negative and the positive class.
    """

    features: FeatureMap
    class_weights: tuple[float, float] = (1.0, 1.0)

    def totals(self, blocks: Iterable[RowBlock]) -> Totals:
        """Sum the weights and the rows of both classes."""
        found = Totals(np.zeros(2), np.zeros((2, self.features.d)), 0.0)
        for X, sign, weight in self.pieces(blocks):
            of_class = [np.where(sign == each, weight, 0.0) for each in CLASSES]
            sums = np.array([self.features.weighted_sum(X, each) for each in of_class])
            square = float(np.where(sign != 0, self._squares(X), 0.0).max(initial=0.0))
            found += Totals(np.array([each.sum() for each in of_class]), sums, square)
        return found

    def held(self, blocks: Iterable[RowBlock]) -> list[tuple[RowBlock, Array, Array]]:
        """Return the blocks of rows in memory, each with the signs and weights (n,) of its rows."""
        return [(block, *self._sign_and_weight(block.y, block.weight)) for block in blocks]

    def scores(self, blocks: Iterable[RowBlock], w: Array) -> list[Array]:
        """Return ``w·x`` of every row, (n,) for each block."""
        shift, factor = self._affine
        found = []
        u = w * factor
        for block in blocks:
            if issparse(block.X):
                found.append(self.features.scores(self._features_of(block.X), w))
            else:
                found.append(np.empty(block.X.shape[0]))
                score_rows(frozen(self.features.unscaled(block.X)), u, shift, found[-1])
        return found

    def points(self, blocks: Iterable[RowBlock], shares: Sequence[tuple[Array, Array]]) -> Array:
        """Sum ``e_i x_i`` for either class, (2, d), over consecutive blocks of rows in memory.

        ``shares`` has the row numbers of each class, ascending, and their e.
        """
        total = np.zeros((2, self.features.d))
        following = list(blocks)
        edges = np.array([*(block.first for block in following), following[-1].first + following[-1].X.shape[0]])
        for k, (numbers, entries) in enumerate(shares):
            bounds = numbers.searchsorted(edges)
            for i in np.flatnonzero(bounds[:-1] < bounds[1:]):
                part = slice(bounds[i], bounds[i + 1])
                block = following[i]
                self._add(block.X, numbers[part] - block.first, entries[part], total[k])
        return total

    def _add(self, X: Any, rows: Array, entries: Array, total: Array) -> None:
        """Add some ``rows`` of ``X``, multiplied by ``entries``, to a total (d,)."""
        if issparse(X):
            total += self.features.weighted_sum(self._features_of(X[rows]), entries)
        else:
            add_rows(frozen(self.features.unscaled(X)), rows, entries, *self._affine, total)

    def look(self, blocks: Iterable[RowBlock], w: Array, look: Look) -> Looked:
        """Sum the weights and the rows by their scores, near the thresholds that ``look`` guesses."""
        shift, factor = self._affine
        pieces = ((self.features.unscaled(X), y, weight) for X, y, weight in self._cut(blocks))
        return look_at(look, pieces, w * factor, shift, factor, self.class_weights)

    @property
    def _affine(self) -> tuple[Array, Array]:
        """Shift and factor of the feature scaling; zeros and ones if there is none."""
        scaling = self.features.scaling
        d = self.features.d
        return (np.zeros(d), np.ones(d)) if scaling is None else (scaling.shift, scaling.factor)

    def _cut(self, blocks: Iterable[RowBlock]) -> Iterator[tuple[Any, Array, Array]]:
        """Yield raw rows, codes and weights, a bounded number of rows at a time."""
        for block in blocks:
            step = block_rows(self.features.d, block.X)
            for start in range(0, len(block.y), step):
                rows = slice(start, start + step)
                yield block.X[rows], block.y[rows], block.weight[rows]

    def _features_of(self, X: Any) -> Any:
        return self.features.block(X.astype(np.float64, copy=False))

    def _sign_and_weight(self, y: Array, weight: Array) -> tuple[Array, Array]:
        negative, positive = self.class_weights
        sign = np.where(y == 1, 1.0, np.where(y >= 0, -1.0, 0.0))
        factor = np.where(sign > 0, positive, negative)
        return sign, factor * weight if len(weight) else factor

    def pieces(self, blocks: Iterable[RowBlock]) -> Iterator[tuple[Any, Array, Array]]:
        """Yield the features in float64, a bounded number of rows at a time, with signs and weights.

        The sign is zero for rows that take no part.
        """
        for X, y, given in self._cut(blocks):
            sign, weight = self._sign_and_weight(y, given)
            yield self._features_of(X), np.where(weight > 0, sign, 0.0), weight

    def _squares(self, X: Any) -> Array:
        """Return the squared norms of rows, (n,)."""
        if not issparse(X):
            return np.einsum("ij,ij->i", X, X)
        shift, factor = self._affine
        squares = X.multiply(X) @ factor**2 - 2.0 * (X @ (factor**2 * shift)) + factor**2 @ shift**2
        return np.maximum(squares, 0.0)


@compiled
def score_rows(X: Array, u: Array, shift: Array, scores: Array) -> None:
    """Compute the scores (n,) of the rows of ``X`` less ``shift`` (d,), by weights ``u`` (d,)."""
    for i in range(scores.size):
        s = 0.0
        for j in range(u.size):
            s += (X[i, j] - shift[j]) * u[j]
        scores[i] = s


@compiled
def add_rows(X: Array, rows: Array, entries: Array, shift: Array, factor: Array, total: Array) -> None:
    """Add ``entries`` times the scaled ``rows`` of ``X`` to a total (d,)."""
    for i in range(rows.size):
        row = X[rows[i]]
        e = entries[i]
        for j in range(total.size):
            total[j] += e * ((row[j] - shift[j]) * factor[j])
