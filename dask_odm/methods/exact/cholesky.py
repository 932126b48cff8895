"""Cholesky factor of ``1 + √c K √c`` over active rows, which every direct solution of a Newton system goes through.

Scaling by the root of the stiffness c on both sides keeps the matrix well-conditioned for any λ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, lapack

from dask_odm.linalg.dense import factored, mended
from dask_odm.linalg.jit import compiled
from dask_odm.linalg.threads import run_threads
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class ActiveFactor:
    """The factor, in the lower half of a C-contiguous array (m, m), and the ridge that made the matrix definite."""

    lower: Array
    ridge: float

    @classmethod
    def of(cls, scaled: Callable[[], Array], threads: int = 1, unit: float | None = None) -> ActiveFactor:
        """Factor ``1 + S``; ``scaled()`` returns the lower half of S = √c K √c in memory that may be overwritten.

        Rounding, by ``unit`` or that of the matrix's dtype, may make S indefinite; then a larger diagonal mends it.
        Raises LinAlgError if S is not finite.
        """
        first_ridge = 0.0

        def attempt(ridge: float) -> ActiveFactor | None:
            nonlocal first_ridge
            system = scaled()
            largest = float(np.abs(system.diagonal()).max())
            if not np.isfinite(largest):
                raise LinAlgError("the matrix is not finite")
            first_ridge = max(1.0, largest) * (unit or float(np.finfo(system.dtype).eps) * len(system))
            system.flat[:: len(system) + 1] += 1.0 + ridge
            return cls(system, ridge) if factored(system, threads) else None

        return mended(attempt, lambda: first_ridge)

    def solve(self, b: Array) -> Array:
        """Return ``(1 + S)⁻¹ b`` (m,)."""
        potrs = lapack.spotrs if self.lower.dtype == np.float32 else lapack.dpotrs
        return np.asarray(potrs(self.lower.T, b, lower=0)[0], dtype=np.float64)


def gather_active(K: Array, active: Array, root: Array, threads: int) -> Array:
    """Return the lower half of ``√c K √c`` (m, m) over ``active`` rows of a matrix in memory; ``root`` (m,) is √c."""
    out = np.empty((len(active), len(active)), K.dtype)
    scale = root.astype(K.dtype)
    starts = range(0, len(active), 512)[::-1]  # the longest rows first

    def fill(start: int) -> None:
        _gather(K, active, scale, out, start, min(start + 512, len(active)))

    run_threads(fill, starts, threads if len(active) > 1024 else 1)
    return out


@compiled
def _gather(K: Array, active: Array, root: Array, out: Array, start: int, stop: int) -> None:
    for i in range(start, stop):
        row = K[active[i]]
        scale = root[i]
        into = out[i]
        for j in range(i + 1):
            into[j] = scale * root[j] * row[active[j]]
