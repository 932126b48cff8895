"""Where the bytes of a store or a record lie: keys and bytes, behind a protocol; a folder, or an object store.

Readers and writers know keys such as ``X/c/3/0`` and a location, never a path, so that another kind of storage is
one class more and a line in `storage_of`. Nothing that is read decides which key is read, but for the generation of
keys in an object store, which is random digits (`objects`).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol

from dask_odm.data.storage.checked_writes import WholeFile
from dask_odm.data.storage.files import (
    aside,
    check_output,
    is_being_replaced,
    is_empty,
    make_folders,
    remove_folder,
    replace_folder,
    sync_folders,
    sync_tree,
    write_synced,
)
from dask_odm.data.storage.locations import is_address
from dask_odm.data.storage.new_objects import NewObjects
from dask_odm.data.storage.objects import ObjectStorage
from dask_odm.data.storage.staging import disown, own
from dask_odm.data.store.layout import MANIFEST

_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class Storage(Protocol):
    """Named bytes at a location. What the system refuses is an OSError, a key that is not there FileNotFoundError."""

    @property
    def location(self) -> str:
        """Where the bytes lie, as a user names it."""

    def read(self, key: str, limit: int) -> bytes:
        """All bytes of a key; an OSError where there are more than ``limit``, before they are read."""

    def read_into(self, key: str, target: memoryview) -> int:
        """Fill ``target`` from the first byte on, and return how many there are, at most one more than fit."""

    def sizes(self) -> dict[str, int]:
        """All keys with their sizes in bytes."""

    def write(self, key: str, data: bytes | memoryview) -> None:
        """Write a key, replacing what it had."""

    def remove(self, key: str) -> None:
        """Remove a key and all keys below it."""

    def complete(self, key: str, data: bytes) -> None:
        """Write the last key, the manifest, once all others are there to stay."""

    def has(self, key: str) -> bool:
        """Whether there is such a key."""

    def exists(self) -> bool:
        """Whether anything is at the location."""

    def version(self) -> object:
        """What a store or record that takes another's place differs in; None where there is none."""

    def is_being_replaced(self) -> bool:
        """Whether another one takes the place of what was here, or is about to."""

    def resolved(self) -> str:
        """The location at which the bytes are that are current now; it is never another store's later."""


class NewStorage(Storage, Protocol):
    """A storage being written, of which nothing is visible at its location before `publish`."""

    def check(self, *, overwrite: bool) -> bool:
        """Whether something is there to be replaced; InputError where the location may not be written or replaced."""

    def begin(self, *, overwrite: bool) -> None:
        """Make room; InputError where the location may not be written or replaced."""

    def publish(self, *, overwrite: bool) -> None:
        """Make everything visible at once, in place of what was there before."""

    def discard(self) -> None:
        """Remove everything that was not published, the last call to a storage that was begun."""

    def retract(self) -> None:
        """Remove what was published."""


def storage_of(location: str) -> Storage:
    """The storage at a location, to read from."""
    return ObjectStorage(location) if is_address(location) else LocalStorage(location)


def new_storage(location: str) -> NewStorage:
    """A storage that appears at a location when it is published."""
    return NewObjects(location) if is_address(location) else NewFolder(aside(location), location)


def resolved(location: str) -> str:
    """The location at which the bytes of a store or record are that are current."""
    return storage_of(location).resolved()


@dataclass(frozen=True)
class LocalStorage:
    """A folder of this machine, its keys the files in it. Links are not followed."""

    location: str

    def read(self, key: str, limit: int) -> bytes:
        with self.opened(key) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise OSError(errno.EFBIG, f"{size} bytes, more than {limit}")
            data = bytearray(size)
            return bytes(data[: fill(file, memoryview(data))])

    def read_into(self, key: str, target: memoryview) -> int:
        with self.opened(key) as file:
            return fill(file, target) + len(file.read(1))

    def sizes(self) -> dict[str, int]:
        return dict(_regular_files(self.location))

    def write(self, key: str, data: bytes | memoryview) -> None:
        path = make_folders(self.location, key)
        view = memoryview(data).cast("B")
        with WholeFile(path, "wb") as file:
            written = 0
            while written < len(view):
                written += file.write(view[written:])

    def remove(self, key: str) -> None:
        path = os.path.join(self.location, key)
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)

    def complete(self, key: str, data: bytes) -> None:
        sync_tree(self.location)
        write_synced(os.path.join(self.location, key), data)
        sync_folders(self.location)

    def has(self, key: str) -> bool:
        return os.path.isfile(os.path.join(self.location, key))

    def exists(self) -> bool:
        return os.path.lexists(self.location)

    def version(self) -> object:
        try:
            found = os.stat(os.path.join(self.location, MANIFEST), follow_symlinks=False)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def is_being_replaced(self) -> bool:
        return is_being_replaced(self.location)

    def resolved(self) -> str:
        return self.location

    @contextmanager
    def opened(self, key: str) -> Iterator[FileIO]:
        """Open a regular file; anything else, such as a pipe that would never end, is refused at once."""
        with WholeFile(os.open(os.path.join(self.location, key), _FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a file")
            yield file


@dataclass(frozen=True)
class NewFolder(LocalStorage):
    """A folder that is written beside its place, ``target``, and renamed into it."""

    target: str

    def check(self, *, overwrite: bool) -> bool:
        check_output(self.target, overwrite=overwrite)
        return os.path.lexists(self.target) and not is_empty(self.target)

    def begin(self, *, overwrite: bool) -> None:
        check_output(self.target, overwrite=overwrite)
        try:
            own(self.location)
            os.mkdir(self.location)
        except BaseException:  # an interrupt after it was made, too
            disown(self.location)
            raise

    def publish(self, *, overwrite: bool) -> None:
        replace_folder(self.location, self.target, overwrite=overwrite)

    def discard(self) -> None:
        disown(self.location)

    def retract(self) -> None:
        remove_folder(self.target)


def fill(file: FileIO, target: memoryview) -> int:
    """Fill ``target`` from a file, and return how many bytes it had."""
    done = 0
    while done < len(target) and (count := file.readinto(target[done:])):
        done += count
    return done


def _regular_files(root: str, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield name and size of every file below ``root``, following no links."""
    with os.scandir(os.path.join(root, prefix)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _regular_files(root, f"{prefix}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield prefix + entry.name, entry.stat(follow_symlinks=False).st_size
