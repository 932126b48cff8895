"""Checkpoints that a fit writes after every level or step, so that a fit whose client was lost can resume."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from dask_odm.data.storage.files import reason
from dask_odm.data.storage.locations import is_address, location_of
from dask_odm.data.storage.locks import FileLock, take_lock
from dask_odm.data.storage.new_objects import claimed
from dask_odm.data.store.records import Record, check_target
from dask_odm.data.store.schemas import LARGEST_WHOLE
from dask_odm.errors import InputError, StoreError
from dask_odm.events import CheckpointOpened, report
from dask_odm.learning.solution import Solution
from dask_odm.learning.solution_records import (
    arrays_of,
    open_checkpoint,
    remove_left_aside,
    save_checkpoint,
    save_state,
    solutions_of,
)

S = TypeVar("S")
logger = logging.getLogger("dask_odm")


class Fit(Protocol):
    """Protocol of the settings of one fit: how it runs and what identifies it."""

    @property
    def run(self) -> Any:
        """The fit's `dask_odm.learning.training.run.FitRun`."""
        ...

    def identity(self) -> dict[str, Any]:
        """Return everything that identifies the fit except the seed and the data, as JSON."""
        ...


@dataclass
class TreeCheckpoint:
    """The checkpoint to which a tree's fit writes its levels, and the level from which it resumes.

    ``fit`` holds the digest and seed that identify the fit, see `_find`. ``start`` is the number and the solutions of
    the level from which it resumes, ``history`` the history up to that level.
    """

    path: str
    fit: dict[str, Any]
    start: tuple[int, list[Solution]] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    def require(self, levels: int, sizes: Callable[[int], list[int]], *, all_rows: bool = True) -> None:
        """Raise StoreError unless ``start`` is a level of this fit's tree of ``levels`` levels.

        ``sizes(number)`` returns the rows of every node of a level. Without ``all_rows``, lower levels may have dropped
        some.
        """
        if self.start is None:
            return
        number, solutions = self.start
        if number >= levels:
            raise _lies(self.path, f"it is of level {number} of a tree of {levels}")
        if len(self.history) != number + 1:
            raise _lies(self.path, f"its history has {len(self.history)} levels up to level {number}")
        rows = sizes(number)
        if [solution.rows if all_rows else solution.dual.shape[-1] for solution in solutions] != rows:
            raise _lies(self.path, f"its solutions are not of the {len(rows)} partitions of level {number}")
        for i, solution in enumerate(solutions):
            if not _is_sound(solution, rows[i]):
                raise _lies(self.path, f"solution {i} has other numbers than {rows[i]} finite dual variables")

    def save(self, number: int, fetch: Callable[[], list[Solution]], history: list[dict[str, Any]]) -> None:
        """Replace the checkpoint by level ``number``."""
        save_checkpoint(self.path, fetch(), {"level": number, "history": history} | self.fit)


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


def open_tree(data: Callable[[], str], fit: Fit) -> TreeCheckpoint | None:
    """Return the checkpoint of a tree, or None if the fit asks for none. An existing one is checked.

    ``data`` identifies the rows that are learned from. It may need a pass, so it is called only if a checkpoint is
    asked for. Raises StoreError if the existing checkpoint is damaged or of another fit: it is neither resumed nor
    overwritten.
    """
    path = fit.run.checkpoint
    if path is None:
        return None
    told, found = _find(path, data(), fit)
    opened = TreeCheckpoint(path, told)
    if found is not None:
        if "level" not in found.attributes:
            raise _lies(path, "it holds no level of a tree")
        opened.start = found.attributes["level"], solutions_of(arrays_of(found), path)
        opened.history = list(found.attributes["history"])
    return opened


def _is_sound(solution: Solution, rows: int) -> bool:
    """Return whether a solution has the shape and finite numbers of one for a node of ``rows`` rows."""
    figures = (solution.weight, solution.seconds)
    shaped = solution.dual.ndim == 2 and len(solution.dual) and solution.dual.shape[1] == rows >= solution.rows
    counted = min(solution.sweeps, solution.steps, solution.rows, *figures) >= 0
    return bool(shaped and counted and np.isfinite(solution.dual).all() and np.isfinite(figures).all())


def _lies(path: str, what: object) -> StoreError:
    """Build the error for a checkpoint that can be read but does not fit this fit."""
    return StoreError(
        f"checkpoint '{location_of(path)}' is not what a checkpoint is: {what}; remove it and start the fit afresh."
    )


def open_steps(
    solver: str, data: Callable[[], str], fit: Fit, kind: Callable[..., S]
) -> tuple[S | None, Callable[[S], None]]:
    """Return the state from which a fit by the steps of ``solver`` resumes, or None, and a function that saves a state.

    ``kind`` is the dataclass of a state: vectors, matrices and JSON figures, among them a ``history``. Otherwise as
    `open_tree`.
    """
    path = fit.run.checkpoint
    if path is None:
        return None, lambda state: None
    told, found = _find(path, f"{solver} {data()}", fit)

    def save(state: S) -> None:
        fields = {name: value for name, value in vars(state).items() if isinstance(value, np.ndarray)}
        figures = {name: value for name, value in vars(state).items() if name not in fields}
        vectors = [name for name, value in fields.items() if value.ndim == 1]
        arrays = {name: np.atleast_2d(value) for name, value in fields.items()}  # a record's arrays are matrices
        save_state(path, arrays, figures | told | {"vectors": vectors})

    return None if found is None else _state_of(path, kind, found, told), save


def require_state(fit: Fit, sound: bool) -> None:
    """Raise StoreError unless the state to resume from is ``sound``: of the fit's shapes and bounds."""
    if not sound:
        raise _lies(fit.run.checkpoint, "its arrays or figures are not those of a state of this fit")


def _state_of(path: str, kind: Callable[..., S], found: Record, told: dict[str, Any]) -> S:
    """Build the state that a checkpoint holds; raise StoreError if it is not one of ``kind``."""
    vectors = found.attributes.get("vectors", [])
    arrays = arrays_of(found)
    if any(name in vectors and (array.ndim != 2 or len(array) != 1) for name, array in arrays.items()):
        raise _lies(path, "a vector of it is none")
    state = {name: value[0] if name in vectors else value for name, value in arrays.items()}
    figures = {name: value for name, value in found.attributes.items() if name not in told and name != "vectors"}
    try:
        made = kind(**state, **figures)
    except TypeError as error:
        raise StoreError(
            f"checkpoint '{path}' holds no state of this solver ({error}), perhaps that of another version of "
            "dask_odm; remove it to start afresh."
        ) from error
    for name, hint in get_type_hints(kind).items():
        if name not in state | figures or not _is_of(vars(made)[name], hint):
            raise _lies(path, f"{name} is missing or of another type")
    if [record["iteration"] for record in figures["history"]] != list(range(len(figures["history"]))):
        raise _lies(path, "its history leaves out a step")
    return made


def _is_of(value: Any, hint: Any) -> bool:
    """Return whether a field of a state has its annotated type: finite floats, integers from −1 on."""
    if isinstance(value, np.ndarray) or (get_origin(hint) or hint) is np.ndarray:
        floats = isinstance(value, np.ndarray) and value.dtype.kind == "f"
        return (get_origin(hint) or hint) is np.ndarray and floats and bool(np.isfinite(value).all())
    if isinstance(hint, UnionType):
        return any(_is_of(value, each) for each in get_args(hint))
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    if hint is int:
        return type(value) is int and -1 <= value <= LARGEST_WHOLE
    return isinstance(value, get_origin(hint) or hint)


def _find(path: str, data: str, fit: Fit) -> tuple[dict[str, Any], Record | None]:
    """Return what identifies the fit, and the checkpoint that it resumes from or None.

    The former is the seed and a digest of ``data``, parameters and seed.
    """
    seed, resume, parameters = fit.run.seed, fit.run.resume, fit.identity()

    def digest(seed: int) -> str:
        return hashlib.sha256(json.dumps([data, seed, parameters], sort_keys=True).encode()).hexdigest()

    found = _open(path)
    # a fit that starts afresh may have drawn another seed, and may replace its own checkpoint
    if found is not None and found.attributes["fit"] != digest(seed if resume else found.attributes["seed"]):
        raise StoreError(
            f"checkpoint '{path}' is of another fit (other data or parameters); remove it or choose another path."
        )
    held = 0 if found is None else len(found.attributes["history"])
    steps = held if resume else 0
    report(CheckpointOpened(path, digest(seed), seed, steps))
    if held and not resume:
        logger.warning(
            "checkpoint '%s' holds %d steps of this fit, which begins anew and replaces them; pass resume=True "
            "(--resume) to go on from them instead.", path, held
        )  # fmt: skip
    if found is not None and resume:
        level = found.attributes.get("level")
        logger.info(
            "going on from checkpoint '%s', after %s", path, f"{steps} steps" if level is None else f"level {level}"
        )
    return {"fit": digest(seed), "seed": seed}, found if resume else None


def _open(path: str) -> Record | None:
    """Return the record of the checkpoint at ``path`` with checked attributes, or None."""
    found = open_checkpoint(path)
    if found is not None:
        found.check()
    return found


def forget_checkpoint(path: str) -> None:
    """Remove the checkpoint at ``path`` if there is one; raise StoreError if something else is there."""
    found = _open(path)
    if found is not None:
        shutil.rmtree(found.path, ignore_errors=True)


def checkpoint_seed(path: str | None) -> int | None:
    """Return the seed of the fit that left a checkpoint at ``path``, or None if there is no checkpoint."""
    found = None if path is None else _open(path)
    return None if found is None else int(found.attributes["seed"])
