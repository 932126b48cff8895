"""Records: named arrays and JSON attributes in one folder, as zarr and JSON; never pickle.

A record is a zarr v3 group that any zarr reader opens. It has numeric arrays in ``[bytes, crc32c]`` chunks along their
first axis, attributes, and ``manifest.json``, written last, with the size and checksum of every file. It appears whole
or not at all. Nothing read from a file names a path, and sizes are checked against the files before memory is taken.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dask_odm.data.storage.files import TEXT_BYTES
from dask_odm.data.storage.locations import MANIFEST, location_of
from dask_odm.data.storage.storage import Storage, current_storage, new_storage
from dask_odm.data.store.layout import CHECKSUM_BYTES, ROOT, STORE_CHUNK_BYTES, ArrayLayout, seal, zarr_documents
from dask_odm.data.store.manifest import (
    FORMAT_VERSION,
    RECORD_FORMAT,
    RECORD_TYPES,
    Entry,
    array_of_record,
    is_array_of_record,
    kind_named,
    kind_of,
    parse_object,
    read_document,
    whole,
)
from dask_odm.data.store.schemas import SCHEMAS, anything
from dask_odm.data.store.sealed import SealedFolder, encoded, finish, unseal, write_chunk, writing
from dask_odm.errors import InputError, StoreError
from dask_odm.typing import Array


class RowSource(Protocol):
    """Rows that need not be in memory: an ndarray, a memmap, or any object that returns rows by slice."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True)
class Record(SealedFolder):
    """An open record, whose arrays are read and checked on demand."""

    attributes: dict[str, Any]  # JSON content
    arrays: dict[str, ArrayLayout]  # by name

    def array(self, name: str) -> Array:
        """Read a whole array, of any dimension.

        Raises StoreError if there is no such array, or a chunk is missing or damaged; the message names it.
        """
        layout = self._layout(name)
        if layout.shape:
            return self.rows(name, 0, layout.shape[0])
        return self.chunk(layout, 0).numbers().copy()

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
            chunk = self.chunk(layout, i).numbers(buffer)
            out[first - start : last - start] = chunk[first - i * size : last - i * size]
        return out

    def check(self) -> None:
        """Raise StoreError if the attributes are not those of the record's kind. Checksums cannot tell that."""
        try:
            SCHEMAS.get(self.kind, anything)(self.attributes, "")
        except ValueError as error:
            raise self.lies(error) from error

    def lies(self, what: object) -> StoreError:
        """Return the error for a record that is undamaged, but holds what its kind cannot hold."""
        advice = kind_named(self.kind).repair
        return StoreError(f"{self.kind} '{self.path}' is not what a {self.kind} is: {what}; {advice}.")

    def verify(self) -> int:
        """Check attributes and all files, as `SealedFolder.verify` does."""
        self.check()
        return super().verify()

    def _layout(self, name: str) -> ArrayLayout:
        if name not in self.arrays:
            raise StoreError(f"{self.kind} '{self.path}' has no array '{name}'; it has {', '.join(self.arrays)}.")
        return self.arrays[name]


def write_record(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, RowSource],
    attributes: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write a record of this kind to a staging folder, force it to disk and rename it into place.

    ``arrays`` are numbers (float32, float64 or signed integers) of any shape by identifier, in memory or read slice by
    slice (`RowSource`); a chunk at a time is copied. ``attributes`` are JSON, without NaN and infinity. With
    ``overwrite`` a record of the same kind is replaced, once the new one is complete.

    Raises InputError if the output exists or may not be replaced, a name or type cannot be stored, or ``attributes``
    are not JSON; StoreError if the folder cannot be written, of which nothing is left.
    """
    target = location_of(path)
    head = {"format": RECORD_FORMAT, "format_version": FORMAT_VERSION, "kind": kind}
    layouts = {name: _layout_of(name, values) for name, values in arrays.items()}
    try:
        documents = encoded(zarr_documents(layouts.values(), {ROOT: {**head, "content": dict(attributes)}}))
    except (TypeError, ValueError) as error:
        raise InputError(f"the attributes of a {kind} must be JSON: {error}.") from error
    check_target(target, kind, overwrite=overwrite)
    storage = new_storage(target)
    try:
        with writing(kind, target):
            storage.begin(overwrite=overwrite)
            chunks = {name: _write_array(storage, layout, arrays[name]) for name, layout in layouts.items()}
            described = {
                name: {"shape": layout.shape, "dtype": layout.dtype, "chunk_rows": (layout.chunks or (1,))[0]}
                for name, layout in layouts.items()
            }
            finish(storage, {**head, "arrays": described}, chunks, documents)
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
        head = read_document(current_storage(target), ROOT).get("attributes", {})
    same = head.get("format") == RECORD_FORMAT and head.get("kind") == kind
    if not same:
        raise InputError(f"'{target}' exists and is not a {kind}; remove it yourself or choose another name.")


def read_record(path: str | os.PathLike[str], kind: str) -> Record:
    """Open a record and check that every file has its size; arrays are read later.

    Raises StoreError if there is no finished record of this kind and version, or its files are missing or differ from
    the manifest. The message names path, array and chunk, and the way out.
    """

    def opened(root: str) -> Record:
        manifest, documents = unseal(root, kind)
        head = documents[ROOT].get("attributes", {})
        content = head.get("content")
        if head.get("kind") != kind or not isinstance(content, dict):
            advice = kind_named(kind).repair
            raise StoreError(f"{kind} '{root}', file '{ROOT}': no attributes of a {kind}; {advice}.")
        return Record(root, kind, manifest.digest, content, manifest.arrays)

    return whole(location_of(path), opened)


def read_kind(path: str | os.PathLike[str]) -> str | None:
    """Return the kind of content in a folder by its manifest: ``store``, ``model`` or another record; None if none."""
    with suppress(OSError, ValueError):
        return kind_of(parse_object(current_storage(location_of(path)).read(MANIFEST, TEXT_BYTES)))
    return None


def _layout_of(name: str, values: RowSource) -> ArrayLayout:
    """Return the layout of an array, with chunks of at most 16 MB. A larger single row is a chunk of its own."""
    dtype = np.dtype(values.dtype).name
    if not is_array_of_record(name, dtype):
        raise InputError(f"array {name!r} of type {dtype} cannot be stored; types are {', '.join(RECORD_TYPES)}.")
    shape = tuple(int(length) for length in values.shape)
    row_nbytes = array_of_record(name, (1, *shape[1:]), dtype, 1).chunk_nbytes
    return array_of_record(name, shape, dtype, max(1, min([STORE_CHUNK_BYTES // row_nbytes, *shape[:1]])))


def _write_array(storage: Storage, layout: ArrayLayout, values: RowSource) -> list[Entry]:
    """Write the chunks of an array, the last one padded, and return their sizes and checksums."""
    entries = []
    dtype = np.dtype(layout.dtype).newbyteorder("<")
    for i in range(layout.n_chunks):
        if layout.shape:
            chunk: npt.NDArray[Any] = np.full(layout.chunks, float(layout.fill_value), dtype)
            chunk[: layout.shape[0] - i * len(chunk)] = values[i * len(chunk) : (i + 1) * len(chunk)]
        else:
            chunk = np.asarray(values, dtype=dtype)
        entries.append(write_chunk(storage, layout, i, seal(chunk.tobytes())))
    return entries
