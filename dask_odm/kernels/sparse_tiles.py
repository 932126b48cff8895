"""Sparse tiles: RBF tiles for dense rows that are mostly zeros, such as images and one-hot features.

Rows on the left are taken four at a time, with a list of the features in which any of the four is not zero. Only these
are multiplied. The others would add zeros, so entries have the bits of sums over all features in their order. The
products of the four rows with 64 columns are summed in vector registers. This takes LLVM's instructions, since Numba
cannot keep sums there from one feature to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.kernels.base import Kernel, Panels
from dask_odm.kernels.loops import power
from dask_odm.kernels.named import RBF
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.linalg.jit import Emitted, compiled, compiled_in_order, pointer
from dask_odm.typing import Array

LISTED_COLUMNS = 64  # columns of a panel


@dataclass(frozen=True, eq=False)
class ListedRows:
    """``n`` rows packed for the left, four by four.

    ``starts`` (⌈n / 4⌉ + 1,) are where the list of every four rows starts, and the last ends. ``features`` are the
    numbers of the listed features. ``values`` has four numbers per listed feature, one of each row; the last row stands
    in for rows that are not there.
    """

    n: int
    starts: Array
    features: Array
    values: Array

    def __len__(self) -> int:
        return self.n


@dataclass(frozen=True)
class SkippingTiles:
    """Tiles of ``kernel``, as by `Kernel.tile_packed`, that are computed without the zeros of the rows on the left."""

    kernel: RBF

    def pack_left(self, X: Array) -> Any:
        """Pack the rows ``X`` (n, d) for the left of a tile, as `ListedRows`."""
        n, d = X.shape
        fours = -(-n // 4)
        features = np.empty(fours * (d + 2), np.int32)
        values = np.empty(fours * (d + 2) * 4, X.dtype)
        starts = np.empty(fours + 1, np.int64)
        _list_rows(X, X.dtype.type(self.kernel.scale), self.kernel.norms(X).astype(X.dtype), starts, features, values)
        return ListedRows(n, starts, features, values)

    def pack_right(self, X: Array) -> Panels:
        """Pack the rows ``X`` (n, d) for the right."""
        return Panels.of(self.kernel.with_norms(X), LISTED_COLUMNS)

    def tile_packed(self, left: Any, right: Panels, out: Array | None = None) -> Array:
        """Return κ of packed rows, (n, m); ``out`` must be C-contiguous."""
        dtype = left.values.dtype
        out = np.empty((len(left), len(right)), dtype) if out is None else out
        memory = np.empty(4 * LISTED_COLUMNS, dtype)
        panels, width = right.values.reshape(-1), right.values.shape[1]
        bias = dtype.type(self.kernel.bias)
        _fill(left.starts, left.features, left.values, panels, width, bias, memory, out)
        return out


Tiles = Kernel | SkippingTiles


def tiles_of(kernel: Kernel, rows: Any) -> Tiles:
    """Choose the faster way to compute tiles with ``rows`` (n, d) on either side: the kernel, or `SkippingTiles`.

    The choice depends on the rows alone, and so do the bits.
    """
    if isinstance(rows, CSRRows):  # whose tiles have no zeros already
        return kernel
    # some 512 rows tell whether most values are zeros
    some = rows[:: max(1, len(rows) // 512)]
    mostly_zeros = 2 * np.count_nonzero(some) < some.size
    # with fewer than 32 features, lists cost more than they save
    return SkippingTiles(kernel) if mostly_zeros and rows.shape[1] >= 32 and isinstance(kernel, RBF) else kernel


@compiled
def _list_rows(X: Array, scale: float, norms: Array, starts: Array, features: Array, values: Array) -> None:
    """Fill in the lists of rows: features times ``scale``, then the norm, and 1 for the other side's norm."""
    (n, d), at = X.shape, 0
    for four in range(starts.size - 1):
        starts[four], r0 = at, 4 * four
        r1 = min(r0 + 1, n - 1)
        r2 = min(r0 + 2, n - 1)
        r3 = min(r0 + 3, n - 1)
        for k in range(d):
            x0 = X[r0, k]
            x1 = X[r1, k]
            x2 = X[r2, k]
            x3 = X[r3, k]
            features[at], to = k, 4 * at
            values[to], values[to + 1], values[to + 2], values[to + 3] = x0 * scale, x1 * scale, x2 * scale, x3 * scale
            at += (x0 != 0) | (x1 != 0) | (x2 != 0) | (x3 != 0)  # no branch: the next feature overwrites zeros
        features[at], features[at + 1], to = d, d + 1, 4 * at
        values[to], values[to + 1], values[to + 2], values[to + 3] = norms[r0], norms[r1], norms[r2], norms[r3]
        values[to + 4], values[to + 5], values[to + 6], values[to + 7] = 1.0, 1.0, 1.0, 1.0
        at += 2
    starts[starts.size - 1] = at


@compiled_in_order
def _fill(
    starts: Array, features: Array, values: Array, panels: Array, width: int, bias: float, memory: Array, tile: Array
) -> None:  # fmt: skip
    """Fill ``tile`` (n, m) from listed rows and panels, by ``memory`` (4 · `LISTED_COLUMNS`,).

    A panel is used for all rows while it is in the second-level cache.
    """
    n, m = tile.shape
    entries = pointer(memory)
    out = pointer(tile)
    for begin in range(0, m, LISTED_COLUMNS):
        columns = min(m - begin, LISTED_COLUMNS)
        for four in range(starts.size - 1):
            sum_products(features, values, starts[four], starts[four + 1], panels, begin * width, memory)
            for r in range(min(4, n - 4 * four)):
                at = (4 * four + r) * m + begin
                for j in range(columns):
                    out[at + j] = power(entries[r * LISTED_COLUMNS + j]) + bias


@Emitted
def sum_products(
    typing: Any, features: Any, values: Any, start: Any, stop: Any, panels: Any, at: Any, entries: Any
) -> Any:
    """Set ``entries`` (4, 64) to ``Σ_k values[k] ⊗ panel[features[k]]`` for k from ``start`` to ``stop``.

    The panel begins at ``at`` of ``panels``. Sums go feature by feature, one fused multiplication each.
    """
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        whole = ir.IntType(64)
        small = ir.IntType(32)
        scalar = context.get_value_type(values.dtype)
        itemsize = context.get_abi_sizeof(scalar)
        vector_bytes, vectors = _registers(context)
        lanes = ir.VectorType(scalar, vector_bytes // itemsize)
        nothing = ir.Constant(lanes, ir.Undefined)
        first = ir.Constant(ir.VectorType(small, lanes.count), None)
        listed, left, panel, out = (
            context.make_array(signature.args[k])(context, builder, given[k]).data for k in (0, 1, 4, 6)
        )
        panel = builder.gep(panel, [given[5]])
        step = vectors * lanes.count

        def vector_at(pointer: Any, index: Any) -> Any:
            return builder.bitcast(builder.gep(pointer, [index]), lanes.as_pointer())

        for column in range(0, LISTED_COLUMNS, step):
            sums = [
                [cgutils.alloca_once_value(builder, ir.Constant(lanes, None)) for _ in range(vectors)] for _ in range(4)
            ]
            with cgutils.for_range_slice(builder, given[2], given[3], whole(1), intp=whole) as (k, _):
                feature = builder.zext(builder.load(builder.gep(listed, [k])), whole)
                begin = builder.add(builder.mul(feature, whole(LISTED_COLUMNS)), whole(column))
                columns = [
                    builder.load(vector_at(panel, builder.add(begin, whole(q * lanes.count))), align=itemsize)
                    for q in range(vectors)
                ]
                for r in range(4):
                    x = builder.load(builder.gep(left, [builder.add(builder.mul(k, whole(4)), whole(r))]))
                    each = builder.shuffle_vector(builder.insert_element(nothing, x, small(0)), nothing, first)
                    for kept, other in zip(sums[r], columns, strict=True):
                        product = builder.fmul(each, other, flags=["contract"])
                        builder.store(builder.fadd(builder.load(kept), product, flags=["contract"]), kept)
            for r in range(4):
                for q, kept in enumerate(sums[r]):
                    to = vector_at(out, whole(r * LISTED_COLUMNS + column + q * lanes.count))
                    builder.store(builder.load(kept), to, align=itemsize)
        return context.get_dummy_value()

    return types.void(features, values, start, stop, panels, at, entries), generate


def _registers(context: Any) -> tuple[int, int]:
    """Return the bytes of a vector register that Numba compiles for, and how many registers a row's sums may take."""
    return (64, 4) if "+avx512f" in context.codegen().magic_tuple()[2] else (32, 2)
