"""Folders for what a fit leaves on disk meanwhile, removed at the latest when the process ends."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import dask

from dask_odm.data.store.files import FULL, reason, remove_folder
from dask_odm.errors import InputError, StoreError

_SCRATCH: set[str] = set()  # folders of this process that are not removed yet


@contextmanager
def scratch_folder(scratch: str | None) -> Iterator[str]:
    """A folder of its own for one fit, below ``scratch``, Dask's temporary directory or the system's; removed after."""
    parent = scratch or dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    # named before it is made, and removed at the latest when the process ends: Ctrl-C may come at any moment
    folder = os.path.join(os.path.abspath(parent), f"dask-odm-{uuid4().hex[:12]}")
    _SCRATCH.add(folder)
    try:
        _make_scratch(folder, parent)
        yield folder
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(folder):
            raise  # of what the user passed, not of the scratch folder
        raise StoreError(f"scratch folder '{folder}': {reason(error)}{_way_out(error)}.") from error
    finally:
        remove_folder(folder)
        _SCRATCH.discard(folder)


def _make_scratch(folder: str, parent: str) -> None:
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        raise InputError(f"scratch folder '{parent}' cannot be used: {error.strerror}.") from error


def _way_out(error: OSError) -> str:
    return "; name another by scratch= (--scratch) or Dask's temporary-directory" if error.errno in FULL else ""


@atexit.register
def _remove_scratch() -> None:
    for folder in tuple(_SCRATCH):
        remove_folder(folder)
