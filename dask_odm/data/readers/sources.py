"""How sources are read, the blocks of rows that they yield, and words for messages about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_odm.errors import InputError

BLOCK_BYTES = 8_000_000
MAX_FEATURES = 10_000_000


@dataclass(frozen=True)
class Reading:
    """How a source is read: options of `ingest`, which has their meaning. Every reader takes those that apply to it."""

    format: str | None = None
    n_features: int | None = None
    label: str | int | bool | None = None  # None means that the reader finds it, False that there is none
    weight: Any = None
    header: bool | None = None
    drop: tuple[str | int, ...] = ()
    dtype: str = "float32"
    block_bytes: int = BLOCK_BYTES
    allow_large: bool = False

    def block_rows(self, features: int) -> int:
        """Return the rows of a dense float64 block of about ``block_bytes``, at least one."""
        return max(1, self.block_bytes // (8 * max(1, features)))


@dataclass(frozen=True, eq=False)
class SourceBlock:
    """Consecutive rows of a source."""

    X: npt.NDArray[Any]  # numbers of shape (rows, d), in the requested type; finite, or NaN for missing values
    y: npt.NDArray[Any] | None  # labels of shape (rows,), as the source has them: numbers or strings
    weight: npt.NDArray[np.float64] | None  # shape (rows,), NaN if missing
    place: Callable[[int], str]  # returns the place of a row of the block, such as ``train.csv, line 17``
    position: int  # bytes of the source read so far


def narrow(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return ``values`` as ``dtype``. Numbers that are too large become infinite, which readers look for."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(values, dtype=dtype)


def not_finite(place: str, column: str, value: Any, dtype: str) -> InputError:
    """Return the error for a number that cannot be stored."""
    if np.isinf(value):
        return InputError(f"{place}, {column}: infinity; only finite numbers can be learned from.")
    return InputError(f"{place}, {column}: {value} is too large for {dtype}; use dtype='float64' (--dtype float64).")


def column_name(column: int, feature_names: Sequence[str] | None) -> str:
    """Return a column's name in messages, or its number counted from 1."""
    return f"column {column + 1}" if feature_names is None else f"column {feature_names[column][:60]!r}"


def describe(paths: Sequence[str], most: int = 3) -> str:
    """Return the names of files for messages and the store: all of a few, or the first of many and how many more."""
    shown = ", ".join(paths[:most])
    more = len(paths) - most
    return shown if more <= 0 else f"{shown} and {more} more file{'s' if more > 1 else ''}"


def joined(words: Sequence[str]) -> str:
    """Join words as in ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
