"""Transpose rows into columns, in tiles of eight by eight within vector registers.

Transposing number by number takes four times as long: as much as all else in a pass over a store.
"""

from __future__ import annotations

from typing import Any

from dask_odm.linalg.jit import Emitted, called, compiled
from dask_odm.typing import Array

TURNED_SIDE = 8  # rows and columns of a tile, a power of two


@compiled
def turn_rows(X: Array, rows: Array, start: int, n: int, origin: Array, out: Array) -> None:
    """Write ``X − origin`` of ``n`` rows into the first ``n`` columns of ``out``.

    The rows are ``rows[start:start + n]`` (int64) of ``X`` (m, d), or ``start`` to ``start + n`` if ``rows`` is empty.
    ``X``, ``origin`` (d,) and ``out`` (at least d, at least n) are C-contiguous and of one type.
    """
    d = origin.size
    if n < TURNED_SIDE or d < TURNED_SIDE:
        for i in range(n):
            r = rows[start + i] if rows.size else start + i
            for j in range(d):
                out[j, i] = X[r, j] - origin[j]
        return
    for i in range(0, n, TURNED_SIDE):
        first = min(i, n - TURNED_SIDE)  # the last tiles overlap others, and write the same numbers
        eight = _eight_from(rows, start + first)
        for j in range(0, d, TURNED_SIDE):
            turn_tile(X, eight, min(j, d - TURNED_SIDE), origin, out, first)


@called
def _eight_from(rows: Array, at: int) -> tuple[int, ...]:
    if rows.size:
        return (
            rows[at], rows[at + 1], rows[at + 2], rows[at + 3], rows[at + 4], rows[at + 5], rows[at + 6], rows[at + 7],
        )  # fmt: skip
    return at, at + 1, at + 2, at + 3, at + 4, at + 5, at + 6, at + 7


@Emitted
def turn_tile(typing: Any, X: Any, rows: Any, column: Any, origin: Any, out: Any, at: Any) -> Any:
    """Set ``out[column + j, at + i] = X[rows[i], column + j] − origin[column + j]`` for i and j below `TURNED_SIDE`."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        scalar = context.get_value_type(signature.args[0].dtype)
        lanes, whole, size = ir.VectorType(scalar, TURNED_SIDE), ir.IntType(64), context.get_abi_sizeof(scalar)
        arrays = {k: context.make_array(signature.args[k])(context, builder, given[k]) for k in (0, 3, 4)}

        def place(k: int, *index: Any) -> Any:
            pointer = cgutils.get_item_pointer(context, builder, signature.args[k], arrays[k], index)
            return builder.bitcast(pointer, lanes.as_pointer())

        def load(pointer: Any) -> Any:
            return builder.load(pointer, align=size)

        shift = load(place(3, given[2]))
        numbers = cgutils.unpack_tuple(builder, given[1], TURNED_SIDE)
        for number in numbers:
            # 128 rows ahead, since the processor does not foresee this order by itself
            _emit_fetch(builder, place(0, builder.add(number, whole(128)), given[2]))
        tile = [builder.fsub(load(place(0, number, given[2])), shift) for number in numbers]
        for j, turned in enumerate(_turned(builder, tile)):
            target = place(4, builder.add(given[2], whole(j)), given[5])
            builder.store(turned, target, align=size)
        return context.get_dummy_value()

    return types.void(X, rows, column, origin, out, at), generate


@Emitted
def fetch(typing: Any, X: Any, row: Any, column: Any) -> Any:
    """Prefetch ``X[row, column]``, so that it is in the cache when it is read."""
    from numba import types
    from numba.core import cgutils

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, given[0])
        _emit_fetch(builder, cgutils.get_item_pointer(context, builder, signature.args[0], array, given[1:]))
        return context.get_dummy_value()

    return types.void(X, row, column), generate


def _emit_fetch(builder: Any, pointer: Any) -> None:
    """Prefetch an address. One behind the last row does no harm."""
    from llvmlite import ir

    byte = ir.IntType(8).as_pointer()
    flag = ir.IntType(32)
    wanted = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], wanted)
    builder.call(fetch, [builder.bitcast(pointer, byte), flag(0), flag(3), flag(1)])  # to read, to keep, data


def _turned(builder: Any, tile: list[Any]) -> list[Any]:
    """Transpose a square tile of vectors, by repeatedly interleaving those that are half a tile apart."""
    from llvmlite import ir

    n = len(tile)
    half = len(tile) // 2
    low = [k for i in range(half) for k in (i, n + i)]
    masks = [ir.Constant(ir.VectorType(ir.IntType(32), n), order) for order in (low, [k + half for k in low])]
    for _ in range(n.bit_length() - 1):
        tile = [builder.shuffle_vector(tile[i], tile[half + i], mask) for i in range(half) for mask in masks]
    return tile
