"""Models of a kernel: sums over support rows, of one machine or of many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array, issparse

from dask_odm.data.rows.memory import SparseRows
from dask_odm.data.rows.scaling import COPIED_BYTES, Scaling
from dask_odm.data.store.records import RowSource
from dask_odm.data.store.schemas import KERNEL
from dask_odm.kernels import from_parameters
from dask_odm.kernels.base import BLOCK, Kernel, Sides
from dask_odm.kernels.blocks import PANEL_BYTES
from dask_odm.kernels.shape import Shape
from dask_odm.kernels.sparse_tiles import Tiles, tiles_of
from dask_odm.linalg.csr_rows import is_sparse
from dask_odm.linalg.threads import run_threads, single_threaded_blas
from dask_odm.models.model import PREDICTED_ROWS, Model, checked_machines, require_finite_parts, with_lacking
from dask_odm.typing import Array

PREDICTED_BYTES = 8 << 20  # most bytes of such rows in float64, if they are more than 64
# Features and kernel values for which another thread pays: to wake one takes some 100,000 (benchmarks/small_data.py).
PREDICTED_ENTRIES = 1 << 18
NARROW_ENTRIES = 1 << 18  # fewest kernel values for which labels by float32 save time
NARROW_ERROR = 0.2  # error bound above which too many rows would be computed again; most values are near ±1
ON_RANKS = " on ranks"  # in the kind of a model whose features are mapped to ranks
BY_METRIC = " by metric"  # and whose scaled rows are multiplied by a matrix
# support rows, machines that use any of them, these machines' coefficients
Portion = tuple[slice, Array | slice, Array]
SupportTile = tuple[Any, Array | slice, Array]  # the same with packed rows


def most_rows(d: int) -> int:
    """Return the most rows of ``d`` features that a thread predicts at a time."""
    return max(64, PREDICTED_BYTES // (8 * d))


def predicting_bytes(shape: Shape, support: int) -> int:
    """Return the bytes that predicting rows takes, besides the model's ``support`` rows themselves.

    Rows in float32 may be predicted in float64, and are scaled first.
    """
    single = shape.itemsize == 4
    some = min(support, 4096, max(1, PANEL_BYTES // (shape.d * shape.itemsize)))
    rows = min(shape.n, most_rows(shape.d), 4 * PREDICTED_ROWS)
    scaled = (12 if single else 8) * shape.d
    left = rows * (scaled + 8 * (shape.d + 10)) + 8 * min(some, BLOCK) * min(rows, BLOCK)
    return shape.packed(some, 8) + max(some * scaled, shape.threads * left)


@dataclass(frozen=True, eq=False)
class KernelModel(Model):
    """The model ``f(x) = Σ_i coefficients_i κ(x_i, x) + intercept`` on raw rows.

    The kernel is without bias. ``scaling`` leads from raw rows to those that the kernel sees. ``support`` are raw rows
    (n_support, d), in memory (dense or sparse) or read from a file when they are sliced; ``coefficients`` (machines,
    n_support) are float64.

    Values are computed in the wider of the rows' dtype and the support's. With ``double_precision``, kernel values and
    their sums are in float64 for rows of any dtype: large coefficients of both signs would magnify the rounding of
    float32 too much. Sparse rows are multiplied as they are if the support is sparse, too; otherwise they are made
    dense, a block at a time. The number of threads changes no bit. The last digits of a row may depend on the rows
    beside it if BLAS multiplies.
    """

    kernel: Kernel
    scaling: Scaling
    support: RowSource
    coefficients: Array
    intercept: Array
    pairs: int = 0
    double_precision: bool = False
    lacking: tuple[int, ...] = ()
    wide: bool = False
    spread: bool = False
    kind: ClassVar[str] = "kernel"
    slopes: ClassVar[str] = "coefficients"
    parts: ClassVar[tuple[str, ...]] = (*Scaling.parts, "support_vectors", "coefficients", "intercept")

    @property
    def features(self) -> int:
        return int(self.support.shape[1])

    @property
    def raw_support(self) -> Any:
        """Support rows in memory, an array or CSR array; they are read now if they are still in the model's file."""
        support: Any = self.support
        return support.X if isinstance(support, SparseRows) else support[: support.shape[0]]

    @property
    def machine_coefficients(self) -> Array:
        """Coefficients of every machine (machines, n_support)."""
        return self.coefficients

    def are_finite(self, X: Any) -> bool:
        """Return whether the scores of raw rows are finite.

        It uses the compiled loop that a fit used for tiles. For the loop of `values`, a first fit would wait for the
        compiler.
        """
        return bool(np.isfinite(self.machine_scores(X, 1, by_tiles=True).astype(X.dtype)).all())

    def machine_scores(self, X: Any, threads: int = 1, by_tiles: bool = False) -> Array:
        n = X.shape[0]
        dtype = np.result_type(X.dtype, self.support.dtype)
        values = np.empty((len(self.intercept), n))
        values[:] = self.intercept[:, None]
        step = self._rows_at_a_time(n)
        sparse = issparse(X) and self.is_sparse
        scaled_rows = self._scaled(X, dtype, sparse=sparse)
        with single_threaded_blas:
            for tiles, packed in self._support_blocks(dtype, sparse=sparse):

                def add(start: int, tiles: Tiles = tiles, packed: list[SupportTile] = packed) -> None:
                    rows = slice(start, start + step)
                    left = tiles.pack_left(self._widened(scaled_rows(rows)))
                    for right, machines, coefficients in packed:
                        if len(values) == 1 and not by_tiles:
                            self.kernel.products(left, right, Sides(v=coefficients[0], by_row=values[0, rows]))
                            continue
                        tile = tiles.tile_packed(left, right)
                        if by_tiles and not np.isfinite(tile).all():  # a zero coefficient times infinity is NaN too
                            values[:, rows] = np.nan
                        values[machines, rows] += coefficients @ tile.T

                run_threads(add, range(0, n, step), threads, "predict")
        return values

    def _rows_at_a_time(self, n: int) -> int:
        """Return how many of ``n`` rows a thread takes at a time, whatever the number of threads: equal parts."""
        entries = n * (self.support.shape[0] + self.features)
        parts = min(-(-n // PREDICTED_ROWS), entries // PREDICTED_ENTRIES)
        return max(1, min(most_rows(self.features), -(-n // (parts + parts % 2 if parts > 1 else 1))))

    def label_values(self, X: Any, threads: int = 1) -> Array:
        n = X.shape[0]
        one = type(self) is KernelModel and len(self.intercept) == 1 and not self.double_precision
        held = isinstance(self.support, np.ndarray | SparseRows) and 8 * math.prod(self.support.shape) <= COPIED_BYTES
        dense = X.dtype == np.float64 and not (issparse(X) and self.is_sparse)
        if not (one and held and dense) or n * self.support.shape[0] < NARROW_ENTRIES:
            return super().label_values(X, threads)
        found = self._float32_values(X, threads)
        if found is None:
            return super().label_values(X, threads)
        values, limits = found
        unsure = np.flatnonzero(~(np.abs(values) > limits))
        most = max(PREDICTED_ROWS, COPIED_BYTES // (8 * self.features))  # at a time, since they are copied
        for some in (unsure[first : first + most] for first in range(0, len(unsure), most)):
            values[some] = self.machine_scores(X[some], threads)[0]
        near = np.abs(values[unsure]) <= 2.0**-28 * limits[unsure]  # twice the error of float64
        if near.any() and not self.kernel.makes_panels(self.features):  # BLAS's last digits depend on the rows beside
            return super().label_values(X, threads)
        return with_lacking(values[:, None], self.lacking)

    def _float32_values(self, X: Any, threads: int) -> tuple[Array, Array] | None:
        """Return values in float32 and bounds of their errors, float64 (n,) each; None if errors are too large."""
        support = self._scaled(self.raw_support, X.dtype, sparse=False)(slice(None))
        weights = np.abs(self.coefficients[0])
        total = float(weights.sum())
        with np.errstate(invalid="ignore"):  # a coefficient of 0 times an unknown error
            error = float(weights @ self.kernel.float32_errors(support))
        if not error < NARROW_ERROR:
            return None
        error += len(support) * float(np.finfo(np.float32).tiny)  # products with tiny coefficients vanish
        # by tiles, whose loop a fit has compiled
        blocks = [slice(first, first + BLOCK) for first in range(0, len(support), BLOCK)]
        packed = [(self.kernel.pack_right(support[some].astype(np.float32)), some) for some in blocks]
        coefficients = self.coefficients[0].astype(np.float32)
        scaled_rows = self._scaled(X, X.dtype, sparse=False)
        values = np.full(X.shape[0], float(self.intercept[0]))
        limits = np.empty(len(values))
        step = self._rows_at_a_time(len(values))

        def add(start: int) -> None:
            rows = scaled_rows(slice(start, start + step))
            some = slice(start, start + len(rows))
            with np.errstate(over="ignore", invalid="ignore"):  # what is too large for float32 is computed again
                left = self.kernel.pack_left(rows.astype(np.float32))
                for right, columns in packed:
                    values[some] += self.kernel.tile_packed(left, right) @ coefficients[columns]
                limits[some] = error + total * self.kernel.float32_errors(rows)

        with single_threaded_blas:
            run_threads(add, range(0, len(values), step), threads, "predict")
        return values, limits

    def _widened(self, rows: Any) -> Any:
        """Cast scaled rows to the dtype of kernel values, after they were scaled in their own dtype as in training."""
        return rows.astype(np.float64, copy=False) if self.double_precision else rows

    @cached_property
    def is_sparse(self) -> bool:
        """Whether kernel values of sparse rows are computed by sparse products, as the first support rows tell."""
        if not self.kernel.takes_csr or not self.support.shape[0] or self.scaling.matrix is not None:
            return False
        some = slice(0, max(1, min(512, PANEL_BYTES // (self.features * self.support.dtype.itemsize))))
        X = self._sparse_support(some)
        return is_sparse(X) and not self.scaling.moves_far(float(self.scaling.of_csr(X).dots().mean()))

    def _sparse_support(self, some: slice) -> Any:
        """Return some of the raw support rows as a CSR array."""
        support: Any = self.support
        return support.take(some).X if isinstance(support, SparseRows) else csr_array(np.asarray(support[some]))

    def _scaled(self, X: Any, dtype: np.dtype[Any], *, sparse: bool) -> Callable[[slice], Any]:
        """Return a function that gives some of the raw rows ``X``, scaled: dense, or as `CSRRows` if ``sparse``."""
        if sparse:
            rows = self.scaling.of_csr(X.astype(dtype, copy=False))
            return rows.__getitem__

        def scale(rows: slice) -> Array:
            block = X[rows].toarray() if issparse(X) else X[rows]
            return self.scaling(block.astype(dtype, copy=False))

        return scale

    def _support_blocks(self, dtype: np.dtype[Any], *, sparse: bool) -> Iterator[tuple[Tiles, list[SupportTile]]]:
        """Yield bounded parts of the support rows: the object that computes their tiles, and the packed tiles."""
        n, d = self.support.shape
        held = sparse and isinstance(self.support, SparseRows)
        most = 4096 if held else max(1, min(4096, PANEL_BYTES // (d * dtype.itemsize)))
        for first in range(0, n, most):
            some = slice(first, first + most)
            raw = self._sparse_support(some) if sparse else self.support[some]
            raw = raw.astype(dtype, copy=False)
            rows = self._widened(self.scaling.of_csr(raw) if sparse else self.scaling(raw))
            tiles = tiles_of(self.kernel, rows) if self.pairs else self.kernel
            packed: list[SupportTile] = []
            for portion, machines, coefficients in self._portions(first, first + len(rows)):
                right = tiles.pack_right(rows[portion.start - first : portion.stop - first])
                packed.append((right, machines, coefficients.astype(rows.dtype)))
            del raw, rows  # the packed ones are what is needed
            yield tiles, packed

    def _portions(self, first: int, last: int) -> Iterator[Portion]:
        """Yield the support rows from ``first`` to ``last`` in portions, with their machines and coefficients.

        Portions that no machine uses are left out, as those of landmarks are in a model that is zero.
        """
        some = slice(first, last)
        coefficients = self.coefficients[:, some]
        if coefficients.any():
            used = np.flatnonzero(coefficients.any(axis=1))  # few in a cell with few classes; all count if most do
            machines = slice(None) if 2 * len(used) > len(coefficients) else used
            yield some, machines, coefficients[machines]

    def arrays(self) -> dict[str, Any]:
        own = {"support_vectors": self.support, "coefficients": self.coefficients, "intercept": self.intercept}
        return self.scaling.arrays() | own

    def description(self) -> dict[str, Any]:
        found = super().description() | {"kernel": self.kernel.parameters()}
        if self.scaling.ranks is not None:  # which other versions must not overlook
            found["kind"] += ON_RANKS
        if self.scaling.matrix is not None:
            found["kind"] += BY_METRIC
        return found | ({"double_precision": True} if self.double_precision else {})

    @classmethod
    def from_parts(cls, description: dict[str, Any], arrays: dict[str, Any]) -> KernelModel:
        """Build the model from its `arrays` and `description`; raise ValueError if they do not fit each other."""
        return cls(**cls._checked_parts(description, arrays))

    @classmethod
    def _checked_parts(
        cls, description: dict[str, Any], arrays: dict[str, Any], rows: int | None = None
    ) -> dict[str, Any]:
        """Return the fields of a kernel model; raise ValueError if the arrays do not fit each other.

        Coefficients have ``rows``, by default one for each machine.
        """
        support, coefficients, intercept = (arrays[name] for name in ("support_vectors", "coefficients", "intercept"))
        held = {name: arrays[name] for name in KernelModel.parts if isinstance(arrays[name], np.ndarray)}
        require_finite_parts(held)  # support rows on disk are not read here; `finite_values` checks what comes of them
        KERNEL(description.get("kernel"), "its kernel")
        scaling = Scaling.of_arrays(arrays)
        d = len(scaling.shift)
        if support.dtype.kind != "f":
            raise ValueError(f"support vectors of type {support.dtype}")
        if support.shape[1:] != (d,):
            raise ValueError(f"support vectors of shape {support.shape}, scaled by {d} features")
        found = checked_machines(len(intercept), description)
        if not len(intercept) or coefficients.shape != (len(intercept) if rows is None else rows, support.shape[0]):
            raise ValueError(f"coefficients of shape {coefficients.shape} for {support.shape[0]} support vectors")
        double = description.get("double_precision", False)
        if not isinstance(double, bool):
            raise ValueError(f"double_precision={double!r:.20}")
        kernel = from_parameters(description["kernel"])
        parts = {"support": support, "coefficients": coefficients, "intercept": intercept}
        return found | parts | {"kernel": kernel, "scaling": scaling, "double_precision": double}
