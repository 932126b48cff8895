"""Chunks of an opened store. Every read is compared with its manifest, and tells damage from replacement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dask_odm.data.storage.storage import storage_of
from dask_odm.data.store.chunks import read_packed_chunk, read_plain_chunk, read_plain_pieces, read_sealed
from dask_odm.data.store.entries import entries_of
from dask_odm.data.store.layout import ArrayLayout, Manifest
from dask_odm.data.store.opening import read_store_manifest
from dask_odm.errors import StoreError
from dask_odm.events import Progress, report
from dask_odm.typing import Array


@dataclass(frozen=True)
class SealedChunks:
    """Chunks at ``path`` of the store whose manifest has this ``digest``."""

    path: str
    digest: str

    def read(self, array: ArrayLayout, i: int, out: npt.NDArray[np.uint8] | None = None) -> Array:
        """Read a chunk, padding included, and compare it with the manifest's entry."""
        entry = self._entry(array, i)
        with self._still_there():
            if array.is_plain:
                return read_plain_chunk(self.path, array, i, out, expected=entry[1])
            return read_packed_chunk(self.path, array, i, entry)

    def read_pieces(self, array: ArrayLayout, i: int, rows: int) -> Iterator[Array]:
        """Yield pieces of a plain chunk of a folder, padding included, as `read_plain_pieces` does."""
        with self._still_there():
            yield from read_plain_pieces(self.path, array, i, rows, self._entry(array, i)[1])

    def payload(self, array: ArrayLayout, i: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a chunk without its checksum, as `read_sealed` does."""
        return read_sealed(self.path, array, i, self._entry(array, i))

    def manifest(self) -> Manifest:
        """Read the manifest; raise StoreError unless it is the one by which the store was opened."""
        try:
            manifest = read_store_manifest(self.path)
        except StoreError as error:
            if storage_of(self.path).is_being_replaced():
                raise self._replaced() from error
            raise
        if manifest.digest != self.digest:
            raise self._replaced()
        return manifest

    def damaged(self, manifest: Manifest) -> Iterator[StoreError]:
        """Yield an error for each chunk that differs from the manifest, and report `Progress`."""
        done = 0
        total = sum(len(entries) for entries in manifest.chunks.values())
        report(Progress("verify", 0, total))
        for array in manifest.layout.arrays():
            for i, entry in enumerate(manifest.chunks[array.name]):
                try:
                    read_sealed(self.path, array, i, entry)
                except StoreError as error:
                    yield error
                done += 1
                report(Progress("verify", done, total))

    def _entry(self, array: ArrayLayout, i: int) -> tuple[int, int]:
        """Return size and checksum of a chunk by the manifest, which a process reads once per store."""
        size, checksum = entries_of(self.path, self.digest, self.manifest)[array.name][i].tolist()
        return size, checksum

    @contextmanager
    def _still_there(self) -> Iterator[None]:
        """Raise the error of a replaced store, instead of a damaged chunk, if another store took its place."""
        try:
            yield
        except StoreError as error:
            if self._was_replaced():
                raise self._replaced() from error
            raise

    def _was_replaced(self) -> bool:
        """Return whether another store took this place, or is about to; False if there is none, or a damaged one."""
        try:
            return read_store_manifest(self.path).digest != self.digest
        except StoreError:
            return storage_of(self.path).is_being_replaced()

    def _replaced(self) -> StoreError:
        return StoreError(f"store '{self.path}' was replaced since it was opened; open it again.")
