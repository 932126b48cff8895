"""Files of checkpoints: one fit writes a checkpoint at a time, whole or not at all, also if it is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from dask_odm.data.storage.files import left_aside, reason
from dask_odm.data.storage.locations import is_address, location_of
from dask_odm.data.storage.locks import FileLock, take_lock
from dask_odm.data.storage.new_objects import claimed
from dask_odm.data.storage.staging import remove_abandoned
from dask_odm.data.storage.storage import storage_of
from dask_odm.data.store.records import Record, check_target, read_record, write_record
from dask_odm.errors import InputError, StoreError
from dask_odm.typing import Array


def check_checkpoint(path: str | None, *, resume: bool) -> None:
    """Raise InputError, before any work is done, if no checkpoint could be written."""
    if path is None:
        if resume:
            raise InputError("resume=True needs the path of a checkpoint; pass checkpoint=.")
        return
    target = location_of(path)
    check_target(target, "checkpoint", overwrite=True)
    if not is_address(target) and not os.access(os.path.dirname(target), os.W_OK | os.X_OK):
        raise InputError(f"checkpoint '{path}' cannot be written: no permission in '{os.path.dirname(target)}'.")


@contextmanager
def sole_writer(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Hold a checkpoint for one fit, as long as the fit and its process live.

    Raises InputError if another fit of any process holds it. An object store has no locks: there, a fit that finds the
    checkpoint of another fit in place of its own ends with a StoreError.
    """
    if path is not None and is_address(location_of(path)):
        with claimed(location_of(path)):
            yield
        return
    folder, name = ("", "") if path is None else os.path.split(os.path.abspath(path))
    if path is None or not os.access(folder, os.W_OK | os.X_OK):
        yield  # `check_checkpoint` reports what is wrong with the folder
        return
    lock = _hold(os.path.join(folder, f".{name}.lock"), path)
    try:
        remove_left_aside(path)  # put the checkpoint of a killed fit in its place before it is taken for a leftover
        yield
    finally:
        remove_left_aside(path)  # also here, since a fit that resumes from its last level writes none
        lock.remove()


def _hold(file: str, checkpoint: str | os.PathLike[str]) -> FileLock:
    try:
        lock = take_lock(file)
    except OSError as error:
        raise InputError(f"checkpoint '{os.fspath(checkpoint)}' cannot be written: {reason(error)}.") from error
    except BaseException:  # an interrupt leaves no file
        left = take_lock(file)
        if left is not None:
            left.remove()
        raise
    if lock is None:
        raise InputError(
            f"checkpoint '{os.fspath(checkpoint)}' is written by another fit; wait until that has ended, or choose "
            f"another path. If there is none, on any machine, remove '{file}'."
        )
    return lock


def save_checkpoint(path: str | os.PathLike[str], arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> None:
    """Write a checkpoint in place of the one before, which stays valid until the new one is there.

    ``path`` is a folder or an address, ``attributes`` are JSON. Raises as `write_record` does.
    """
    write_record(path, "checkpoint", arrays, attributes, overwrite=True)
    remove_left_aside(path)


def open_checkpoint(path: str | os.PathLike[str]) -> Record | None:
    """Return the checked record of a checkpoint, even of one that a killed process had not yet renamed; else None.

    Raises StoreError if something is there that is not a sound checkpoint.
    """
    target = location_of(path)
    there = target if is_checkpoint_there(target) else _interrupted(target)
    if there is None:
        return None
    found = read_record(there, "checkpoint")
    found.check()
    return found


def is_checkpoint_there(path: str | os.PathLike[str]) -> bool:
    """Return whether anything is at the path of a checkpoint."""
    return storage_of(location_of(path)).exists()


def forget_checkpoint(path: str) -> None:
    """Remove the checkpoint at ``path`` if there is one; raise StoreError if something else is there."""
    found = open_checkpoint(path)
    if found is not None:
        shutil.rmtree(found.path, ignore_errors=True)


def checkpoint_seed(path: str | None) -> int | None:
    """Return the seed of the fit that left a checkpoint at ``path``, or None if there is no checkpoint."""
    found = None if path is None else open_checkpoint(path)
    return None if found is None else int(found.attributes["seed"])


def remove_left_aside(path: str | os.PathLike[str]) -> None:
    """Remove what killed processes left beside a checkpoint; first put it in its place if nothing is there.

    Only a process that may write the checkpoint calls this. If no checkpoint was found, nothing is removed.
    """
    target = location_of(path)
    if is_address(target):
        return  # objects that a writer left there are removed by the next writer
    with suppress(OSError, StoreError):  # a folder that cannot be listed now is cleaned by the next fit
        if not os.path.lexists(target):
            found = _interrupted(target)
            if found is None:
                return
            os.rename(found, target)
        for folder in left_aside(target):
            shutil.rmtree(folder, ignore_errors=True)
        remove_abandoned(os.path.dirname(target))


def _interrupted(target: str) -> str | None:
    """Return the path of the checkpoint of a process killed between the two renames of `replace_folder`, or None."""
    if is_address(target) or not os.path.isdir(os.path.dirname(target)):
        return None
    try:
        folders = left_aside(target)
    except OSError as error:
        raise StoreError(f"checkpoint '{target}' cannot be read: {reason(error)}.") from error
    for folder in folders:
        with suppress(StoreError):
            return read_record(folder, "checkpoint").path
    return None
