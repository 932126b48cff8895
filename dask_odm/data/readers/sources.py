"""Sources: what every reader returns. Rows are numbers, and their places are kept for error messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_odm.errors import InputError

BLOCK_BYTES = 8_000_000
MAX_FEATURES = 10_000_000


@dataclass(frozen=True, eq=False)
class SourceBlock:
    """Consecutive rows of a source."""

    X: npt.NDArray[Any]  # numbers of shape (rows, d), in the requested type; finite, or NaN for missing values
    y: npt.NDArray[Any] | None  # labels of shape (rows,), as the source has them: numbers or strings
    weight: npt.NDArray[np.float64] | None  # shape (rows,), NaN if missing
    place: Callable[[int], str]  # returns the place of a row of the block, such as ``train.csv, line 17``
    position: int  # bytes of the source read so far


class Source(ABC):
    """Rows that can be read once, in order, in bounded memory."""

    n_features: int
    description: str
    size: int = 0  # bytes, in the unit of SourceBlock.position; 0 if unknown
    feature_names: tuple[str, ...] | None = None
    label_name: str | None = None  # the source of the labels, in words
    label_is_guessed: bool = False  # the last column was taken, without a name that says so
    y_kind: str | None = None  # "classes" or "real" if the source says what its labels are
    labels_are_text: bool = False  # the type of labels is inferred from all of them

    @abstractmethod
    def blocks(self) -> Iterator[SourceBlock]:
        """Yield the rows; InputError names file and line of what is wrong."""

    def feature(self, i: int) -> str:
        """Return the name of a feature in messages."""
        return column_name(i, self.feature_names)


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


def block_rows(features: int, dtype: str, block_bytes: int) -> int:
    """Return the rows of a dense block of about ``block_bytes``, at least one."""
    return max(1, block_bytes // (max(1, features) * np.dtype(dtype).itemsize))


def describe(paths: Sequence[str], most: int = 3) -> str:
    """Return the names of files for messages and the store: all of a few, or the first of many and how many more."""
    shown = ", ".join(paths[:most])
    more = len(paths) - most
    return shown if more <= 0 else f"{shown} and {more} more file{'s' if more > 1 else ''}"


def joined(words: Sequence[str]) -> str:
    """Join words as in ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
