"""Map from raw rows to the features of a linear model: scaled, with a constant feature, dense or sparse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.sparse import issparse

from dask_odm.linalg.jit import compiled, frozen
from dask_odm.typing import Array

PIECE_ENTRIES = 1 << 15  # entries of sparse rows that are scored and then summed, so that a core's cache holds them


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

    def block(self, X: Any, out: Any = None) -> Any:
        """Return the features (n, d) of rows without the constant one, written into ``out`` if dense rows are scaled.

        Sparse rows are returned unscaled.
        """
        return X if issparse(X) or self.scaling is None else self.scaling(X, out)

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
            return EntryScores(self, w)(EntryRows.of(block))
        u, b = self.plain_weights(w)
        return block @ u.astype(block.dtype) + block.dtype.type(b)

    def weighted_sum(self, block: Any, r: Array) -> Array:
        """Return Σ r φ, float64 (k,)."""
        if issparse(block):
            sums = EntrySums(self)
            sums.add(EntryRows.of(block), r)
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
        _entry_hessian(*EntryRows.of(block), c, out)
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
        """Return Σ c φ², float64 (k,), of dense rows."""
        total = float(c.sum(dtype=np.float64))
        out = np.empty(self.k)
        out[: self.d] = np.einsum("i,ij,ij->j", c, block, block)
        if self.bias > 0:
            out[-1] = self.bias * total
        return out


class EntryRows(NamedTuple):
    """CSR rows as compiled loops take them: entries, their columns, and bounds (n + 1,) of the rows among them.

    Columns are unsigned: Numba would test whether others are negative, entry by entry.
    """

    data: Array
    indices: Array
    indptr: Array

    @classmethod
    def of(cls, block: Any) -> EntryRows:
        """Return the rows of a CSR array, whose arrays are shared."""
        return cls(frozen(block.data), frozen(block.indices).view(f"u{block.indices.itemsize}"), frozen(block.indptr))

    def pieces(self) -> Iterator[tuple[slice, EntryRows]]:
        """Yield the rows in pieces of some `PIECE_ENTRIES` entries, with their places."""
        n = len(self.indptr) - 1
        step = max(1, PIECE_ENTRIES * n // max(1, int(self.indptr[-1] - self.indptr[0])))
        for start in range(0, n, step):
            yield slice(start, min(n, start + step)), self._replace(indptr=self.indptr[start : start + step + 1])


class EntryScores:
    """Scores of sparse rows for weights ``w`` (k,)."""

    def __init__(self, features: FeatureMap, w: Array) -> None:
        weights, self._intercept = features.raw_weights(w)
        self._weights = frozen(np.ascontiguousarray(weights))

    def __call__(self, rows: EntryRows) -> Array:
        """Return φ·w of every row, float64 (n,)."""
        scores = np.empty(len(rows.indptr) - 1)
        entry_scores(*rows, self._weights, self._intercept, scores)
        return scores


class EntrySums:
    """``Σ r φ``, and with ``squares`` ``Σ c φ²``, over pieces of sparse rows.

    They are added up in place: there may be as many features as entries in a piece.
    """

    def __init__(self, features: FeatureMap, *, squares: bool = False) -> None:
        self._features = features
        scaling = features.scaling
        self._shift = None if not squares or scaling is None or not scaling.shift.any() else scaling.shift
        # of each feature side by side: Σ r x, Σ c x², and Σ c x if features are shifted
        self._sums = np.zeros((features.d, 3 - (self._shift is None)) if squares else features.d)
        self._totals = [0.0, 0.0]  # Σ r and Σ c

    def add(self, rows: EntryRows, r: Array, c: Array | None = None) -> None:
        """Add rows, each times its ``r`` (n,), and their squares times ``c`` (n,)."""
        self._totals[0] += float(r.sum(dtype=np.float64))
        r = r.astype(np.float64, copy=False)
        if c is None:
            add_entries(*rows, r, self._sums)
            return
        self._totals[1] += float(c.sum(dtype=np.float64))
        _add_with_squares(*rows, r, c.astype(np.float64, copy=False), self._sums)

    def result(self) -> Array:
        """Return ``Σ r φ``, float64 (k,)."""
        sums = self._sums if self._sums.ndim == 1 else self._sums[:, 0]
        return self._features.completed(sums, self._totals[0], unscaled=True)

    def squares(self) -> Array:
        """Return ``Σ c φ²``, float64 (k,)."""
        features = self._features
        total = self._totals[1]
        out = np.empty(features.k)
        out[: features.d] = self._sums[:, 1]
        if self._shift is not None:
            out[: features.d] += self._shift**2 * total - 2.0 * self._shift * self._sums[:, 2]
            np.maximum(out[: features.d], 0.0, out=out[: features.d])
        if features.scaling is not None:
            out[: features.d] *= features.scaling.factor**2
        if features.bias > 0:
            out[-1] = features.bias * total
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
def _add_with_squares(
    data: Array, indices: Array, indptr: Array, factors: Array, curvatures: Array, out: Array
) -> None:  # fmt: skip
    """Add ``Σ factors_i x_i``, ``Σ curvatures_i x_i²`` and perhaps ``Σ curvatures_i x_i`` to columns of ``out``."""
    shifted = out.shape[1] > 2
    for i in range(factors.size):
        r = factors[i]
        c = curvatures[i]
        if r != 0.0 or c != 0.0:
            for t in range(indptr[i], indptr[i + 1]):
                value = np.float64(data[t])
                sums = out[indices[t]]
                sums[0] += r * value
                sums[1] += c * value * value
                if shifted:
                    sums[2] += c * value
