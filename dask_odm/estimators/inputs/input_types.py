"""What `resolve` makes of what a user hands over, and how xarray's and Dask's objects are told without loading them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from dask_odm.data.store.store import Store
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class Given:
    """Rows in memory with what came beside them, for scikit-learn to validate."""

    X: Any
    y: Any = None
    weight: Any = None


@dataclass(frozen=True, eq=False)
class LazyArrays:
    """Dask arrays, row chunks aligned: X (n, d), y (n,) or None, weight (n,) or None.

    Chunk sizes are known, except those of an X by itself that was not asked for its lengths.
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
    """What a model knows of its features: how many, their names, and their dimension's name in an xarray X of `fit`."""

    count: int
    names: Array | None = None
    dimension: str | None = None


Resolved = Store | LazyArrays | Given


def is_xarray(X: Any) -> bool:
    """Whether ``X`` is an xarray object, without importing xarray for those who do not use it."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(X, xarray.Dataset | xarray.DataArray)


def is_dataset(X: Any) -> bool:
    """Whether ``X`` is an xarray Dataset."""
    return is_xarray(X) and hasattr(X, "data_vars")


def is_dask_array(X: Any) -> bool:
    """Whether ``X`` is a dask array."""
    array = sys.modules.get("dask.array")
    return array is not None and isinstance(X, array.Array)
