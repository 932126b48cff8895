"""Storage: the bytes of a store or a record by key, in a folder or an object store.

Readers and writers use keys such as ``X/c/3/0`` and a location, never a path. Another kind of storage is a class with
the methods of `LocalStorage`, one with those of `NewFolder`, and a line in `storage_of` and `new_storage`. No content
that is read decides which key is read next, except the random name of the current generation in an object store
(`objects`).
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter

from dask_odm.data.storage.files import WholeFile, make_folders, open_whole, sync, write_synced
from dask_odm.data.storage.locations import MANIFEST, is_address
from dask_odm.data.storage.objects import NewObjects, ObjectStorage
from dask_odm.data.storage.staging import aside, check_output, disown, left_aside, own, remove_folder, replace_folder

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True)
class LocalStorage:
    """Storage in a folder of this machine, with files as keys. Links are not followed.

    Failures of the system are raised as OSError; a key that does not exist raises FileNotFoundError.
    """

    location: str

    def read(self, key: str, limit: int) -> bytes:
        """Return all bytes of a key; raise OSError before reading if there are more than ``limit``."""
        with self.opened(key) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise OSError(errno.EFBIG, f"{size} bytes, more than {limit}")
            return file.read(size)

    def read_into(self, key: str, target: memoryview) -> int:
        """Fill ``target`` with the first bytes, and return the size, counting at most one byte more than fits."""
        with self.opened(key) as file:
            return file.readinto(target) + len(file.read(1))

    def sizes(self) -> dict[str, int]:
        """Return all keys with their sizes in bytes."""
        found = {}
        prefixes = [""]
        for prefix in prefixes:  # which grow
            with os.scandir(os.path.join(self.location, prefix)) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        prefixes.append(f"{prefix}{entry.name}/")
                    elif stat.S_ISREG((status := entry.stat(follow_symlinks=False)).st_mode):
                        found[prefix + entry.name] = status.st_size
        return found

    def write(self, key: str, data: bytes | memoryview) -> None:
        """Write a key and replace its former bytes."""
        with BufferedWriter(WholeFile(make_folders(self.location, key), "wb")) as file:
            file.write(data)

    def complete(self, key: str, data: bytes) -> None:
        """Write the last key, the manifest, after all others are safely stored."""
        tree = list(os.walk(self.location, topdown=False))
        for folder, _, names in tree:
            for name in names:
                sync(os.path.join(folder, name))
        write_synced(os.path.join(self.location, key), data)
        for folder, _, _ in tree:
            sync(folder)

    def has(self, key: str) -> bool:
        """Return whether the key exists."""
        return os.path.isfile(os.path.join(self.location, key))

    def exists(self) -> bool:
        """Return whether anything is at the location."""
        return os.path.lexists(self.location)

    def version(self) -> object:
        """Return a value that changes when another store or record takes this place; None if there is none."""
        try:
            found = os.stat(os.path.join(self.location, MANIFEST), follow_symlinks=False)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def is_being_replaced(self) -> bool:
        """Return whether the content was replaced by another, or is about to be."""
        try:
            return not self.exists() and bool(left_aside(self.location))
        except OSError:
            return False

    def resolved(self) -> str:
        """Return the location of the bytes that are current now. In an object store no other store ever has it."""
        return self.location

    def opened(self, key: str) -> BufferedReader:
        """Open a regular file. Anything else, such as a pipe that would never end, is refused at once."""
        file = open_whole(os.open(os.path.join(self.location, key), _FLAGS))
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise OSError(errno.EINVAL, "not a file")
        return file


@dataclass(frozen=True)
class NewFolder(LocalStorage):
    """Folder that is written beside its place, ``target``, and then renamed to it. Nothing is visible there before."""

    target: str

    @property
    def scratch(self) -> str | None:
        """Folder of files that nobody else sees while this is written; None for the system's."""
        return self.location

    def check(self, *, overwrite: bool) -> bool:
        """Return whether something would be replaced; raise InputError if the target may not be written."""
        return check_output(self.target, overwrite=overwrite)

    def begin(self, *, overwrite: bool) -> None:
        """Prepare for writing; raise InputError if the target may not be written or replaced."""
        check_output(self.target, overwrite=overwrite)
        try:
            own(self.location)
            os.mkdir(self.location)
        except BaseException:  # also an interrupt after the folder was made
            disown(self.location)
            raise

    def publish(self, *, overwrite: bool) -> None:
        """Make everything visible at once, in place of the former content."""
        replace_folder(self.location, self.target, overwrite=overwrite)

    def discard(self) -> None:
        """Remove everything that was not published. It is the last call to a storage that was begun."""
        disown(self.location)

    def retract(self) -> None:
        """Remove what was published."""
        remove_folder(self.target)


Storage = LocalStorage | ObjectStorage
NewStorage = NewFolder | NewObjects


def storage_of(location: str) -> Storage:
    """Return the storage at a location, for reading."""
    return ObjectStorage(location) if is_address(location) else LocalStorage(location)


def new_storage(location: str) -> NewStorage:
    """Return a storage for writing, which appears at the location when it is published."""
    return NewObjects(location) if is_address(location) else NewFolder(aside(location), location)


def current_storage(location: str) -> Storage:
    """Return the storage of the current bytes of a store or record, for reading."""
    return storage_of(storage_of(location).resolved())
