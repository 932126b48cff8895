"""Folders and files that appear whole or not at all: written aside, forced to disk, renamed into place."""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from contextlib import suppress

from dask_odm.errors import InputError

FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # no room for more, whosever limit it is


def check_output(path: str, *, overwrite: bool) -> None:
    """Raise InputError where ``path`` may not be written or replaced."""
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
    """Whether nothing is in a folder; InputError where the system does not say."""
    try:
        return not os.listdir(folder)
    except OSError as error:
        raise InputError(f"'{folder}' exists and cannot be read: {reason(error)}.") from error


def aside(path: str) -> str:
    """Return a fresh name beside ``path``, to write to before `replace_folder`."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex[:8]}")


def left_aside(path: str) -> list[str]:
    """Return what a process that was killed while it wrote ``path`` left beside it, newest first."""
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(f".{name}.") + r"[0-9a-f]{8}(\.old)?(\.gone)?")
    found = [os.path.join(folder, each) for each in os.listdir(folder) if pattern.fullmatch(each)]
    return sorted(found, key=os.path.getmtime, reverse=True)


def is_being_replaced(path: str) -> bool:
    """Whether there is nothing at ``path``, but beside it what `replace_folder` is about to put there."""
    try:
        return not os.path.lexists(path) and bool(left_aside(path))
    except OSError:
        return False


def replace_folder(new: str, path: str, *, overwrite: bool) -> None:
    """Rename folder ``new`` to ``path``, removing what was there only afterwards; an interrupt leaves either."""
    check_output(path, overwrite=overwrite)
    old = f"{new}.old"
    try:
        if os.path.lexists(path):
            os.rename(path, old)
        os.rename(new, path)
        sync_folder(os.path.dirname(path))
    finally:
        if os.path.lexists(old) and not os.path.lexists(path):
            os.rename(old, path)
        remove_folder(old)


def remove_folder(path: str) -> None:
    """Remove a folder, also under threads that still write to it by its name; nothing where there is none."""
    try:
        _remove(path)
    except BaseException:  # an interrupt does not leave half of it
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

    So that a task that outlives an interrupt cannot bring back a folder that was removed.
    """
    folder = root
    for part in key.split("/")[:-1]:
        folder = os.path.join(folder, part)
        with suppress(FileExistsError):
            os.mkdir(folder)
    return os.path.join(root, key)


def reason(error: OSError) -> str:
    """What the system says, in words; some libraries raise an OSError without a number."""
    return error.strerror or str(error) or type(error).__name__


def reserve(descriptor: int, size: int, *, alone: bool = True) -> None:
    """Have all ``size`` bytes of a file on disk before it is mapped: a full disk kills whoever writes to a map.

    Where the system cannot, zeros are written to a file that nobody else writes to, ``alone``; another's are only
    made long enough.

    Raises
    ------
    OSError
        There is no room (`FULL`); its text holds bytes needed and free.
    """
    free = os.fstatvfs(descriptor) if hasattr(os, "fstatvfs") else None
    try:
        if not _allocated(descriptor, size):
            (_write_zeros if alone else os.truncate)(descriptor, size)
    except OSError as error:
        if error.errno not in FULL or free is None:
            raise
        from dask.utils import format_bytes  # here, since who only reads stores does without

        room = format_bytes(free.f_bavail * free.f_frsize)
        raise OSError(error.errno, f"{reason(error)} ({format_bytes(size)} needed, {room} free)") from error


def _allocated(descriptor: int, size: int) -> bool:
    """Reserve by the system, if it and the file system can."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
            return True
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    return False


def _write_zeros(descriptor: int, size: int) -> None:
    """Fill a file with zeros from its end up to ``size``."""
    at = os.lseek(descriptor, 0, os.SEEK_END)
    zeros = bytes(1 << 20)
    while at < size:
        at += os.write(descriptor, zeros[: size - at])


def write_synced(path: str, data: bytes) -> None:
    """Write a small file aside, force it to disk and rename it into place."""
    with open(f"{path}.tmp", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def sync_tree(root: str) -> None:
    """Force every file below ``root`` to disk."""
    for folder, _, names in os.walk(root):
        for name in names:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def sync_folders(root: str) -> None:
    """Force every folder below ``root``, and ``root``, to disk."""
    for folder, _, _ in os.walk(root, topdown=False):
        sync_folder(folder)


def sync_folder(path: str) -> None:
    """Force the names in a folder to disk, where the system can (Windows cannot)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
