"""Checkpoints that a fit writes after every step, so that a fit whose client was lost can resume.

A checkpoint is the solver's state, a frozen dataclass of arrays and JSON figures with a ``history``, beside a digest of
the data, the parameters and the seed that it belongs to. One fit writes a checkpoint at a time, whole or not at all,
also if it is killed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import UnionType
from typing import Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from dask_odm.data.storage.files import reason
from dask_odm.data.storage.locations import is_address, location_of
from dask_odm.data.storage.objects import claimed
from dask_odm.data.storage.staging import FileLock, left_aside, remove_abandoned, take_lock
from dask_odm.data.storage.storage import storage_of
from dask_odm.data.store.records import Record, check_target, read_record, write_record
from dask_odm.data.store.schemas import LARGEST_WHOLE
from dask_odm.errors import InputError, StoreError
from dask_odm.events import CheckpointOpened, report
from dask_odm.typing import Array

S = TypeVar("S")
logger = logging.getLogger("dask_odm")


class Fit(Protocol):
    """Protocol of the settings of one fit: how it runs (a `FitRun`), and what identifies it."""

    @property
    def run(self) -> Any: ...
    def identity(self) -> dict[str, Any]:
        """Return everything that identifies the fit except the seed and the data, as JSON."""
        ...


def open_steps(
    solver: str, data: Callable[[], str], fit: Fit, kind: Callable[..., S]
) -> tuple[S | None, Callable[[S], None]]:
    """Return the state from which a fit by the steps of ``solver`` resumes, or None, and a function that saves a state.

    A state with a gap or another number that is not finite is not saved: the checkpoint before it stays.
    ``kind`` is the dataclass of a state. ``data`` identifies the rows that are learned from. It may need a pass, so it
    is called only if a checkpoint is asked for. Raises StoreError if the existing checkpoint is damaged or of another
    fit: it is neither resumed nor overwritten.
    """
    path = fit.run.checkpoint
    if path is None:
        return None, lambda state: None
    told, found = _find(path, f"{solver} {data()}", fit)

    def save(state: S) -> None:
        arrays = {name: value for name, value in vars(state).items() if isinstance(value, np.ndarray)}
        figures = {name: value for name, value in vars(state).items() if name not in arrays}
        if _is_finite([*arrays.values(), figures]):  # else no fit could resume from it
            save_checkpoint(path, arrays, figures | told)

    return None if found is None else _state_of(path, kind, found, told), save


def _is_finite(value: Any) -> bool:
    """Return whether all numbers are finite in an array, or in lists and dicts of figures."""
    if isinstance(value, dict | list):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float | np.ndarray) or bool(np.isfinite(value).all())


def require_state(fit: Fit, sound: bool) -> None:
    """Raise StoreError unless the state to resume from is ``sound``: of the fit's shapes and bounds."""
    if not sound:
        raise _lies(fit.run.checkpoint, "its arrays or figures are not those of a state of this fit")


def _lies(path: str, what: object) -> StoreError:
    """Build the error for a checkpoint that can be read but does not fit this fit."""
    return StoreError(
        f"checkpoint '{location_of(path)}' is not what a checkpoint is: {what}; remove it and start the fit afresh."
    )


def _state_of(path: str, kind: Callable[..., S], found: Record, told: dict[str, Any]) -> S:
    """Build the state that a checkpoint holds; raise StoreError if it is not one of ``kind``."""
    figures = {name: value for name, value in found.attributes.items() if name not in told}
    state = figures | {name: found.array(name) for name in found.arrays}
    try:
        made = kind(**state)
    except TypeError as error:
        raise StoreError(
            f"checkpoint '{path}' holds no state of this solver ({error}), perhaps that of another version of "
            "dask_odm; remove it to start afresh."
        ) from error
    for name, hint in get_type_hints(kind).items():
        if name not in state or not _is_of(vars(made)[name], hint):
            raise _lies(path, f"{name} is missing or of another type")
    if any(record.get("iteration", i) != i for i, record in enumerate(figures["history"])):
        raise _lies(path, "its history leaves out a step")
    return made


def _is_of(value: Any, hint: Any) -> bool:
    """Return whether a field of a state has its annotated type: finite floats, integers from −1 on."""
    kind = get_origin(hint) or hint
    if kind is np.ndarray:
        return isinstance(value, np.ndarray) and value.dtype.kind == "f" and bool(np.isfinite(value).all())
    if isinstance(hint, UnionType):
        return any(_is_of(value, each) for each in get_args(hint))
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    if hint is int:
        return type(value) is int and -1 <= value <= LARGEST_WHOLE
    return isinstance(value, kind)


def _find(path: str, data: str, fit: Fit) -> tuple[dict[str, Any], Record | None]:
    """Return what identifies the fit, and the checkpoint that it resumes from or None.

    The former is the seed and a digest of ``data``, parameters and seed.
    """
    seed, resume, parameters = fit.run.seed, fit.run.resume, fit.identity()

    def digest(seed: int) -> str:
        return hashlib.sha256(json.dumps([data, seed, parameters], sort_keys=True).encode()).hexdigest()

    found = open_checkpoint(path)
    # a fit that starts afresh may have drawn another seed, and may replace its own checkpoint
    if found is not None and found.attributes["fit"] != digest(seed if resume else found.attributes["seed"]):
        raise StoreError(
            f"checkpoint '{path}' is of another fit (other data or parameters, or another version of dask_odm); remove "
            "it or choose another path."
        )
    held = 0 if found is None else len(found.attributes["history"])
    report(CheckpointOpened(path, digest(seed), seed, held if resume else 0))
    if found is not None and resume:
        logger.info("going on from checkpoint '%s', after %d steps", path, held)
    elif held:
        logger.warning(
            "checkpoint '%s' holds %d steps of this fit, which begins anew and replaces them; pass resume=True "
            "(--resume) to go on from them instead.", path, held
        )  # fmt: skip
    return {"fit": digest(seed), "seed": seed}, found if resume else None


# Files of checkpoints ----------------------------------------------------------------------------------------------


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
    target = "" if path is None else location_of(path)
    if is_address(target):
        with claimed(target):
            yield
        return
    folder, name = os.path.split(target)
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
