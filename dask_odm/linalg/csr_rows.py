"""Rows of a CSR array that stay sparse, as kernels see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from dask_odm.errors import InputError
from dask_odm.linalg.jit import compiled_in_order, frozen
from dask_odm.linalg.rows import RowsOfMatrix
from dask_odm.typing import Array

# the largest share of stored entries with which products of CSR rows are faster than BLAS
# (benchmarks/kernel_tiles.py --density)
MOST_DENSITY = 1 / 8


@dataclass(frozen=True, eq=False)
class CSRRows(RowsOfMatrix):
    """Sparse rows (n, d), which are indexed like an array.

    Row i has the ``values`` of the ``features`` (int32) from ``starts[i]`` to ``starts[i + 1]``, less the ``shift``
    (d,) of all rows, float64; None is no shift. ``starts`` are int64 (n + 1,), and d is the number of ``columns``.
    What knows no sparse rows sees a dense array.
    """

    starts: Array
    features: Array
    values: Array
    columns: int
    shift: Array | None = None

    @classmethod
    def of(cls, X: Any, entries: Callable[[Any], Array] | None = None, shift: Array | None = None) -> CSRRows:
        """Return the rows of a CSR array ``X`` (n, d), whose ``entries`` may be other ones, less ``shift`` (d,)."""
        if not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
        values = X.data if entries is None else entries(X).astype(X.dtype)
        starts = X.indptr.astype(np.int64, copy=False)
        return cls(frozen(starts), frozen(X.indices.astype(np.int32, copy=False)), frozen(values), X.shape[1], shift)

    @classmethod
    def stacked(cls, parts: Sequence[CSRRows]) -> CSRRows:
        """Return the rows of all ``parts``, which have the same shift."""
        held = [part.features[part.entries] for part in parts], [part.values[part.entries] for part in parts]
        counts = np.concatenate([np.diff(part.starts) for part in parts])
        features, values = map(np.concatenate, held)
        return replace(parts[0], starts=_starts(counts), features=frozen(features), values=frozen(values))

    def without_empty_columns(self) -> CSRRows:
        """Return the rows without the columns that are 0 in all of them, which change no distance or inner product."""
        used = np.bincount(self.features, minlength=self.columns) > 0
        used[0] = True  # there is a feature even if all rows are 0
        if self.shift is not None:
            used |= self.shift != 0
        places = (np.cumsum(used) - 1).astype(np.int32)
        shift = None if self.shift is None else self.shift[used]
        return replace(self, features=frozen(places[self.features]), columns=int(used.sum()), shift=shift)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.starts) - 1, self.columns

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def entries(self) -> slice:
        """Slice of the arrays that has the entries of these rows; slices of the rows share the arrays."""
        return slice(int(self.starts[0]), int(self.starts[-1]))

    @property
    def nbytes(self) -> int:
        """Bytes of these rows."""
        return self.starts.nbytes + int(self.starts[-1] - self.starts[0]) * (self.itemsize + 4)

    @property
    def width(self) -> int:
        """Numbers that a row takes on average: features, values, and its place."""
        return 2 + 2 * (int(self.starts[-1] - self.starts[0]) // max(1, len(self)))

    def __getitem__(self, rows: Any) -> CSRRows:
        if isinstance(rows, slice) and rows.step in (None, 1):
            first, last, _ = rows.indices(len(self))
            return replace(self, starts=self.starts[first : max(first, last) + 1])
        index = np.arange(len(self))[rows]
        counts = np.diff(self.starts)[index]
        starts = _starts(counts)
        places = np.repeat(self.starts[index] - starts[:-1], counts) + np.arange(starts[-1])
        features, values = frozen(self.features[places]), frozen(self.values[places])
        return replace(self, starts=starts, features=features, values=values)

    def astype(self, dtype: Any, copy: bool = False) -> CSRRows:
        """Return the rows in ``dtype``, whose arrays are shared if possible."""
        if self.dtype == dtype:
            return self
        starts = frozen(self.starts - self.starts[0])
        values = frozen(self.values[self.entries].astype(dtype))
        return replace(self, starts=starts, features=self.features[self.entries], values=values)

    def matrix(self) -> Any:
        """Return the rows as a CSR array, not shifted."""
        arrays = self.values[self.entries], self.features[self.entries], self.starts - self.starts[0]
        return csr_array(arrays, shape=self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        dense: Array = self.matrix().toarray()
        if self.shift is not None:
            dense -= self.shift.astype(self.dtype)
        return dense if dtype is None else dense.astype(dtype, copy=False)

    def dots(self, v: Array | None = None) -> Array:
        """Return ``x·v`` of every row x, not shifted, float64 (n,); by default ``x·x``."""
        out = np.zeros(len(self))
        _dots(self.starts, self.features, self.values, np.empty(0) if v is None else v, out)
        return out

    def along(self, v: Array) -> Array:
        """Return ``x·v`` of every row x, shifted, float64 (n,)."""
        return self.dots(v) if self.shift is None else self.dots(v) - float(self.shift @ v)

    def square_norms(self) -> Array:
        """Return ``‖x‖²`` of every row x, shifted, float64 (n,)."""
        norms = self.dots()
        if self.shift is not None:
            norms += float(self.shift @ self.shift) - 2.0 * self.dots(self.shift)
        return norms


def sparse_rows(X: Any) -> Any:
    """Return sparse rows as a CSR array with ascending columns, none of them twice; return anything else as it is.

    Sparse are arrays and matrices of SciPy, and arrays of the package ``sparse``. A matrix answers sums and indexing in
    two dimensions, unlike an array, so that none goes further than this. Raises InputError for more than two
    dimensions, for entries that are not stored and not 0, and as `require_entries_within`.
    """
    if not hasattr(X, "asformat"):
        return X
    if X.ndim > 2:
        raise InputError(f"X must have two dimensions. Got a sparse array of shape {X.shape} instead.")
    if not issparse(X):  # of the package ``sparse``
        if X.fill_value != 0:
            raise InputError(f"X is a sparse array whose other entries are {X.fill_value}, not 0; pass X.todense().")
        X = X.asformat("coo").to_scipy_sparse()
    require_entries_within(X)
    rows = csr_array(X)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def require_entries_within(X: Any) -> None:
    """Raise InputError if a sparse array (n, d) has entries in other rows or columns than its own.

    SciPy checks neither when it makes CSR, CSC or BSR arrays, and compiled loops read and write at these places.
    """
    if X.format not in ("csr", "csc", "bsr") or X.ndim != 2:
        return
    sides = np.floor_divide(X.shape, X.blocksize if X.format == "bsr" else 1)
    major, minor = sides[::-1] if X.format == "csc" else sides
    bounds = X.indptr
    stored = min(len(X.indices), len(X.data))
    if len(bounds) != major + 1 or bounds[0] != 0 or bounds[-1] > stored or (bounds[1:] < bounds[:-1]).any():
        raise InputError(f"X is a damaged sparse array: indptr does not ascend from 0 to the {stored} entries.")
    places = X.indices[: bounds[-1]]
    if len(places) and not 0 <= places.min() <= places.max() < minor:
        raise InputError(
            f"X is a damaged sparse array: its indices are from {places.min()} to {places.max()}, where those of shape "
            f"{X.shape} are from 0 to {minor - 1}."
        )


def is_sparse(X: Any) -> bool:
    """Return whether kernel values of a CSR array ``X`` (n, d) are computed by sparse products."""
    return bool(X.nnz <= MOST_DENSITY * X.shape[0] * X.shape[1] and X.shape[1] < 1 << 31)


def stacked_rows(parts: Sequence[Any]) -> Any:
    """Return the rows of all ``parts``, arrays or `CSRRows`."""
    return CSRRows.stacked(parts) if isinstance(parts[0], CSRRows) else np.concatenate(parts)


def row_width(rows: Any) -> int:
    """Return the numbers that a row of an array, or of `CSRRows`, takes."""
    return rows.width if isinstance(rows, CSRRows) else int(rows.shape[1])


def _starts(counts: Array) -> Array:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return frozen(starts)


@compiled_in_order
def _dots(starts: Array, features: Array, values: Array, v: Array, out: Array) -> None:
    """Add ``x·v``, or ``x·x`` if v is empty, of every row to ``out`` (n,)."""
    for i in range(out.size):
        for e in range(starts[i], starts[i + 1]):
            out[i] += np.float64(values[e]) * (v[features[e]] if v.size else np.float64(values[e]))
