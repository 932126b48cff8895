"""A linear problem over sparse rows in memory, for dual descent. Dense rows that are mostly zeros are made sparse.

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

from dask_odm.learning.problem.band import best_dual, row_gap
from dask_odm.learning.problem.features import EntryRows, FeatureMap, add_entries, entry_scores
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.linalg.jit import compiled, frozen
from dask_odm.linalg.threads import run_threads
from dask_odm.typing import Array

GROUP_ENTRIES = 1 << 17  # entries of rows that one thread sums at a time
THIN = 0.2  # largest share of nonzero entries of rows that take the sparse route


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
    run_threads(lambda part: _entry_counts(X[slice(*part)], indptr[1:][slice(*part)]), bounds, threads)
    np.cumsum(indptr, out=indptr)
    data, indices = np.empty(indptr[-1], X.dtype), np.empty(indptr[-1], np.int32)
    run_threads(lambda part: _copy_entries(X[slice(*part)], indptr[part[0] :], data, indices), bounds, threads)
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
        _entry_norms(frozen(self.X.data), frozen(self.X.indptr), norms)
        return norms

    def sweep(self, stiffness: Array, norms: Array, order: Array, w: Array, dual: Array) -> None:
        """Run one sweep of dual coordinate descent over unscaled rows, in ``order``; ``w`` and ``dual`` are changed."""
        rows = self.arrays(0, self.X.shape[0])
        _sweep_entries(*rows, self.features.constant, self.y, stiffness, self.loss.band, norms, order, w, dual)

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

        sums: Any = sum(self._of_groups(part))
        return self.features.completed(sums, float(dual.sum()), unscaled=True)

    def losses(self, scores: Array) -> tuple[float, Array]:
        """Return the sum of the rows' losses, and minus the derivative of each, (n,)."""
        return self.loss.evaluate(scores, self.y, self.weight)[:2]

    def gap(self, scores: Array, dual: Array) -> float:
        """Return P − D, the sum of the rows' Fenchel gaps, for weights that belong to the ``dual`` variables (n,)."""
        return float(_row_gaps(scores, self.y, frozen(self.weight), self.loss.terms, dual))

    def arrays(self, a: int, b: int) -> EntryRows:
        """Return rows ``a:b``, for compiled loops."""
        rows = EntryRows.of(self.X)
        return rows._replace(indptr=rows.indptr[a : b + 1])

    def _of_groups(self, function: Callable[[int, int], Any]) -> list[Any]:
        """Run ``function`` on the bounds of each group of rows; the groups depend on the rows alone."""
        n = self.X.shape[0]
        entries = int(self.X.indptr[-1])
        count = max(1, min(8, n, entries // GROUP_ENTRIES, entries // max(1, self.features.d)))
        bounds = np.searchsorted(self.X.indptr, np.arange(count + 1) * (entries / count))
        bounds[0], bounds[-1] = 0, n
        return run_threads(lambda part: function(*part), list(pairwise(bounds.tolist())), self.threads)


# Compiled loops, in float64 for rows of any dtype. ``terms`` (5,) are `BandLoss.terms`; code 1 is the positive class's.


@compiled
def _row_gaps(scores: Array, codes: Array, weight: Array, terms: Array, dual: Array) -> float:
    """Return the sum of the rows' Fenchel gaps with ``dual`` variables (n,), in the form ``y s``.

    A row's gap is 0 if its dual variable is minus the derivative of its loss.
    """
    total = 0.0
    weighted = weight.size > 0
    for i in range(scores.size):
        is_positive = codes[i] == 1
        c = terms[1] if is_positive else terms[0]
        if weighted:
            c *= weight[i]
        y = 1.0 if is_positive else -1.0
        total += row_gap(y * dual[i], y * scores[i], c, terms[2], terms[3], terms[4])
    return total


@compiled
def _sweep_entries(
    data: Array, indices: Array, indptr: Array, constant: float, codes: Array, stiffness: Array, band: Array,
    norms: Array, order: Array, w: Array, dual: Array,
) -> None:  # fmt: skip
    """Maximise the dual in the variable of every row once, in the given ``order`` (n,); update ``w``.

    The last weight of ``w`` (k,) belongs to the constant feature, whose value is ``constant``; without one it is 0.
    ``norms`` and ``stiffness`` (n,) are of the rows; ``dual`` (n,) is ``y s``.
    """
    last = w.size - 1
    for i in order:
        start = indptr[i]
        stop = indptr[i + 1]
        score = constant * w[last]
        for t in range(start, stop):
            score += data[t] * w[indices[t]]
        y = 1.0 if codes[i] == 1 else -1.0
        new = y * best_dual(y * (score - norms[i] * dual[i]), norms[i], stiffness[i], band[0], band[1], band[2])
        change = new - dual[i]
        if change != 0.0:
            dual[i] = new
            for t in range(start, stop):
                w[indices[t]] += change * data[t]
            w[last] += constant * change


@compiled
def _entry_norms(data: Array, indptr: Array, norms: Array) -> None:
    """Add ``‖x‖²`` of CSR rows x to ``norms`` (n,)."""
    for i in range(norms.size):
        for t in range(indptr[i], indptr[i + 1]):
            norms[i] += data[t] * data[t]


@compiled
def _entry_counts(X: Array, ends: Array) -> None:
    """Write the number of nonzero entries of each row of ``X`` (n, d) to ``ends`` (n,)."""
    for i in range(X.shape[0]):
        row = X[i]
        count = 0
        for j in range(row.size):
            count += row[j] != 0
        ends[i] = count


@compiled
def _copy_entries(X: Array, indptr: Array, data: Array, indices: Array) -> None:
    """Copy the nonzero entries of the rows of ``X`` (n, d) to the places that ``indptr`` (n + 1,) gives."""
    for i in range(X.shape[0]):
        row = X[i]
        t = indptr[i]
        for j in range(row.size):
            if row[j] != 0:
                data[t], indices[t] = row[j], j
                t += 1
