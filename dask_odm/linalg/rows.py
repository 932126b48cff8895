"""Rows that are read by range, in memory or elsewhere: scaled, as kernels and solvers see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dask_odm.errors import InputError
from dask_odm.typing import Array

READ_BYTES = 4 << 20  # most bytes of rows that are read at a time to be copied, if they are more than 64


def unmasked(values: Any, *, labels: bool = False) -> Any:
    """Return a masked array, or a list of them, as a plain array with missing values; anything else as it is.

    What is missing is NaN in numbers, and None in other values. Whole numbers become floats for that, unless they are
    ``labels``, which become objects.
    """
    if isinstance(values, list | tuple) and any(isinstance(each, np.ma.MaskedArray) for each in values):
        values = np.ma.array(values)
    if not isinstance(values, np.ma.MaskedArray):
        return values
    mask = np.ma.getmaskarray(values)
    plain = np.asarray(values.data)
    if not mask.any():
        return plain
    numbers = plain.dtype.kind == "f" or (plain.dtype.kind in "biu" and not labels)
    found = plain.astype(np.result_type(plain.dtype, np.float32) if numbers else object)
    found[mask] = np.nan if numbers else None
    return found


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT or pandas.NA."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA, which has no truth
        return True


def numbers_of_objects(X: Any) -> Array:
    """Return an array of objects or strings that all are numbers as float64, with NaN for missing ones.

    Raises InputError for anything else. A task of lazy arrays.
    """
    X = np.asarray(unmasked(X))
    try:
        if X.dtype.kind == "O":
            X = np.where(np.frompyfunc(is_missing, 1, 1)(X).astype(bool), np.nan, X)
        return X.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"in a block of rows, {with_way_out(str(error))}") from error


def with_way_out(said: str) -> str:
    """Return what Python or scikit-learn said of rows or labels, with the way out; a text that it ends in is cut."""
    if said.startswith("y should be a 1d array"):
        return f"{said.rstrip('.')}: learn each column by its own model, or all by ODMRegressor (0/1: ODMClassifier)."
    if said.startswith("multi_class must be in"):
        return f"{said}; of more than two classes, take 'roc_auc_ovr'"
    if not said.startswith("could not convert string to float"):
        return said
    cut = "…" if len(said) > 100 else ""
    return (
        f"{said[:100]}{cut}; arrays hold numbers: pass a frame, whose columns may hold words, and make rows of texts, "
        "as by scikit-learn's TfidfVectorizer."
    )


class Rows(Protocol):
    """Rows of one partition as a kernel sees them (scaled, centred), in memory or on disk."""

    @property
    def n(self) -> int: ...
    @property
    def d(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def read(self, start: int, stop: int) -> Any:
        """Return rows ``start:stop`` (stop - start, d) for a kernel. The caller must not write to them.

        They are `CSRRows`, or a C-contiguous array.
        """
        ...


class RowsOfMatrix:
    """Base class of rows that come from a matrix ``X`` (n, d) in memory."""

    X: Any

    @property
    def shape(self) -> tuple[int, int]:
        n, d = self.X.shape
        return int(n), int(d)

    @property
    def n(self) -> int:
        return self.shape[0]

    @property
    def d(self) -> int:
        return self.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.X.dtype)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, rows: Any) -> Any:
        return self.X[rows]

    def read(self, start: int, stop: int) -> Any:
        return self[start:stop]


@dataclass(frozen=True, eq=False)
class ArrayRows(RowsOfMatrix):
    """Scaled rows that are in memory, an array or `CSRRows`."""

    X: Any


def slabs(rows: Rows, step: int = 4096) -> Iterator[Array]:
    """Yield all ``rows``, dense, ``step`` at a time."""
    for start in range(0, rows.n, step):
        yield np.asarray(rows.read(start, min(rows.n, start + step)))


def read_scattered(rows: Rows, index: Array, out: Array | None = None) -> Array:
    """Return the rows at ascending numbers ``index`` (m,), perhaps in ``out``.

    No more than m rows are read at a time, since scattered ones may span more than memory holds, nor more than
    `READ_BYTES`, since they are held twice meanwhile.
    """
    out = np.empty((len(index), rows.d), rows.dtype) if out is None else out[: len(index)]
    most = min(len(index), max(64, READ_BYTES // max(1, rows.d * rows.dtype.itemsize)))
    at = 0
    while at < len(index):
        first = int(index[at])
        upto = int(np.searchsorted(index, first + most))
        found = rows.read(first, int(index[upto - 1]) + 1)
        out[at:upto] = found if len(found) == upto - at else found[index[at:upto] - first]
        at = upto
    return out


def uniforms_of(numbers: Array, seed: int) -> Array:
    """Draw a number in [0, 1) for each row in ``numbers`` (n,), float64. It depends on row number and seed only."""
    return (hash_of(numbers, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hash_of(numbers: Array, seed: int) -> Array:
    """Return SplitMix64 hashes of row numbers, uint64 (n,)."""
    key = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key  # wrapping is meant
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
