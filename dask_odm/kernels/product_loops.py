"""The compiled loop that multiplies with tiles, which are stored or computed meanwhile.

Products are summed in the dtype of the rows over at most 512 columns or 64 rows, and in float64 beyond. With all sums
in float32 the gap would stall.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dask_odm.kernels.loops import BLOCK, call_entries, exp2_float32, exp2_float64, whole_registers
from dask_odm.linalg.jit import compiled, inlined

RUN_ROWS = 64  # rows whose products with a column are added up before they go to float64

# bits of the mode of `tile_loop`; STORED: entries are read, else computed
FORWARD = 1
BACKWARD = 2
STORED = 4


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
    """Multiply columns ``begin:end`` of four rows of entries, BLOCK at a time, in the ways that ``task`` names.

    The entries begin at ``at0`` to ``at3`` of ``source``. The first ``some`` are those of ``rows[i]`` and following.
    """
    for start in range(begin, end, BLOCK):
        stop = min(start + BLOCK, end)
        k = stop - start
        e0 = source[at0 : at0 + k]
        e1 = source[at1 : at1 + k]
        e2 = source[at2 : at2 + k]
        e3 = source[at3 : at3 + k]
        at0 = at0 + BLOCK
        at1 = at1 + BLOCK
        at2 = at2 + BLOCK
        at3 = at3 + BLOCK
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
        size = BLOCK
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
            columns = whole_registers(min(size, end - begin))
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
                        call_entries(address, entries, left, r0, r1, r2, r3, width, panel, columns)
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
