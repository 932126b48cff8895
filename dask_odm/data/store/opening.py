"""What opening a store checks before a row is read: every file's size, its zarr documents, its class labels.

No file's content decides which path is read; links are not followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dask_odm.data.store.chunks import damage
from dask_odm.data.store.files import reason
from dask_odm.data.store.layout import Label, Layout, Manifest, crc32c, group_document
from dask_odm.errors import StoreError

_LABEL_TYPES = {"int": int, "float": float, "str": str, "bool": bool}


def check_sizes(root: str, manifest: Manifest) -> None:
    """Raise StoreError where a file of the manifest is missing, a link, or of another size."""
    layout = manifest.layout
    chunks = {array.chunk_key(i): (array, i) for array in layout.arrays() for i in range(array.n_chunks)}
    try:
        found = dict(_regular_files(root))
    except OSError as error:
        raise StoreError(f"store '{root}' cannot be read: {reason(error)}.") from error
    for key, expected in manifest.sizes().items():
        size = found.get(key)
        if size == expected:
            continue
        what = "missing" if size is None else f"{size} bytes, not {expected}"
        if key in chunks:
            raise damage(root, *chunks[key], what)
        raise StoreError(f"store '{root}', file '{key}': {what}; re-ingest or restore this file.")


def _regular_files(root: str, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield name and size of every file below ``root``, following no links."""
    with os.scandir(os.path.join(root, prefix)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _regular_files(root, f"{prefix}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield prefix + entry.name, entry.stat(follow_symlinks=False).st_size


def read_documents(root: str, manifest: Manifest) -> dict[str, Any]:
    """Read the zarr documents; StoreError where one is damaged or tells another layout."""
    documents = {}
    for key, entry in manifest.documents.items():
        try:
            text = Path(root, key).read_bytes()
            if (len(text), crc32c(text)) != entry:
                raise ValueError("checksum mismatch")
            documents[key] = json.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            what = reason(error) if isinstance(error, OSError) else error
            raise StoreError(f"store '{root}', file '{key}': {what}; re-ingest or restore this file.") from error
    for key, expected in _expected_documents(manifest.layout, documents).items():
        if documents[key] != expected:
            raise StoreError(f"store '{root}', file '{key}': not the array of the manifest; re-ingest.")
    return documents


def _expected_documents(layout: Layout, found: dict[str, Any]) -> dict[str, Any]:
    """What the documents must be; attributes of arrays and of the store itself are taken from those found."""

    def attributes(key: str) -> dict[str, Any]:
        given = found[key].get("attributes") if isinstance(found[key], dict) else None
        return given if isinstance(given, dict) else {}

    members = {array.name: array.document(attributes(array.document_key)) for array in layout.arrays()}
    expected = {f"{name}/zarr.json": document for name, document in members.items()}
    members["statistics"] = group_document({}, {})
    root = group_document(attributes("zarr.json"), members)
    return {**expected, "statistics/zarr.json": group_document({}), "zarr.json": root}


def read_classes(
    root: str, layout: Layout, document: dict[str, Any] | None
) -> tuple[tuple[Label, ...] | None, tuple[int, ...] | None]:
    """Return class labels with their type, and rows per class."""
    if layout.y_dtype is None or document is None:
        return None, None
    try:
        kind = _LABEL_TYPES[document["attributes"]["class_type"]]
        labels = tuple(document["attributes"]["classes"])
        counts = tuple(document["attributes"]["class_counts"])
        if any(type(label) is not kind or label != label for label in labels) or list(labels) != sorted(set(labels)):
            raise ValueError("labels of another type or order")
        if len(labels) != len(counts) or len(labels) > np.iinfo(layout.y_dtype).max + 1:
            raise ValueError("labels and counts differ")
        if any(type(count) is not int or count < 0 for count in counts) or sum(counts) > layout.rows:
            raise ValueError("counts are impossible")
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"store '{root}', file 'y/zarr.json': no class labels ({error}); re-ingest.") from error
    return labels, counts
