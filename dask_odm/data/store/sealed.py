"""Sealed folders: finished stores and records, whose manifest has the size and checksum of every file.

Whatever is read of one is compared with its manifest, and damage is told from replacement.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_odm.data.storage.files import reason
from dask_odm.data.storage.locations import MANIFEST
from dask_odm.data.storage.storage import Storage, storage_of
from dask_odm.data.store.chunks import ChunkFile, Entry, Kind, zstd
from dask_odm.data.store.layout import CHECKSUM_BYTES, ArrayLayout, crc32c, seal
from dask_odm.data.store.manifest import Manifest, read_manifest, with_digest
from dask_odm.errors import StoreError
from dask_odm.events import Progress, report
from dask_odm.typing import Array


class _ChunkEntries:
    """(size, checksum) of all chunks of the folders that a process used last: array name to (chunks, 2).

    A process reads a folder's manifest once. The entries are no part of `SealedFolder`, which is sent with every task.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: dict[tuple[str, str], dict[str, npt.NDArray[np.int64]]] = {}  # by path and digest
        self._lock = threading.RLock()

    def keep(self, path: str, manifest: Manifest) -> None:
        """Keep the entries of a manifest."""
        entries = {name: np.array(items, np.int64).reshape(-1, 2) for name, items in manifest.chunks.items()}
        with self._lock:
            self.kept.pop((path, manifest.digest), None)
            self.kept[path, manifest.digest] = entries
            while len(self.kept) > self.most:
                del self.kept[next(iter(self.kept))]

    def of(self, path: str, digest: str, load: Callable[[], Manifest]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the entries of a folder, if need be of the manifest that ``load`` reads."""
        found = self.kept.get((path, digest))
        if found is not None:
            return found
        with self._lock:  # one thread loads, the others wait
            if (path, digest) not in self.kept:
                self.keep(path, load())
            return self.kept[path, digest]


ENTRIES = _ChunkEntries(most=16)


@dataclass(frozen=True)
class SealedFolder:
    """Store or record at ``path`` whose manifest has this ``digest``."""

    path: str
    kind: Kind
    digest: str

    @classmethod
    def open(cls, path: str, kind: Kind) -> tuple[SealedFolder, Manifest, dict[str, Any]]:
        """Check manifest, file sizes and zarr documents, and return the folder, the manifest and the documents."""
        manifest = read_manifest(path, kind)
        documents = manifest.read_documents(path, kind)
        ENTRIES.keep(path, manifest)
        return cls(path, kind, manifest.digest), manifest, documents

    def chunk(self, array: ArrayLayout, i: int) -> ChunkFile:
        """Return a chunk with its entry in the manifest."""
        size, checksum = ENTRIES.of(self.path, self.digest, self.manifest)[array.name][i].tolist()
        return ChunkFile(self.path, array, i, (size, checksum), self.kind)

    def read(self, array: ArrayLayout, i: int, out: npt.NDArray[np.uint8] | None = None) -> Array:
        """Read the numbers of a chunk, padding included, as `ChunkFile.numbers` does."""
        chunk = self.chunk(array, i)
        with self._still_there():
            return chunk.numbers(out)

    def pieces(self, array: ArrayLayout, i: int, rows: int) -> Iterator[Array]:
        """Yield a plain chunk of a folder in pieces, as `ChunkFile.pieces` does."""
        chunk = self.chunk(array, i)
        with self._still_there():
            yield from chunk.pieces(rows)

    def manifest(self) -> Manifest:
        """Read the manifest; raise StoreError unless it is the one by which the folder was opened."""
        with self._still_there():
            manifest = read_manifest(self.path, self.kind)
            if manifest.digest != self.digest:
                raise self.replaced()
            return manifest

    def verify(self) -> int:
        """Check every file, report `Progress`, and return how many bytes there are.

        Raises StoreError naming the first damaged chunk and how many more there are.
        """
        manifest = self.manifest()
        manifest.read_documents(self.path, self.kind)
        damaged = []
        total = sum(len(entries) for entries in manifest.chunks.values())
        report(Progress("verify", 0, total))
        chunks = (
            ChunkFile(self.path, array, i, entry, self.kind)
            for name, array in manifest.arrays.items()
            for i, entry in enumerate(manifest.chunks[name])
        )
        for done, chunk in enumerate(chunks, 1):
            try:
                chunk.payload()
            except StoreError as error:
                damaged.append(error)
            report(Progress("verify", done, total))
        if damaged:
            more = f" ({len(damaged) - 1} more chunks are damaged)" if len(damaged) > 1 else ""
            raise StoreError(f"{damaged[0]}{more}")
        return manifest.nbytes

    def replaced(self) -> StoreError:
        """Return the error for a folder that was replaced since it was opened."""
        return StoreError(f"{self.kind.noun} '{self.path}' was replaced since it was {self.kind.replaced}.")

    @contextmanager
    def _still_there(self) -> Iterator[None]:
        """Raise the error of a replaced folder, instead of damage, if another one took its place, or is about to."""
        try:
            yield
        except StoreError as error:
            if self._was_replaced():
                raise self.replaced() from error
            raise

    def _was_replaced(self) -> bool:
        try:
            return read_manifest(self.path, self.kind).digest != self.digest
        except StoreError:
            return storage_of(self.path).is_being_replaced()


# Writing -----------------------------------------------------------------------------------------------------


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
