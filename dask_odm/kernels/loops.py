"""The compiled loops that compute tiles of distance kernels, and multiply with the tiles of any kernel.

Rows on the right are in panels of 64, feature by feature. A tile is computed four rows by such a panel at a time: sums
over all features stay in vector registers, and are kernel values when they are first written. This takes LLVM's
instructions, since Numba cannot keep sums there from one feature to the next.
"""

from __future__ import annotations

import math
from typing import Any

from dask_odm.linalg.jit import Emitted, compiled, compiled_in_order, pointer
from dask_odm.typing import Array

BLOCK = 512  # rows and columns of a tile that is not kept
COLUMNS = 64  # columns of a panel, whose features are in the first-level cache while rows are multiplied with them
ROWS = 4  # with which a panel is multiplied at once
SUMMED_ROWS = 64  # rows whose products with a column are added up before they go to float64

LOG2 = math.log(2.0)


@Emitted
def power(typing: Any, t: Any) -> Any:
    """Return ``2**min(t, 0)``, at least the least normal number, of a float32 or float64."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _power(builder, given[0], t.bitwidth)

    return t(t), generate


def _power(builder: Any, x: Any, bitwidth: int) -> Any:
    """Generate `power` of a number, or of a vector of them.

    ``2**f`` on [-1/2, 1/2] is a Taylor polynomial. The first term left out is below half a unit in the last place of 1:
    1.5e-8 after degree 6 in float32, 1e-17 after degree 13 in float64.
    """
    from llvmlite import ir

    bits, degree, least = (23, 6, -126.0) if bitwidth == 32 else (52, 13, -1022.0)
    number = x.type
    whole = ir.IntType(bitwidth)
    whole = ir.VectorType(whole, number.count) if isinstance(number, ir.VectorType) else whole
    for worse, value in (("<", least), (">", 0.0)):
        bound = ir.Constant(number, value)
        x = builder.select(builder.fcmp_ordered(worse, x, bound), bound, x)
    # The sum has the nearest integer in its last bits. No flag but this one, lest the compiler undo the rounding.
    exactly = ("nsz",)
    magic = ir.Constant(number, 1.5 * 2.0**bits)
    sum_ = builder.fadd(x, magic, flags=exactly)
    f = builder.fsub(x, builder.fsub(sum_, magic, flags=exactly), flags=exactly)
    p = ir.Constant(number, LOG2**degree / math.factorial(degree))
    for k in reversed(range(degree)):
        product = builder.fmul(p, f, flags=["contract"])
        p = builder.fadd(product, ir.Constant(number, LOG2**k / math.factorial(k)), flags=["contract"])
    n = builder.shl(builder.bitcast(sum_, whole), ir.Constant(whole, bits))
    return builder.bitcast(builder.add(builder.bitcast(p, whole), n), number)


@compiled
def exp2(t: Any, bias: Any) -> None:
    """Compute ``t <- 2**min(t, 0) + bias`` for a flat array."""
    for i in range(t.size):
        t[i] = power(t[i]) + bias


@compiled_in_order
def fill_tile(
    left: Array, starts: Any, features: Any, panels: Array, n: int, m: int, factor: Any, bias: Any, memory: Array,
    tile: Array,
) -> None:  # fmt: skip
    """Fill ``tile`` (n, m) from packed rows, by ``memory`` (`ROWS`, `COLUMNS`). All arrays are flat.

    ``left`` is (n, width), and ``panels`` are (panels, width, `COLUMNS`). With ``starts`` (⌈n / `ROWS`⌉ + 1,), features
    are only those listed of every four rows, and ``left`` has four numbers of each. Log2 of a kernel value is
    ``left_i · right_j`` if the ``factor`` is None, and else ``factor · Σ_k |left_ik − right_jk|``.
    """
    width = panels.size // (-(-m // COLUMNS) * COLUMNS)
    first = start = 0
    step = 1
    stop = width
    x = pointer(left)
    z = pointer(panels)
    out = pointer(tile)
    part = pointer(memory)
    for begin in range(0, m, COLUMNS):
        columns = min(m - begin, COLUMNS)
        at = begin * width
        for i in range(0, n, ROWS):
            if starts is None:
                first = i * width
                step = width
            else:
                start = starts[i // ROWS]
                stop = starts[i // ROWS + 1]
            rows = min(n - i, ROWS)
            whole = columns == COLUMNS
            to = i * m + begin if whole else 0
            fill_block(
                x, first, step, features, start, stop, z, at, factor, bias, rows, out if whole else part, to,
                m if whole else COLUMNS,
            )  # fmt: skip
            if not whole:
                for r in range(rows):
                    for j in range(columns):
                        out[(i + r) * m + begin + j] = part[r * COLUMNS + j]


@Emitted
def fill_block(
    typing: Any, left: Any, first: Any, step: Any, features: Any, start: Any, stop: Any, panels: Any, at: Any,
    factor: Any, bias: Any, rows: Any, out: Any, to: Any, width: Any,
) -> Any:  # fmt: skip
    """Set a block (rows, `COLUMNS`) of ``out``, whose rows are ``width`` apart, from the place ``to`` on.

    Row r has the numbers of ``left`` from ``first + r * step`` on, and the panel is that of ``panels`` from ``at`` on.
    Sums go feature by feature, from ``start`` to ``stop``, one fused multiplication each.
    """
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        x, first, step, listed, start, stop, panels, at, factor_, bias, rows, out, to, width = given
        whole = ir.IntType(64)
        scalar = context.get_value_type(left.dtype)
        itemsize = context.get_abi_sizeof(scalar)
        vector_bytes, vectors = _registers(context)
        lanes = ir.VectorType(scalar, vector_bytes // itemsize)
        factors = None if isinstance(factor, types.NoneType) else _spread(builder, factor_, lanes)
        biases = _spread(builder, bias, lanes)
        if not isinstance(features, types.NoneType):
            listed = context.make_array(features)(context, builder, listed).data

        def vector_at(pointer: Any, begin: Any, place: Any) -> Any:
            return builder.bitcast(builder.gep(pointer, [builder.add(begin, place)]), lanes.as_pointer())

        last = builder.sub(rows, whole(1))  # which stands in for rows that are not there
        numbers = [builder.select(builder.icmp_signed("<", whole(r), last), whole(r), last) for r in range(ROWS)]
        lefts = [builder.gep(x, [builder.add(first, builder.mul(r, step))]) for r in numbers]
        width_at_once = whole(vectors * lanes.count)
        with cgutils.for_range_slice(builder, whole(0), whole(COLUMNS), width_at_once, intp=whole) as (column, _):
            places = [builder.add(column, whole(q * lanes.count)) for q in range(vectors)]
            sums = [[cgutils.alloca_once_value(builder, ir.Constant(lanes, None)) for _ in places] for _ in lefts]
            with cgutils.for_range_slice(builder, start, stop, whole(1), intp=whole) as (k, _):
                feature, own = k, k
                if not isinstance(features, types.NoneType):
                    feature = builder.zext(builder.load(builder.gep(listed, [k])), whole)
                    own = builder.mul(k, whole(ROWS))
                begin = builder.add(at, builder.mul(feature, whole(COLUMNS)))
                others = [builder.load(vector_at(panels, begin, place), align=itemsize) for place in places]
                for each, row in zip(sums, lefts, strict=True):
                    value = _spread(builder, builder.load(builder.gep(row, [own])), lanes)
                    for kept, other in zip(each, others, strict=True):
                        term = _term(builder, value, other, factors, 8 * itemsize)
                        builder.store(builder.fadd(builder.load(kept), term, flags=["contract"]), kept)
            for each, r in zip(sums, numbers, strict=True):
                begin = builder.add(to, builder.mul(r, width))
                for kept, place in zip(each, places, strict=True):
                    value = builder.fadd(_power(builder, builder.load(kept), 8 * itemsize), biases)
                    builder.store(value, vector_at(out, begin, place), align=itemsize)
        return context.get_dummy_value()

    own = (left, first, step, features, start, stop, panels, at, factor, bias, rows, out, to, width)
    return types.void(*own), generate


def _spread(builder: Any, value: Any, lanes: Any) -> Any:
    """Generate a vector of ``lanes`` with the same number in all."""
    from llvmlite import ir

    nothing = ir.Constant(lanes, ir.Undefined)
    first = ir.Constant(ir.VectorType(ir.IntType(32), lanes.count), None)
    return builder.shuffle_vector(builder.insert_element(nothing, value, ir.IntType(32)(0)), nothing, first)


def _term(builder: Any, x: Any, z: Any, factors: Any, bitwidth: int) -> Any:
    """Generate ``x · z``, or with ``factors`` their product with ``|x − z|``."""
    from llvmlite import ir

    if factors is None:
        return builder.fmul(x, z, flags=["contract"])
    bits = ir.VectorType(ir.IntType(bitwidth), x.type.count)
    size = ir.Constant(bits, (1 << bitwidth - 1) - 1)  # all bits but the sign
    difference = builder.and_(builder.bitcast(builder.fsub(x, z), bits), size)
    return builder.fmul(factors, builder.bitcast(difference, x.type), flags=["contract"])


def _registers(context: Any) -> tuple[int, int]:
    """Return the bytes of a vector register that Numba compiles for, and how many registers a row's sums may take."""
    return (64, 4) if "+avx512f" in context.codegen().magic_tuple()[2] else (32, 2)


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
