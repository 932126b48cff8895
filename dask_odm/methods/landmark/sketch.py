"""The Hessian of the landmark problem, sketched: summed over a sample of the active rows, and factored.

In float64 whatever the rows' type: sums in float32 would drown the small eigenvalues of G. Half of the time of a fit
goes here, at the speed of matrix products, so the memory of one sketch serves the next: fresh pages would take as
long again.

Even float64 drowns them where landmarks are nearly dependent and λ is large. A Cholesky factor whose least pivot is no
more than rounding tells; the sketch is then made in the coordinates of an orthonormal basis of the span, ``β = Lᵀα``
with ``G = LLᵀ``, where it is the identity and a sum: nothing that counts is small there. That takes as long again, so
only where it must.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, blas, lapack

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.linalg.threads import run_threads
from dask_odm.methods.landmark.priority_sampling import PrioritySample
from dask_odm.typing import Array

PHASE = "preconditioner"
SKETCH = 3  # rows of the sample for each landmark
ROWS = 256  # of the sample, whose kernel values a thread computes at a time
COLUMNS = 256  # of the matrix, that a thread sums up at a time
DROWNED = 1.0  # times the rounding of the trace: a pivot of the factor below it has no digits left


class SketchedHessian:
    """``G + Σ w k kᵀ`` over sampled rows with kernel values k at the landmarks, as a preconditioner.

    Parameters
    ----------
    landmarks : Landmarks
    threads : int
        No bit depends on it.

    Attributes
    ----------
    whitened : bool
        Whether it is that of the coordinates ``Lᵀα``: ``1 + Σ w L⁻¹k (L⁻¹k)ᵀ``.
    """

    def __init__(self, landmarks: Landmarks, threads: int) -> None:
        r = len(landmarks)
        self._landmarks = landmarks
        self.threads = threads
        self._values, self._factor = np.empty((SKETCH * r, r)), np.empty((r, r))
        self.whitened = False

    def make(self, sample: PrioritySample) -> None:
        """Sum over ``sample``, of up to ``SKETCH`` rows a landmark, and factor; LinAlgError where that cannot be."""
        rows, _, weight = sample.weighted()
        values = self._values[: len(rows)]
        self._fill(rows, weight, values)
        self.whitened = not self._factored(values, self._landmarks.gram)
        if self.whitened:
            self._whiten(values)
            if not self._factored(values, None):
                raise LinAlgError("the sketched Hessian is not finite")

    def _fill(self, rows: Array, weight: Array, values: Array) -> None:
        """``√w kᵀ`` of every row."""
        kernel = self._landmarks.kernel
        right = kernel.pack_right(self._landmarks.rows.astype(np.float64))

        def fill(start: int) -> None:
            some = slice(start, start + ROWS)
            kernel.tile_packed(kernel.pack_left(rows[some].astype(np.float64)), right, values[some])
            values[some] *= np.sqrt(weight[some])[:, None]

        run_threads(fill, range(0, len(rows), ROWS), self.threads, PHASE)

    def _whiten(self, values: Array) -> None:
        """``√w (L⁻¹ k)ᵀ`` of every row in place."""
        _ = self._landmarks.panels  # before threads ask for them

        def whiten(start: int) -> None:
            self._landmarks.whiten(values[start : start + ROWS])

        run_threads(whiten, range(0, len(values), ROWS), self.threads, PHASE)

    def _factored(self, values: Array, gram: Array | None) -> bool:
        """Factor ``gram``, or the identity, and the sum of the values' squares; whether digits are left in it."""
        r = len(self._landmarks)

        def square(start: int) -> None:
            # right of the diagonal, which is below it as Fortran has it
            stop = min(r, start + COLUMNS)
            self._factor[start:stop, start:] = values[:, start:stop].T @ values[:, start:]
            if gram is not None:
                self._factor[start:stop, start:] += gram[start:stop, start:]

        run_threads(square, range(0, r, COLUMNS), self.threads, PHASE)
        diagonal = self._factor.ravel()[:: r + 1]
        if gram is None:
            diagonal += 1.0
        floor = np.finfo(float).eps * float(diagonal.sum()) * DROWNED
        _, info = lapack.dpotrf(self._factor.T, lower=1, clean=0, overwrite_a=1)
        return bool(info == 0 and (gram is None or (diagonal**2).min() > floor))

    def solve(self, b: Array) -> Array:
        """Its inverse times ``b`` (r,)."""
        return solve_factored(self._factor.T, b)


def solve_factored(factor: Array, b: Array) -> Array:
    """``(L Lᵀ)⁻¹ b`` of a lower factor, in a third of the time that LAPACK takes for one right side."""
    return np.asarray(blas.dtrsv(factor, blas.dtrsv(factor, b, lower=1), lower=1, trans=1, overwrite_x=1))


def times_symmetric(A: Array, v: Array) -> Array:
    """``A v`` from half of A: that it is read from memory is what takes the time."""
    return np.asarray(blas.dsymv(1.0, A.T, v))
