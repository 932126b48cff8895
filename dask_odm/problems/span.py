"""The ODM over the span of landmarks: functions ``f = Σ_j α_j κ(z_j, ·)`` and what is asked of all rows about them.

In coefficients α of r landmarks, with G their Gram matrix and K the rows' kernel values (n, r)::

    P(α) = ½ αᵀGα + Σ_i loss_i(y_i (Kα)_i),   ∇P = Gα − Kᵀ(y s),   ∇²P = G + Kᵀ diag(c) K

P is exact for the kernel itself, since f lies in its space. The gap of the problem restricted to the span is
``½ ∇Pᵀ G⁻¹ ∇P``: its stopping rule, not a certificate for the kernel.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dask_odm.kernels.base import Kernel
from dask_odm.kernels.blocks import Rows
from dask_odm.kernels.jit import compiled
from dask_odm.kernels.threads import run_threads

Array = NDArray[Any]
BLOCK_ROWS = 1024
GROUPS = 8
SQUARE_GROUPS = 4


class Span(Protocol):
    """Kernel values of n rows at r landmarks, as an operator; every method but ``squares`` is one pass."""

    @property
    def n(self) -> int: ...
    @property
    def r(self) -> int: ...
    def scores(self, a: Array) -> Array:
        """``K a``, float64 (n,)."""
        ...

    def adjoint(self, v: Array) -> Array:
        """``Kᵀ v``, float64 (r,); rows where v is 0 are skipped."""
        ...

    def product(self, c: Array, a: Array) -> Array:
        """``Kᵀ (c ∘ K a)``, float64 (r,); rows where c is 0 are skipped."""
        ...

    def squares(self, index: Array, weight: Array) -> Array:
        """``Σ weight_i k_i k_iᵀ`` over rows ``index`` of K, float64 (r, r)."""
        ...


@compiled
def _scores(K: Array, a: Array, out: Array) -> None:
    for i in range(K.shape[0]):
        row = K[i]
        total = 0.0
        for j in range(row.size):
            total += row[j] * a[j]
        out[i] = total


@compiled
def _adjoint(K: Array, v: Array, out: Array) -> None:
    for i in range(K.shape[0]):
        x = v[i]
        if x != 0.0:
            row = K[i]
            for j in range(row.size):
                out[j] += x * row[j]


@compiled
def _product(K: Array, c: Array, a: Array, out: Array) -> None:
    for i in range(K.shape[0]):
        if c[i] != 0.0:
            row = K[i]
            total = 0.0
            for j in range(row.size):
                total += row[j] * a[j]
            total *= c[i]
            for j in range(row.size):
                out[j] += total * row[j]


class RowSpan:
    """A `Span` over rows in memory or on disk: kept where its values fit ``budget`` bytes, else recomputed.

    Values are in the rows' dtype, sums in float64. Neither budget nor threads change a bit.
    """

    def __init__(self, kernel: Kernel, rows: Rows, landmarks: Array, budget: int, threads: int = 1) -> None:
        self._kernel, self._rows, self._threads = kernel, rows, threads
        self._right = kernel.pack_right(landmarks)
        self.r = len(landmarks)
        bounds = [rows.n * g // GROUPS for g in range(GROUPS + 1)]
        self._groups = list(pairwise(bounds))
        self._kept: Array | None = None
        if rows.n * self.r * rows.dtype.itemsize <= budget:
            self._kept = np.empty((rows.n, self.r), rows.dtype)
            run_threads(self._fill, self._groups, threads)

    @property
    def n(self) -> int:
        return self._rows.n

    @property
    def keeps(self) -> bool:
        """Whether the values are kept in memory."""
        return self._kept is not None

    def _fill(self, span: tuple[int, int]) -> None:
        assert self._kept is not None
        for start in range(span[0], span[1], BLOCK_ROWS):
            stop = min(span[1], start + BLOCK_ROWS)
            self._tile(start, stop, self._kept[start:stop])

    def _tile(self, start: int, stop: int, out: Array | None = None) -> Array:
        return self._kernel.tile_packed(self._kernel.pack_left(self._rows.read(start, stop)), self._right, out)

    def _blocks(self, span: tuple[int, int]) -> Any:
        if self._kept is not None:
            yield span[0], span[1], self._kept[span[0] : span[1]]
            return
        out = np.empty((BLOCK_ROWS, self.r), self._rows.dtype)
        for start in range(span[0], span[1], BLOCK_ROWS):
            stop = min(span[1], start + BLOCK_ROWS)
            yield start, stop, self._tile(start, stop, out[: stop - start])

    def scores(self, a: Array) -> Array:
        out = np.empty(self.n)

        def run(span: tuple[int, int]) -> None:
            for start, stop, K in self._blocks(span):
                _scores(K, a, out[start:stop])

        run_threads(run, self._groups, self._threads)
        return out

    def adjoint(self, v: Array) -> Array:
        def run(span: tuple[int, int]) -> Array:
            out = np.zeros(self.r)
            for start, stop, K in self._blocks(span):
                _adjoint(K, v[start:stop], out)
            return out

        return _added(run_threads(run, self._groups, self._threads))

    def product(self, c: Array, a: Array) -> Array:
        def run(span: tuple[int, int]) -> Array:
            out = np.zeros(self.r)
            for start, stop, K in self._blocks(span):
                _product(K, c[start:stop], a, out)
            return out

        return _added(run_threads(run, self._groups, self._threads))

    def squares(self, index: Array, weight: Array) -> Array:
        def run(part: tuple[Array, Array]) -> Array:
            # in float32, rounding would drown the small eigenvalues of the landmarks' Gram matrix
            values = self._take(part[0]).astype(np.float64)
            values *= np.sqrt(part[1])[:, None]
            return values.T @ values

        parts = zip(np.array_split(index, SQUARE_GROUPS), np.array_split(weight, SQUARE_GROUPS), strict=True)
        return _added(run_threads(run, parts, self._threads))

    def _take(self, index: Array) -> Array:
        """Kernel values of ascending rows, computed anew even where they are kept: in another shape bits may differ."""
        if not len(index):
            return np.empty((0, self.r), self._rows.dtype)
        runs = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
        X = np.concatenate([self._rows.read(int(run[0]), int(run[-1]) + 1) for run in runs])
        return self._kernel.tile_packed(self._kernel.pack_left(X), self._right)


def _added(parts: list[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total
