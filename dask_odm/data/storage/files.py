"""Folders and files that appear whole or not at all: they are staged, forced to disk and renamed into place.

A process owns a staging name, beside the output, by a lock that dies with it. The lock's file,
``.NAME.xxxxxxxx.lock``, is there from before the first write until nothing is left but the output. The next writer in
that folder removes what no process owns.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dask_odm.data.storage.locks import FileLock, take_abandoned, take_lock
from dask_odm.errors import InputError

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # full disk, quota or size limit


def check_output(path: str, *, overwrite: bool) -> None:
    """Raise InputError if ``path`` may not be written or replaced."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        raise InputError(f"cannot write '{path}': there is no folder '{parent}'.")
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise InputError(f"'{path}' exists; pass overwrite=True (--overwrite) to replace it.")
    if not os.path.isdir(path) or not (is_empty(path) or os.path.isfile(os.path.join(path, "zarr.json"))):
        raise InputError(f"'{path}' exists and is not a zarr store; remove it yourself or choose another name.")


def is_empty(folder: str) -> bool:
    """Return whether a folder is empty; raise InputError if it cannot be read."""
    try:
        return not os.listdir(folder)
    except OSError as error:
        raise InputError(f"'{folder}' exists and cannot be read: {reason(error)}.") from error


def aside(path: str) -> str:
    """Return a fresh staging name beside ``path``, to write to before `replace_folder`."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex[:8]}")


def left_aside(path: str) -> list[str]:
    """Return the staging names that a process left beside ``path`` when it was killed, newest first."""
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(f".{name}.") + r"[0-9a-f]{8}(\.old)?(\.gone)?")
    found = [os.path.join(folder, each) for each in os.listdir(folder) if pattern.fullmatch(each)]
    return sorted(found, key=os.path.getmtime, reverse=True)


def replace_folder(new: str, path: str, *, overwrite: bool) -> None:
    """Rename folder ``new`` to ``path``, and remove the former content afterwards.

    An interrupt leaves one of the two.
    """
    check_output(path, overwrite=overwrite)
    old = f"{new}.old"
    try:
        if os.path.lexists(path):
            os.rename(path, old)
        os.rename(new, path)
        sync(os.path.dirname(path))
    finally:
        if os.path.lexists(old) and not os.path.lexists(path):
            os.rename(old, path)
        remove_folder(old)


def remove_folder(path: str) -> None:
    """Remove a folder, if it exists, even while other threads still write to it by its name."""
    try:
        _remove(path)
    except BaseException:  # an interrupt must not leave half of it
        _remove(path)
        raise


def _remove(path: str) -> None:
    gone = f"{path}.gone"
    if os.path.lexists(path):
        with suppress(OSError):
            os.rename(path, gone)
    for name in (gone, path):
        shutil.rmtree(name, ignore_errors=True)


def make_folders(root: str, key: str) -> str:
    """Make the folders of file ``key`` below ``root``, but not ``root`` itself, and return the file's path.

    ``root`` is not made, so that a task that outlives an interrupt cannot bring back a folder that was removed.
    """
    folder = root
    for part in key.split("/")[:-1]:
        folder = os.path.join(folder, part)
        with suppress(FileExistsError):
            os.mkdir(folder)
    return os.path.join(root, key)


def reason(error: OSError) -> str:
    """Return the system's reason for an error in words. Some libraries raise an OSError without a number."""
    return error.strerror or str(error) or type(error).__name__


def reserve(descriptor: int, size: int, *, alone: bool = True) -> None:
    """Reserve ``size`` bytes of a file on disk before it is mapped, since a full disk kills whoever writes to a map.

    If the system cannot reserve, zeros are written, provided nobody else writes to the file (``alone``); otherwise the
    file is only made long enough. Raises OSError (`FULL`) if there is no room; its text says how many bytes are needed
    and free.
    """
    free = os.fstatvfs(descriptor) if hasattr(os, "fstatvfs") else None
    try:
        if _allocated(descriptor, size):
            return
        if alone:
            _write_zeros(descriptor, size)
        else:
            os.truncate(descriptor, size)
    except OSError as error:
        if error.errno not in FULL or free is None:
            raise
        from dask.utils import format_bytes  # imported here, since reading stores does not need it

        room = format_bytes(free.f_bavail * free.f_frsize)
        raise OSError(error.errno, f"{reason(error)} ({format_bytes(size)} needed, {room} free)") from error


def _allocated(descriptor: int, size: int) -> bool:
    """Reserve bytes by a system call; return whether the system and the file system can."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
            return True
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    return False


def _write_zeros(descriptor: int, size: int) -> None:
    """Append zeros to a file until it has ``size`` bytes."""
    at = os.lseek(descriptor, 0, os.SEEK_END)
    zeros = bytes(1 << 20)
    while at < size:
        at += os.write(descriptor, zeros[: size - at])


def write_synced(path: str, data: bytes) -> None:
    """Write a small file beside its place, force it to disk and rename it into place."""
    with open(f"{path}.tmp", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def sync(path: str) -> None:
    """Force a file, or the names in a folder, to disk. Windows cannot do that for folders, which are skipped there."""
    if os.name == "nt" and os.path.isdir(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_LOCK = re.compile(r"\.(.+)\.[0-9a-f]{8}\.lock")
_OWNED: dict[str, FileLock] = {}  # locks of the names that this process owns


def own(name: str, *, attempts: int = 100) -> None:
    """Own a name from `aside`, and remove what killed processes left in its folder.

    A process that removes abandoned files holds the lock for a moment, so it is tried again. Raises OSError, and leaves
    nothing, if the lock cannot be written.
    """
    remove_abandoned(os.path.dirname(name))
    for _ in range(attempts):
        lock = take_lock(f"{name}.lock")
        if lock is not None:
            _OWNED[name] = lock
            return
        time.sleep(0.01)
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"{name}.lock")


def disown(name: str) -> None:
    """Remove the file or folder of that name, and then release the name."""
    try:
        _remove_any(name)
    finally:
        try:
            _let_go(name)
        except BaseException:  # an interrupt must not leave the lock's file
            _let_go(name)
            raise


def _let_go(name: str) -> None:
    lock = _OWNED.pop(name, None)
    if lock is None:
        if not os.path.lexists(f"{name}.old"):
            with suppress(OSError):
                os.remove(f"{name}.lock")
    elif os.path.lexists(f"{name}.old"):  # the former content could not be put back; the next writer does it
        lock.close()
    else:
        lock.remove()


@contextmanager
def owned_file(path: str) -> Iterator[str]:
    """Yield a staging name to write before it is renamed to ``path``. It is removed at the end if it still exists."""
    name = aside(path)
    try:
        own(name)
        yield name
    finally:
        disown(name)


def remove_abandoned(folder: str) -> None:
    """Remove what killed processes left in a folder, if the folder can be listed."""
    with suppress(OSError):
        for each in os.listdir(folder):
            found = _LOCK.fullmatch(each)
            if found:
                _remove_if_abandoned(os.path.join(folder, each), os.path.join(folder, found[1]))


def _remove_if_abandoned(file: str, target: str) -> None:
    ours = not hasattr(os, "getuid") or os.lstat(file).st_uid == os.getuid()
    lock = take_abandoned(file, empty=True) if ours else None
    if lock is None:
        return
    name = file.removesuffix(".lock")
    old = f"{name}.old"
    if os.path.lexists(old) and not os.path.lexists(target):  # killed between the two renames of `replace_folder`
        try:
            os.rename(old, target)
        except OSError:  # it cannot be put back now
            lock.close()
            return
    _remove_any(name)
    remove_folder(old)
    lock.remove()


def _remove_any(name: str) -> None:
    """Remove a folder or a file."""
    if not os.path.isdir(name) or os.path.islink(name):
        with suppress(OSError):
            os.remove(name)
    remove_folder(name)  # also of a file, since an interrupt may have left part of a folder under another name
