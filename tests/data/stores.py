"""A made-up store that the tests of the data layer write, read and damage."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dask_odm.data.store.layout import crc32c
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from small_stores import forge

ROWS, FEATURES, CHUNK = 1000, 5, 300


def made_up_rows(seed: int = 0, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, FEATURES)), rng.integers(0, 2, rows), rng.uniform(size=rows)


def write_store(path: Path, seed: int = 0, compression: str | None = None, dtype: str = "float32", **options) -> Store:
    X, codes, weight = made_up_rows(seed)
    with StoreWriter(path, chunk_rows=CHUNK, compression=compression, dtype=dtype, **options) as writer:
        for start in range(0, ROWS, 123):
            rows = slice(start, start + 123)
            writer.append(X[rows], codes[rows], weight[rows])
        return writer.finish(("no", "yes"), feature_names=["a", "b", "c", "δ", "e f"], source="made up")


def rewrite_y(store: Store, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the attributes of y, and have the manifest confirm them, as whoever forges a store would."""
    documents = {key: json.loads(Path(store.path, key).read_text()) for key in ("zarr.json", "y/zarr.json")}
    change(documents["y/zarr.json"]["attributes"])
    documents["zarr.json"]["consolidated_metadata"]["metadata"]["y"] = documents["y/zarr.json"]
    for key, document in documents.items():
        text = json.dumps(document).encode()
        Path(store.path, key).write_bytes(text)
        forge(store.path, lambda m, key=key, text=text: m["documents"].update({key: [len(text), crc32c(text)]}))
