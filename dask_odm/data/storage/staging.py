"""Staging: names beside an output to which a process writes before it renames them into place.

A process owns a staging name by a lock that dies with it. The lock's file, ``.NAME.xxxxxxxx.lock``, is there from
before the first write until nothing is left but the output. The next writer in that folder removes what no process
owns.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dask_odm.data.storage.files import aside, remove_folder
from dask_odm.data.storage.locks import FileLock, take_abandoned, take_lock

ATTEMPTS = 100  # tries to take a lock whose name no other process has
_LOCK = re.compile(r"\.(.+)\.[0-9a-f]{8}\.lock")
_OWNED: dict[str, FileLock] = {}  # locks of the names that this process owns


def own(name: str) -> None:
    """Own a name from `aside`, and remove what killed processes left in its folder.

    Raises OSError, and leaves nothing, if the lock cannot be written.
    """
    remove_abandoned(os.path.dirname(name))
    for _ in range(ATTEMPTS):
        lock = take_lock(f"{name}.lock")
        if lock is not None:
            _OWNED[name] = lock
            return
        time.sleep(0.01)  # a process that removes abandoned files holds it for a moment
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"{name}.lock")


def disown(name: str) -> None:
    """Remove the file or folder of that name, and then release the name."""
    try:
        _remove(name)
    finally:
        try:
            _let_go(name)
        except BaseException:  # an interrupt must not leave the lock's file
            _let_go(name)
            raise


def _let_go(name: str) -> None:
    lock = _OWNED.pop(name, None)
    if os.path.lexists(f"{name}.old"):  # the former content could not be put back; the next writer does it
        if lock is not None:
            lock.close()
    elif lock is not None:
        lock.remove()
    else:
        with suppress(OSError):
            os.remove(f"{name}.lock")


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
    lock = take_abandoned(file, empty=True) if _is_ours(file) else None
    if lock is None:
        return
    name = file.removesuffix(".lock")
    _put_back(f"{name}.old", target)
    if not os.path.lexists(target) and os.path.lexists(f"{name}.old"):  # it cannot be put back now
        lock.close()
        return
    _remove(name)
    remove_folder(f"{name}.old")
    lock.remove()


def _put_back(old: str, target: str) -> None:
    """Undo the first rename of `replace_folder` if its process was killed before the second."""
    if os.path.lexists(old) and not os.path.lexists(target):
        with suppress(OSError):
            os.rename(old, target)


def _is_ours(file: str) -> bool:
    return not hasattr(os, "getuid") or os.lstat(file).st_uid == os.getuid()


def _remove(name: str) -> None:
    """Remove a folder or a file."""
    if os.path.isdir(name) and not os.path.islink(name):
        remove_folder(name)
    else:
        with suppress(OSError):
            os.remove(name)
        remove_folder(name)  # an interrupt may have left part of it under another name
