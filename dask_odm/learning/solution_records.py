"""Solutions and checkpoints to and from zarr, as records (`dask_odm.data.store.records`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import accumulate, pairwise
from typing import Any, get_type_hints

import numpy as np

from dask_odm.data.storage.files import left_aside, reason
from dask_odm.data.storage.locations import is_address, location_of
from dask_odm.data.storage.staging import remove_abandoned
from dask_odm.data.storage.storage import storage_of
from dask_odm.data.store.records import Record, read_record, write_record
from dask_odm.errors import StoreError
from dask_odm.learning.problem.odm import Point
from dask_odm.learning.solution import Solution
from dask_odm.typing import Array


def save_checkpoint(path: str | os.PathLike[str], solutions: Sequence[Solution], attributes: Mapping[str, Any]) -> None:
    """Write the solutions of a tree level, replacing the checkpoint of an earlier level.

    Parameters
    ----------
    path : folder, or address; the checkpoint there stays valid until the new one is in place
    solutions : of all partitions, in their order; ``dual`` of shape (n_machines, n_k) each
    attributes : JSON that tells whether a fit may resume from it

    Raises
    ------
    InputError, StoreError
        As `write_record`.
    """
    save_state(path, _stack(solutions), attributes)


def save_state(path: str | os.PathLike[str], arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> None:
    """Write any arrays as a checkpoint; else as `save_checkpoint`."""
    write_record(path, "checkpoint", arrays, attributes, overwrite=True)
    remove_left_aside(path)


def remove_left_aside(path: str | os.PathLike[str]) -> None:
    """Remove what killed processes left beside a checkpoint, having put it in its place if they did not.

    Only who may write the checkpoint does so. Where nothing there is one, nothing is removed.
    """
    target = location_of(path)
    if is_address(target):
        return  # a writer's own objects are removed by those that come after it
    with suppress(OSError, StoreError):  # of a folder that cannot be listed just now: the next fit removes it
        if not os.path.lexists(target):
            found = _interrupted(target)
            if found is None:
                return
            os.rename(found, target)
        for folder in left_aside(target):
            shutil.rmtree(folder, ignore_errors=True)
        remove_abandoned(os.path.dirname(target))


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[list[Solution], dict[str, Any]] | None:
    """Read what `save_checkpoint` wrote: solutions with the same bits, and attributes. None if there is none.

    Raises
    ------
    StoreError
        Something is there, but no sound checkpoint.
    """
    found = load_state(path)
    return None if found is None else (solutions_of(found[0], path), found[1])


def load_state(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, Any]] | None:
    """Read what `save_state` wrote; else as `load_checkpoint`."""
    record = open_checkpoint(path)
    return None if record is None else (arrays_of(record), record.attributes)


def open_checkpoint(path: str | os.PathLike[str]) -> Record | None:
    """The record of a checkpoint, that of a process that was killed as it was put in place included; else None."""
    target = location_of(path)
    if storage_of(target).exists():
        return read_record(target, "checkpoint")
    found = _interrupted(target)
    return None if found is None else read_record(found, "checkpoint")


def is_checkpoint_there(path: str | os.PathLike[str]) -> bool:
    """Whether anything is where a checkpoint would be."""
    return storage_of(location_of(path)).exists()


def arrays_of(record: Record) -> dict[str, Array]:
    """All arrays of a record, read."""
    return {name: record.array(name) for name in record.arrays}


def solutions_of(arrays: Mapping[str, Array], path: str | os.PathLike[str]) -> list[Solution]:
    """Solutions of a checkpoint's arrays; StoreError if they are none."""
    try:
        return _unstack(arrays)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        target = location_of(path)
        raise StoreError(f"checkpoint '{target}' holds no solutions ({error}); remove it to start afresh.") from error


def _interrupted(target: str) -> str | None:
    """The checkpoint of a process that was killed between the two renames of `replace_folder`."""
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


# Solutions as arrays: arrays flat, one after the other, with their shapes; figures as columns. ---------------


def _stack(solutions: Sequence[Solution]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, kind in _solution_fields().items():
        values = [getattr(solution, name) for solution in solutions]
        if kind is Point:
            arrays[name] = np.array([[p.primal, p.dual, p.gap] for p in values], dtype=np.float64).reshape(-1, 3)
        elif kind in (float, int, bool):
            arrays[name] = np.array(values, dtype=np.float64 if kind is float else np.int64)
        else:
            duals = [np.asarray(value, dtype=np.float64) for value in values]
            arrays[name] = np.concatenate([dual.ravel() for dual in duals] or [np.empty(0)])
            arrays[f"{name}_shape"] = np.array([dual.shape for dual in duals], dtype=np.int64).reshape(-1, 2)
    return arrays


def _unstack(arrays: Mapping[str, Array]) -> list[Solution]:
    columns: dict[str, list[Any]] = {}
    for name, kind in _solution_fields().items():
        values = arrays[name]
        if kind is Point:
            columns[name] = [Point(*row) for row in values.tolist()]
        elif kind in (float, int, bool):
            columns[name] = [kind(value) for value in values.tolist()]
        else:
            columns[name] = _split(values, arrays[f"{name}_shape"])
    names = list(columns)
    return [Solution(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _split(flat: Array, shapes: Array) -> list[Array]:
    sizes = [rows * columns for rows, columns in shapes.tolist()]
    ends = list(accumulate(sizes, initial=0))
    if min(shapes.ravel().tolist(), default=0) < 0 or flat.shape != (ends[-1],):
        raise ValueError("shapes do not add up")
    return [flat[a:b].reshape(shape).copy() for (a, b), shape in zip(pairwise(ends), shapes.tolist(), strict=True)]


def _solution_fields() -> dict[str, Any]:
    hints = get_type_hints(Solution)
    return {each.name: hints[each.name] for each in fields(Solution)}
