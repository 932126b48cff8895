"""Scratch folders for the temporary data of a fit, removed at the latest when the process ends.

A lock that dies with its process owns each folder. Folders of killed processes are removed when the next one is made.
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

from dask_odm.data.storage.files import FULL, reason
from dask_odm.data.storage.locations import is_address, location_of
from dask_odm.data.storage.staging import FileLock, remove_folder, take_abandoned, take_lock
from dask_odm.errors import InputError, StoreError

MARKER = "owner.json"  # folders without it are left alone
_NAME = re.compile(r"dask-odm-[0-9a-f]{12}(\.gone)*")
_SCRATCH: dict[str, FileLock | None] = {}  # folders of this process that are not removed yet


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Make a folder for one fit, below Dask's ``temporary-directory`` or the system's, and remove it afterwards."""
    folder = lasting_folder()
    try:
        with _explained(folder):
            yield folder
    finally:
        _remove_owned(folder)


def lasting_folder() -> str:
    """Make a scratch folder that stays until the process ends, for tasks that outlive their fit."""
    parent = os.fspath(dask.config.get("temporary-directory", None) or tempfile.gettempdir())
    if is_address(location_of(parent)):
        raise InputError(f"scratch folder '{parent}' cannot be used: it must be a folder that all workers see.")
    folder = os.path.join(location_of(parent), f"dask-odm-{uuid4().hex[:12]}")
    _SCRATCH[folder] = None  # to be removed, before the folder is made, since Ctrl-C may come at any moment
    try:
        with _explained(folder):
            _make_scratch(folder, parent)
    except BaseException:
        _remove_owned(folder)
        raise
    return folder


@contextmanager
def _explained(folder: str) -> Iterator[None]:
    """Turn errors of the system about a folder into StoreError."""
    try:
        yield
    except BrokenPipeError:
        raise  # raised by a closed pipe that the process prints to
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(folder):
            raise  # about a path that the user passed, not the scratch folder
        raise StoreError(f"scratch folder '{folder}': {reason(error)}{_way_out(error)}.") from error


def _make_scratch(folder: str, parent: str) -> None:
    _sweep(os.path.dirname(folder))
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        raise InputError(f"scratch folder '{parent}' cannot be used: {error.strerror}.") from error
    making = os.path.join(folder, f".{MARKER}")  # renamed once locked: nobody sees it without an owner
    _SCRATCH[folder] = take_lock(making)
    os.rename(making, os.path.join(folder, MARKER))


def _way_out(error: OSError) -> str:
    return "; name another by Dask's temporary-directory (--scratch)" if error.errno in FULL else ""


def _sweep(parent: str) -> None:
    """Remove folders that ended processes left behind."""
    with suppress(OSError), os.scandir(parent) as entries:
        left = [entry.path for entry in entries if _NAME.fullmatch(entry.name) and _is_ours(entry)]
        for folder in left:
            lock = take_abandoned(os.path.join(folder, MARKER))
            if lock is not None:
                _remove(folder)
                lock.close()


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, not a link, of the user who runs this."""
    if not entry.is_dir(follow_symlinks=False):
        return False
    return not hasattr(os, "getuid") or entry.stat(follow_symlinks=False).st_uid == os.getuid()


def _remove_owned(folder: str) -> None:
    """Remove a folder of this process and release its lock."""
    try:
        _remove(folder)
    except BaseException:  # an interrupt leaves no half of it
        _remove(folder)
        raise
    finally:
        lock = _SCRATCH.pop(folder, None)
        if lock is not None:
            lock.close()


def _remove(folder: str) -> None:
    """Remove a folder, its marker last, so that the next sweep finds what a kill leaves behind.

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
