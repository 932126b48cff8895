"""Write and read solutions and checkpoints as zarr records (`dask_odm.data.store.records`)."""

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
    """Write the solutions of a tree level in place of the checkpoint of an earlier level.

    The old checkpoint at ``path`` (a folder or an address) stays valid until the new one is in place. ``attributes``
    are JSON that tells whether a fit may resume from it. Raises as `write_record` does.
    """
    save_state(path, _stack(solutions), attributes)


def save_state(path: str | os.PathLike[str], arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> None:
    """Write any arrays as a checkpoint, in place of the one before."""
    write_record(path, "checkpoint", arrays, attributes, overwrite=True)
    remove_left_aside(path)


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


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[list[Solution], dict[str, Any]] | None:
    """Return the solutions of `save_checkpoint`, to the same bits, and its attributes; None if there is no checkpoint.

    Raises StoreError if something is there that is not a sound checkpoint.
    """
    found = load_state(path)
    return None if found is None else (solutions_of(found[0], path), found[1])


def load_state(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, Any]] | None:
    """Return what `save_state` wrote, or None if there is no checkpoint. Raises as `load_checkpoint` does."""
    record = open_checkpoint(path)
    return None if record is None else (arrays_of(record), record.attributes)


def open_checkpoint(path: str | os.PathLike[str]) -> Record | None:
    """Return the record of a checkpoint, even of one that a killed process had not yet renamed; else None."""
    target = location_of(path)
    if storage_of(target).exists():
        return read_record(target, "checkpoint")
    found = _interrupted(target)
    return None if found is None else read_record(found, "checkpoint")


def is_checkpoint_there(path: str | os.PathLike[str]) -> bool:
    """Return whether anything is at the path of a checkpoint."""
    return storage_of(location_of(path)).exists()


def arrays_of(record: Record) -> dict[str, Array]:
    """Read all arrays of a record."""
    return {name: record.array(name) for name in record.arrays}


def solutions_of(arrays: Mapping[str, Array], path: str | os.PathLike[str]) -> list[Solution]:
    """Return the solutions in a checkpoint's arrays; raise StoreError if there are none."""
    try:
        return _unstack(arrays)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        target = location_of(path)
        raise StoreError(f"checkpoint '{target}' holds no solutions ({error}); remove it to start afresh.") from error


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


# Solutions as arrays: dual variables are flat, one after the other, with their shapes; figures are columns. ---


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
