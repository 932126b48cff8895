"""Records: named arrays and JSON attributes in one folder, as zarr and JSON; never pickle.

A record is a zarr v3 group that any zarr reader opens. It has numeric arrays in ``[bytes, crc32c]`` chunks along their
first axis, attributes, and ``manifest.json``, written last, with the size and checksum of every file. It appears whole
or not at all. Nothing read from a file names a path, and sizes are checked against the files before memory is taken.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dask_odm.data.storage.files import reason
from dask_odm.data.storage.locations import location_of
from dask_odm.data.storage.storage import Storage, new_storage, resolved, storage_of
from dask_odm.data.store.chunks import damage, read_plain_chunk
from dask_odm.data.store.documents import MAX_BYTES, ROOT, parse_object, read_document, read_manifest, whole
from dask_odm.data.store.layout import (
    CHECKSUM_BYTES,
    CHUNK_BYTES,
    FORMAT_VERSION,
    MANIFEST,
    RECORD_FORMAT,
    ArrayLayout,
    Wording,
    chunk_entries,
    crc32c,
    file_entry,
    group_document,
    kind_of,
    seal,
    with_digest,
)
from dask_odm.data.store.schemas import SCHEMAS, anything
from dask_odm.errors import InputError, StoreError
from dask_odm.typing import Array

DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_KNOWN = {
    "model": Wording("model", "restore this file or fit again", "Fit again"),
    "checkpoint": Wording("checkpoint", "remove it and start the fit afresh", "Remove it and start the fit afresh"),
}

Entry = tuple[int, int]


class RowSource(Protocol):
    """Rows that need not be in memory: an ndarray, a memmap, or any object that returns rows by slice."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True)
class Record:
    """An open record, whose arrays are read and checked on demand.

    It is small and picklable, so that workers take it and read for themselves.

    Parameters
    ----------
    path : absolute path of the folder; in an object store the address of the zarr group itself
    kind : what the arrays mean, such as ``model``
    attributes : JSON content
    arrays : name to layout (shape, dtype, chunks)
    entries : name to (size, crc32c) of each chunk, from the manifest
    """

    path: str
    kind: str
    attributes: dict[str, Any]
    arrays: dict[str, ArrayLayout]
    entries: dict[str, list[Entry]] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks on disk."""
        return sum(size for entries in self.entries.values() for size, _ in entries)

    def array(self, name: str) -> Array:
        """Read a whole array, of any dimension.

        Raises StoreError if there is no such array, or a chunk is missing or damaged; the message names it.
        """
        layout = self._layout(name)
        if layout.shape:
            return self.rows(name, 0, layout.shape[0])
        return self._chunk(layout, 0, None).copy()

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Read rows ``start`` to ``stop`` (excluded) of the first axis, and only the chunks that hold them.

        One more chunk is held meanwhile. Raises IndexError if the array has no such rows, and StoreError as `array`
        does.
        """
        layout = self._layout(name)
        if not layout.shape or not 0 <= start <= stop <= layout.shape[0]:
            raise IndexError(f"rows {start} to {stop} of array '{name}' of shape {layout.shape}")
        out = np.empty((stop - start, *layout.shape[1:]), dtype=layout.dtype)
        if out.size == 0:
            return out
        size = layout.chunks[0]
        buffer = np.empty(layout.chunk_nbytes + CHECKSUM_BYTES, dtype=np.uint8)
        for i in range(start // size, -(-stop // size)):
            first = max(start, i * size)
            last = min(stop, (i + 1) * size)
            out[first - start : last - start] = self._chunk(layout, i, buffer)[first - i * size : last - i * size]
        return out

    def check(self) -> None:
        """Raise StoreError if the attributes are not those of the record's kind. Checksums cannot tell that."""
        try:
            SCHEMAS.get(self.kind, anything)(self.attributes, "")
        except ValueError as error:
            raise self.lies(error) from error

    def lies(self, what: object) -> StoreError:
        """Return the error for a record that is undamaged, but holds what its kind cannot hold."""
        return StoreError(f"{self.kind} '{self.path}' is not what a {self.kind} is: {what}; {self.repair}.")

    @property
    def repair(self) -> str:
        """Advice that messages give if the record is damaged."""
        return _wording(self.kind).repair

    def verify(self) -> int:
        """Check attributes and all chunks, and return the number of bytes read; StoreError names what is damaged."""
        self.check()
        for layout in self.arrays.values():
            for i in range(layout.n_chunks):
                self._chunk(layout, i, None)
        return self.nbytes

    def _layout(self, name: str) -> ArrayLayout:
        if name not in self.arrays:
            raise StoreError(f"{self.kind} '{self.path}' has no array '{name}'; it has {', '.join(self.arrays)}.")
        return self.arrays[name]

    def _chunk(self, layout: ArrayLayout, i: int, out: npt.NDArray[np.uint8] | None) -> Array:
        """Read a chunk with its padding, and compare it with the manifest: a sound chunk may be another array's."""
        expected = self.entries[layout.name][i][1]
        try:
            return read_plain_chunk(self.path, layout, i, out, expected=expected, wording=_wording(self.kind))
        except StoreError as error:
            if self._was_replaced():
                raise replaced(self.kind, self.path) from error
            raise

    def _was_replaced(self) -> bool:
        """Return whether another record took this place, or is about to; False if there is none, or a damaged one."""
        try:
            return _manifest(self.path, self.kind)[1] != self.entries
        except StoreError:
            return storage_of(self.path).is_being_replaced()


def write_record(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, RowSource],
    attributes: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write a record to a staging folder, force it to disk and rename it into place.

    Parameters
    ----------
    path : folder to make, whose parent must exist; or an address in an object store
    kind : what the arrays mean; a reader has to ask for the same
    arrays : identifier to numbers (float32, float64 or signed integers) of any shape, in memory or read slice by slice
        (`RowSource`); a chunk at a time is copied
    attributes : JSON content, without NaN and infinity
    overwrite : replace an existing record of the same kind, once the new one is complete

    Raises
    ------
    InputError
        The output exists or may not be replaced, a name or type cannot be stored, or ``attributes`` are not JSON.
    StoreError
        The disk is full or the folder cannot be written; nothing is left of the attempt.
    """
    target = location_of(path)
    layouts = {name: _layout_of(name, values) for name, values in arrays.items()}
    documents = _documents(kind, layouts, attributes)
    check_target(target, kind, overwrite=overwrite)
    storage = new_storage(target)
    try:
        with _writing(kind, target):
            storage.begin(overwrite=overwrite)
            chunks = {name: _write_array(storage, layout, arrays[name]) for name, layout in layouts.items()}
            _write_manifest(storage, kind, layouts, chunks, _write_documents(storage, documents))
            storage.publish(overwrite=overwrite)
    finally:
        storage.discard()


def check_target(path: str | os.PathLike[str], kind: str, *, overwrite: bool) -> None:
    """Raise InputError if `write_record` would. It replaces a record of the same kind, and nothing else."""
    target = location_of(path)
    if not new_storage(target).check(overwrite=overwrite):
        return
    head: dict[str, Any] = {}
    with suppress(StoreError):
        head = read_document(storage_of(resolved(target)), ROOT).get("attributes", {})
    same = head.get("format") == RECORD_FORMAT and head.get("kind") == kind
    if not same:
        raise InputError(f"'{target}' exists and is not a {kind}; remove it yourself or choose another name.")


def read_record(path: str | os.PathLike[str], kind: str) -> Record:
    """Open a record and check that every file has its size; arrays are read later.

    Raises StoreError if there is no finished record of this kind and version, or its files are missing or differ from
    the manifest. The message names path, array and chunk, and the way out.
    """
    location = location_of(path)
    return whole(location, lambda: _opened(resolved(location), kind))


def _opened(root: str, kind: str) -> Record:
    layouts, chunks, documents = _manifest(root, kind)
    try:
        sizes = storage_of(root).sizes()
    except OSError as error:
        raise StoreError(f"{kind} '{root}' cannot be read: {reason(error)}.") from error
    for layout in layouts.values():
        for i, (expected, _) in enumerate(chunks[layout.name]):
            size = sizes.get(layout.chunk_key(i))
            if size != expected:
                what = "missing" if size is None else f"truncated, {size} of {expected} bytes"
                raise damage(root, layout, i, what, _wording(kind))
    content = _read_documents(root, kind, layouts, documents)
    return Record(root, kind, content, layouts, chunks)


def replaced(kind: str, path: str) -> StoreError:
    """Return the error for a record that was replaced since it was opened."""
    way = "start the fit again" if kind == "checkpoint" else "load it again"
    return StoreError(f"{kind} '{path}' was replaced since it was loaded; {way}.")


def read_kind(path: str | os.PathLike[str]) -> str | None:
    """Return the kind of content in a folder by its manifest: ``store``, ``model`` or another record; None if none."""
    with suppress(OSError, ValueError):
        return kind_of(parse_object(storage_of(resolved(location_of(path))).read(MANIFEST, MAX_BYTES)))
    return None


# Files ------------------------------------------------------------------------------------------------------


def _wording(kind: str) -> Wording:
    return _KNOWN.get(kind) or Wording(kind, "restore this file or write it again", "Write it again")


def _layout_of(name: str, values: RowSource) -> ArrayLayout:
    dtype = np.dtype(values.dtype).name
    if not _NAME.fullmatch(name) or dtype not in DTYPES:
        raise InputError(f"array {name!r} of type {dtype} cannot be stored; types are {', '.join(DTYPES)}.")
    return _layout(name, tuple(int(length) for length in values.shape), dtype)


def _layout(name: str, shape: tuple[int, ...], dtype: str, chunk_rows: int | None = None) -> ArrayLayout:
    """Return an array's layout, with chunks of at most 16 MB. A larger single row is a chunk of its own."""
    inner = tuple(max(length, 1) for length in shape[1:])
    if chunk_rows is None:
        row_nbytes = ArrayLayout(name, (1, *inner), (1, *inner), dtype, ()).chunk_nbytes
        chunk_rows = max(1, min([CHUNK_BYTES // row_nbytes, *shape[:1]]))
    dims = tuple(f"{name}_{axis}" for axis in range(len(shape)))
    return ArrayLayout(name, shape, (chunk_rows, *inner) if shape else (), dtype, dims)


def _documents(kind: str, layouts: dict[str, ArrayLayout], attributes: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the zarr documents by file name."""
    members = {name: layout.document() for name, layout in layouts.items()}
    head = {"format": RECORD_FORMAT, "format_version": FORMAT_VERSION, "kind": kind, "content": dict(attributes)}
    documents = {layouts[name].document_key: document for name, document in members.items()}
    documents[ROOT] = group_document(head, members)
    try:
        return {key: json.dumps(document, indent=1, allow_nan=False).encode() for key, document in documents.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"the attributes of a {kind} must be JSON: {error}.") from error


@contextmanager
def _writing(kind: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {kind} '{path}': {reason(error)}.") from error


def _write_array(storage: Storage, layout: ArrayLayout, values: RowSource) -> list[Entry]:
    """Write the chunks of an array, the last one padded, and return their sizes and checksums."""
    entries = []
    dtype = np.dtype(layout.dtype).newbyteorder("<")
    for i in range(layout.n_chunks):
        if layout.shape:
            chunk = np.full(layout.chunks, float(layout.fill_value), dtype)
            chunk[: layout.shape[0] - i * len(chunk)] = values[i * len(chunk) : (i + 1) * len(chunk)]
        else:
            chunk = np.asarray(values, dtype=dtype)
        data = seal(chunk.tobytes())
        storage.write(layout.chunk_key(i), data)
        entries.append((len(data), int.from_bytes(data[-CHECKSUM_BYTES:], "little")))
    return entries


def _write_documents(storage: Storage, documents: dict[str, bytes]) -> dict[str, Entry]:
    for key, text in documents.items():
        storage.write(key, text)
    return {key: (len(text), crc32c(text)) for key, text in documents.items()}


def _write_manifest(
    storage: Storage,
    kind: str,
    layouts: dict[str, ArrayLayout],
    chunks: dict[str, list[Entry]],
    documents: dict[str, Entry],
) -> None:
    """Write the manifest after everything else is on disk."""
    body = {
        "format": RECORD_FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "arrays": {
            name: {"shape": list(layout.shape), "dtype": layout.dtype, "chunk_rows": (layout.chunks or (1,))[0]}
            for name, layout in layouts.items()
        },
        "chunks": chunks,
        "documents": documents,
    }
    storage.complete(MANIFEST, with_digest(body).encode())


def _manifest(root: str, kind: str) -> tuple[dict[str, ArrayLayout], dict[str, list[Entry]], dict[str, Entry]]:
    return read_manifest(root, _parse, lambda path: _what_is_there(path, kind), _wording(kind))


def _what_is_there(root: str, kind: str) -> str:
    if not storage_of(root).exists():
        return f"{kind} '{root}' does not exist; check the path."
    return f"'{root}' has no manifest: it is unfinished or no {kind} of dask_odm."


def _parse(raw: dict[str, Any]) -> tuple[dict[str, ArrayLayout], dict[str, list[Entry]], dict[str, Entry]]:
    layouts = {name: _parse_layout(name, item) for name, item in raw["arrays"].items()}
    keys = {ROOT, *(layout.document_key for layout in layouts.values())}
    if set(raw["chunks"]) != set(layouts) or set(raw["documents"]) != keys:
        raise ValueError("it lists other files than it has arrays")
    chunks = {name: chunk_entries(layout, raw["chunks"][name]) for name, layout in layouts.items()}
    return layouts, chunks, {key: file_entry(item) for key, item in raw["documents"].items()}


def _parse_layout(name: str, item: dict[str, Any]) -> ArrayLayout:
    shape = tuple(item["shape"])
    dtype = item["dtype"]
    rows = item["chunk_rows"]
    whole = all(type(length) is int and length >= 0 for length in shape) and type(rows) is int
    if not _NAME.fullmatch(name) or dtype not in DTYPES or not whole or not 1 <= rows <= max([1, *shape[:1]]):
        raise ValueError("an array of it is impossible")
    return _layout(name, shape, dtype, rows)


def _read_documents(root: str, kind: str, layouts: dict[str, ArrayLayout], entries: dict[str, Entry]) -> dict[str, Any]:
    """Check the zarr documents against the manifest, and return the record's attributes."""
    storage = storage_of(root)
    wording = _wording(kind)
    documents = {key: read_document(storage, key, entry, wording) for key, entry in entries.items()}
    expected = {layout.document_key: layout.document() for layout in layouts.values()}
    try:
        head = documents[ROOT]["attributes"]
        content = head["content"]
        sound = head["kind"] == kind
    except (KeyError, TypeError):
        content = None
        sound = False
    if not sound or not isinstance(content, dict) or any(documents[key] != expected[key] for key in expected):
        raise StoreError(f"{kind} '{root}': its zarr documents are not those of its manifest; {_wording(kind).repair}.")
    return content
