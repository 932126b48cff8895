"""The Hessian of the landmark problem, sketched: summed over a sample of the active rows, and factored.

In float64 whatever the rows' type: sums in float32 would drown the small eigenvalues of G. Half of the time of a fit
goes here, at the speed of matrix products, so the memory of one sketch serves the next: fresh pages would take as
long again.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas, lapack

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.threads import run_threads
from dask_odm.problems.sample import PrioritySample
from dask_odm.solvers.dense import mended
from dask_odm.typing import Array

SKETCH = 3  # rows of the sample for each landmark
ROWS = 256  # of the sample, whose kernel values a thread computes at a time
COLUMNS = 256  # of the matrix, that a thread sums up at a time


class SketchedHessian:
    """``G + Σ w k kᵀ`` over sampled rows with kernel values k at the landmarks, as a preconditioner.

    Parameters
    ----------
    landmarks : Landmarks
    threads : int
        No bit depends on it.
    """

    def __init__(self, landmarks: Landmarks, threads: int) -> None:
        r = len(landmarks)
        self._landmarks, self._threads = landmarks, threads
        self._values, self._factor = np.empty((SKETCH * r, r)), np.empty((r, r))

    def make(self, sample: PrioritySample) -> None:
        """Sum over ``sample``, of up to ``SKETCH`` rows a landmark, and factor; LinAlgError where that cannot be."""
        rows, _, weight = sample.weighted()
        kernel, r = self._landmarks.kernel, len(self._landmarks)
        values, right = self._values[: len(rows)], kernel.pack_right(self._landmarks.rows.astype(np.float64))

        def fill(start: int) -> None:
            some = slice(start, start + ROWS)
            kernel.tile_packed(kernel.pack_left(rows[some].astype(np.float64)), right, values[some])
            values[some] *= np.sqrt(weight[some])[:, None]

        def square(start: int) -> None:
            # right of the diagonal, which is below it as Fortran has it
            stop = min(r, start + COLUMNS)
            self._factor[start:stop, start:] = values[:, start:stop].T @ values[:, start:]
            self._factor[start:stop, start:] += self._landmarks.gram[start:stop, start:]

        run_threads(fill, range(0, len(rows), ROWS), self._threads)
        trace = 0.0

        def factored(ridge: float) -> bool | None:
            nonlocal trace
            run_threads(square, range(0, r, COLUMNS), self._threads)
            trace = float(self._factor.trace())
            self._factor.flat[:: r + 1] += ridge
            _, info = lapack.dpotrf(self._factor.T, lower=1, clean=0, overwrite_a=1)
            return True if info == 0 else None

        mended(factored, lambda: 1e-14 * trace)

    def solve(self, b: Array) -> Array:
        """Its inverse times ``b`` (r,)."""
        return solve_factored(self._factor.T, b)


def solve_factored(factor: Array, b: Array) -> Array:
    """``(L Lᵀ)⁻¹ b`` of a lower factor, in a third of the time that LAPACK takes for one right side."""
    return np.asarray(blas.dtrsv(factor, blas.dtrsv(factor, b, lower=1), lower=1, trans=1, overwrite_x=1))


def times_symmetric(A: Array, v: Array) -> Array:
    """``A v`` from half of A: that it is read from memory is what takes the time."""
    return np.asarray(blas.dsymv(1.0, A.T, v))
