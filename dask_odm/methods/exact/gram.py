"""Gram matrices in memory: how they are computed, products with them, their factors over active rows, and landmarks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError

from dask_odm.kernels.base import BLOCK, Kernel
from dask_odm.kernels.user_kernels import CallableKernel
from dask_odm.learning.newton import least_row_step
from dask_odm.learning.problem.losses import RowLosses
from dask_odm.learning.problem.products import CHUNK_BYTES, Multiply, SourcedProducts
from dask_odm.linalg.csr_rows import CSRRows, row_width
from dask_odm.linalg.jit import compiled, pointer
from dask_odm.linalg.lapack import lapack
from dask_odm.linalg.rows import READ_BYTES
from dask_odm.linalg.systems import factored, mended
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.typing import Array


def gram_of(kernel: Kernel, X: Any, dtype: np.dtype[Any], threads: int = 1, out: Array | None = None) -> Array:
    """Return the Gram matrix (n, n) of the rows ``X`` (n, d) in ``dtype``, in ``out`` if it is given.

    ``X`` is an array, `CSRRows`, or rows that are read by slices. A kernel of the user is evaluated in float64 if the
    rows are.
    """
    n = len(X)
    out = np.empty((n, n), dtype) if out is None else out
    computed = np.result_type(X.dtype, dtype) if isinstance(kernel, CallableKernel) else dtype
    X = X.astype(computed) if isinstance(X, CSRRows) else X  # blocks of it share its entries
    step = block_rows(kernel, n, row_width(X), computed.itemsize)

    def rows(start: int, size: int) -> Any:
        return X[start : min(start + size, n)].astype(computed, copy=False)

    whole = kernel.pack_right(rows(0, n)) if step == n else None

    def fill(start: int) -> None:
        left = kernel.pack_left(rows(start, min(step, BLOCK)))
        part = slice(start, start + len(left))
        with np.errstate(over="ignore", invalid="ignore"):  # set per thread
            if whole is not None:
                if computed == dtype:
                    kernel.tile_packed(left, whole, out[part])
                else:
                    out[part] = kernel.tile_packed(left, whole)
                return
            for first in range(start, n, step):
                tile = kernel.tile_packed(left, kernel.pack_right(rows(first, step)))
                out[part, first : first + step] = tile
                out[first : first + step, part] = tile.T

    with single_threaded_blas:
        run_threads(fill, range(0, n, min(step, BLOCK)), threads)
    return out


def block_rows(kernel: Kernel, n: int, d: int, itemsize: int) -> int:
    """Return how many of ``n`` rows are packed at a time for a Gram matrix, on the right of a tile."""
    if kernel.packed_bytes(n, d, itemsize) <= CHUNK_BYTES:
        return n
    return min(n, BLOCK, BLOCK if kernel.makes_panels(d) else max(64, READ_BYTES // (d * itemsize)))


def scaled_gram(kernel: Kernel, X: Array, root: Array, threads: int = 1) -> Array:
    """Return ``√c K √c`` of the rows ``X`` (m, d) in float64; ``root`` (m,) is √c."""
    system = gram_of(kernel, X, np.dtype(np.float64), threads)
    system *= root
    system *= root[:, None]
    return system


@dataclass(frozen=True, eq=False)
class HeldProducts(SourcedProducts):
    """`Products` with a matrix ``K`` (n, n) in memory. If it is float32, ``source`` computes float64 entries."""

    K: Array
    threads: int

    def among(self, index: Array, *, double_precision: bool | None = False) -> Multiply:
        if double_precision and self.K.dtype == np.float32:
            return self.source.among(index, double_precision=True)
        return lambda v: self.cross(index, index, v)

    def gathered(self, active: Array, root: Array, memory: Array) -> Array:
        """Return the upper half of ``√c K √c`` (m, m) over ``active`` rows, in flat ``memory``; ``root`` (m,) is √c."""
        return scaled_part(self.K, active, root, memory, self.threads)

    def cross(self, targets: Array, sources: Array, v: Array, *, double_precision: bool = False) -> Array:
        if double_precision and self.K.dtype == np.float32:
            return self.source.cross(targets, sources, v, double_precision=True)
        return _image(self.K, sources, v, self.threads)[targets]


def scaled_part(K: Array, active: Array, root: Array, memory: Array, threads: int = 1) -> Array:
    """Return the upper half of ``√c K √c`` over ``active`` rows of a square K, as `HeldProducts.gathered` does."""
    m = len(active)
    out = memory[: m * m].reshape(m, m)
    scale = root.astype(out.dtype)

    def fill(start: int) -> None:
        _gather(K, active, scale, out, start, min(start + BLOCK, m))

    run_threads(fill, range(0, m, BLOCK), threads if m > 2 * BLOCK else 1)
    return out


def _image(K: Array, index: Array, v: Array, threads: int) -> Array:
    """Return ``K[:, index] @ v``, float64 (n,), of a symmetric K (n, n), from the rows at ``index`` alone."""
    m = len(index)
    rows = np.concatenate([index, np.repeat(index[:1], -m % 4)])
    weights = np.zeros(len(rows), K.dtype)
    weights[:m] = v
    out = np.zeros(len(K))

    def add_up(start: int, columns: int = BLOCK) -> None:
        some = out[start : start + columns]
        _add_up(K, rows, weights, start, np.zeros(len(some), K.dtype), some)

    if len(K) <= 2 * BLOCK:
        add_up(0, len(K))
    else:
        run_threads(add_up, range(0, len(K), BLOCK), threads)
    return out


@compiled
def _add_up(K: Array, index: Array, v: Array, start: int, sums: Array, out: Array) -> None:
    """Add a part of ``v @ K[index]`` to ``out``, for a multiple of four rows.

    Sums over 64 are in the dtype of K, in ``sums``, which are as many zeros.
    """
    n = len(K)
    values = pointer(K)
    total = pointer(sums)
    for begin in range(0, index.size, 64):
        for i in range(begin, min(begin + 64, index.size), 4):
            a = index[i] * n + start
            b = index[i + 1] * n + start
            c = index[i + 2] * n + start
            d = index[i + 3] * n + start
            p = v[i]
            q = v[i + 1]
            r = v[i + 2]
            s = v[i + 3]
            for j in range(sums.size):
                total[j] += p * values[a + j] + q * values[b + j] + r * values[c + j] + s * values[d + j]
        for j in range(sums.size):
            out[j] += total[j]
            total[j] = 0


@dataclass(frozen=True, eq=False)
class ActiveFactor:
    """Cholesky factor of ``1 + √c K √c`` over active rows, through which every direct solution of a Newton system goes.

    Scaling by the root of the stiffness c on both sides keeps the matrix well-conditioned for any λ. The factor is in
    the lower half of a Fortran-contiguous array (m, m); ``ridge`` made the matrix definite.
    """

    lower: Array
    ridge: float

    @classmethod
    def of(cls, scaled: Callable[[], Array], threads: int = 1, unit: float | None = None) -> ActiveFactor:
        """Factor ``1 + S``; ``scaled()`` returns the upper half of S = √c K √c, C-contiguous, which is overwritten.

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
            return cls(system.T, ridge) if factored(system.T, threads) else None

        return mended(attempt, lambda: first_ridge)

    def solve(self, b: Array) -> Array:
        """Return ``(1 + S)⁻¹ b`` (m,)."""
        m = len(b)
        x = b.astype(self.lower.dtype)
        lapack("potrs", "L", m, 1, self.lower, m, x, m)
        return x.astype(np.float64, copy=False)


@compiled
def _gather(K: Array, active: Array, root: Array, out: Array, start: int, stop: int) -> None:
    m = active.size
    values = pointer(K)
    index = pointer(active)
    scale = pointer(root)
    into = pointer(out)
    for i in range(start, stop):
        row = index[i] * len(K)
        own = scale[i]
        for j in range(i, m):
            into[i * m + j] = own * scale[j] * values[row + index[j]]


class GramLandmarks:
    """Landmark rows ``index`` (r,) of a Gram matrix ``K`` (n, n): they give its solver a start and a preconditioner.

    ``WᵀW`` with ``W = L⁻¹ K_rn`` and ``L Lᵀ = K_rr`` is the Nyström approximation of K. Newton in r numbers solves the
    Nyström problem, whose solution starts the solve over all rows. Each of its steps factors ``1 + W C Wᵀ``, which by
    Woodbury's formula gives the inverse of ``1 + √C WᵀW √C``. All are in the dtype of K. Raises LinAlgError if the
    landmarks' part of the matrix is not positive definite.
    """

    def __init__(self, K: Array, index: Array) -> None:
        r = len(index)
        rows = K[index]
        inner = np.array(rows[:, index], order="F")
        inner.flat[:: r + 1] += 1e-5 * inner.trace() / r  # float32 resolves no less
        self.index = index
        self._factor = self._factored(inner)
        W = np.array(rows, order="F")
        lapack("trtrs", "L", "N", "N", r, len(K), self._factor, r, W, r)
        self.W: Array = W

    @classmethod
    def drawn(cls, K: Array, losses: RowLosses, seed: int) -> GramLandmarks | None:
        """Draw a tenth of up to 1,333 rows, fewer of more; None if their Nyström residual is too large for speed."""
        n = len(K)
        index = np.sort(np.random.default_rng(seed).choice(n, min(n // 10, 100 + n // 40), replace=False))
        with suppress(LinAlgError):
            found = cls(K, index)
            left = float(K.diagonal().mean() - np.square(found.W).sum(axis=0).mean())
            if float(losses.stiffness_low.max()) * left < 10.0:
                return found
        return None

    def start(self, losses: RowLosses) -> Array:
        """Return coefficients (n,) that are zero except for landmarks', and nearly minimise P over the landmarks."""
        y = losses.y
        b = np.zeros(len(self.index))
        scores = np.zeros(len(y))
        primal = np.inf
        for _ in range(8):
            before = primal
            margins = y * scores
            c = losses.curvature(margins)
            target = y * losses.aims(margins)
            inverse = self._inverse(self._scaled(np.flatnonzero(c), c))
            d = inverse.T @ (inverse @ (self.W @ (c * target).astype(self.W.dtype))) - b
            change = np.asarray(d.astype(self.W.dtype) @ self.W, dtype=np.float64)
            length = 1.0
            primal = self._primal(losses, b + d, scores + change)
            if not primal < before:
                length = least_row_step(losses, scores, change, float(b @ d), float(d @ d))
                primal = self._primal(losses, b + length * d, scores + length * change)
            b = b + length * d
            scores = scores + length * change
            if not before - primal > 0.03 * primal:
                break
        r = len(b)
        own = b.astype(self.W.dtype)
        lapack("trtrs", "L", "T", "N", r, 1, self._factor, r, own, r)
        a = np.zeros(len(y))
        a[self.index] = own
        return a

    def on(self, active: Array, stiffness: Array) -> Callable[[Array], Array]:
        """Return the Nyström ``(1 + √c K √c)⁻¹`` on the active rows (m,), as a function of residuals there."""
        scaled = self._scaled(active, stiffness)
        inverse = self._inverse(scaled)

        def apply(v: Array) -> Array:
            inside = inverse @ (scaled @ v.astype(scaled.dtype))
            return v - (inside @ inverse) @ scaled

        return apply

    def _scaled(self, active: Array, stiffness: Array) -> Array:
        """Return ``W √C`` of the active rows, (r, m)."""
        rows = self.W.T[active]
        rows *= np.sqrt(stiffness[active]).astype(rows.dtype)[:, None]
        return rows.T

    def _inverse(self, scaled: Array) -> Array:
        """Return the inverse of the lower factor of ``1 + W C Wᵀ`` from ``W √C``, as it is faster than solving."""
        inner = scaled @ scaled.T
        inner.flat[:: len(inner) + 1] += 1
        inner = np.asfortranarray(np.tril(inner))
        lapack("trtri", "L", "N", len(inner), self._factored(inner), len(inner))
        return inner

    def _factored(self, A: Array) -> Array:
        if lapack("potrf", "L", len(A), A, len(A)) or not np.isfinite(A.diagonal()).all():
            raise LinAlgError("not positive definite")
        return A

    def _primal(self, losses: RowLosses, b: Array, scores: Array) -> float:
        return 0.5 * float(b @ b) + float(losses.losses(losses.y * scores).sum())
