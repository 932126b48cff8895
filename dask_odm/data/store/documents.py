"""Reading the JSON documents of stores and records, with limits on size and kind, checked against the manifest.

A document that is a pipe, too large, nested without end or of another kind is a StoreError like any other damage.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from dask_odm.data.storage.files import reason
from dask_odm.data.storage.storage import Storage, storage_of
from dask_odm.data.store.layout import MANIFEST, STORE, Wording, crc32c, parse_body
from dask_odm.errors import StoreError

MAX_BYTES = 1 << 28  # bytes of a document
ROOT = "zarr.json"
# tries to read what is being replaced, and seconds between them
ATTEMPTS = 5
PAUSE = 0.02
_ZARR = ((".zgroup", "group"), (".zarray", "array"))

T = TypeVar("T")


def read_document(
    storage: Storage, key: str, entry: tuple[int, int] | None = None, wording: Wording = STORE
) -> dict[str, Any]:
    """Read a zarr document. Its attributes, if any, are an object.

    ``entry`` is its size and checksum by the manifest, if known, and ``wording`` is how errors call the whole. Raises
    StoreError if the document is missing, unreadable, not what the manifest says, or no such document.
    """
    try:
        text = storage.read(key, MAX_BYTES if entry is None else min(entry[0], MAX_BYTES))
        if entry is not None and (len(text), crc32c(text)) != entry:
            raise ValueError("checksum mismatch")
        document = parse_object(text)
        if not isinstance(document.get("attributes", {}), dict):
            raise ValueError("its attributes are not an object")
    except FileNotFoundError as error:
        raise _damaged(storage, key, "missing", wording) from error
    except (OSError, ValueError) as error:
        raise _damaged(storage, key, reason(error) if isinstance(error, OSError) else error, wording) from error
    return document


def whole(location: str, read: Callable[[], T]) -> T:
    """Return what ``read`` finds at a location, and read again if the content was replaced meanwhile.

    Raises the StoreError of ``read`` if nothing was replaced.
    """
    storage = storage_of(location)
    for _ in range(ATTEMPTS):
        before = storage.version()
        try:
            return read()
        except StoreError:
            if storage.version() == before and not storage.is_being_replaced():
                raise
        time.sleep(PAUSE)
    return read()


def read_manifest(
    location: str, build: Callable[[dict[str, Any]], T], absent: Callable[[str], str], wording: Wording = STORE
) -> T:
    """Read the manifest at a location, and return what ``build`` makes of its content.

    Raises StoreError if there is none (``absent`` says what is there instead), if it cannot be read, or as
    `layout.parse_body` does.
    """
    return parse_body(_manifest_text(location, absent, wording), location, build, wording)


def _manifest_text(location: str, absent: Callable[[str], str], wording: Wording) -> bytes:
    try:
        return storage_of(location).read(MANIFEST, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(absent(location)) from error
    except OSError as error:
        place = f"{wording.noun} '{location}'"
        raise StoreError(f"{place}: {MANIFEST} cannot be read ({reason(error)}); {wording.repair}.") from error


def other_zarr(path: str) -> str | None:
    """Return how to ingest a zarr group or array (format 2 or 3) of another program; None if there is none."""
    kind = next((kind for name, kind in _ZARR if storage_of(path).has(name)), None)
    if kind is None:
        with suppress(StoreError):
            document = read_document(storage_of(path), ROOT)
            if not str(document.get("attributes", {}).get("format")).startswith("dask_odm"):
                kind = str(document.get("node_type", "")) or None
    if kind == "array":
        return f"is a zarr array, not a dask_odm store: dask_odm.ingest((zarr.open('{path}'), y), …)"
    return kind and f"is a zarr group but not a dask_odm store: dask_odm.ingest(xarray.open_zarr('{path}'), …)"


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise ValueError if the text is none."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _damaged(storage: Storage, key: str, what: object, wording: Wording) -> StoreError:
    return StoreError(f"{wording.noun} '{storage.location}', file '{key}': {what}; {wording.repair}.")
