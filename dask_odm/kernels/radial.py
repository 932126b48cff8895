"""Kernels of the distance between two rows: the Gaussian radial basis function (RBF) and the Laplacian.

What is left of a tile once distances are known is one vectorised pass of `exp2`. NumPy's ``exp`` takes
0.36 ns (float32) and about 2 ns (float64) an element on the machine this was written on; the loops here
take a fraction of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from dask_odm.kernels.base import Array, Kernel
from dask_odm.kernels.jit import compiled

# 2**f on [-1/2, 1/2]: Taylor polynomials, log(2)**k / k!. The first term left out is below half a unit
# in the last place of 1: 1.5e-8 after degree 6 in float32, 1e-17 after degree 13 in float64.
_LOG2 = 0.6931471805599453
_P32 = tuple(np.float32(_LOG2**k / np.prod(np.arange(1.0, k + 1))) for k in range(7))
_P64 = tuple(float(_LOG2**k / np.prod(np.arange(1.0, k + 1))) for k in range(14))


@compiled
def _exp2_float32(t: Array, bias: np.float32) -> None:
    """``t <- 2**min(t, 0) + bias`` for a flat float32 array; smaller than 2**-126 becomes that."""
    c0, c1, c2, c3, c4, c5, c6 = _P32
    low = np.float32(-126.0)
    half = np.float32(0.5)
    zero = np.float32(0.0)
    for i in range(t.size):
        x = min(max(t[i], low), zero)
        n = np.int32(x - half)
        f = x - np.float32(n)
        p = np.float32(((((((c6 * f + c5) * f + c4) * f + c3) * f + c2) * f + c1) * f) + c0)
        bits = np.int32(p.view(np.int32) + (n << np.int32(23)))
        t[i] = bits.view(np.float32) + bias


@compiled
def _exp2_float64(t: Array, bias: float) -> None:
    """``t <- 2**min(t, 0) + bias`` for a flat float64 array."""
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13 = _P64
    for i in range(t.size):
        x = min(max(t[i], -1022.0), 0.0)
        n = np.int64(x - 0.5)
        f = x - np.float64(n)
        p = c13 * f + c12
        p = p * f + c11
        p = p * f + c10
        p = p * f + c9
        p = p * f + c8
        p = p * f + c7
        p = p * f + c6
        p = p * f + c5
        p = p * f + c4
        p = p * f + c3
        p = p * f + c2
        p = p * f + c1
        p = p * f + c0
        bits = np.int64(np.float64(p).view(np.int64) + (n << 52))
        t[i] = bits.view(np.float64) + bias


def _finish(tile: Array, bias: float) -> None:
    """``tile <- 2**tile + bias`` for exponents that are not positive but for rounding."""
    flat = tile.reshape(-1)
    if flat.dtype == np.float32:
        _exp2_float32(flat, np.float32(bias))
    else:
        _exp2_float64(flat, bias)


@dataclass(frozen=True)
class RBF(Kernel):
    """κ(x, z) = exp(−gamma ‖x − z‖²) + bias.

    Rows should be centred before they come here (the kernel does not mind): the squared distance is
    expanded into norms and a dot product, which cancel.
    """

    gamma: float = 1.0
    name: ClassVar[str] = "rbf"

    @property
    def _scale(self) -> float:
        return 2.0 * self.gamma / _LOG2

    def _norms(self, X: Array) -> Array:
        return -0.5 * self._scale * np.einsum("ij,ij->i", X, X)

    def width(self, d: int) -> int:
        return d + 2

    def pack_left(self, X: Array, out: Array | None = None) -> Array:
        n, d = X.shape
        packed = np.empty((n, d + 2), X.dtype) if out is None else out
        np.multiply(X, X.dtype.type(self._scale), out=packed[:, :d])
        packed[:, d] = self._norms(X)
        packed[:, d + 1] = 1.0
        return packed

    def pack_right(self, X: Array, out: Array | None = None) -> Array:
        n, d = X.shape
        packed = np.empty((n, d + 2), X.dtype) if out is None else out
        packed[:, :d] = X
        packed[:, d] = 1.0
        packed[:, d + 1] = self._norms(X)
        return packed

    def finish(self, tile: Array) -> None:
        _finish(tile, self.bias)

    def diagonal(self, X: Array) -> Array:
        return np.full(len(X), 1.0 + self.bias)


_FEATURES = 6  # of a step of the loop below: so many are unrolled
_COLUMNS = 256  # of a step: four rows of sums stay in the first-level cache


@cache
def _manhattan(step: int) -> Callable[[Array, Array, Array], None]:
    """The loop ``out <- −Σ_k |left_ik − right_jk|`` for a number of features that ``step`` divides.

    Four rows at a time against a block of columns laid out feature by feature: only so, with ``step`` known
    to the compiler, does the inner loop become vector instructions. One function, since a compiled one that it
    called would keep it from being found on disk by the next process.
    """

    @compiled
    def fill(left: Array, right: Array, out: Array) -> None:
        (n, width), m = left.shape, right.shape[0]
        rows = np.zeros(4 * width, left.dtype)
        turned = np.zeros(width * _COLUMNS, left.dtype)
        sums = np.empty(4 * _COLUMNS, left.dtype)
        for first in range(0, m, _COLUMNS):
            columns = min(_COLUMNS, m - first)
            for j in range(columns):
                for k in range(width):
                    turned[k * _COLUMNS + j] = right[first + j, k]
            for i in range(0, n, 4):
                some = min(4, n - i)
                for r in range(some):
                    for k in range(width):
                        rows[r * width + k] = left[i + r, k]
                sums[:] = 0
                for start in range(0, width, step):
                    a, b = rows[start:], turned[start * _COLUMNS :]
                    for j in range(_COLUMNS):
                        t0, t1, t2, t3 = sums[j], sums[_COLUMNS + j], sums[2 * _COLUMNS + j], sums[3 * _COLUMNS + j]
                        for k in range(step):
                            v = b[k * _COLUMNS + j]
                            t0 -= abs(a[k] - v)
                            t1 -= abs(a[width + k] - v)
                            t2 -= abs(a[2 * width + k] - v)
                            t3 -= abs(a[3 * width + k] - v)
                        sums[j], sums[_COLUMNS + j], sums[2 * _COLUMNS + j], sums[3 * _COLUMNS + j] = t0, t1, t2, t3
                for r in range(some):
                    source, target = sums[r * _COLUMNS :], out[i + r]
                    for j in range(columns):
                        target[first + j] = source[j]

    return fill


@dataclass(frozen=True)
class Laplacian(Kernel):
    """κ(x, z) = exp(−gamma ‖x − z‖₁) + bias.

    The distance is no matrix product: `tile_packed` sums it feature by feature. Packed rows are padded with
    zero features to a multiple of what its loop unrolls.
    """

    gamma: float = 1.0
    name: ClassVar[str] = "laplacian"

    @staticmethod
    def _step(d: int) -> int:
        return -(-d // -(-d // _FEATURES))

    def width(self, d: int) -> int:
        step = self._step(d)
        return step * -(-d // step)

    def pack_left(self, X: Array, out: Array | None = None) -> Array:
        n, d = X.shape
        packed = np.empty((n, self.width(d)), X.dtype) if out is None else out
        np.multiply(X, X.dtype.type(self.gamma / _LOG2), out=packed[:, :d])
        packed[:, d:] = 0.0
        return packed

    pack_right = pack_left

    def tile_packed(self, left: Array, right: Array, out: Array | None = None) -> Array:
        out = np.empty((len(left), len(right)), left.dtype) if out is None else out
        width = left.shape[1]
        _manhattan(self._step(width))(left, right, out)
        self.finish(out)
        return out

    def finish(self, tile: Array) -> None:
        _finish(tile, self.bias)

    def diagonal(self, X: Array) -> Array:
        return np.full(len(X), 1.0 + self.bias)
