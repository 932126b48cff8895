"""Checks on opening a store, before any row is read: file sizes, zarr documents, statistics, what is said of y.

No content of a file decides which path is read, and links are not followed.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.storage.files import reason
from dask_odm.data.storage.storage import storage_of
from dask_odm.data.store.chunks import damage, read_sealed
from dask_odm.data.store.documents import other_zarr, read_document, read_manifest
from dask_odm.data.store.layout import REAL_TYPE, Label, Layout, Manifest, group_document, manifest_of
from dask_odm.errors import StoreError

_LABEL_TYPES = {"int": int, "float": float, "str": str, "bool": bool}


def read_store_manifest(root: str) -> Manifest:
    """Read the manifest of a store; if there is none, StoreError says what is there instead."""
    return read_manifest(root, manifest_of, _what_is_there)


def _what_is_there(root: str) -> str:
    zarr = other_zarr(root)
    if zarr is not None:
        return f"'{root}' {zarr}."
    what = "has no manifest: it is unfinished or not a store" if storage_of(root).exists() else "does not exist"
    if os.path.isfile(root):
        what = "is a file, not a store"
    return f"store '{root}' {what}; make one with dask_odm.ingest."


def check_sizes(root: str, manifest: Manifest) -> None:
    """Raise StoreError if a file of the manifest is missing, is a link, or has another size."""
    layout = manifest.layout
    chunks = {array.chunk_key(i): (array, i) for array in layout.arrays() for i in range(array.n_chunks)}
    try:
        found = storage_of(root).sizes()
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


def check_features(root: str, manifest: Manifest) -> None:
    """Raise StoreError if an array over features, such as ``statistics/mean``, is damaged or of another store.

    Chunks of rows are checked when they are read, which every fit does; few read these.
    """
    for array in manifest.layout.of_features():
        read_sealed(root, array, 0, manifest.chunks[array.name][0])


def read_documents(root: str, manifest: Manifest) -> dict[str, Any]:
    """Read the zarr documents; raise StoreError if one is damaged or describes another layout."""
    storage = storage_of(root)
    documents = {key: read_document(storage, key, entry) for key, entry in manifest.documents.items()}
    for key, expected in _expected_documents(manifest.layout, documents).items():
        if documents[key] != expected:
            raise StoreError(f"store '{root}', file '{key}': not the array of the manifest; re-ingest.")
    return documents


def _expected_documents(layout: Layout, found: dict[str, Any]) -> dict[str, Any]:
    """Return the documents that the layout requires.

    Attributes of the store and its arrays are copied from those found.
    """

    def attributes(key: str) -> dict[str, Any]:
        given: dict[str, Any] = found[key].get("attributes", {})
        return given

    members = {array.name: array.document(attributes(array.document_key)) for array in layout.arrays()}
    expected = {f"{name}/zarr.json": document for name, document in members.items()}
    members["statistics"] = group_document({}, {})
    root = group_document(attributes("zarr.json"), members)
    return {**expected, "statistics/zarr.json": group_document({}), "zarr.json": root}


@dataclass(frozen=True)
class TargetFacts:
    """What a store says of its y, which is known without reading it.

    Parameters
    ----------
    classes, class_counts : labels in sorted order and rows of each; None without y and for real targets
    class_weights : sum of the row weights of each class; None if there are no weights, or the store does not say
    known_rows : rows whose y is known
    known_weight : for real targets the sum of the weights of those rows; otherwise None
    """

    classes: tuple[Label, ...] | None = None
    class_counts: tuple[int, ...] | None = None
    class_weights: tuple[float, ...] | None = None
    known_rows: int = 0
    known_weight: float | None = None


def read_target_facts(root: str, layout: Layout, document: dict[str, Any] | None) -> TargetFacts:
    """Return what the attributes of y say; raise StoreError if that is impossible."""
    if layout.y_dtype is None or document is None:
        return TargetFacts()
    try:
        attributes = document["attributes"]
        return _real_facts(layout, attributes) if layout.y_dtype == REAL_TYPE else _class_facts(layout, attributes)
    except (KeyError, TypeError, ValueError) as error:
        what = "no known targets" if layout.y_dtype == REAL_TYPE else "no class labels"
        raise StoreError(f"store '{root}', file 'y/zarr.json': {what} ({error}); re-ingest.") from error


def _class_facts(layout: Layout, attributes: dict[str, Any]) -> TargetFacts:
    kind = _LABEL_TYPES[attributes["class_type"]]
    labels = tuple(attributes["classes"])
    counts = tuple(attributes["class_counts"])
    if any(type(label) is not kind or label != label for label in labels) or list(labels) != sorted(set(labels)):
        raise ValueError("labels of another type or order")
    if len(labels) != len(counts) or len(labels) > np.iinfo(str(layout.y_dtype)).max + 1:
        raise ValueError("labels and counts differ")
    if any(type(count) is not int or count < 0 for count in counts) or sum(counts) > layout.rows:
        raise ValueError("counts are impossible")
    weights = None
    if layout.has_weight and "class_weights" in attributes:  # written from 2026 on
        weights = tuple(_weight(each) for each in attributes["class_weights"])
        if len(weights) != len(labels):
            raise ValueError("labels and weights differ")
    return TargetFacts(labels, counts, weights, sum(counts))


def _real_facts(layout: Layout, attributes: dict[str, Any]) -> TargetFacts:
    rows = attributes["known_rows"]
    if type(rows) is not int or not 0 <= rows <= layout.rows:
        raise ValueError("counts are impossible")
    return TargetFacts(known_rows=rows, known_weight=_weight(attributes["known_weight"]))


def _weight(value: Any) -> float:
    """Return a sum of weights as a float. None in JSON stands for infinity, since sums may be too large for a float."""
    if value is None:
        return math.inf
    if type(value) is not float or not 0 <= value < math.inf:
        raise ValueError("weights are impossible")
    return value
