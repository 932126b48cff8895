"""What a process writes beside an output before it renames it into place: owned by a lock that dies with the process.

The lock's file lies beside it, ``.NAME.xxxxxxxx.lock``, from before anything is written until nothing is left but the
output. Whoever writes next in that folder removes what nobody owns any more.
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

ATTEMPTS = 100  # to hold a lock whose name nobody else has
_LOCK = re.compile(r"\.(.+)\.[0-9a-f]{8}\.lock")
_OWNED: dict[str, FileLock] = {}  # names of this process


def own(name: str) -> None:
    """Own a name that `aside` gave, and remove what killed processes left in its folder.

    Raises
    ------
    OSError
        The lock cannot be written; nothing is left of it.
    """
    remove_abandoned(os.path.dirname(name))
    for _ in range(ATTEMPTS):
        lock = take_lock(f"{name}.lock")
        if lock is not None:
            _OWNED[name] = lock
            return
        time.sleep(0.01)  # whoever looks for what was abandoned has it for a moment
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"{name}.lock")


def disown(name: str) -> None:
    """Remove whatever has that name, and then let go of it."""
    try:
        _remove(name)
    finally:
        try:
            _let_go(name)
        except BaseException:  # an interrupt does not leave the lock's file
            _let_go(name)
            raise


def _let_go(name: str) -> None:
    lock = _OWNED.pop(name, None)
    if os.path.lexists(f"{name}.old"):  # what was there could not be put back: whoever comes next does
        if lock is not None:
            lock.close()
    elif lock is not None:
        lock.remove()
    else:
        with suppress(OSError):
            os.remove(f"{name}.lock")


@contextmanager
def owned_file(path: str) -> Iterator[str]:
    """The name of a file to write before it is renamed to ``path``; removed at the end if it is still there."""
    name = aside(path)
    try:
        own(name)
        yield name
    finally:
        disown(name)


def remove_abandoned(folder: str) -> None:
    """Remove what processes that are no more left in a folder, if it can be listed just now."""
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
    if not os.path.lexists(target) and os.path.lexists(f"{name}.old"):  # it cannot be put back just now
        lock.close()
        return
    _remove(name)
    remove_folder(f"{name}.old")
    lock.remove()


def _put_back(old: str, target: str) -> None:
    """Undo the first of the two renames of `replace_folder` where its process was killed before the second."""
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
        remove_folder(name)  # what an interrupt left of it under another name
