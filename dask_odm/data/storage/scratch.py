"""Scratch folders for the temporary data of a fit, removed at the latest when the process ends.

A lock beside each folder dies with its process. What killed processes left is removed when the next folder is made.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import dask

from dask_odm.data.storage.files import FULL, reason
from dask_odm.data.storage.locations import is_address, location_of
from dask_odm.data.storage.staging import aside, disown, own
from dask_odm.errors import InputError, StoreError

_SCRATCH: set[str] = set()  # folders of this process that are not removed yet


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Make a folder for one fit, below Dask's ``temporary-directory`` or the system's, and remove it afterwards."""
    folder = lasting_folder()
    try:
        with _explained(folder):
            yield folder
    finally:
        _remove(folder)


def lasting_folder() -> str:
    """Make a scratch folder that stays until the process ends, for tasks that outlive their fit."""
    parent = os.fspath(dask.config.get("temporary-directory", None) or tempfile.gettempdir())
    if is_address(location_of(parent)):
        raise InputError(f"scratch folder '{parent}' cannot be used: it must be a folder that all workers see.")
    folder = aside(os.path.join(location_of(parent), "dask-odm"))
    _SCRATCH.add(folder)  # to be removed, before the folder is made, since Ctrl-C may come at any moment
    with _explained(folder):
        try:
            own(folder)
            os.mkdir(folder, 0o700)
        except BaseException as error:
            _remove(folder)
            if isinstance(error, OSError) and error.errno not in FULL:
                raise InputError(f"scratch folder '{parent}' cannot be used: {reason(error)}.") from error
            raise
    return folder


def saved_stream(stream: IO[bytes]) -> str:
    """Save a binary stream to a scratch file that stays until the process ends, and return its path."""
    path = os.path.join(lasting_folder(), "stream")
    with _explained(os.path.dirname(path)), open(path, "wb") as file:
        shutil.copyfileobj(stream, file)
    return path


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
        way_out = "; name another by Dask's temporary-directory (--scratch)" if error.errno in FULL else ""
        raise StoreError(f"scratch folder '{folder}': {reason(error)}{way_out}.") from error


def _remove(folder: str) -> None:
    try:
        disown(folder)
    finally:
        _SCRATCH.discard(folder)


@atexit.register
def _remove_scratch() -> None:
    for folder in tuple(_SCRATCH):
        _remove(folder)
