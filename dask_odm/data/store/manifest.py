"""The manifest of a store or record, and its zarr documents: read with limits on size and kind, and checked.

``manifest.json`` names the arrays, and size and checksum of every file. A document that is a pipe, too large, nested
without end or of another kind is a StoreError like any other damage. No content of a file decides which path is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from dask_odm.data.storage.files import TEXT_BYTES, reason
from dask_odm.data.storage.locations import MANIFEST
from dask_odm.data.storage.storage import Storage, storage_of
from dask_odm.data.store.layout import CHECKSUM_BYTES, ROOT, ArrayLayout, Layout, crc32c, zarr_documents
from dask_odm.errors import StoreError

FORMAT = "dask_odm store"
RECORD_FORMAT = "dask_odm record"
FORMAT_VERSION = 1
RECORD_TYPES = ("float32", "float64", "int8", "int16", "int32", "int64")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
T = TypeVar("T")
Entry = tuple[int, int]  # size of a file in bytes, and its crc32c; for a chunk that of the bytes before its checksum


@dataclass(frozen=True)
class Kind:
    """Words of messages about a kind of folder: what to do about damage, another version and replacement.

    ``reader`` is the function that opens it.
    """

    repair: str = "restore this file or write it again"
    renew: str = "Write it again"
    replaced: str = "loaded; load it again"
    reader: str = "another version of dask_odm"


_KINDS = {
    "store": Kind(
        "re-ingest or restore this file", "Ingest the data again", "opened; open it again", "dask_odm.open_store"
    ),
    "model": Kind("restore this file or fit again", "Fit again", reader="dask_odm.load_model"),
    "checkpoint": Kind(
        "remove it and start the fit afresh",
        "Remove it and start the fit afresh",
        "loaded; start the fit again",
        "fit with resume=True (--resume)",
    ),
    "prediction": Kind(reader="zarr.open_group"),
}


def kind_named(noun: str) -> Kind:
    """Return what is said of a kind of folder; any name may be a record's."""
    return _KINDS.get(noun, Kind())


@dataclass(frozen=True)
class Manifest:
    """Manifest of a finished store or record."""

    head: dict[str, Any]  # its content but for chunks and documents, such as the layout of a store
    arrays: dict[str, ArrayLayout]  # by name
    # by array; the checksum is of a file without its last four bytes, since with them all sealed files have the same
    chunks: dict[str, list[Entry]]
    documents: dict[str, Entry]  # by key
    digest: str  # SHA-256 over all that, and so over the place, size and checksum of every file

    @property
    def nbytes(self) -> int:
        """Bytes of all files but the manifest."""
        chunks = (entry for entries in self.chunks.values() for entry in entries)
        return sum(size for size, _ in (*chunks, *self.documents.values()))


def read_manifest(root: str, kind: str) -> Manifest:
    """Read the manifest at ``root``.

    Raises StoreError, with the way out, if there is none, or if it is damaged, impossible, or of another kind or
    version.
    """
    place = f"{kind} '{root}'"
    advice = kind_named(kind)
    try:
        raw = parse_object(storage_of(root).read(MANIFEST, TEXT_BYTES))
        noun = kind_of(raw)
        if noun is None:
            raise ValueError("not a dask_odm manifest")
        version = raw["format_version"]
        if noun == kind and version == FORMAT_VERSION:
            return _manifest_of(raw)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(_what_is_there(root, kind)) from error
    except OSError as error:
        raise StoreError(f"{place}: {MANIFEST} cannot be read ({reason(error)}); {advice.repair}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{place}: {MANIFEST} is damaged ({error}); {advice.repair}.") from error
    if noun != kind:
        reader = kind_named(noun).reader
        raise StoreError(f"'{root}' is a {noun:.40}, not a {kind}; check the path ({reader} reads it).")
    raise StoreError(
        f"{place} has format version {version!r}; this dask_odm reads {FORMAT_VERSION}. "
        f"{advice.renew} or use the dask_odm that wrote it."
    )


def kind_of(manifest: Any) -> str | None:
    """Return what a manifest describes: ``store``, or a kind of record such as ``model``; None if it is no manifest."""
    if not isinstance(manifest, dict) or manifest.get("format") not in (FORMAT, RECORD_FORMAT):
        return None
    kind = "store" if manifest["format"] == FORMAT else manifest.get("kind")
    return kind if isinstance(kind, str) else None


def digest_of(body: dict[str, Any]) -> str:
    """Return the SHA-256 over the content of a manifest, which is stored beside it."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def with_digest(body: dict[str, Any]) -> str:
    """Return the text of a manifest: its content and the digest."""
    return json.dumps({**body, "digest": digest_of(body)}, separators=(",", ":"), allow_nan=False)


def whole(location: str, read: Callable[[str], T], *, attempts: int = 5, pause: float = 0.02) -> T:
    """Return what ``read`` finds of the current content of a location, and again if it was replaced meanwhile.

    Raises the StoreError of ``read`` if nothing was replaced, or after so many attempts, ``pause`` seconds apart.
    """
    storage = storage_of(location)
    for _ in range(attempts):
        before = storage.version()
        try:
            return read(storage.resolved())
        except StoreError:
            if storage.version() == before and not storage.is_being_replaced():
                raise
        time.sleep(pause)
    return read(storage.resolved())


def read_document(storage: Storage, key: str, entry: Entry | None = None, kind: str = "store") -> dict[str, Any]:
    """Read a zarr document. Its attributes, if any, are an object.

    ``entry`` is its size and checksum by the manifest, if known. Raises StoreError if the document is missing,
    unreadable, not what the manifest says, or no such document.
    """
    try:
        text = storage.read(key, TEXT_BYTES if entry is None else min(entry[0], TEXT_BYTES))
        if entry is not None and (len(text), crc32c(text)) != entry:
            raise ValueError("checksum mismatch")
        document = parse_object(text)
        if not isinstance(document.get("attributes", {}), dict):
            raise ValueError("its attributes are not an object")
        return document
    except (OSError, ValueError) as error:
        what: object = reason(error) if isinstance(error, OSError) else error
        if isinstance(error, FileNotFoundError):
            what = "missing"
        advice = kind_named(kind).repair
        raise StoreError(f"{kind} '{storage.location}', file '{key}': {what}; {advice}.") from error


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise ValueError if the text is none."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def other_zarr(path: str) -> str | None:
    """Return how to ingest a zarr group or array (format 2 or 3) of another program; None if there is none."""
    storage = storage_of(path)
    kind = None
    if storage.has(".zgroup"):
        kind = "group"
    elif storage.has(".zarray"):
        kind = "array"
    else:
        with suppress(StoreError):
            document = read_document(storage, ROOT)
            if not str(document.get("attributes", {}).get("format")).startswith("dask_odm"):
                kind = document.get("node_type")
    if kind == "array":
        return f"is a zarr array, not a dask_odm store: dask_odm.ingest((zarr.open('{path}'), y), …)"
    if kind:
        return f"is a zarr group but not a dask_odm store: dask_odm.ingest(xarray.open_zarr('{path}'), …)"
    return None


def array_of_record(name: str, shape: tuple[int, ...], dtype: str, chunk_rows: int) -> ArrayLayout:
    """Return the layout of an array with chunks of so many rows along its first axis."""
    inner = tuple(max(length, 1) for length in shape[1:])
    dims = tuple(f"{name}_{axis}" for axis in range(len(shape)))
    return ArrayLayout(name, shape, (chunk_rows, *inner) if shape else (), dtype, dims)


def is_array_of_record(name: str, dtype: str) -> bool:
    """Return whether a record can have an array of that name and type."""
    return _NAME.fullmatch(name) is not None and dtype in RECORD_TYPES


def _manifest_of(raw: dict[str, Any]) -> Manifest:
    """Build a manifest from its content; raise ValueError, KeyError or TypeError if it is impossible."""
    digest = raw.pop("digest")
    if digest != digest_of(raw):
        raise ValueError("its digest does not match")
    found = Layout.from_json(raw["layout"]).arrays() if raw["format"] == FORMAT else _record_arrays(raw)
    arrays = {array.name: array for array in found}
    items = raw.pop("chunks")
    documents = raw.pop("documents")
    if set(items) != set(arrays) or set(documents) != set(zarr_documents(arrays.values(), {})):
        raise ValueError("it lists other files than its arrays have")
    chunks = {name: [_entry(item) for item in items[name]] for name in arrays}
    for name, array in arrays.items():
        if len(chunks[name]) != array.n_chunks:
            raise ValueError(f"it lists {len(chunks[name])} chunks of '{name}', not {array.n_chunks}")
        expected = array.chunk_nbytes + CHECKSUM_BYTES if array.is_plain else None
        if any(size < CHECKSUM_BYTES or expected not in (None, size) for size, _ in chunks[name]):
            raise ValueError(f"a chunk of '{name}' has an impossible size")
    return Manifest(raw, arrays, chunks, {key: _entry(item) for key, item in documents.items()}, digest)


def _record_arrays(raw: dict[str, Any]) -> Iterator[ArrayLayout]:
    for name, item in raw["arrays"].items():
        shape = tuple(item["shape"])
        rows = item["chunk_rows"]
        numbers = all(type(length) is int and length >= 0 for length in shape) and type(rows) is int
        sound = is_array_of_record(name, item["dtype"]) and numbers and 1 <= rows <= max([1, *shape[:1]])
        if not sound:
            raise ValueError("an array of it is impossible")
        yield array_of_record(name, shape, item["dtype"], rows)


def _entry(item: Any) -> Entry:
    size, checksum = item
    if type(size) is not int or type(checksum) is not int or not 0 <= size < 1 << 63 or not 0 <= checksum < 1 << 32:
        raise ValueError("it holds something that is no size or checksum")
    return size, checksum


def _what_is_there(root: str, kind: str) -> str:
    """Return the message for a folder without a manifest."""
    there = storage_of(root).exists()
    if kind != "store":
        if not there:
            return f"{kind} '{root}' does not exist; check the path."
        if os.path.isfile(root):
            return f"'{root}' is a file, not a {kind}; check the path."
        return f"'{root}' has no manifest: it is unfinished or no {kind} of dask_odm."
    zarr = other_zarr(root)
    if zarr is not None:
        return f"'{root}' {zarr}."
    what = "has no manifest: it is unfinished or not a store" if there else "does not exist"
    if os.path.isfile(root):
        what = "is a file, not a store"
    return f"store '{root}' {what}; make one with dask_odm.ingest."
