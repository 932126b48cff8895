"""The compiled loops that compute tiles of distance kernels, and multiply with the tiles of any kernel.

A tile is computed four rows by 512 columns at a time, in a buffer that stays in the first-level cache. The compiler
makes vector instructions only if columns are laid out feature by feature and it knows the number of features of a step.
So the loop is compiled for each such number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from dask_odm.linalg.jit import Emitted, compiled, pointer
from dask_odm.typing import Array

BLOCK = 512  # columns of a panel; rows and columns of a tile that is not kept
SUMMED_ROWS = 64  # rows whose products with a column are added up before they go to float64
FEATURES = 8  # the most features of a step: the factors of more do not fit the registers

LOG2 = math.log(2.0)


def step_of(width: int) -> int:
    """Return the features per step: the fewest that need the least number of steps, so that padding is small."""
    return -(-width // -(-width // FEATURES))


def padded(width: int) -> int:
    """Return ``width`` rounded up to a whole number of steps."""
    step = step_of(width)
    return step * -(-width // step)


@Emitted
def power(typing: Any, t: Any) -> Any:
    """Return ``2**min(t, 0)``, at least the least normal number, of a float32 or float64.

    ``2**f`` on [-1/2, 1/2] is a Taylor polynomial. The first term left out is below half a unit in the last place of 1:
    1.5e-8 after degree 6 in float32, 1e-17 after degree 13 in float64.
    """
    from llvmlite import ir

    bits, degree, least = (23, 6, -126.0) if t.bitwidth == 32 else (52, 13, -1022.0)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        number = context.get_value_type(t)
        whole = ir.IntType(t.bitwidth)
        x = given[0]
        for worse, bound in (("<", number(least)), (">", number(0.0))):
            x = builder.select(builder.fcmp_ordered(worse, x, bound), bound, x)
        # The sum has the nearest integer in its last bits. No flag but this one, lest the compiler undo the rounding.
        exactly = ("nsz",)
        magic = number(1.5 * 2.0**bits)
        sum_ = builder.fadd(x, magic, flags=exactly)
        f = builder.fsub(x, builder.fsub(sum_, magic, flags=exactly), flags=exactly)
        p = number(LOG2**degree / math.factorial(degree))
        for k in reversed(range(degree)):
            p = builder.fadd(builder.fmul(p, f), number(LOG2**k / math.factorial(k)))
        n = builder.shl(builder.bitcast(sum_, whole), whole(bits))
        return builder.bitcast(builder.add(builder.bitcast(p, whole), n), number)

    return t(t), generate


@compiled
def exp2(t: Any, bias: Any) -> None:
    """Compute ``t <- 2**min(t, 0) + bias`` for a flat array."""
    for i in range(t.size):
        t[i] = power(t[i]) + bias


@cache
def tile_loop(step: int, manhattan: bool) -> Callable[..., None]:
    """Return the loop that makes a tile from packed rows whose width ``step`` divides.

    Log2 of kernel values are ``left_i · right_j`` or, if ``manhattan``, ``−Σ_k |left_ik − right_jk|``.
    """

    @compiled
    def fill(left: Any, right: Any, n: int, m: int, bias: Any, memory: Any, tile: Any) -> None:
        """Fill ``tile`` (n, m) from left (n, width) and right (panels, width, BLOCK), by ``memory`` (4, BLOCK).

        All arrays are flat.
        """
        width = left.size // n
        last = n - 1
        x = pointer(left)
        panels = pointer(right)
        entries = pointer(memory)
        out = pointer(tile)
        # a panel is computed for all rows while it is in the cache
        for begin in range(0, m, BLOCK):
            columns = min(m - begin, BLOCK)
            whole = -(-columns // 32) * 32  # so that vector registers are full
            for i in range(0, n, 4):
                at0 = i * width
                at1 = min(i + 1, last) * width
                at2 = min(i + 2, last) * width
                at3 = min(i + 3, last) * width
                for first in range(0, width, step):
                    panel = begin * width + first * BLOCK
                    for j in range(whole):
                        t0 = t1 = t2 = t3 = bias - bias
                        if first:
                            t0 = entries[j]
                            t1 = entries[BLOCK + j]
                            t2 = entries[2 * BLOCK + j]
                            t3 = entries[3 * BLOCK + j]
                        for k in range(step):
                            z = panels[panel + k * BLOCK + j]
                            if manhattan:
                                t0 -= abs(x[at0 + first + k] - z)
                                t1 -= abs(x[at1 + first + k] - z)
                                t2 -= abs(x[at2 + first + k] - z)
                                t3 -= abs(x[at3 + first + k] - z)
                            else:
                                t0 += x[at0 + first + k] * z
                                t1 += x[at1 + first + k] * z
                                t2 += x[at2 + first + k] * z
                                t3 += x[at3 + first + k] * z
                        entries[j] = t0
                        entries[BLOCK + j] = t1
                        entries[2 * BLOCK + j] = t2
                        entries[3 * BLOCK + j] = t3
                for r in range(min(4, n - i)):
                    at = (i + r) * m + begin
                    for j in range(columns):
                        out[at + j] = power(entries[r * BLOCK + j]) + bias

    return fill


@compiled
def multiply_tile(tile: Array, u: Array, v: Array, sums: Array, by_row: Array, by_column: Array) -> None:
    """Add ``K v`` to ``by_row`` and, unless u is empty, ``K.T u`` to ``by_column``, of a C-contiguous ``tile`` K.

    Products are summed in the dtype of the tile over at most 512 columns or 64 rows, and in float64 beyond. With all
    sums in float32 the gap would stall. ``sums`` are as many zeros as ``by_column`` has entries.
    """
    n, m = tile.shape
    zero = tile.dtype.type(0)
    K = pointer(tile)
    left = pointer(u)
    right = pointer(v)
    kept = pointer(sums)
    for first in range(0, n, SUMMED_ROWS):
        for i in range(first, min(n, first + SUMMED_ROWS)):
            factor = left[i] if u.size else zero
            for begin in range(0, m, BLOCK):
                total = zero
                for j in range(begin, min(m, begin + BLOCK)):
                    value = K[i * m + j]
                    total += value * right[j]
                    if u.size:
                        kept[j] += factor * value
                by_row[i] += total
        for j in range(sums.size):
            by_column[j] += sums[j]
            sums[j] = zero
