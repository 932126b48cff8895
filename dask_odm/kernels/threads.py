"""Threads of this package and of BLAS: who splits the work, so that no bit depends on how many there are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from threadpoolctl import OpenBLASController, threadpool_limits

T = TypeVar("T")


class _SingleThreadedBlas:
    """BLAS on one thread while any block is within; the setting is the process's, so blocks are counted.

    The threads of this package split the work themselves, so that no bit depends on their number.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                _take_control()
                self._limits = threadpool_limits(1, "blas")

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                _take_control()
                self._limits.restore_original_limits()
                _take_control()


def _take_control() -> None:
    """Let this thread set the limit: since 3.7, threadpoolctl silently ignores all threads but the first to set one."""
    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


single_threaded_blas = _SingleThreadedBlas()


def run_threads(function: Callable[[Any], T], items: Iterable[Any], threads: int) -> list[T]:
    """``[function(item) for item in items]`` on up to ``threads`` threads, results in order."""
    work: Sequence[Any] = list(items)
    if threads <= 1 or len(work) <= 1:
        return [function(item) for item in work]
    with ThreadPoolExecutor(min(threads, len(work))) as pool:
        return list(pool.map(function, work))
