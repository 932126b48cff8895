"""Parts of every task of workers: aligned arguments, and memory that goes back to the system."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any

import numpy as np

from dask_odm.linalg.threads import return_free_memory
from dask_odm.typing import Array

_PLAIN = {int, float, bool, str, bytes, type(None)}


def worker_task(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that workers run: its arrays come aligned, and freed memory is returned afterwards."""

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with memory_returned():
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
