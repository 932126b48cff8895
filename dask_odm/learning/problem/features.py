"""Map from raw rows to the features of a linear model: scaled, with a constant feature, dense or sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.sparse import issparse

from dask_odm.linalg.jit import compiled, frozen
from dask_odm.typing import Array


class Affine(Protocol):
    """A scaling ``(x − shift) · factor``, feature by feature."""

    @property
    def shift(self) -> Array: ...
    @property
    def factor(self) -> Array: ...
    def __call__(self, X: Array, out: Array | None = None) -> Array: ...


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """Map from raw rows to features: scaled or not, with a constant feature √bias if ``bias`` is positive.

    Dense rows are scaled into a buffer; the subtraction is in float64 because it could cancel. Sparse rows stay
    unscaled, and sums over them are corrected.
    """

    d: int
    bias: float
    scaling: Affine | None = None

    @property
    def k(self) -> int:
        """Number of weights: one per feature, and one for the constant feature."""
        return self.d + (self.bias > 0)

    @property
    def constant(self) -> float:
        return float(np.sqrt(self.bias))

    def block(self, X: Any) -> Any:
        """Return the features (n, d) of rows without the constant one. Sparse rows are returned unscaled."""
        return X if issparse(X) or self.scaling is None else self.scaling(X)

    def unscaled(self, X: Any) -> Array:
        """Return raw rows (n, d), dense or sparse, as a dense array before `scaling`."""
        return np.ascontiguousarray(X.toarray() if issparse(X) else X)

    def dense(self, block: Any) -> Array:
        """Return the d scaled features as a dense array, from what `block` returned."""
        if not issparse(block):
            return block
        values = np.ascontiguousarray(block.toarray())
        return values if self.scaling is None else self.scaling(values, values)

    def raw_weights(self, w: Array) -> tuple[Array, float]:
        """Return weights of raw features (d,) and the intercept for the weights ``w`` (k,)."""
        u, b = self.plain_weights(w)
        if self.scaling is None:
            return u, b
        u = u * self.scaling.factor
        return u, b - float(self.scaling.shift @ u)

    def plain_weights(self, w: Array) -> tuple[Array, float]:
        """Return weights of scaled features (d,) and the intercept for the weights ``w`` (k,)."""
        return w[: self.d], self.constant * float(w[-1]) if self.bias > 0 else 0.0

    def scores(self, block: Any, w: Array) -> Array:
        """Return φ·w (n,) of every row of what `block` returned, in its dtype, or in float64 if rows are sparse."""
        if issparse(block):
            u, b = self.raw_weights(w)
            scores = np.empty(block.shape[0])
            entry_scores(*frozen_rows(block), frozen(u), b, scores)
            return scores
        u, b = self.plain_weights(w)
        return block @ u.astype(block.dtype) + block.dtype.type(b)

    def weighted_sum(self, block: Any, r: Array) -> Array:
        """Return Σ r φ, float64 (k,)."""
        if issparse(block):
            sums = EntrySums(self)
            sums.add(block, r)
            return sums.result()
        return self.completed(block.T @ r, float(r.sum(dtype=np.float64)), unscaled=False)

    def completed(self, sums: Array, total: float, *, unscaled: bool) -> Array:
        """Return Σ r φ, float64 (k,), from the sums (d,) of the features, perhaps ``unscaled``, and ``total`` = Σ r."""
        out = np.empty(self.k)
        out[: self.d] = sums
        if unscaled and self.scaling is not None:
            out[: self.d] = self.scaling.factor * (out[: self.d] - self.scaling.shift * total)
        if self.bias > 0:
            out[-1] = self.constant * total
        return out

    def products(self, block: Any, c: Array) -> Array:
        """Return Σ c φφᵀ, float64 (k, k), of sparse rows with ascending columns, summed entry by entry."""
        d = self.d
        c = c.astype(np.float64)
        out = np.zeros((self.k, self.k))
        total = float(c.sum())
        _entry_hessian(*frozen_rows(block), c, out)
        out += np.tril(out, -1).T
        mean = block.T @ c if self.k > d or self.scaling is not None else np.zeros(d)
        if self.scaling is not None:
            factor = self.scaling.factor
            shift = self.scaling.shift
            mixed = np.outer(shift, mean - 0.5 * total * shift)
            scaled = out[:d, :d]
            scaled -= mixed  # in place, since every thread has such matrices
            scaled -= mixed.T
            scaled *= factor[:, None]
            scaled *= factor
            mean = factor * (mean - total * shift)
        if self.k > d:
            out[d, :d] = out[:d, d] = self.constant * mean
            out[d, d] = self.bias * total
        return out

    def squares(self, block: Any, c: Array) -> Array:
        """Return Σ c φ², float64 (k,)."""
        if issparse(block):
            sums = EntrySquares(self)
            sums.add(block, c)
            return sums.result()
        total = float(c.sum(dtype=np.float64))
        out = np.empty(self.k)
        out[: self.d] = np.einsum("i,ij,ij->j", c, block, block)
        if self.bias > 0:
            out[-1] = self.bias * total
        return out


class EntrySums:
    """``Σ r φ`` over blocks of sparse rows, added up in place: there may be as many features as entries in a block."""

    def __init__(self, features: FeatureMap) -> None:
        self._features = features
        self._sums = np.zeros(features.d)
        self._total = 0.0

    def add(self, block: Any, r: Array) -> None:
        """Add the rows of a block, each times its ``r`` (n,)."""
        add_entries(*frozen_rows(block), r.astype(np.float64, copy=False), self._sums)
        self._total += float(r.sum(dtype=np.float64))

    def result(self) -> Array:
        """Return the sum, float64 (k,)."""
        return self._features.completed(self._sums, self._total, unscaled=True)


class EntrySquares:
    """``Σ c φ²`` over blocks of sparse rows, added up in place as in `EntrySums`."""

    def __init__(self, features: FeatureMap) -> None:
        self._features = features
        scaling = features.scaling
        self._shift = None if scaling is None or not scaling.shift.any() else scaling.shift
        self._squares = np.zeros(features.d)
        self._linear = np.zeros(0 if self._shift is None else features.d)
        self._total = 0.0

    def add(self, block: Any, c: Array) -> None:
        """Add the rows of a block, each times its ``c`` (n,)."""
        _add_squares(*frozen_rows(block), c.astype(np.float64, copy=False), self._squares, self._linear)
        self._total += float(c.sum(dtype=np.float64))

    def result(self) -> Array:
        """Return the sum, float64 (k,)."""
        features = self._features
        out = np.empty(features.k)
        out[: features.d] = self._squares
        if self._shift is not None:
            out[: features.d] += self._shift**2 * self._total - 2.0 * self._shift * self._linear
            np.maximum(out[: features.d], 0.0, out=out[: features.d])
        if features.scaling is not None:
            out[: features.d] *= features.scaling.factor**2
        if features.bias > 0:
            out[-1] = features.bias * self._total
        return out


def frozen_rows(block: Any) -> tuple[Array, Array, Array]:
    """Return entries, columns and bounds of CSR rows, for compiled loops."""
    return frozen(block.data), frozen(block.indices), frozen(block.indptr)


@compiled
def _entry_hessian(data: Array, indices: Array, indptr: Array, curvature: Array, out: Array) -> None:
    """Add ``Σ c x xᵀ`` of CSR rows x, whose columns ascend, to the lower triangle of ``out`` (d, d)."""
    for i in range(curvature.size):
        if curvature[i] != 0.0:
            for t in range(indptr[i], indptr[i + 1]):
                row = out[indices[t]]
                value = curvature[i] * data[t]
                for q in range(indptr[i], t + 1):
                    row[indices[q]] += value * data[q]


@compiled
def entry_scores(
    data: Array, indices: Array, indptr: Array, weights: Array, intercept: float, scores: Array
) -> None:  # fmt: skip
    """Write ``x·weights + intercept`` of CSR rows x to ``scores`` (n,); the first row begins at ``indptr[0]``."""
    for i in range(scores.size):
        total = intercept
        for t in range(indptr[i], indptr[i + 1]):
            total += data[t] * weights[indices[t]]
        scores[i] = total


@compiled
def add_entries(data: Array, indices: Array, indptr: Array, factors: Array, out: Array) -> None:
    """Add ``Σ factors_i x_i`` of CSR rows x to ``out`` (d,)."""
    for i in range(factors.size):
        factor = factors[i]
        if factor != 0.0:
            for t in range(indptr[i], indptr[i + 1]):
                out[indices[t]] += factor * data[t]


@compiled
def _add_squares(data: Array, indices: Array, indptr: Array, factors: Array, out: Array, linear: Array) -> None:
    """Add ``Σ factors_i x_i²`` of CSR rows x to ``out`` (d,), and ``Σ factors_i x_i`` to ``linear`` if it has d."""
    for i in range(factors.size):
        factor = factors[i]
        if factor != 0.0:
            for t in range(indptr[i], indptr[i + 1]):
                value = np.float64(data[t])
                out[indices[t]] += factor * value * value
                if linear.size:
                    linear[indices[t]] += factor * value
