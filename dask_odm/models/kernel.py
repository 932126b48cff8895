"""The kernel model: coefficients for every output, and support rows, which may stay on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse

from dask_odm.data.rows.scaling import NUMPY_ENTRIES, Scaling
from dask_odm.data.store.records import RowSource
from dask_odm.data.store.schemas import KERNEL
from dask_odm.kernels import from_parameters
from dask_odm.kernels.base import Kernel, Sides
from dask_odm.kernels.sparse_tiles import Tiles, tiles_of
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.models.base import require_finite_parts
from dask_odm.models.pairs import class_scores, require_pairs
from dask_odm.typing import Array

PREDICTED_ROWS = 1024  # rows to predict that a thread takes at a time
SUPPORT_BYTES = 16 << 20  # bytes of support rows that are scaled and packed at a time


@dataclass(frozen=True, eq=False)
class _SupportTile:
    """Some support rows, packed for the right, with their coefficients for the machines that use any of them."""

    packed: Any
    machines: Array | slice
    coefficients: Array

    @classmethod
    def of(cls, packed: Any, coefficients: Array, dtype: np.dtype[Any]) -> _SupportTile:
        """Keep only the machines with a nonzero coefficient (machines, rows), unless most have one.

        One against one, few machines know the class of a tile's rows.
        """
        used = np.flatnonzero(coefficients.any(axis=1))
        if 2 * len(used) > len(coefficients):
            return cls(packed, slice(None), coefficients.astype(dtype))
        return cls(packed, used, coefficients[used].astype(dtype))


@dataclass(frozen=True, eq=False)
class KernelModel:
    """The model ``f(x) = Σ_i coefficients_i κ(x_i, x) + intercept`` on raw rows; a `dask_odm.models.base.Model`.

    The kernel is without bias. ``scaling`` leads from raw rows to those that the kernel sees. ``support`` are raw rows
    (n_support, d), in memory (dense or sparse) or read from a file when they are sliced; ``coefficients`` (machines,
    n_support) and ``intercept`` (machines,) are float64. ``pairs`` is as in `dask_odm.models.linear.LinearModel`.

    With ``double_precision``, kernel values and their sums are in float64 for rows of any dtype: large coefficients of
    both signs would magnify the rounding of float32 too much.
    """

    kernel: Kernel
    scaling: Scaling
    support: RowSource
    coefficients: Array
    intercept: Array
    pairs: int = 0
    double_precision: bool = False
    kind: ClassVar[str] = "kernel"
    parts: ClassVar[tuple[str, ...]] = ("shift", "factor", "support_vectors", "coefficients", "intercept")

    @property
    def outputs(self) -> int:
        return self.pairs or len(self.coefficients)

    @property
    def features(self) -> int:
        return int(self.support.shape[1])

    @property
    def nbytes(self) -> int:
        n, d = self.support.shape
        return n * (d * self.support.dtype.itemsize + 8 * len(self.coefficients))

    def values(self, X: Any, threads: int = 1) -> Array:
        """Return the values of raw rows ``X`` (n, d), dense or CSR: (n, outputs), in the rows' dtype.

        They are computed in the wider of the rows' dtype and the support's, or in float64. Sparse rows are made dense a
        block at a time. The number of threads changes no bit. The last digits of a row may depend on the rows beside it
        if BLAS multiplies.
        """
        if not self.pairs:
            return self.machine_scores(X, threads).T.astype(X.dtype)
        out = np.empty((X.shape[0], self.pairs), X.dtype)
        step = 16 * PREDICTED_ROWS  # scores of all machines are held for so many, since machines may be many
        for start in range(0, X.shape[0], step):
            rows = slice(start, start + step)
            out[rows] = class_scores(self.machine_scores(X[rows], threads), self.pairs).T
        return out

    def are_finite(self, X: Any) -> bool:
        """Return whether the scores of raw rows are finite.

        It uses the compiled loop that a fit used for tiles. For the loop of `values`, a first fit would wait for the
        compiler.
        """
        return bool(np.isfinite(self.machine_scores(X, 1, by_tiles=True).astype(X.dtype)).all())

    def machine_scores(self, X: Any, threads: int = 1, by_tiles: bool = False) -> Array:
        """Return the scores of all machines for raw rows ``X`` (n, d), float64 (machines, n)."""
        n = X.shape[0]
        dtype = np.result_type(X.dtype, self.support.dtype)
        values = np.empty((len(self.coefficients), n))
        values[:] = self.intercept[:, None]
        starts = range(0, n, PREDICTED_ROWS)
        scaled_rows = self._scaled(X, dtype)
        with single_threaded_blas:
            for tiles, packed in self._support_blocks(dtype):

                def add(start: int, tiles: Tiles = tiles, packed: list[_SupportTile] = packed) -> None:
                    rows = slice(start, start + PREDICTED_ROWS)
                    left = tiles.pack_left(self._widened(scaled_rows(rows)))
                    for some in packed:
                        self._add(tiles, left, some, values[:, rows], by_tiles)

                run_threads(add, starts, threads, "predict")
        return values

    def _widened(self, rows: Array) -> Array:
        """Cast scaled rows to the dtype of kernel values, after they were scaled in their own dtype as in training."""
        return rows.astype(np.float64, copy=False) if self.double_precision else rows

    def _scaled(self, X: Any, dtype: np.dtype[Any]) -> Callable[[slice], Array]:
        """Return a function that gives some of the raw rows ``X``, scaled and dense."""
        if not issparse(X) and X.size <= NUMPY_ENTRIES:  # scale all at once: threads would wait for each other in NumPy
            whole = self.scaling(X.astype(dtype, copy=False))
            return lambda rows: whole[rows]

        def scale(rows: slice) -> Array:
            block = X[rows].toarray() if issparse(X) else X[rows]
            return self.scaling(block.astype(dtype, copy=False))

        return scale

    def _add(self, tiles: Tiles, left: Any, some: _SupportTile, values: Array, by_tiles: bool) -> None:
        """Add the share of some support rows to ``values`` (machines, rows), a view."""
        if len(self.coefficients) == 1 and not by_tiles:
            self.kernel.products(left, some.packed, Sides(v=some.coefficients[0], by_row=values[0]))
            return
        tile = tiles.tile_packed(left, some.packed)
        if by_tiles and not np.isfinite(tile).all():  # a zero coefficient times infinity is NaN too
            values[:] = np.nan
        values[some.machines] += some.coefficients @ tile.T

    def _support_blocks(self, dtype: np.dtype[Any]) -> Iterator[tuple[Tiles, list[_SupportTile]]]:
        """Yield the support rows, a bounded number at a time: what computes tiles of them, and their packed tiles."""
        n, d = self.support.shape
        most = max(1, min(4096, SUPPORT_BYTES // (d * dtype.itemsize)))
        step = min(256, most) if self.pairs else most  # rows mostly of one class, which few machines know
        for first in range(0, n, most):
            rows = self._widened(self.scaling(self.support[first : first + most].astype(dtype, copy=False)))
            coefficients = self.coefficients[:, first : first + most]
            parts = [slice(start, start + step) for start in range(0, len(rows), step)]
            tiles = tiles_of(self.kernel, rows) if self.pairs else self.kernel
            kind = rows.dtype
            yield tiles, [_SupportTile.of(tiles.pack_right(rows[part]), coefficients[:, part], kind) for part in parts]

    def arrays(self) -> dict[str, Any]:
        scaling = self.scaling
        held = (scaling.shift, scaling.factor, self.support, self.coefficients, self.intercept)
        return dict(zip(self.parts, held, strict=True))

    def description(self) -> dict[str, Any]:
        found = {"kind": self.kind, "kernel": self.kernel.parameters()} | ({"pairs": self.pairs} if self.pairs else {})
        return found | ({"double_precision": True} if self.double_precision else {})

    @classmethod
    def from_parts(cls, description: dict[str, Any], arrays: dict[str, Any]) -> KernelModel:
        """Build the model from its `arrays` and `description`; raise ValueError if they do not fit each other."""
        shift, factor, support, coefficients, intercept = (arrays[name] for name in cls.parts)
        held = {name: values for name, values in arrays.items() if isinstance(values, np.ndarray)}
        require_finite_parts(held)  # support rows on disk are not read here; `finite_values` checks what comes of them
        KERNEL(description.get("kernel"), "its kernel")
        d = len(shift)
        if support.dtype.kind != "f":
            raise ValueError(f"support vectors of type {support.dtype}")
        if not d or support.shape[1:] != (d,) or factor.shape != (d,):
            raise ValueError(f"support vectors of shape {support.shape}, scaled by {d} features")
        if coefficients.ndim != 2 or coefficients.shape != (len(intercept), support.shape[0]) or not len(intercept):
            raise ValueError(f"coefficients of shape {coefficients.shape} for {support.shape[0]} support vectors")
        pairs = require_pairs(len(coefficients), description.get("pairs", 0))
        double = description.get("double_precision", False)
        if not isinstance(double, bool):
            raise ValueError(f"double_precision={double!r:.20}")
        kernel = from_parameters(description["kernel"])
        return cls(kernel, Scaling(shift, factor), support, coefficients, intercept, pairs, double)
