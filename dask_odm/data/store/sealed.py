"""Sealed folders: finished stores and records, whose manifest has the size and checksum of every file.

Whatever is read of one is compared with its manifest, and damage is told from replacement. A chunk is read straight
into memory, and checked by its own and the manifest's checksum.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_odm.data.storage.files import reason
from dask_odm.data.storage.locations import MANIFEST
from dask_odm.data.storage.storage import LocalStorage, Storage, storage_of
from dask_odm.data.store.layout import CHECKSUM_BYTES, ArrayLayout, crc32c, seal, zarr_documents
from dask_odm.data.store.manifest import Entry, Manifest, kind_named, read_document, read_manifest, with_digest
from dask_odm.errors import StoreError
from dask_odm.events import Progress, report
from dask_odm.typing import Array

CACHE_LINE = 64  # bytes


@dataclass(frozen=True)
class ChunkFile:
    """Chunk ``i`` of an array in a ``folder``.

    ``entry`` is its size and checksum by the manifest: a sound chunk may be another one's.
    """

    folder: SealedFolder
    array: ArrayLayout
    i: int
    entry: Entry

    def numbers(self, out: npt.NDArray[np.uint8] | None = None) -> Array:
        """Read the chunk, padding included, into the buffer ``out`` if that is given.

        A plain one is read straight into it. This is three times as fast as through zarr, since nothing is copied and a
        buffer is reused.
        """
        plain = self.payload(out) if self.array.is_plain else self._unpacked(self.payload(), out)
        return plain.view(self._dtype).reshape(self.array.chunks)

    def payload(self, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        """Read the file and check it; return its bytes without the checksum."""
        data = np.empty(self.entry[0], dtype=np.uint8) if out is None else out[: self.entry[0]]
        with self._explained():
            self.check_size(storage_of(self.folder.path).read_into(self.key, data.data))
            self._compare(crc32c(data[:-CHECKSUM_BYTES]), data[-CHECKSUM_BYTES:])
        return data[:-CHECKSUM_BYTES]

    def pieces(self, rows: int) -> Iterator[Array]:
        """Yield a plain chunk of a folder, ``rows`` at a time, in one reused buffer.

        This is twice as fast as reading the whole chunk if pieces are used at once, since they stay in the processor's
        cache. The checksum is checked at the end: if that raises, nothing that was made of earlier pieces may be used.
        """
        nbytes = self.array.chunk_nbytes
        shape = (-1, *self.array.chunks[1:])
        buffer = np.empty(min(nbytes, nbytes // self.array.chunks[0] * rows), dtype=np.uint8)
        end = np.empty(CHECKSUM_BYTES + 1, dtype=np.uint8)
        checksum = 0
        read = 0
        with self._explained(), LocalStorage(self.folder.path).opened(self.key) as file:
            while read < nbytes:
                piece = buffer[: nbytes - read]
                count = file.readinto(piece.data)
                read += count
                if count < len(piece):
                    break
                checksum = crc32c(piece, checksum)
                yield piece.view(self._dtype).reshape(shape)
            self.check_size(read + file.readinto(end.data))
            self._compare(checksum, end[:-1])

    def check_size(self, found: int | None) -> None:
        """Raise StoreError unless the file was found, and has the size that it should have."""
        if found != self.entry[0]:
            raise self.damage("missing" if found is None else f"truncated, {found} of {self.entry[0]} bytes")

    def damage(self, what: str) -> StoreError:
        """Return the error for a damaged chunk, naming store, array and chunk."""
        folder = self.folder
        place = f"{folder.kind} '{folder.path}', array '{self.array.name}', chunk {self.array.chunk_label(self.i)}"
        return StoreError(f"{place}: {what}; {kind_named(folder.kind).repair}.")

    @property
    def key(self) -> str:
        """Key of the file in the folder."""
        return self.array.chunk_key(self.i)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(self.array.dtype).newbyteorder("<")

    def _unpacked(self, packed: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint8]:
        size = _frame_size(packed[:18].tobytes())
        if size != self.array.chunk_nbytes:  # checked before memory is taken for the size it claims
            raise self.damage(f"unreadable ({size} bytes, not {self.array.chunk_nbytes}, are packed in it)")
        plain = np.empty(size, np.uint8) if out is None else out[:size]
        try:
            zstd().decode(packed, plain)
        except Exception as error:  # the codec raises various errors on damage
            raise self.damage(f"unreadable ({error})") from error
        return plain

    def _compare(self, checksum: int, end: npt.NDArray[np.uint8]) -> None:
        """Compare the checksum of a chunk's bytes with the one at its end, and that with the manifest's."""
        found = int.from_bytes(end.tobytes(), "little")
        if checksum != found:
            raise self.damage("checksum mismatch")
        if self.entry[1] != found:
            raise self.damage("checksum differs from the manifest's (swapped or of another store)")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise errors of the system as StoreError, naming the chunk, or that of a folder that was replaced."""
        with self.folder._still_there():
            try:
                yield
            except FileNotFoundError as error:
                raise self.damage("missing") from error
            except OSError as error:
                raise self.damage(f"unreadable ({reason(error)})") from error


# (size, checksum) of all chunks of the folders that a process used last: by path and digest, array name to (chunks, 2).
# A process reads a folder's manifest once. The entries are no part of `SealedFolder`, which is sent with every task.
ENTRIES: dict[tuple[str, str], dict[str, npt.NDArray[np.int64]]] = {}
_loading = threading.RLock()


@dataclass(frozen=True)
class SealedFolder:
    """Store or record of a ``kind`` at ``path`` whose manifest has this ``digest``.

    It is small, hashable and picklable, so that workers take it and read for themselves.
    """

    path: str  # absolute path; in an object store the address of the zarr group itself
    kind: str  # what the arrays mean: ``store``, ``model`` or another
    digest: str  # SHA-256 of the manifest's content, and so of every file's place, size and checksum

    def chunk(self, array: ArrayLayout, i: int) -> ChunkFile:
        """Return a chunk with its entry in the manifest."""
        entries = ENTRIES.get((self.path, self.digest))
        if entries is None:
            with _loading:  # one thread loads, the others wait
                entries = ENTRIES.get((self.path, self.digest)) or self._keep(self._manifest())
        size, checksum = entries[array.name][i].tolist()
        return ChunkFile(self, array, i, (size, checksum))

    def _keep(self, manifest: Manifest, most: int = 16) -> dict[str, npt.NDArray[np.int64]]:
        """Keep the entries of the manifest among those of ``most`` folders, and return them."""
        entries = {name: np.array(items, np.int64).reshape(-1, 2) for name, items in manifest.chunks.items()}
        with _loading:
            ENTRIES.pop((self.path, self.digest), None)
            ENTRIES[self.path, self.digest] = entries
            while len(ENTRIES) > most:
                del ENTRIES[next(iter(ENTRIES))]
        return entries

    def verify(self) -> int:
        """Check every file against the manifest, report `Progress`, and return how many bytes were read.

        Unlike the checksum within a chunk, this finds chunks that were swapped or are of an older folder. Raises
        StoreError naming the first damaged chunk and how many more there are.
        """
        manifest = self._manifest()
        self._documents(manifest)
        damaged = []
        chunks = self._chunks(manifest)
        report(Progress("verify", 0, len(chunks)))
        for done, chunk in enumerate(chunks, 1):
            try:
                chunk.payload()
            except StoreError as error:
                damaged.append(error)
            report(Progress("verify", done, len(chunks)))
        if damaged:
            more = f" ({len(damaged) - 1} more chunks are damaged)" if len(damaged) > 1 else ""
            raise StoreError(f"{damaged[0]}{more}")
        return manifest.nbytes

    def _manifest(self) -> Manifest:
        """Read the manifest; raise StoreError unless it is the one by which the folder was opened."""
        with self._still_there():
            manifest = read_manifest(self.path, self.kind)
            if manifest.digest != self.digest:
                raise self.replaced()
            return manifest

    def _chunks(self, manifest: Manifest) -> list[ChunkFile]:
        return [
            ChunkFile(self, array, i, entry)
            for name, array in manifest.arrays.items()
            for i, entry in enumerate(manifest.chunks[name])
        ]

    def _documents(self, manifest: Manifest) -> dict[str, Any]:
        """Check the sizes of all chunks, and read the zarr documents, whose attributes may be any.

        Raises StoreError if a chunk is missing, is a link or has another size, or a document is damaged or describes
        other arrays.
        """
        place = f"{self.kind} '{self.path}'"
        storage = storage_of(self.path)
        try:
            sizes = storage.sizes()
        except OSError as error:
            raise StoreError(f"{place} cannot be read: {reason(error)}.") from error
        for chunk in self._chunks(manifest):
            chunk.check_size(sizes.get(chunk.key))
        found = {key: read_document(storage, key, entry, self.kind) for key, entry in manifest.documents.items()}
        attributes = {key: document.get("attributes", {}) for key, document in found.items()}
        for key, expected in zarr_documents(manifest.arrays.values(), attributes).items():
            if found[key] != expected:
                raise StoreError(f"{place}, file '{key}': not as the manifest has it; {kind_named(self.kind).repair}.")
        return found

    def replaced(self) -> StoreError:
        """Return the error for a folder that was replaced since it was opened."""
        return StoreError(f"{self.kind} '{self.path}' was replaced since it was {kind_named(self.kind).replaced}.")

    @contextmanager
    def _still_there(self) -> Iterator[None]:
        """Raise the error of a replaced folder, instead of damage, if another one took its place, or is about to."""
        try:
            yield
        except StoreError as error:
            try:
                replaced = read_manifest(self.path, self.kind).digest != self.digest
            except StoreError:
                replaced = storage_of(self.path).is_being_replaced()
            if replaced:
                raise self.replaced() from error
            raise


def unseal(path: str, kind: str) -> tuple[Manifest, dict[str, Any]]:
    """Check manifest, file sizes and zarr documents of a folder, and return the manifest and the documents."""
    manifest = read_manifest(path, kind)
    folder = SealedFolder(path, kind, manifest.digest)
    documents = folder._documents(manifest)
    folder._keep(manifest)
    return manifest, documents


def sealed_bytes(numbers: Array) -> bytes:
    """Return the little-endian bytes of an array, followed by their checksum."""
    return seal(np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("<")).tobytes())


def room_for(nbytes: int, before: int = 0) -> npt.NDArray[np.uint8]:
    """Return memory into which files are read, of which byte number ``before`` begins a line of the cache.

    Some systems copy five times as fast to such addresses, which large arrays of NumPy do not have.
    """
    room = np.empty(CACHE_LINE + nbytes, np.uint8)
    at = -(room.ctypes.data + before) % CACHE_LINE
    return room[at : at + nbytes]


@contextmanager
def writing(kind: str, location: str) -> Iterator[None]:
    """Raise errors of the system as StoreError, naming what is being written."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {kind} '{location}': {reason(error)}.") from error


def write_chunk(storage: Storage, array: ArrayLayout, i: int, sealed: bytes | memoryview) -> Entry:
    """Write a chunk of its plain bytes and their checksum, compressed if the array is; return its manifest entry."""
    data = memoryview(sealed)
    if array.compression is not None:
        data = memoryview(seal(bytes(zstd().encode(bytes(data[:-CHECKSUM_BYTES])))))
    storage.write(array.chunk_key(i), data)
    return len(data), int.from_bytes(data[-CHECKSUM_BYTES:], "little")


def finish(
    storage: Storage, head: dict[str, Any], chunks: Mapping[str, list[Entry]], documents: Mapping[str, bytes]
) -> None:
    """Write the zarr documents, and the manifest after everything else is on disk."""
    entries = {}
    for key, text in documents.items():
        storage.write(key, text)
        entries[key] = (len(text), crc32c(text))
    storage.complete(MANIFEST, with_digest({**head, "chunks": chunks, "documents": entries}).encode())


def encoded(documents: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the text of JSON documents; raise TypeError or ValueError if one is none."""
    return {key: json.dumps(each, indent=1, allow_nan=False).encode() for key, each in documents.items()}


def _frame_size(head: bytes) -> int | None:
    """Return the unpacked size that a zstd frame declares (RFC 8878, section 3.1.1.1); None if it declares none."""
    if len(head) < 6 or not head.startswith(b"\x28\xb5\x2f\xfd"):
        return None
    single = head[4] >> 5 & 1
    width = (0, 2, 4, 8)[head[4] >> 6] or single
    at = 5 + (1 - single) + (0, 1, 2, 4)[head[4] & 3]
    if not width or len(head) < at + width:
        return None
    return int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)


@cache
def zstd() -> Any:
    """Return the codec of compressed chunks, whose frames have a checksum of their own.

    It is imported with the first frame. Its package looks up all installed codecs, which takes a fifth of a second that
    rows in memory and uncompressed stores do not need.
    """
    from numcodecs import Zstd

    return Zstd(level=0, checksum=True)
