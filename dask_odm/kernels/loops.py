"""The compiled loop that computes tiles of distance kernels, and the one that multiplies with any tile.

A tile is computed four rows by 512 columns at a time, in a buffer that stays in the first-level cache. From there it is
stored, or multiplied and discarded. The compiler makes vector instructions only if columns are laid out feature by
feature and it knows the number of features of a step. So the loop that makes entries is compiled for each such number,
and no other loop is.

Products are summed in the dtype of the rows over at most 512 columns or 64 rows, and in float64 beyond. With all sums
in float32 the gap would stall.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dask_odm.linalg.jit import Emitted, Pointed, compiled, inlined, pointed

COLUMNS = 512  # columns of a panel
RUN_ROWS = 64  # rows whose products with a column are added up before they go to float64
FEATURES = 8  # the most features of a step: the factors of more do not fit the registers

# bits of the mode of `tile_loop`; STORED: entries are read, not computed
COMPUTED = 0
FORWARD = 1
BACKWARD = 2
STORED = 4

LOG2 = 0.6931471805599453
INTEGERS = 1.5 * 2.0**52  # plus an integer, it has that in its last bits; many processors convert slowly
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
    n = np.float64(whole + INTEGERS).view(np.int64)
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
    """Add the terms of ``step`` features, by ``plus``, to ``columns`` columns of ``entries`` (4, COLUMNS).

    If ``fresh``, add them to zeros. The features of the four rows begin at ``at0`` to ``at3`` of ``left``, those of the
    columns at ``b`` of ``panel``.
    """
    size = COLUMNS
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
        _add_terms(plus, entries, left, at0 + k, at1 + k, at2 + k, at3 + k, panel, k * COLUMNS, columns, step, False)


@cache
def entry_loop(step: int, manhattan: bool, narrow: bool) -> Pointed:
    """Return the loop that makes log2 of kernel values from packed rows whose width ``step`` divides.

    Values are ``left_i · right_j`` or, if ``manhattan``, ``−Σ_k |left_ik − right_jk|``, in float32 if ``narrow``. This
    loop alone must know the step. Loops that store or multiply entries call it by its address. So they are compiled
    once for any number of features; each further variant would take seconds.
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
def _make_entries(
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


@inlined
def _whole(columns: int) -> int:
    # so that vector registers are full
    return -(-columns // 32) * 32


@inlined
def _four(rows: Any, i: int) -> Any:
    """Return four rows from ``rows[i]`` on; if there are fewer, the last is repeated."""
    last = rows.size - 1
    return rows[i], rows[min(i + 1, last)], rows[min(i + 2, last)], rows[min(i + 3, last)]


@inlined
def _weights(u: Any, r0: int, r1: int, r2: int, r3: int, some: int) -> Any:
    """Return ``u`` of four rows; 0 for rows that are not there."""
    zero = u[0] - u[0]
    return u[r0], u[r1] if some > 1 else zero, u[r2] if some > 2 else zero, u[r3] if some > 3 else zero


@inlined
def _dot(e0: Any, e1: Any, e2: Any, e3: Any, v: Any) -> Any:
    """Return the products of four rows of entries with ``v``."""
    s0 = s1 = s2 = s3 = v[0] - v[0]
    for j in range(v.size):
        x = v[j]
        s0 += e0[j] * x
        s1 += e1[j] * x
        s2 += e2[j] * x
        s3 += e3[j] * x
    return s0, s1, s2, s3


@inlined
def _add(e0: Any, e1: Any, e2: Any, e3: Any, u0: Any, u1: Any, u2: Any, u3: Any, sums: Any) -> None:
    """Add four rows of entries to ``sums``, each times its own weight."""
    for j in range(sums.size):
        sums[j] += (u0 * e0[j] + u1 * e1[j]) + (u2 * e2[j] + u3 * e3[j])


@inlined
def _dot_and_add(e0: Any, e1: Any, e2: Any, e3: Any, v: Any, u0: Any, u1: Any, u2: Any, u3: Any, sums: Any) -> Any:
    """Do both `_dot` and `_add` while the entries are in the cache."""
    s0 = s1 = s2 = s3 = v[0] - v[0]
    for j in range(v.size):
        x = v[j]
        t0 = e0[j]
        t1 = e1[j]
        t2 = e2[j]
        t3 = e3[j]
        s0 += t0 * x
        s1 += t1 * x
        s2 += t2 * x
        s3 += t3 * x
        sums[j] += (u0 * t0 + u1 * t1) + (u2 * t2 + u3 * t3)
    return s0, s1, s2, s3


@inlined
def _multiply_four(
    task: int, source: Any, at0: int, at1: int, at2: int, at3: int, begin: int, end: int, v: Any, u0: Any, u1: Any,
    u2: Any, u3: Any, sums: Any, some: int, rows: Any, i: int, by_row: Any,
) -> None:  # fmt: skip
    """Multiply columns ``begin:end`` of four rows of entries, COLUMNS at a time, in the ways that ``task`` names.

    The entries begin at ``at0`` to ``at3`` of ``source``. The first ``some`` are those of ``rows[i]`` and following.
    """
    for start in range(begin, end, COLUMNS):
        stop = min(start + COLUMNS, end)
        k = stop - start
        e0 = source[at0 : at0 + k]
        e1 = source[at1 : at1 + k]
        e2 = source[at2 : at2 + k]
        e3 = source[at3 : at3 + k]
        at0 = at0 + COLUMNS
        at1 = at1 + COLUMNS
        at2 = at2 + COLUMNS
        at3 = at3 + COLUMNS
        if task == BACKWARD:
            _add(e0, e1, e2, e3, u0, u1, u2, u3, sums[start:stop])
            continue
        if task == FORWARD:
            s = _dot(e0, e1, e2, e3, v[start:stop])
        else:
            s = _dot_and_add(e0, e1, e2, e3, v[start:stop], u0, u1, u2, u3, sums[start:stop])
        for r in range(some):
            by_row[rows[i + r]] += s[r]


@inlined
def _dealt(u: Any, n: int, chosen: bool) -> Any:
    """Return the rows of a tile, or those where ``u`` is not 0 if ``chosen``, the four quarters in turns.

    A stored tile is then read as four sequential streams. Reading four neighbours at a time takes twice as long.
    NumPy's `arange` and `flatnonzero` would take Numba half a second to compile.
    """
    rows = np.empty(n, np.int64)
    size = 0
    for i in range(n):
        if not chosen or u[i] != 0:
            rows[size] = i
            size += 1
    order = rows[:size].copy()
    quarter = size // 4
    for i in range(quarter):
        for q in range(4):
            order[4 * i + q] = rows[q * quarter + i]
    return order


@cache
def store_loop(narrow: bool) -> Callable[..., None]:
    """Return the loop that makes a tile of packed rows, in float32 if ``narrow``.

    Kernel values are 2 to the power of what an `entry_loop` makes, plus the bias.
    """

    @compiled
    def store(address: int, left: Any, right: Any, n: int, m: int, bias: Any, tile: Any) -> None:
        """Fill ``tile`` (n, m) from left (n, width) and right (panels, width, columns); all arrays are flat."""
        size = COLUMNS
        width = left.size // max(n, 1)
        last = n - 1
        entries = np.zeros(4 * size, left.dtype)
        # a panel is computed for all rows while it is in the cache
        for begin in range(0, m, size):
            end = min(m, begin + size)
            panel = right[begin * width : (begin + size) * width]
            columns = _whole(end - begin)
            for i in range(0, n, 4):
                r1 = min(i + 1, last)
                r2 = min(i + 2, last)
                r3 = min(i + 3, last)
                _make_entries(address, entries, left, i, r1, r2, r3, width, panel, columns)
                if narrow:
                    store_four(power_float32, entries, size, tile, n, m, i, begin, end, bias)
                else:
                    store_four(power_float64, entries, size, tile, n, m, i, begin, end, bias)

    return store


@cache
def tile_loop(narrow: bool) -> Callable[..., None]:
    """Return the loop of products with tiles, which are stored or computed meanwhile as `store_loop` does.

    It is one function, since compiled closures could not be cached on disk for the next process. The same code handles
    computed and stored entries, so that products have the same bits either way.
    """

    @compiled
    def run(
        mode: int, address: int, left: Any, right: Any, n: int, m: int, bias: Any, tile: Any, u: Any, v: Any,
        by_row: Any, by_column: Any,
    ) -> None:  # fmt: skip
        """Multiply with a tile that is computed from ``left`` and ``right``, or stored in ``tile`` (n, m).

        ``left`` is (n, width), ``right`` (panels, width, columns); all arrays are flat. FORWARD: ``by_row += K v``.
        BACKWARD: ``by_column += K.T u``.
        """
        stored = mode & STORED != 0
        size = COLUMNS
        width = left.size // max(n, 1)
        task = mode & ~STORED
        zero = left.dtype.type(0)
        entries = np.zeros(4 * size, left.dtype)
        sums = np.zeros(m if mode & BACKWARD else 0, left.dtype)
        rows = _dealt(u, n, task == BACKWARD)
        source = tile if stored else entries
        u0 = zero
        u1 = zero
        u2 = zero
        u3 = zero
        # a panel is computed for all rows while it is in the cache; a stored tile is read as it lies in memory
        for begin in range(0, m, max(m, 1) if stored else size):
            end = m if stored else min(m, begin + size)
            panel = right[begin * width : (begin + size) * width]
            columns = _whole(min(size, end - begin))
            for first in range(0, rows.size, RUN_ROWS):
                for i in range(first, min(first + RUN_ROWS, rows.size), 4):
                    some = min(4, rows.size - i)
                    r0, r1, r2, r3 = _four(rows, i)
                    at0 = 0
                    at1 = size
                    at2 = 2 * size
                    at3 = 3 * size
                    if stored:
                        at0 = r0 * m
                        at1 = r1 * m
                        at2 = r2 * m
                        at3 = r3 * m
                    else:
                        _make_entries(address, entries, left, r0, r1, r2, r3, width, panel, columns)
                        if narrow:
                            exp2_float32(entries[: 3 * size + columns], bias)
                        else:
                            exp2_float64(entries[: 3 * size + columns], bias)
                    if task & BACKWARD:
                        u0, u1, u2, u3 = _weights(u, r0, r1, r2, r3, some)
                    _multiply_four(
                        task, source, at0, at1, at2, at3, begin, end, v, u0, u1, u2, u3, sums, some, rows, i, by_row
                    )
                if mode & BACKWARD:
                    for j in range(begin, end):
                        by_column[j] += sums[j]
                        sums[j] = 0

    return run
