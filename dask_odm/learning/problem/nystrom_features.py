"""Nyström features: coordinates of rows in the span of landmarks, which make a kernel problem a linear one.

With G = L Lᵀ the landmarks' Gram matrix, ``φ(x) = L⁻¹ k(x)`` is the projection of a row, as the kernel sees it, on the
landmarks' span: inner products of φ are those of the projections. A weight vector w of φ is the function ``Σ_j a_j
κ(z_j, ·)`` with a = L⁻ᵀ w.

The compiled loops read every row of a tile of kernel values at landmarks (n, r) from memory once. Tiles are float32 or
float64 and sums float64: sums in float32 keep the gap above about 3e-3. A row is short enough to stay in the
first-level cache until it is read again. Taking several rows at once was not faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.sparse import issparse

from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.problem.band import band_curvature, band_slope, band_square
from dask_odm.learning.problem.features import Affine, FeatureMap
from dask_odm.learning.problem.linear import block_rows
from dask_odm.linalg.csr_rows import CSRRows, stacked_rows
from dask_odm.linalg.jit import compiled
from dask_odm.linalg.rows import Rows
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array

SAMPLED = 16  # runs of rows whose features are computed in float64, too, and rows of a run
MOST_ERROR = 2e-4  # of features, as a share of the longest; they are computed in float64 if float32 has a larger one


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelFeatures(FeatureMap):
    """Map from raw rows to their Nyström features, computed whenever they are asked for; see `FeatureMap`.

    ``d`` is the number of landmarks, and ``scaling`` is None. ``row_scaling`` takes raw rows to those that the kernel
    sees.
    """

    landmarks: Landmarks
    row_scaling: Affine

    @classmethod
    def of(cls, landmarks: Landmarks, row_scaling: Affine) -> KernelFeatures:
        return cls(len(landmarks), 0.0, landmarks=landmarks, row_scaling=row_scaling)

    def block(self, X: Any, out: Any = None) -> Array:
        """Return Nyström features of raw rows (n, d'), dense or CSR, float64 (n, d); ``out`` has not their shape."""
        scaling: Any = self.row_scaling
        if isinstance(self.landmarks.rows, CSRRows):  # whose tiles have sparse rows on both sides
            return self.landmarks.features(scaling.of_csr(X))
        return self.landmarks.features(scaling(X.toarray() if issparse(X) else X))

    def unscaled(self, X: Any) -> Array:
        """Return the same as `block`: Nyström features are not scaled."""
        return self.block(X)


def span_bytes(r: int, d: int) -> int:
    """Return the bytes that a task holds to compute features of ``r`` landmarks in ``d`` dimensions."""
    return 8 * (4 * r * r + 2 * r * d + 4 * (r + d) * max(64, r // 2))


def coordinates(landmarks: Landmarks, rows: Rows, dtype: Any, threads: int, precision: Any = np.float64) -> Array:
    """Return Nyström features (n, r) of scaled ``rows`` in ``dtype``, computed in ``precision``."""
    found = np.empty((rows.n, len(landmarks)), dtype)
    step = block_rows(len(landmarks), found)

    def fill(start: int) -> None:
        stop = min(rows.n, start + step)
        found[start:stop] = landmarks.features(rows.read(start, stop), precision)

    with single_threaded_blas:
        landmarks.prepare(precision)
        run_threads(fill, range(0, rows.n, step), threads, "features")
    return found


def rounding(landmarks: Landmarks, rows: Rows, dtype: Any) -> list[tuple[Any, Array]]:
    """Return the precisions in which to compute features that are kept in ``dtype``, and the errors of some (m, r).

    The first may have enough digits: that in float32 takes half the time, and is left out if its errors are large, as
    if landmarks are nearly dependent. Errors are of up to 300 rows; in float64 there are none.
    """
    if dtype != np.float32:
        return [(np.float64, np.empty((0, len(landmarks))))]
    starts = range(0, rows.n, max(SAMPLED, rows.n // SAMPLED))
    with single_threaded_blas:
        some = [rows.read(start, min(rows.n, start + SAMPLED)) for start in starts]
        X = stacked_rows(some)
        exact, quick = (landmarks.features(X, each) for each in (np.float64, np.float32))
    errors = quick - exact
    few = np.square(errors).sum(axis=1).max() <= MOST_ERROR**2 * np.square(exact).sum(axis=1).max()
    return [(np.float32, errors)] * bool(few) + [(np.float64, exact.astype(np.float32) - exact)]


def landmark_weights(landmarks: Landmarks, w: Array) -> Array:
    """Return coefficients a (r,) of the landmarks' kernel functions for weights w (r,) of the Nyström features."""
    return np.asarray(solve_triangular(landmarks.factor, w, trans="T", lower=True, check_finite=False))


@compiled
def span_sums(
    K: Array, codes: Array, weight: Array, a: Array, terms: Array, dual_image: Array, curvature: Array, loss: float
) -> float:
    """Return ``loss`` plus that of scores ``K a``; add ``Kᵀ (y s)`` to ``dual_image``, set ``curvature`` (n,).

    An empty ``weight`` means 1 for all. A row with a negative code is dropped. ``terms`` are `BandLoss.terms`.
    """
    low = terms[2]
    high = terms[3]
    upsilon = terms[4]
    for i in range(K.shape[0]):
        row = K[i]
        score = 0.0
        for j in range(row.size):
            score += row[j] * a[j]
        y = -1.0
        c = terms[0]
        if codes[i] == 1:
            y = 1.0
            c = terms[1]
        if weight.size:
            c *= weight[i]
        if codes[i] < 0:
            c = 0.0
        m = y * score
        loss += 0.5 * c * band_square(m, low, high, upsilon)
        s = c * band_slope(m, low, high, upsilon)
        curvature[i] = band_curvature(m, c, low, high, upsilon)
        if s != 0.0:
            s *= y
            for j in range(row.size):
                dual_image[j] += s * row[j]
    return loss


@compiled
def span_products(K: Array, curvatures: Array, P: Array, out: Array) -> None:
    """Add ``Kᵀ (c ∘ K p)`` to the rows of ``out`` (k, r), for each p of ``P`` (k, r) with its curvatures c of (n, k).

    Entries with c = 0 are skipped.
    """
    for i in range(K.shape[0]):
        row = K[i]
        for k in range(P.shape[0]):
            if curvatures[i, k] != 0.0:
                p = P[k]
                image = out[k]
                total = 0.0
                for j in range(row.size):
                    total += row[j] * p[j]
                total *= curvatures[i, k]
                for j in range(row.size):
                    image[j] += total * row[j]


@compiled
def span_images(K: Array, dual: Array, out: Array, index: Array | None = None) -> None:
    """Add ``uᵀ K[index]`` to the rows of ``out`` (k, r), for each column u of ``dual`` (n, k); zeros are skipped."""
    for i in range(dual.shape[0]):
        row = K[i] if index is None else K[index[i]]
        for k in range(dual.shape[1]):
            u = dual[i, k]
            if u != 0.0:
                image = out[k]
                for j in range(row.size):
                    image[j] += u * row[j]


@compiled
def span_scores(K: Array, a: Array, out: Array, index: Array | None = None) -> None:
    """Write ``K[index] a`` to ``out``; all rows without an index."""
    for i in range(out.size):
        row = K[i] if index is None else K[index[i]]
        total = 0.0
        for j in range(row.size):
            total += row[j] * a[j]
        out[i] = total
