"""A linear problem over sparse rows in memory, which keeps the scores while the weights move: two passes per step.

A step along a direction needs the scores of the direction once. The step of least P, and the gap of the best dual
variables so far, then follow from loops over a few numbers per row. Dense rows that are mostly zeros are converted to
sparse ones.

gap    For weights w with scores f and any dual variables u with image v = Σ u φ, ``P(w) − D(u)`` is ``½‖w − v‖²`` plus
       the rows' Fenchel gaps. No term is negative, so rounding cannot make the gap negative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.learning.problem.sparse_loops import (
    add_entries,
    band_slope,
    copy_entries,
    entry_counts,
    entry_norms,
    entry_scores,
    segment_gaps,
    sweep_entries,
)
from dask_odm.linalg.jit import frozen
from dask_odm.linalg.threads import run_threads
from dask_odm.typing import Array

THIN = 0.2  # largest share of nonzero entries of rows that take the sparse route
GROUP_ENTRIES = 1 << 17  # entries of rows that one thread sums at a time


def is_thin(X: Any) -> bool:
    """Return whether rows ``X`` (n, d), dense or CSR, are mostly zeros. Dense rows are sampled."""
    n, d = X.shape
    if issparse(X):
        return bool(X.nnz <= THIN * n * d)
    # some 256 rows tell whether dense rows are mostly zeros
    seen = X[:: max(1, n // 256)]
    return bool(np.count_nonzero(seen) <= THIN * seen.size)


def as_sparse(X: Any, threads: int = 1) -> Any:
    """Return dense or CSR rows (n, d) as CSR rows."""
    if issparse(X):
        return X
    X, n = frozen(X), len(X)
    bounds = list(pairwise(np.linspace(0, n, min(n, 4 * threads) + 1).astype(int)))
    indptr = np.zeros(n + 1, np.int32 if X.size <= np.iinfo(np.int32).max else np.int64)  # SciPy's choice of type
    run_threads(lambda part: entry_counts(X[slice(*part)], indptr[1:][slice(*part)]), bounds, threads)
    np.cumsum(indptr, out=indptr)
    data, indices = np.empty(indptr[-1], X.dtype), np.empty(indptr[-1], np.int32)
    run_threads(lambda part: copy_entries(X[slice(*part)], indptr[part[0] :], data, indices), bounds, threads)
    return csr_array((data, indices, indptr), shape=X.shape)


@dataclass(frozen=True, eq=False)
class SparsePrimal:
    """The primal P over sparse rows, evaluated by weights w (k,) or by scores (n,).

    ``X`` (n, d) is CSR, ``y`` (n,) are label codes, ``weight`` is (n,), or empty for 1. ``threads`` never change a
    result.
    """

    features: FeatureMap
    loss: BandLoss
    X: Any
    y: Array
    weight: Array
    threads: int = 1

    def with_lam(self, lam: float) -> SparsePrimal:
        """Return the problem over the same rows for another λ."""
        return replace(self, loss=self.loss.with_lam(lam))

    def norms(self) -> Array:
        """Return ‖φ‖² of every row, unscaled, (n,)."""
        norms = np.full(self.X.shape[0], self.features.bias)
        entry_norms(frozen(self.X.data), frozen(self.X.indptr), norms)
        return norms

    def sweep(self, stiffness: Array, norms: Array, order: Array, w: Array, dual: Array) -> None:
        """Run one sweep of dual coordinate descent over unscaled rows, in ``order``; ``w`` and ``dual`` are changed."""
        loss = self.loss
        rows = self.arrays(0, self.X.shape[0])
        constant = self.features.constant
        sweep_entries(*rows, constant, self.y, stiffness, loss.band, norms, order, w, dual)

    def scores(self, w: Array) -> Array:
        """Return φ·w of every row, float64 (n,)."""
        u, intercept = self.features.raw_weights(w)
        scores = np.empty(self.X.shape[0])
        self._of_groups(lambda a, b: entry_scores(*self.arrays(a, b), u, intercept, scores[a:b]))
        return scores

    def image(self, dual: Array) -> Array:
        """Return Σ dual φ, float64 (k,)."""

        def part(a: int, b: int) -> Array:
            out = np.zeros(self.features.d)
            add_entries(*self.arrays(a, b), dual[a:b], out)
            return out

        image = np.empty(self.features.k)
        total = float(dual.sum())
        image[: self.features.d] = sum(self._of_groups(part))
        if self.features.scaling is not None:
            scaling = self.features.scaling
            image[: self.features.d] = scaling.factor * (image[: self.features.d] - scaling.shift * total)
        if self.features.bias > 0:
            image[-1] = self.features.constant * total
        return image

    def losses(self, scores: Array) -> tuple[float, Array]:
        """Return the sum of the rows' losses, and minus the derivative of each, (n,)."""
        total, dual, _ = self.loss.evaluate(scores, self.y, self.weight)
        return total, dual

    def slope(self, scores: Array, change: Array, step: float) -> tuple[float, float]:
        """Return the first and second derivative of the losses by the step, at ``scores + step · change``."""
        first, second = band_slope(scores, change, self.y, frozen(self.weight), self.loss.terms, step)
        return float(first), float(second)

    def segment_gaps(self, scores: Array, start: Array, stop: Array, steps: Array) -> Array:
        """Return the sum of the rows' Fenchel gaps with dual variables ``start + step · (stop − start)``, by step."""
        return np.asarray(segment_gaps(scores, self.y, frozen(self.weight), self.loss.terms, start, stop, steps))

    def arrays(self, a: int, b: int) -> tuple[Array, Array, Array]:
        """Return entries, columns and bounds of rows ``a:b``, for compiled loops."""
        X = self.X
        return frozen(X.data), frozen(X.indices), frozen(X.indptr[a : b + 1])

    def _of_groups(self, function: Callable[[int, int], Any]) -> list[Any]:
        """Run ``function`` on the bounds of each group of rows; the groups depend on the rows alone."""
        n = self.X.shape[0]
        entries = int(self.X.indptr[-1])
        count = max(1, min(8, n, entries // GROUP_ENTRIES, entries // max(1, self.features.d)))
        bounds = np.searchsorted(self.X.indptr, np.arange(count + 1) * (entries / count))
        bounds[0], bounds[-1] = 0, n
        return run_threads(lambda part: function(*part), list(pairwise(bounds.tolist())), self.threads)
