"""Types that `resolve` returns for users' inputs, and tests for xarray and Dask objects that import neither."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from dask_odm.data.store.store import Store
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Given:
    """Rows in memory with labels and weights as they came, which scikit-learn has yet to validate."""

    X: Any
    y: Any = None
    weight: Any = None


@dataclass(frozen=True, eq=False)
class LazyArrays:
    """Dask arrays with aligned row chunks: X (n, d), y (n,) or None, weight (n,) or None.

    Chunk sizes are known, except those of an X without y and weight if they were not asked for.
    """

    X: Any
    y: Any
    weight: Any = None
    feature_names: Array | None = None


@dataclass(frozen=True, eq=False)
class Features:
    """Features of a model: their number, their names, and the name of their dimension in an xarray X of `fit`."""

    count: int
    names: Array | None = None
    dimension: str | None = None


Resolved = Store | LazyArrays | Given


def is_of(value: Any, library: str, *classes: str) -> bool:
    """Return whether ``value`` is of one of a library's classes, without importing the library if nobody uses it."""
    loaded = sys.modules.get(library)
    return loaded is not None and isinstance(value, tuple(getattr(loaded, name) for name in classes))


def is_xarray(X: Any) -> bool:
    """Return whether ``X`` is an xarray object."""
    return is_of(X, "xarray", "Dataset", "DataArray")


def is_dask_array(X: Any) -> bool:
    """Return whether ``X`` is a dask array."""
    return is_of(X, "dask.array", "Array")


def is_dask_frame(X: Any) -> bool:
    """Return whether ``X`` is a dask DataFrame."""
    return is_of(X, "dask.dataframe", "DataFrame")
