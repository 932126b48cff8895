"""Tasks of lazy arrays over a store, which load neither Dask nor xarray."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_odm.data.store.store import Store
from dask_odm.typing import Array


def read_block_array(store: Store, name: str, i: int) -> Any:
    """Read chunk ``i`` of ``X``, ``y`` (label values or real targets), ``weight`` or a coordinate such as ``at_y``."""
    if name == "X":
        return store.read_features(i)
    if name.startswith("at_"):
        return _coordinate(store, name.removeprefix("at_"), i)
    chunk = store.read_chunk(store.layout.of_columns()[name], i)
    return store.labels(chunk) if name == "y" else chunk


def _coordinate(store: Store, name: str, i: int) -> Array:
    names = [each for each, _ in store.layout.coordinates]
    chunk = store.read_coordinates(i)
    assert chunk is not None
    column: Array = chunk[:, names.index(name)]
    if dict(store.layout.coordinates)[name] == "number":
        return column
    return np.rint(column * 1e6).astype("datetime64[us]").astype("datetime64[ns]")
