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

    @property
    def nbytes(self) -> int:
        """Bytes of X in memory."""
        return int(self.X.nbytes)


@dataclass(frozen=True, eq=False)
class Features:
    """Features of a model: their number, their names, and the name of their dimension in an xarray X of `fit`."""

    count: int
    names: Array | None = None
    dimension: str | None = None


Resolved = Store | LazyArrays | Given


def is_xarray(X: Any) -> bool:
    """Return whether ``X`` is an xarray object, without importing xarray if nobody uses it."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(X, xarray.Dataset | xarray.DataArray)


def is_dataset(X: Any) -> bool:
    """Return whether ``X`` is an xarray Dataset."""
    return is_xarray(X) and hasattr(X, "data_vars")


def is_dask_array(X: Any) -> bool:
    """Return whether ``X`` is a dask array."""
    array = sys.modules.get("dask.array")
    return array is not None and isinstance(X, array.Array)
