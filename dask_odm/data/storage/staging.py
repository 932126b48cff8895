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
        _remove(name)
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
    _remove(name)
    remove_folder(old)
    lock.remove()


def _remove(name: str) -> None:
    """Remove a folder or a file."""
    if not os.path.isdir(name) or os.path.islink(name):
        with suppress(OSError):
            os.remove(name)
    remove_folder(name)  # also of a file, since an interrupt may have left part of a folder under another name
