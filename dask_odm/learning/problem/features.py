"""From raw rows to the features that a linear model weighs: scaled, with a constant feature, dense or sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.sparse import issparse

from dask_odm.learning.problem.sparse_loops import entry_hessian
from dask_odm.linalg.jit import frozen
from dask_odm.typing import Array


class Affine(Protocol):
    """``(x − shift) · factor``, feature by feature."""

    @property
    def shift(self) -> Array: ...
    @property
    def factor(self) -> Array: ...
    def __call__(self, X: Array, out: Array | None = None) -> Array: ...


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

    def unscaled(self, X: Any) -> Array:
        """Raw rows (n, d), dense or sparse, as an array of their features before `scaling`."""
        return np.ascontiguousarray(X.toarray() if issparse(X) else X)

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

    def weighted_sum(self, block: Any, r: Array) -> Array:
        """Σ r φ, float64 (k,)."""
        total = float(r.sum(dtype=np.float64))
        out = np.empty(self.k)
        out[: self.d] = block.T @ r
        if issparse(block) and self.scaling is not None:
            out[: self.d] = self.scaling.factor * (out[: self.d] - self.scaling.shift * total)
        if self.bias > 0:
            out[-1] = self.constant * total
        return out

    def products(self, block: Any, c: Array) -> Array:
        """Σ c φφᵀ of sparse rows whose columns ascend, by their entries, float64 (k, k)."""
        d = self.d
        c = c.astype(np.float64)
        out = np.zeros((self.k, self.k))
        total = float(c.sum())
        entry_hessian(frozen(block.data), frozen(block.indices), frozen(block.indptr), c, out)
        out += np.tril(out, -1).T
        mean = block.T @ c if self.k > d or self.scaling is not None else np.zeros(d)
        if self.scaling is not None:
            factor = self.scaling.factor
            shift = self.scaling.shift
            mixed = np.outer(shift, mean - 0.5 * total * shift)
            scaled = out[:d, :d]
            scaled -= mixed  # in place: every thread has such matrices
            scaled -= mixed.T
            scaled *= factor[:, None]
            scaled *= factor
            mean = factor * (mean - total * shift)
        if self.k > d:
            out[d, :d] = out[:d, d] = self.constant * mean
            out[d, d] = self.bias * total
        return out

    def squares(self, block: Any, c: Array) -> Array:
        """Σ c φ², float64 (k,)."""
        total = float(c.sum(dtype=np.float64))
        out = np.empty(self.k)
        if issparse(block):
            # the terms cancel
            exact = block.astype(np.float64)
            c = c.astype(np.float64)
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
