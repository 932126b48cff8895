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
        """Return φ·w (n,) of every row of what `block` returned, in its dtype."""
        u, b = self.raw_weights(w) if issparse(block) else self.plain_weights(w)
        return block @ u.astype(block.dtype) + block.dtype.type(b)

    def weighted_sum(self, block: Any, r: Array) -> Array:
        """Return Σ r φ, float64 (k,)."""
        return self.completed(block.T @ r, float(r.sum(dtype=np.float64)), unscaled=issparse(block))

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
        _entry_hessian(frozen(block.data), frozen(block.indices), frozen(block.indptr), c, out)
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
        total = float(c.sum(dtype=np.float64))
        out = np.empty(self.k)
        if issparse(block):
            # in float64, since the terms cancel
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
