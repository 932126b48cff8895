"""Gram (kernel-trick) reduction: with fewer rows than features, a linear model is solved in as many weights as rows.

The minimiser of ``½‖w‖² + Σ loss_i(w·φ_i)`` lies in the span of the rows φ. Let Q (r, k) be an orthonormal basis of it
and ``Φ = C Q``. Then the problem is the same one in ``z = Q w`` over rows C (n, r), with the same P and gap, and with r
≤ n weights instead of k. Pivoted Cholesky of the Gram matrix ``Φ Φᵀ`` gives C. The r rows that it chose give Q, which
is not formed.
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
    """Coordinates of the rows in the span of the rows, and the map back to weights.

    ``block`` (n, d) are all rows as `FeatureMap.block` returns them. The rows ``chosen`` (r,) span all; ``factor`` (r,
    r) is the lower Cholesky factor of their Gram matrix. ``coordinates`` (n, r) are C.
    """

    features: FeatureMap
    block: Any
    chosen: Array
    factor: Array
    coordinates: Array

    @classmethod
    def of(cls, features: FeatureMap, X: Any) -> RowSpan:
        """Reduce raw rows ``X`` (n, d), dense or CSR; the Gram matrix is summed in float64."""
        block = features.block(X)
        gram = _gram(features, block)
        factor, pivots, rank, _ = lapack.dpstrf(gram, lower=1)
        order = pivots - 1
        coordinates = np.empty((len(gram), rank))
        coordinates[order] = np.tril(factor)[:, :rank]
        return cls(features, block, order[:rank], np.tril(factor[:rank, :rank]), coordinates)

    def weights(self, z: Array) -> Array:
        """Return ``w = Qᵀ z``, float64 (k,)."""
        a = np.zeros(self.block.shape[0])
        a[self.chosen] = solve_triangular(self.factor, z, trans="T", lower=True, check_finite=False)
        return self.features.weighted_sum(self.block, a)


def _gram(features: FeatureMap, block: Any) -> Array:
    """Return ``Φ Φᵀ``, constant feature included; sparse rows stay sparse, with the shift subtracted afterwards."""
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
    """Return the peak bytes of making a `RowSpan`: rows in float64, the Gram matrix, its factor, coordinates."""
    return 8 * ((0 if sparse else n * d) + 5 * n * n)
