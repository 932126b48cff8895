"""Files in an object store, from which rows are ingested. They are read like files, a few megabytes at a time.

Nothing is copied to this machine. If an object is replaced while it is read, that is an error.
"""

from __future__ import annotations

import errno
import io
import os
from typing import IO, Any

from dask_odm.data.storage.checked_writes import open_whole
from dask_odm.data.storage.locations import is_address
from dask_odm.data.storage.object_client import NotAsExpectedError, client_of, explained
from dask_odm.data.storage.objects import ObjectStorage


class ObjectFile(io.RawIOBase):
    """Unbuffered file over the object at an address; FileNotFoundError if there is none."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._at = 0
        self._name = location.partition("://")[2].partition("/")[2]
        with explained(location, "read") as _:
            found = client_of(location).head(self._name)
        self.size = int(found["size"])
        self._tag = found["e_tag"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a position, counted from the beginning, the current position or the end."""
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence])
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, and return the number of bytes read."""
        target = memoryview(buffer).cast("B")
        stop = min(self._at + len(target), self.size)
        if stop <= self._at:
            return 0
        options = {"range": (self._at, stop), "if_match": self._tag}
        try:
            with explained(self._location, "read"):
                data = memoryview(client_of(self._location).get(self._name, options=options).bytes())
        except NotAsExpectedError:
            raise OSError(errno.ESTALE, "it was replaced while it was read", self._location) from None
        target[: len(data)] = data
        self._at += len(data)
        return len(data)


def open_source(path: str) -> IO[bytes]:
    """Open a file or an object for buffered reading; an object is read 4 MB a request."""
    return io.BufferedReader(ObjectFile(path), 4 << 20) if is_address(path) else open_whole(path)


def source_size(path: str) -> int:
    """Return the size in bytes of a file or an object."""
    return ObjectFile(path).size if is_address(path) else os.path.getsize(path)


def objects_at(location: str) -> list[str]:
    """Return the object at an address, or the objects directly below it, as the files of a folder; else no objects."""
    with explained(location, "list"):
        name = location.partition("://")[2].partition("/")[2]
        root = location.removesuffix(name)
        try:
            client_of(location).head(name)
            return [location]
        except FileNotFoundError:
            pass
    return [f"{root}{name}/{key}" for key in ObjectStorage(location).sizes() if "/" not in key]
