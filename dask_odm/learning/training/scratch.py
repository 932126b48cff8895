"""Folders for what a fit leaves on disk meanwhile, removed at the latest when the process ends.

Each is owned by a lock that dies with its process, and what nobody owns any more, that of a process that was killed, is
removed where the next folder is made.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

import dask

from dask_odm.data.storage.files import FULL, reason, remove_folder
from dask_odm.data.storage.locations import is_address, location_of
from dask_odm.data.storage.locks import FileLock, take_abandoned, take_lock
from dask_odm.errors import InputError, StoreError

MARKER = "owner.json"  # a folder without it is nobody's business
_NAME = re.compile(r"dask-odm-[0-9a-f]{12}(\.gone)*")
_SCRATCH: dict[str, FileLock | None] = {}  # folders of this process that are not removed yet


@contextmanager
def scratch_folder(scratch: str | None) -> Iterator[str]:
    """A folder of its own for one fit, below ``scratch``, Dask's temporary directory or the system's; removed after."""
    parent, folder = _named(scratch)
    try:
        with _explained(folder):
            _make_scratch(folder, parent)
            yield folder
    finally:
        _remove_owned(folder)


def lasting_folder(scratch: str | None) -> str:
    """As `scratch_folder`, but it stays until the process ends: tasks may read from it that nobody waits for."""
    parent, folder = _named(scratch)
    try:
        with _explained(folder):
            _make_scratch(folder, parent)
    except BaseException:
        _remove_owned(folder)
        raise
    return folder


@contextmanager
def _explained(folder: str) -> Iterator[None]:
    """Turn what the system refuses in a folder into StoreError."""
    try:
        yield
    except BrokenPipeError:
        raise  # of who reads what the process prints
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(folder):
            raise  # of what the user passed, not of the scratch folder
        raise StoreError(f"scratch folder '{folder}': {reason(error)}{_way_out(error)}.") from error


def _named(scratch: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Where a folder goes, and its name.

    It is named before it is made, and removed at the latest when the process ends: Ctrl-C may come at any moment.
    """
    parent = os.fspath(scratch or dask.config.get("temporary-directory", None) or tempfile.gettempdir())
    if is_address(location_of(parent)):
        raise InputError(f"scratch folder '{parent}' cannot be used: it must be a folder that all workers see.")
    folder = os.path.join(location_of(parent), f"dask-odm-{uuid4().hex[:12]}")
    _SCRATCH[folder] = None
    return parent, folder


def _make_scratch(folder: str, parent: str) -> None:
    _sweep(os.path.dirname(folder))
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        raise InputError(f"scratch folder '{parent}' cannot be used: {error.strerror}.") from error
    making = os.path.join(folder, f".{MARKER}")  # it has its name once it is locked: nobody sees it without an owner
    _SCRATCH[folder] = take_lock(making)
    os.rename(making, os.path.join(folder, MARKER))


def _way_out(error: OSError) -> str:
    return "; name another by scratch= (--scratch) or Dask's temporary-directory" if error.errno in FULL else ""


def _sweep(parent: str) -> None:
    """Remove folders that processes left behind which are no more."""
    with suppress(OSError), os.scandir(parent) as entries:
        left = [entry.path for entry in entries if _NAME.fullmatch(entry.name) and _is_ours(entry)]
        for folder in left:
            lock = take_abandoned(os.path.join(folder, MARKER))
            if lock is not None:
                _remove(folder)
                lock.close()


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, no link to one, of the user who runs this."""
    if not entry.is_dir(follow_symlinks=False):
        return False
    return not hasattr(os, "getuid") or entry.stat(follow_symlinks=False).st_uid == os.getuid()


def _remove_owned(folder: str) -> None:
    """Remove a folder of this process, and let go of it."""
    try:
        _remove(folder)
    except BaseException:  # an interrupt does not leave half of it
        _remove(folder)
        raise
    finally:
        lock = _SCRATCH.pop(folder, None)
        if lock is not None:
            lock.close()


def _remove(folder: str) -> None:
    """Remove a folder, its marker last: a kill in between leaves what the next sweep finds.

    It is renamed first, since threads may still write to it by its name.
    """
    gone = f"{folder.removesuffix('.gone')}.gone"
    with suppress(OSError):
        os.rename(folder, gone)
    for root in (gone, folder):
        for name in _names(root):
            path = os.path.join(root, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            elif name != MARKER:
                with suppress(OSError):
                    os.remove(path)
    remove_folder(folder)


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []


@atexit.register
def _remove_scratch() -> None:
    for folder in tuple(_SCRATCH):
        _remove_owned(folder)
