"""What every reader hands on: rows as numbers, with where they came from kept for error messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dask_odm.errors import InputError

BLOCK_BYTES = 8_000_000
MAX_FEATURES = 10_000_000


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Consecutive rows of a source.

    Parameters
    ----------
    X : finite numbers of shape (rows, d), in the type asked for
    y : labels of shape (rows,), as the source has them (numbers or strings), or None
    weight : float64 of shape (rows,), or None
    place : tells where row ``i`` of the block stands, such as ``train.csv, line 17``
    position : bytes of the source read so far
    """

    X: npt.NDArray[Any]
    y: npt.NDArray[Any] | None
    weight: npt.NDArray[np.float64] | None
    place: Callable[[int], str]
    position: int


class Source(Protocol):
    """Rows that can be read once, in order, in bounded memory."""

    n_features: int
    feature_names: tuple[str, ...] | None
    labels_are_text: bool  # label types are to be inferred from all of them, not taken as they are
    size: int  # bytes, in the unit of RowBlock.position
    description: str

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the rows; InputError names file and line of what is wrong."""


def narrow(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return ``values`` as ``dtype``; what is too large becomes infinite, for `find_not_finite` to find."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(values, dtype=dtype)


def check_finite(
    X: npt.NDArray[Any],
    original: npt.NDArray[Any],
    place: Callable[[int], str],
    feature_names: Sequence[str] | None = None,
) -> None:
    """Raise InputError, with place and column, at the first entry of X (rows, d) that is not finite."""
    if np.isfinite(X).all():
        return
    row, column = np.argwhere(~np.isfinite(X))[0].tolist()
    raise not_finite(place(row), column_name(column, feature_names), original[row, column], X.dtype.name)


def not_finite(place: str, column: str, value: Any, dtype: str) -> InputError:
    """Return the error for one number that cannot be stored."""
    if np.isnan(value):
        return InputError(f"{place}, {column}: missing value (NaN); drop the row or fill the value in.")
    if np.isinf(value):
        return InputError(f"{place}, {column}: infinity; only finite numbers can be learned from.")
    return InputError(f"{place}, {column}: {value} is too large for {dtype}; use dtype='float64' (--dtype float64).")


def column_name(column: int, feature_names: Sequence[str] | None) -> str:
    """Name a column in messages: by its name, or counted from 1."""
    return f"column {column + 1}" if feature_names is None else f"column '{feature_names[column]}'"


def block_rows(features: int, dtype: str, block_bytes: int) -> int:
    """Rows of a dense block of about ``block_bytes``, at least one."""
    return max(1, block_bytes // (features * np.dtype(dtype).itemsize))


def check_weight(weight: npt.NDArray[np.float64], place: Callable[[int], str]) -> None:
    """Raise InputError at the first weight that is negative or not finite."""
    good = np.isfinite(weight) & (weight >= 0)
    if not good.all():
        row = int(np.argmin(good))
        raise InputError(f"{place(row)}: weight {weight[row]}; weights must be finite and not negative.")
