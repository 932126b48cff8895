"""Fewer rows than features: a linear model in the span of its rows, which has as many coordinates as there are rows.

The minimiser of ``½‖w‖² + Σ loss_i(w·φ_i)`` lies in the span of the rows φ. With an orthonormal basis Q (r, k) of it
and ``Φ = C Q`` the problem is the same one in ``z = Q w`` over rows C (n, r): same P, same gap, and r ≤ n instead of k
weights. Cholesky of the Gram matrix ``Φ Φᵀ`` with pivots gives C, and by the r rows that it chose Q, which is not
formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import lapack, solve_triangular
from scipy.sparse import issparse

from dask_odm.learning.problem.features import FeatureMap
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class RowSpan:
    """The rows' coordinates, and the way back.

    Attributes
    ----------
    features : FeatureMap
    block : ndarray or CSR matrix of shape (n, d)
        All rows as `FeatureMap.block` gives them.
    chosen : ndarray of shape (r,)
        Rows that span all.
    factor : ndarray of shape (r, r)
        Lower; theirs.
    coordinates : ndarray of shape (n, r)
        C.
    """

    features: FeatureMap
    block: Any
    chosen: Array
    factor: Array
    coordinates: Array

    @classmethod
    def of(cls, features: FeatureMap, X: Any) -> RowSpan:
        """Of raw rows ``X`` (n, d), dense or CSR; the Gram matrix is summed in float64."""
        block = features.block(X)
        gram = _gram(features, block)
        factor, pivots, rank, _ = lapack.dpstrf(gram, lower=1)
        order = pivots - 1
        coordinates = np.empty((len(gram), rank))
        coordinates[order] = np.tril(factor)[:, :rank]
        return cls(features, block, order[:rank], np.tril(factor[:rank, :rank]), coordinates)

    def weights(self, z: Array) -> Array:
        """``w = Qᵀ z``, float64 (k,)."""
        a = np.zeros(self.block.shape[0])
        a[self.chosen] = solve_triangular(self.factor, z, trans="T", lower=True, check_finite=False)
        return self.features.weighted_sum(self.block, a)


def _gram(features: FeatureMap, block: Any) -> Array:
    """``Φ Φᵀ``, the constant feature included; sparse rows stay so: their shift is taken off the products."""
    if not issparse(block):
        exact = np.asarray(block, dtype=np.float64)
        return np.asarray(exact @ exact.T) + features.bias
    exact = block.astype(np.float64)
    if features.scaling is None:
        return np.asarray((exact @ exact.T).toarray()) + features.bias
    factor = features.scaling.factor
    shift = features.scaling.shift
    scaled = exact.multiply(factor[None, :]).tocsr()
    along = scaled @ (shift * factor)
    products = np.asarray((scaled @ scaled.T).toarray())
    return products - along[:, None] - along[None, :] + float((shift * factor) @ (shift * factor)) + features.bias


def span_bytes(n: int, d: int, *, sparse: bool) -> int:
    """Peak bytes of making a `RowSpan`: rows in float64, the Gram matrix, its factor, coordinates."""
    return 8 * ((0 if sparse else n * d) + 5 * n * n)
