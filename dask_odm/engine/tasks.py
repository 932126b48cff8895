"""Parts of every task of workers: aligned arguments, memory that goes back to the system, and a look at its peak."""

from __future__ import annotations

import copy
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
from dask.utils import format_bytes

from dask_odm.engine import limits
from dask_odm.linalg.threads import return_free_memory
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
_PLAIN = {int, float, bool, str, bytes, type(None)}
TOLD = "dask_odm_told"  # annotation of a task: what its fit needs memory for, the bytes told of that, the most told
WATCHED_BYTES = 64 << 20  # less is not compared: buffers of BLAS and of the allocator are in no formula


def worker_task(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that workers run: arrays come aligned, freed memory is returned, the peak is compared."""

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        annotations = getattr(this_task(), "annotations", None) or {}
        with memory_returned(), _peaks.watched(annotations.get(TOLD)):
            return function(*map(aligned, arguments), **options)

    return run


def aligned(value: Any) -> Any:
    """Return ``value`` with copies of its unaligned arrays, also of those in dicts, tuples, lists and dataclasses.

    Dask receives several results in one buffer, in which an array may begin anywhere. NumPy multiplies such arrays in
    another order, so that the last bits differ, and Numba compiles its loops anew for them.
    """
    return with_arrays(_align, value)


def read_only(value: Any) -> Any:
    """Return ``value`` with all its arrays as aligned read-only views, found as by `aligned`."""
    return with_arrays(_freeze, value)


def with_arrays(change: Callable[[Array], Array], value: Any) -> Any:
    """Return ``value`` with ``change(array)`` instead of its arrays, or ``value`` itself if none of them changes."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, dict):
        parts = value
    elif isinstance(value, list | tuple):
        if _PLAIN.issuperset(map(type, value)):  # such as the rows of each of 16,384 partitions, which would take 11 ms
            return value
        parts = dict(enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        return value
    changed = {name: with_arrays(change, part) for name, part in parts.items()}
    if all(changed[name] is part for name, part in parts.items()):
        return value
    if isinstance(value, dict):
        return changed
    if isinstance(value, list | tuple):
        items = changed.values()
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    record = copy.copy(value)
    for name, part in changed.items():
        object.__setattr__(record, name, part)
    return record


def _align(array: Array) -> Array:
    return array if array.flags.aligned else array.copy()


def _freeze(array: Array) -> Array:
    view = _align(array).view()
    view.flags.writeable = False
    return view


@contextmanager
def memory_returned() -> Iterator[None]:
    """Call `return_free_memory` when the block has ended."""
    try:
        yield
    finally:
        return_free_memory()


def this_worker() -> Any:
    """Return the Dask worker that runs this, or None."""
    distributed: Any = sys.modules.get("distributed")
    if distributed is not None:
        with suppress(ValueError):  # there is none
            return distributed.get_worker()
    return None


def this_task() -> Any:
    """Return the worker's record of the task that this thread runs, or None."""
    worker = this_worker()
    return None if worker is None else worker.state.tasks.get(worker.active_threads.get(threading.get_ident()))


class _Peaks:
    """Compares the memory that tasks of this process take with what was told of them.

    The system keeps a process's highest resident bytes. If they rise while tasks run, these were reached by the tasks,
    and are compared with the most that those together were told. A peak below an earlier one is not seen.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[int] = []  # most bytes told of each task at work
        self._together = 0  # the most that they were at the same time
        self._before = 0  # resident bytes when the first of them began
        self._highest = 0  # highest resident bytes then, or that were warned of
        self._alone = True
        self._spared: set[str] = set()  # what was found to need far less

    @contextmanager
    def watched(self, told: tuple[str, int, int, int] | None) -> Iterator[None]:
        """Log if the block takes more than was told: what for, its bytes, the most of its fit, the client's process."""
        # the client takes memory itself, and a worker that began during a fit loads what others had loaded before
        if told is None or told[3] == os.getpid() or not limits.first_baseline or not STATUS.exists():
            yield
            return
        what, own, most, _ = told
        with self._lock:
            if not self._running:
                self._before, self._highest = resident()
                self._together = 0
            self._running.append(most)
            self._together = max(self._together, sum(self._running))
            self._alone = len(self._running) == 1
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(most)
                self._compare(what, own)

    def _compare(self, what: str, own: int) -> None:
        highest = resident()[1]
        taken = highest - self._before
        if highest > self._highest and taken > max(self._together, WATCHED_BYTES):
            self._highest = highest
            logger.warning(
                "%s took %s of memory, where %s were expected: a worker may run out of it. Please report this.",
                what,
                format_bytes(taken),
                format_bytes(self._together),
            )
        elif self._alone and what not in self._spared and 3 * taken < own >= WATCHED_BYTES:
            self._spared.add(what)
            logger.debug("%s took %s of memory, of the %s told.", what, format_bytes(taken), format_bytes(own))


STATUS = Path("/proc/self/status")  # of Linux; other systems tell a process's peak, but not since when
_peaks = _Peaks()


def resident() -> tuple[int, int]:
    """Return this process's resident bytes, and the most that they have been."""
    found = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", STATUS.read_text()))
    return 1024 * int(found["VmRSS"]), 1024 * int(found["VmHWM"])
