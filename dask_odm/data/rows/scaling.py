"""Scaling of features, affine or of their ranks, a learned metric, and dense rows that are scaled when read.

The scaling is kept in the model, so that training and prediction both take raw data. A scaled copy of large data would
double its memory.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from dask_odm.data.rows.ranks import Ranks
from dask_odm.data.storage.files import load_bytes, save_bytes
from dask_odm.data.store.statistics import Statistics
from dask_odm.errors import InputError
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.linalg.jit import compiled_in_order, frozen
from dask_odm.linalg.rows import RowsOfMatrix
from dask_odm.typing import Array

COPIED_BYTES = 64 << 20  # rows up to this size are scaled once, as a copy, which saves time in every pass


def _minmax(statistics: Statistics) -> tuple[Array, Array]:
    """To the range [0, 1]."""
    return statistics.minimum, statistics.maximum - statistics.minimum


def _standard(statistics: Statistics) -> tuple[Array, Array]:
    """To mean 0 and variance 1."""
    return statistics.mean, np.sqrt(statistics.variance)


def _ranks(statistics: Statistics) -> tuple[Array, Array]:
    """To [0, 1] by the ranks of a column's values, as normal scores up to ±3; not with "linear"."""
    return np.zeros_like(statistics.mean), np.ones_like(statistics.mean)


MATRIX = "metric"  # the array of a model's record that has the matrix of a scaling
RANKS = "ranks"  # whose `Statistics` are of ranked features
# What is subtracted from features, and what they are divided by. Constraints and docstrings are made from these.
SCALINGS = {"minmax": _minmax, "standard": _standard, RANKS: _ranks}


def require_affine(method: str | None) -> None:
    """Raise InputError for ranks, of a linear model."""
    if method == RANKS:
        raise InputError(
            "scale='ranks' is for kernels other than 'linear', whose weights are of raw features; take "
            "kernel='laplacian', or scale='standard'."
        )


@compiled_in_order
def _scale_row_by_row(X: Array, shift: Array, factor: Array, out: Array) -> None:
    """Scale row by row. This is several times as fast as NumPy and spares its two float64 copies."""
    for i in range(X.shape[0]):
        row = X[i]
        scaled = out[i]
        for j in range(row.size):
            scaled[j] = (row[j] - shift[j]) * factor[j]


@compiled_in_order
def _turn_rows(X: Array, matrix: Array, out: Array) -> None:
    """Multiply rows by a matrix, each in float64 and by itself, so that no bit depends on the rows beside it."""
    d = matrix.shape[0]
    count = 32
    columns = np.zeros((d + 3, count))  # some rows, side by side: vector instructions add up a feature of all at once
    factors = np.zeros(d + 3)
    turned = np.empty(count)
    for start in range(0, X.shape[0], count):
        rows = min(count, X.shape[0] - start)
        for i in range(rows):
            for j in range(d):
                columns[j, i] = X[start + i, j]
        for k in range(d):
            for j in range(d):
                factors[j] = matrix[j, k]
            turned[:] = 0.0
            for j in range(0, d, 4):  # four at once, in their order: sums are read and written less often
                a, b, c, e = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
                s, t, u, v = factors[j], factors[j + 1], factors[j + 2], factors[j + 3]
                for i in range(count):
                    turned[i] = turned[i] + a[i] * s + b[i] * t + c[i] * u + e[i] * v
            for i in range(rows):
                out[start + i, k] = turned[i]


@dataclass(frozen=True, eq=False)
class Stretch:
    """A learned metric of scaled features: factors (d,), or a symmetric matrix (d, d). It equals itself alone."""

    values: Array

    @classmethod
    def of(cls, values: list[Any], d: int) -> Stretch:
        """Return the metric of a user's numbers for d features; raise InputError if they are of others."""
        found = np.array(values, np.float64)
        if found.shape not in ((d,), (d, d)) or not np.isfinite(found).all():
            raise InputError(f"metric: values must be {d} finite numbers, or a matrix of so many rows and columns.")
        return cls(found)


@dataclass(frozen=True, eq=False)
class Scaling:
    """Scaling ``(x − shift) · factor``, feature by feature; both are float64 of shape (d,).

    With ``ranks``, these map x first. What is known of rows, such as their statistics, is then of ranked rows. With a
    ``matrix``, symmetric of shape (d, d), scaled rows are multiplied by it, and are no longer features of their own.
    """

    shift: Array
    factor: Array
    ranks: Ranks | None = None
    matrix: Array | None = None
    parts: ClassVar[tuple[str, ...]] = ("shift", "factor")

    @classmethod
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # callers check that it is finite
    def from_statistics(
        cls, statistics: Statistics, method: str | None, *, centre: bool, marks: Sequence[int] = ()
    ) -> Scaling:
        """Return the scaling that ``method`` names, a word of `SCALINGS` or None.

        A constant feature becomes 0. ``marks`` are the features that a recipe of columns made of words. Rows with
        different words get the distance of a mean deviation of the other features, however rare the words are, see
        benchmarks/MEASURED.md. With ``centre``, scaled features have mean 0 whatever the method. That does not
        change a kernel of distances, and loses fewer digits. Ranks are near 0 anyway, and keep zeros.
        """
        d = len(statistics.mean)
        shift = np.zeros(d)
        factor = np.ones(d)
        if method is not None:
            shift, width = (each.copy() for each in SCALINGS[method](statistics))
            constant = statistics.maximum == statistics.minimum
            factor = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, width))
            if marks:
                numbers = ~constant
                numbers[list(marks)] = False
                square = (statistics.variance * factor**2)[numbers].mean() if numbers.any() else 1.0
                shift[list(marks)], factor[list(marks)] = 0.0, math.sqrt(0.5 * square)
        ranks = statistics.ranks
        return cls(statistics.mean if centre and ranks is None else shift, factor, ranks)

    @classmethod
    def of_features(cls, statistics: Statistics, method: str, marks: Sequence[int] = ()) -> Scaling:
        """Return the scaling of a linear model's features, not centred; raise InputError if float64 cannot hold it."""
        require_affine(method)
        scaling = cls.from_statistics(statistics, method, centre=False, marks=marks)
        if not scaling.is_finite or not np.isfinite(scaling.shift).all():
            raise InputError("features are too large or too small to be scaled; multiply them by a power of ten first.")
        return scaling

    def __call__(self, X: Array, out: Array | None = None) -> Array:
        """Return a scaled copy of ``X`` (n, d) in its dtype.

        The subtraction is done in float64, since it could cancel.
        """
        out = np.empty_like(X, order="C") if out is None else out
        if self.ranks is not None:
            self.ranks(X, out, self.shift, self.factor)
        else:
            _scale_row_by_row(frozen(np.ascontiguousarray(X)), self.shift, self.factor, out)
        if self.matrix is not None:
            _turn_rows(frozen(out), frozen(self.matrix), out)
        return out

    def stretched(self, metric: Stretch) -> Scaling:
        """Return the scaling by a learned ``metric``, too."""
        values = metric.values
        return replace(self, factor=self.factor * values) if values.ndim == 1 else replace(self, matrix=values)

    @property
    def is_finite(self) -> bool:
        """Whether float64 can hold the factors."""
        return bool(np.isfinite(self.factor).all())

    def unshifted(self) -> Scaling:
        """Return the scaling by the same factors that leaves zeros where they are."""
        return replace(self, shift=np.zeros_like(self.shift))

    def entries(self, X: Any) -> Array:
        """Return the stored entries of a CSR array ``X`` (n, d), scaled without the shift, float64."""
        values = X.data if self.ranks is None else self.ranks.entries(X)
        return np.asarray(values * self.factor[X.indices])

    def of_csr(self, X: Any) -> CSRRows:
        """Return the rows of a CSR array ``X`` (n, d), scaled in float64 and rounded to its dtype, still sparse."""
        shift = self.shift * self.factor
        same = self.ranks is None and (self.factor == 1.0).all()
        return CSRRows.of(X, None if same else self.entries, shift if shift.any() else None)

    def moves_far(self, mean_square: float) -> bool:
        """Return whether the scaled shift is so long that unshifted rows, of that mean ‖x‖², lose digits by it."""
        shift = self.shift * self.factor
        return float(shift @ shift) > 0.5 * mean_square

    def farthest(self, statistics: Statistics) -> Array:
        """Return how far from 0 a scaled feature of any row is, (d,)."""
        ends = np.abs(statistics.maximum - self.shift), np.abs(statistics.minimum - self.shift)
        far: Array = np.abs(self.factor) * np.maximum(*ends)
        return far if self.matrix is None else far @ np.abs(self.matrix)

    def seen_from(self, row: Array) -> Scaling:
        """Return the scaling by the same factors that takes a raw ``row`` (d,) to 0."""
        row = np.asarray(row, np.float64)
        if self.ranks is not None:
            row = self.ranks(row[None], np.empty((1, len(row))), np.zeros(len(row)), np.ones(len(row)))[0]
        return replace(self, shift=row)

    def sees_alike(self, other: Scaling) -> bool:
        """Return whether factors and shifts lead from rows of this scaling to those of the ``other`` one."""
        if self.matrix is not None or other.matrix is not None:
            return False
        return self.ranks is other.ranks if self.ranks is None else self.ranks.same(other.ranks)

    def arrays(self) -> dict[str, Array]:
        """Return what `of_arrays` makes the scaling of: arrays of a model's record."""
        found = {"shift": self.shift, "factor": self.factor}
        found |= {} if self.ranks is None else self.ranks.arrays()
        return found | ({} if self.matrix is None else {MATRIX: self.matrix})

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> Scaling:
        """Build the scaling from its `arrays`; raise ValueError if they do not fit each other."""
        shift, factor = (arrays[name] for name in cls.parts)
        if not len(shift) or factor.shape != shift.shape:
            raise ValueError(f"scaling of shapes {shift.shape} and {factor.shape}")
        matrix = arrays.get(MATRIX)
        if matrix is not None and (matrix.shape != 2 * shift.shape or not np.isfinite(matrix).all()):
            raise ValueError(f"metric of shape {matrix.shape} for {len(shift)} features, or not finite")
        ranks = Ranks.of_arrays(arrays, len(shift)) if Ranks.parts[0] in arrays else None
        return cls(shift, factor, ranks, matrix)

    def save(self, path: str) -> None:
        """Write the scaling to a file, for `StoredScaling`."""
        save_bytes(path, pickle.dumps(self))

    def at_rest(self, X: Array, statistics: Statistics, sample: int = 512) -> Scaling:
        """Return a scaling that maps to 0 the minimum or maximum of a feature if most rows have that value.

        That does not change a kernel of distances, and makes most entries of an image 0. Some ``sample`` of the rows
        ``X`` show how frequent a value is. Ranks have a rest at zero, and a matrix mixes features.
        """
        if self.ranks is not None or self.matrix is not None:
            return self
        some = X[:: max(1, len(X) // sample)]
        shift = self.shift.copy()
        for value in (statistics.minimum, statistics.maximum):
            often = 2 * np.count_nonzero(some == value, axis=0) > len(some)
            shift[often] = value[often]
        return replace(self, shift=shift)

    @np.errstate(over="ignore", invalid="ignore")
    def variance(self, statistics: Statistics) -> float:
        """Return the variance of all scaled entries together, by which ``gamma="scale"`` divides."""
        mean = (statistics.mean - self.shift) * self.factor
        return float((statistics.variance * self.factor**2).mean() + mean.var())


@dataclass(frozen=True)
class StoredScaling:
    """Scaling in a file, named by its path. Tasks carry the path, since the arrays may be large."""

    path: str

    @property
    def shift(self) -> Array:
        return load_scaling(self.path).shift

    @property
    def factor(self) -> Array:
        return load_scaling(self.path).factor

    def __call__(self, X: Array, out: Array | None = None) -> Array:
        """Return a scaled copy of ``X``, as `Scaling` does."""
        return load_scaling(self.path)(X, out)

    def entries(self, X: Any) -> Array:
        """Return the scaled entries of a CSR array, as `Scaling` does."""
        return load_scaling(self.path).entries(X)


@lru_cache(maxsize=4)
def load_scaling(path: str) -> Scaling:
    """Read a scaling from its file, once per process."""
    found: Scaling = pickle.loads(load_bytes(path))
    return found


@dataclass(frozen=True, eq=False)
class ScaledRows(RowsOfMatrix):
    """Rows of a float32 or float64 array that are scaled when they are read. The bits are those of a scaled copy."""

    X: Array
    scaling: Scaling

    def __getitem__(self, rows: Any) -> Array:
        found = self.X[rows]
        return self.scaling(found, found if found.base is None else None)  # a gathered copy is scaled in place


def scaled_rows(X: Array, scaling: Scaling) -> Array | ScaledRows:
    """Return scaled rows of ``X`` (n, d): a copy if they are small, else rows that are scaled when they are read."""
    return scaling(X) if X.nbytes <= COPIED_BYTES else ScaledRows(X, scaling)
