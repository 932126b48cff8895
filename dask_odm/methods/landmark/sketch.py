"""Sketched Hessian of the Nyström problem: summed over a priority sample of the active rows, and factored.

It is in float64 for rows of any dtype, since sums in float32 would drown the small eigenvalues of G. Half of the time
of a fit is spent here, at the speed of matrix products. The memory of one sketch is reused by the next, because fresh
pages would take as long again.

Even float64 drowns these eigenvalues if landmarks are nearly dependent and λ is large. This shows in a Cholesky factor
whose least pivot is no more than rounding. The sketch is then made in the coordinates ``β = Lᵀα`` of an orthonormal
basis, with ``G = LLᵀ``. There it is the identity plus a sum, so that nothing that counts is small. This takes as long
again, so it is done only if needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, blas, lapack

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.linalg.csr_rows import stacked_rows
from dask_odm.linalg.rows import uniforms_of
from dask_odm.linalg.threads import run_threads
from dask_odm.typing import Array

PHASE = "preconditioner"
SKETCH = 3  # fewest rows of the sample per landmark, and those that are summed at a time
STEP = 256  # rows of the sample, or columns of the matrix, that a thread takes at a time


@dataclass(frozen=True, eq=False)
class PrioritySample:
    """A weighted sample of rows that several workers draw together.

    Every row has a uniform number, determined by a seed and the row's number. The rows of largest priority, weight over
    uniform number, are kept: ``rows`` (m, d), m ≤ size + 1, one more than the sample's size, since the last sets the
    threshold. Samples of parts of the rows merge into the sample of all, whoever drew them. With the weights of
    `weighted`, sums over the sample are unbiased.
    Source: Duffield, Lund, Thorup, *Priority sampling for estimation of arbitrary subset sums*, J. ACM 2007.

    ``priority`` (m,) descends; ``y``, ``weight`` and ``numbers`` (m,) are the rows' targets, weights and numbers.
    """

    size: int
    rows: Any  # (m, d), an array or `CSRRows`
    y: Array
    weight: Array
    priority: Array
    numbers: Array

    @classmethod
    def draw(
        cls, weight: Array, y: Array, first: int, read: Callable[[Array], Any], size: int, seed: int
    ) -> PrioritySample:
        """Draw rows, numbered from ``first``, by ``weight`` (n,); ``read`` returns rows at ascending positions."""
        at = np.flatnonzero(weight)
        priority = weight[at]
        step = 1 << 14  # all at once take several times the memory
        for start in range(0, len(at), step):
            some = slice(start, start + step)
            priority[some] /= uniforms_of(first + at[some], seed) + 2.0**-54  # never by zero
        if len(at) > size + 1:
            # keep everything at the threshold and above, so that ties are decided by row number
            threshold = np.partition(priority, len(at) - size - 1)[len(at) - size - 1]
            best = np.flatnonzero(priority >= threshold)
            at = at[best]
            priority = priority[best]
        order = np.argsort(-priority, kind="stable")[: size + 1]
        chosen = at[order]
        ascending = np.sort(chosen)
        rows = read(ascending)[np.searchsorted(ascending, chosen)]
        return cls(size, rows, y[chosen], weight[chosen], priority[order], first + chosen)

    def __add__(self, other: PrioritySample) -> PrioritySample:
        priority = np.concatenate([self.priority, other.priority])
        best = np.argsort(-priority, kind="stable")[: self.size + 1]
        rows = stacked_rows([self.rows, other.rows])[best]
        y, weight, numbers = (
            np.concatenate([getattr(self, name), getattr(other, name)])[best] for name in ("y", "weight", "numbers")
        )
        return PrioritySample(self.size, rows, y, weight, priority[best], numbers)

    def weighted(self) -> tuple[Any, Array, Array]:
        """Return rows (m, d), m ≤ size, targets (m,), and weights (m,) by which sums estimate those over all rows."""
        if len(self.rows) <= self.size:
            return self.rows, self.y, self.weight
        return self.rows[:-1], self.y[:-1], np.maximum(self.weight[:-1], self.priority[-1])


class SketchedHessian:
    """``G + Σ w k kᵀ`` over sampled rows with kernel values k at the landmarks, as a preconditioner.

    ``whitened`` says whether it is that of the coordinates ``Lᵀα``: ``1 + Σ w L⁻¹k (L⁻¹k)ᵀ``. ``threads`` never change
    it.
    """

    def __init__(self, landmarks: Landmarks, threads: int) -> None:
        r = len(landmarks)
        self._landmarks = landmarks
        self.threads = threads
        self._values, self._factor = np.empty((SKETCH * r, r)), np.empty((r, r))
        self.whitened = False

    def make(self, sample: PrioritySample) -> None:
        """Sum over ``sample``, and factor; raise LinAlgError if that fails."""
        rows, _, weight = sample.weighted()
        self.whitened = not self._factored(rows, weight, self._landmarks.gram)
        if self.whitened:
            self._landmarks.prepare()  # before threads ask for what it computes
            if not self._factored(rows, weight, None):
                raise LinAlgError("the sketched Hessian is not finite")

    def values(self, rows: Any, out: Array | None = None) -> Array:
        """Return the kernel values of ``rows`` in float64."""
        kernel = self._landmarks.kernel
        return kernel.tile_packed(kernel.pack_left(rows.astype(np.float64)), self._landmarks.packed, out)

    def _factored(self, rows: Any, weight: Array, gram: Array | None) -> bool:
        """Factor ``gram``, or the identity, plus the sum over ``rows``; return whether it kept any digits."""
        r = len(self._landmarks)
        self._factor[:] = 0.0 if gram is None else gram
        for first in range(0, len(rows), len(self._values)):
            self._add(rows[first : first + len(self._values)], weight[first:], whiten=gram is None)
        diagonal = self._factor.ravel()[:: r + 1]
        if gram is None:
            diagonal += 1.0
        floor = np.finfo(float).eps * float(diagonal.sum())  # a smaller pivot has no digits left
        _, info = lapack.dpotrf(self._factor.T, lower=1, clean=0, overwrite_a=1)
        return bool(info == 0 and (gram is None or (diagonal**2).min() > floor))

    def _add(self, rows: Any, weight: Array, *, whiten: bool) -> None:
        """Add the sum over ``rows``, of kernel values or of those ``whiten`` makes of them, to the factor's matrix."""
        r = len(self._landmarks)
        values = self._values[: len(rows)]

        def fill(start: int) -> None:
            some = slice(start, min(len(rows), start + STEP))
            self.values(rows[some], values[some])
            values[some] *= np.sqrt(weight[some])[:, None]
            if whiten:
                self._landmarks.whiten(values[some])  # √w kᵀ becomes √w (L⁻¹ k)ᵀ

        def square(start: int) -> None:
            # right of the diagonal, which is below it in Fortran order
            stop = min(r, start + STEP)
            self._factor[start:stop, start:] += values[:, start:stop].T @ values[:, start:]

        run_threads(fill, range(0, len(rows), STEP), self.threads, PHASE)
        run_threads(square, range(0, r, STEP), self.threads, PHASE)

    def solve(self, b: Array) -> Array:
        """Return its inverse times ``b`` (r,)."""
        return solve_factored(self._factor.T, b)


def solve_factored(factor: Array, b: Array) -> Array:
    """Return ``(L Lᵀ)⁻¹ b`` of a lower factor, in a third of the time that LAPACK takes for one right side."""
    return np.asarray(blas.dtrsv(factor, blas.dtrsv(factor, b, lower=1), lower=1, trans=1, overwrite_x=1))
