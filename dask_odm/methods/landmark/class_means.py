"""Preconditioners of many machines over shared landmarks, from means over the classes.

In the coordinates of an orthonormal basis of the span, the Hessian of a machine is ``1 + Σ_i c_i φ_i φ_iᵀ`` with the
features φ = L⁻¹k of the rows and their curvatures c. Its preconditioner has ``C_k A_k`` in the place of the rows of
class k: A_k is the mean of φφᵀ over a sample of the class, and C_k the sum of c over the class. The means serve all
machines, so that each costs no more than a Cholesky factor. Eight overlapping classes took an eighth of the products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import get_lapack_funcs

from dask_odm.kernels.base import BLOCK
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.linalg.systems import Triangle, times_transpose
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.methods.landmark.sketch import PrioritySample
from dask_odm.typing import Array

CHANGE = 3.0  # by which a class's curvature may change until another preconditioner is worth its factor


@dataclass(frozen=True)
class ClassSamples:
    """Rows drawn of every class by their weights, by the class's code. Samples of parts of the rows add up."""

    of: dict[int, PrioritySample]

    def __add__(self, other: ClassSamples) -> ClassSamples:
        both = {code: self.of[code] + other.of[code] for code in self.of.keys() & other.of.keys()}
        return ClassSamples({**self.of, **other.of, **both})


@dataclass(frozen=True, eq=False)
class ClassMeans:
    """The means ``A`` (classes, r, r) of φφᵀ over the classes, in the rows' dtype; upper halves are undefined."""

    A: Array
    threads: int

    @classmethod
    def of(cls, samples: ClassSamples, classes: int, landmarks: Landmarks, inverse: Array, threads: int) -> ClassMeans:
        """Compute the means over ``samples`` for ``landmarks`` whose factor has the ``inverse`` (r, r)."""
        kernel = landmarks.kernel
        right = kernel.pack_right(landmarks.rows)
        inverse = inverse.astype(landmarks.rows.dtype, copy=False)
        r = len(inverse)
        means = np.zeros((classes, r, r), inverse.dtype)
        for code, sample in samples.of.items():
            rows, _, weight = sample.weighted()
            root = np.sqrt(weight / weight.sum()).astype(inverse.dtype)
            features = np.empty((len(rows), r), inverse.dtype)

            def fill(start: int, rows: Array = rows, root: Array = root, features: Array = features) -> None:
                some = slice(start, start + BLOCK)
                values = kernel.tile_packed(kernel.pack_left(rows[some]), right)
                features[some] = times_transpose(values, inverse) * root[some, None]

            def square(start: int, mean: Array = means[code], features: Array = features) -> None:
                some = slice(start, start + 128)
                mean[some, : start + 128] = features[:, some].T @ features[:, : start + 128]

            with single_threaded_blas:
                run_threads(fill, range(0, len(rows), BLOCK), threads)
                run_threads(square, range(0, r, 128), threads)
        return cls(means, threads)

    def factors(self, curvatures: Array) -> list[Triangle | None]:
        """Return factors of ``1 + Σ_k C_k A_k`` for machines with curvatures C (machines, classes).

        A machine has None if its matrix is not positive definite by rounding.
        """
        dtype = self.A.dtype
        (potrf,) = get_lapack_funcs(("potrf",), dtype=dtype)

        @np.errstate(over="ignore", invalid="ignore")  # set per thread; a factor that is not finite is found
        def factor(C: Array) -> Triangle | None:
            matrix = np.eye(self.A.shape[1], dtype=dtype)
            for k in np.flatnonzero(C):
                matrix += dtype.type(C[k]) * self.A[k]
            # the transpose is in Fortran's order, so LAPACK factors it in place
            _, info = potrf(matrix.T, lower=0, clean=0, overwrite_a=1)
            return None if info or not np.isfinite(matrix.diagonal()).all() else Triangle.of(matrix)

        return run_threads(factor, curvatures, self.threads)


def are_stale(curvatures: Array, made: Array) -> Array:
    """Return which machines need another preconditioner than one ``made`` with other curvatures (machines, classes).

    Curvatures that add little to those of a machine do not count.
    """
    little = 1e-3 * curvatures.sum(axis=1, keepdims=True)
    now = np.maximum(curvatures, little)
    then = np.maximum(made, little)
    return np.asarray(((now > CHANGE * then) | (then > CHANGE * now)).any(axis=1) | ~made.any(axis=1))
