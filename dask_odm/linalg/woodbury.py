"""The Nyström preconditioner of Newton's systems over rows: ``(L_S L_Sᵀ + D_S)⁻¹`` by the Woodbury identity.

``L Lᵀ ≈ K`` comes from r landmark rows, S are the active rows, and D has ρ by side on its diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from dask_odm.linalg.jit import compiled
from dask_odm.linalg.threads import run_threads
from dask_odm.typing import Array


class Woodbury:
    """The operator ``(I + √c L Lᵀ √c)⁻¹`` on any active rows, for float32 features L (n, r) with ``L Lᵀ ≈ K``.

    It computes in float64: for a stiffness c of 10⁷, more digits cancel than float32 has. When c changes, the inner
    matrix ``I + Lᵀ diag(c) L`` is updated by the rows whose c changed. Sums over ``groups`` of rows are added in order.
    """

    def __init__(self, features: Array, threads: int, groups: int = 8) -> None:
        n, r = features.shape
        self.features = features
        self._threads = threads
        self._groups = groups
        self.inner, self.stiffness = np.eye(r), np.zeros(n)

    def go_on(self, inner: Array, stiffness: Array) -> None:
        """Take over the state of another operator: ``inner`` (r, r) and ``stiffness`` (n,)."""
        self.inner = inner
        self.stiffness = stiffness

    def follow(self, stiffness: Array) -> None:
        """Update the inner matrix to the c of ``stiffness`` (n,)."""
        change = stiffness - self.stiffness
        moved = np.flatnonzero(change)
        if 2 * len(moved) > np.count_nonzero(stiffness):
            self.inner, change, moved = np.eye(len(self.inner)), stiffness, np.flatnonzero(stiffness)

        def group(rows: Array) -> Array:
            total = np.zeros_like(self.inner)
            for start in range(0, len(rows), 1024):
                some = rows[start : start + 1024]
                values = self.features[some].astype(np.float64)
                total += (values * change[some, None]).T @ values
            return total

        for part in run_threads(group, np.array_split(moved, self._groups // 2), self._threads):
            self.inner = self.inner + part
        self.stiffness = stiffness

    def on(self, active: Array) -> Callable[[Array], Array]:
        """Return the preconditioner on the rows ``active`` as a function of residuals there."""
        factor, root = cho_factor(self.inner), np.sqrt(self.stiffness[active])
        bounds = [len(active) * g // self._groups for g in range(self._groups + 1)]
        spans = [slice(a, b) for a, b in pairwise(bounds)]

        def apply(v: Array) -> Array:
            w = root * v

            def gather(span: slice) -> Array:
                out = np.zeros(len(self.inner))
                gather_features(self.features, active[span], w[span], out)
                return out

            inside = cho_solve(factor, sum(run_threads(gather, spans, self._threads)))
            run_threads(lambda s: spread_features(self.features, active[s], inside, w[s]), spans, self._threads)
            return v - root * w

        return apply


@compiled
def gather_features(features: Array, index: Array, v: Array, out: Array) -> None:
    """Compute ``out += features[index].T @ v`` in float64."""
    for i in range(index.size):
        row = features[index[i]]
        x = v[i]
        for j in range(row.size):
            out[j] += x * row[j]


@compiled
def spread_features(features: Array, index: Array, c: Array, out: Array) -> None:
    """Compute ``out <- features[index] @ c`` in float64."""
    for i in range(index.size):
        row = features[index[i]]
        total = 0.0
        for j in range(row.size):
            total += c[j] * row[j]
        out[i] = total
