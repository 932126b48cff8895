"""Description of missing and infinite values of rows in memory. It imports little, since workers use it in tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_odm.typing import Array


def describe_not_finite(X: Array, names: Sequence[Any] | Array | None = None, first: int = 0) -> str | None:
    """Return a sentence that says where X is missing or infinite, and what to do; None if all of X is finite.

    Columns are called by ``names``, or numbered from 0. ``first`` is the number of the first row of X.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(X.sum(dtype=np.float64)):
            return None
    missing = np.isnan(X)
    if missing.any():
        return (
            f"X holds missing values (NaN) in {_places(missing, names, first)}; drop these rows (dropna), or fill the "
            "values in (fillna, scikit-learn's SimpleImputer)."
        )
    infinite = np.isinf(X)
    if infinite.any():
        return f"X holds infinity in {_places(infinite, names, first)}; drop these rows, or put numbers in its place."
    return None


def _places(bad: Array, names: Sequence[Any] | Array | None, first: int, most: int = 5) -> str:
    counts = bad.sum(axis=0)
    columns = np.flatnonzero(counts).tolist()
    words = [f"column {j if names is None else _name(names[j])} ({_rows(counts[j])})" for j in columns[:most]]
    if len(columns) > most:
        words.append(f"{len(columns) - most} more")
    return f"{', '.join(words)}, first in row {first + int(np.argmax(bad.any(axis=1)))}"


def _name(name: Any) -> str:
    return str(name) if isinstance(name, int) else repr(str(name))


def _rows(count: int) -> str:
    return f"{count} row{'s' if count > 1 else ''}"
