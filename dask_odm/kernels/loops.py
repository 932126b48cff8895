"""The compiled loops that compute tiles of distance kernels, and multiply with the tiles of any kernel.

A tile is computed four rows by 512 columns at a time, in a buffer that stays in the first-level cache. The compiler
makes vector instructions only if columns are laid out feature by feature and it knows the number of features of a step.
So the loop that makes entries is compiled for each such number, and no other loop is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dask_odm.linalg.jit import Emitted, Pointed, compiled, inlined, pointed
from dask_odm.typing import Array

BLOCK = 512  # columns of a panel; rows and columns of a tile that is not kept
SUMMED_ROWS = 64  # rows whose products with a column are added up before they go to float64
FEATURES = 8  # the most features of a step: the factors of more do not fit the registers

LOG2 = math.log(2.0)
# 2**f on [-1/2, 1/2]: Taylor polynomials, log(2)**k / k!. The first term left out is below half a unit
# in the last place of 1: 1.5e-8 after degree 6 in float32, 1e-17 after degree 13 in float64.
_P32 = tuple(np.float32(LOG2**k / np.prod(np.arange(1.0, k + 1))) for k in range(7))
_P64 = tuple(float(LOG2**k / np.prod(np.arange(1.0, k + 1))) for k in range(14))


def step_of(width: int) -> int:
    """Return the features per step: the fewest that need the least number of steps, so that padding is small."""
    return -(-width // -(-width // FEATURES))


def padded(width: int) -> int:
    """Return ``width`` rounded up to a whole number of steps."""
    step = step_of(width)
    return step * -(-width // step)


@inlined
def power_float32(t: Any) -> Any:
    """Return ``2**min(t, 0)``, at least 2**-126."""
    c0, c1, c2, c3, c4, c5, c6 = _P32
    x = min(max(t, np.float32(-126.0)), np.float32(0.0))
    n = np.int32(x - np.float32(0.5))
    f = x - np.float32(n)
    p = np.float32(((((((c6 * f + c5) * f + c4) * f + c3) * f + c2) * f + c1) * f) + c0)
    bits = np.int32(p.view(np.int32) + (n << np.int32(23)))
    return bits.view(np.float32)


@inlined
def power_float64(t: Any) -> Any:
    """Return ``2**min(t, 0)``, at least 2**-1022."""
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13 = _P64
    x = min(max(t, -1022.0), 0.0)
    whole = np.rint(x)
    f = x - whole
    # the sum has the integer in its last bits; many processors convert slowly
    n = np.float64(whole + 1.5 * 2.0**52).view(np.int64)
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
    bits = np.int64(np.float64(p).view(np.int64) + (n << np.int64(52)))
    return bits.view(np.float64)


@compiled
def exp2_float32(t: Any, bias: Any) -> None:
    """Compute ``t <- 2**min(t, 0) + bias`` for a flat float32 array."""
    for i in range(t.size):
        t[i] = power_float32(t[i]) + bias


@compiled
def exp2_float64(t: Any, bias: Any) -> None:
    """Compute ``t <- 2**min(t, 0) + bias`` for a flat float64 array."""
    for i in range(t.size):
        t[i] = power_float64(t[i]) + bias


# Products and distances, float32 and float64 have separate loops. The outermost loops choose between them by constants:
# a branch further in is compiled even if it is never taken, and a first fit would wait for that.
@inlined
def _plus_product(total: Any, x: Any, z: Any) -> Any:
    return total + x * z


@inlined
def _minus_distance(total: Any, x: Any, z: Any) -> Any:
    return total - abs(x - z)


@inlined
def _add_terms(
    plus: Any, entries: Any, left: Any, at0: int, at1: int, at2: int, at3: int, panel: Any, b: int, columns: int,
    step: int, fresh: bool,
) -> None:  # fmt: skip
    """Add the terms of ``step`` features, by ``plus``, to ``columns`` columns of ``entries`` (4, BLOCK).

    If ``fresh``, add them to zeros. The features of the four rows begin at ``at0`` to ``at3`` of ``left``, those of the
    columns at ``b`` of ``panel``.
    """
    size = BLOCK
    zero = panel[0] - panel[0]
    for j in range(columns):
        if fresh:
            t0 = zero
            t1 = zero
            t2 = zero
            t3 = zero
        else:
            t0 = entries[j]
            t1 = entries[size + j]
            t2 = entries[2 * size + j]
            t3 = entries[3 * size + j]
        for k in range(step):
            z = panel[b + k * size + j]
            t0 = plus(t0, left[at0 + k], z)
            t1 = plus(t1, left[at1 + k], z)
            t2 = plus(t2, left[at2 + k], z)
            t3 = plus(t3, left[at3 + k], z)
        entries[j], entries[size + j], entries[2 * size + j], entries[3 * size + j] = t0, t1, t2, t3


@inlined
def _logarithms(
    plus: Any, entries: Any, left: Any, r0: int, r1: int, r2: int, r3: int, width: int, panel: Any, columns: int,
    step: int,
) -> None:  # fmt: skip
    """Compute ``entries <-`` log2 of the kernel values of four rows."""
    at0 = r0 * width
    at1 = r1 * width
    at2 = r2 * width
    at3 = r3 * width
    _add_terms(plus, entries, left, at0, at1, at2, at3, panel, 0, columns, step, True)
    for k in range(step, width, step):
        _add_terms(plus, entries, left, at0 + k, at1 + k, at2 + k, at3 + k, panel, k * BLOCK, columns, step, False)


@cache
def entry_loop(step: int, manhattan: bool, narrow: bool) -> Pointed:
    """Return the loop that makes log2 of kernel values from packed rows whose width ``step`` divides.

    Values are ``left_i · right_j`` or, if ``manhattan``, ``−Σ_k |left_ik − right_jk|``, in float32 if ``narrow``. This
    loop alone must know the step. The loop that stores entries calls it by its address. So it is compiled once for any
    number of features; each further variant would take seconds.
    """
    array = f"CPointer({'float32' if narrow else 'float64'})"

    @pointed(f"void({array}, {array}, int64, int64, int64, int64, int64, {array}, int64)")
    def make_entries(
        entries: Any, left: Any, r0: int, r1: int, r2: int, r3: int, width: int, panel: Any, columns: int
    ) -> None:
        """Compute the entries of four rows and the columns of a panel."""
        if manhattan:
            _logarithms(_minus_distance, entries, left, r0, r1, r2, r3, width, panel, columns, step)
        else:
            _logarithms(_plus_product, entries, left, r0, r1, r2, r3, width, panel, columns, step)

    return make_entries


@Emitted
def call_entries(
    typing: Any, address: Any, entries: Any, left: Any, r0: Any, r1: Any, r2: Any, r3: Any, width: Any, panel: Any,
    columns: Any,
) -> Any:  # fmt: skip
    """Call the `entry_loop` at ``address``."""
    from llvmlite import ir
    from numba import types

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        arguments = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args[1:], given[1:], strict=True)
        ]
        wanted = ir.FunctionType(ir.VoidType(), [each.type for each in arguments]).as_pointer()
        builder.call(builder.inttoptr(given[0], wanted), arguments)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(whole, entries, left, whole, whole, whole, whole, whole, panel, whole), generate


@inlined
def store_four(
    power: Any, entries: Any, size: int, tile: Any, n: int, m: int, i: int, begin: int, end: int, bias: Any
) -> None:
    """Write ``2**min(t, 0) + bias`` of entries t to columns ``begin:end`` of the flat ``tile`` (n, m).

    The rows are the four from ``i`` on, or as many as there are; each has ``size`` entries.
    """
    for r in range(min(4, n - i)):
        at = (i + r) * m
        t = entries[r * size : (r + 1) * size]
        out = tile[at + begin : at + end]
        for j in range(out.size):
            out[j] = power(t[j]) + bias


@cache
def store_loop(narrow: bool) -> Callable[..., None]:
    """Return the loop that makes a tile of packed rows, in float32 if ``narrow``.

    Kernel values are 2 to the power of what an `entry_loop` makes, plus the bias.
    """

    @compiled
    def store(address: int, left: Any, right: Any, n: int, m: int, bias: Any, tile: Any) -> None:
        """Fill ``tile`` (n, m) from left (n, width) and right (panels, width, columns); all arrays are flat."""
        size = BLOCK
        width = left.size // max(n, 1)
        last = n - 1
        entries = np.zeros(4 * size, left.dtype)
        # a panel is computed for all rows while it is in the cache
        for begin in range(0, m, size):
            end = min(m, begin + size)
            panel = right[begin * width : (begin + size) * width]
            columns = -(-(end - begin) // 32) * 32  # so that vector registers are full
            for i in range(0, n, 4):
                r1 = min(i + 1, last)
                r2 = min(i + 2, last)
                r3 = min(i + 3, last)
                call_entries(address, entries, left, i, r1, r2, r3, width, panel, columns)
                if narrow:
                    store_four(power_float32, entries, size, tile, n, m, i, begin, end, bias)
                else:
                    store_four(power_float64, entries, size, tile, n, m, i, begin, end, bias)

    return store


@compiled
def multiply_tile(tile: Array, u: Array, v: Array, by_row: Array, by_column: Array) -> None:
    """Add ``K v`` to ``by_row`` and, unless u is empty, ``K.T u`` to ``by_column``, of a C-contiguous ``tile`` K.

    Products are summed in the dtype of the tile over at most 512 columns or 64 rows, and in float64 beyond. With all
    sums in float32 the gap would stall.
    """
    n, m = tile.shape
    zero = tile.dtype.type(0)
    sums = np.zeros(u.size and m, tile.dtype)
    for first in range(0, n, SUMMED_ROWS):
        for i in range(first, min(n, first + SUMMED_ROWS)):
            for begin in range(0, m, BLOCK):
                end = min(m, begin + BLOCK)
                row = tile[i, begin:end]
                its_v = v[begin:end]
                total = zero
                if u.size:
                    its_sums = sums[begin:end]
                    for j in range(row.size):
                        total += row[j] * its_v[j]
                        its_sums[j] += u[i] * row[j]
                else:
                    for j in range(row.size):
                        total += row[j] * its_v[j]
                by_row[i] += total
        for j in range(sums.size):
            by_column[j] += sums[j]
            sums[j] = zero
