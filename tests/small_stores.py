"""Stores of any rows, chunked as asked, for all tests; and manifests that lie."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter


def store_of(
    path: Path,
    X: np.ndarray,
    y: np.ndarray | None,
    *,
    weight: np.ndarray | None = None,
    chunk_rows: int = 100,
    names: list[str] | None = None,
    real: bool = False,
) -> Store:
    """Write rows ``X`` with labels ``y`` (numbers, strings or booleans; None among them is unknown) as a store.

    With ``real``, y are real targets.
    """
    codes, classes = None, None
    if real:
        codes = np.asarray(y, np.float64)
    elif y is not None:
        labels = np.asarray(y, dtype=object)
        classes = tuple(sorted({label for label in labels.tolist() if label is not None}))
        codes = np.array([-1 if label is None else classes.index(label) for label in labels.tolist()])
    with StoreWriter(path, dtype=X.dtype.name, chunk_rows=chunk_rows) as writer:
        writer.append(X, codes, weight)
        return writer.finish(classes, feature_names=names, source="made up")


def forge(path: str | Path, change: Callable[[Any], Any]) -> None:
    """Change the manifest of a store or record, and give it a digest that fits."""
    file = Path(path, "manifest.json")
    manifest = json.loads(file.read_text())
    manifest.pop("digest")
    change(manifest)
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    file.write_text(json.dumps({**manifest, "digest": digest}))
