"""Threads of this package and of BLAS. Work is split so that no bit of a result depends on their number."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

from dask_odm.events import Meter

T = TypeVar("T")
MOST_THREADS = 64  # threads of the pool of this process
# seconds after which a waiting thread looks for signals: CPython sees one that comes right before a wait at its end
SIGNAL_SECONDS = 0.2
_LIBC = ctypes.CDLL(None) if os.name == "posix" else None


class _SingleThreadedBlas:
    """Context manager that limits BLAS to one thread while any ``with`` block is open.

    The limit is per process, so open blocks are counted. This package splits work over its own threads instead, so that
    no bit depends on their number.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._libraries: Any = None  # NumPy's and SciPy's, looked for once, since looking takes milliseconds
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                _take_control()
                if self._libraries is None:
                    import scipy.linalg  # noqa: F401  (loads SciPy's BLAS; reading a store does not need it)

                    self._libraries = ThreadpoolController().select(user_api="blas")
                self._limits = self._libraries.limit(limits=1)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                _take_control()
                self._limits.restore_original_limits()
                _take_control()


def _take_control() -> None:
    """Let this thread set the limit: since 3.7, threadpoolctl ignores every thread but the first that set one."""
    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


single_threaded_blas = _SingleThreadedBlas()


class _Helpers:
    """Up to `MOST_THREADS` threads that wait for work: starting one anew takes as long as a pass over some rows.

    The one that was last at work is asked first. The allocator keeps what a thread freed for that thread, so that many
    threads in turn would hold several times the memory of those that work together.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = 0
        self._idle: list[ThreadPoolExecutor] = []  # of one thread each

    def submit(self, function: Callable[..., None], *arguments: Any) -> Future[None] | None:
        """Start ``function(*arguments)`` in a thread, or return None if all are at work."""
        with self._lock:
            if not self._idle:
                if self._made == MOST_THREADS:
                    return None
                self._made += 1
                self._idle.append(ThreadPoolExecutor(1, "dask-odm"))
            thread = self._idle.pop()
        future = thread.submit(function, *arguments)
        future.add_done_callback(lambda _: self._idle.append(thread))
        return future


_helpers = _Helpers()


def _forget_helpers() -> None:
    global _helpers
    _helpers = _Helpers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helpers)  # threads do not survive a fork


class _Stopped(BaseException):
    """Raised in a helper thread when the thread that it works for was interrupted."""


_within = threading.local()  # its `team` is the team that this thread is in


class _Team:
    """Threads that work for one caller, at most ``most`` at a time, with the threads that their items start.

    The caller can interrupt them between two bytecodes, as Ctrl-C interrupts it. Checking for an interrupt between two
    items is not enough, since an item may be a gigabyte of rows.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._inside: set[int] = set()
        self._stopped = False
        self._busy = 0

    @staticmethod
    def left() -> int:
        """Return how many threads an item may take: those of its team that work on no other item."""
        team = getattr(_within, "team", None)
        return MOST_THREADS if team is None else team._most - team._busy + 1

    def work(self, take: Callable[[], None]) -> None:
        """Run ``take`` as one of the threads of this team."""
        before = getattr(_within, "team", None)
        with self._lock:
            self._busy += 1
        _within.team = self
        try:
            take()
        finally:
            _within.team = before
            with self._lock:
                self._busy -= 1

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return ``function(*arguments)``; `stop` can end it."""
        thread = threading.get_ident()
        with self._lock:
            if self._stopped:
                raise _Stopped
            self._inside.add(thread)
        try:
            return function(*arguments)
        finally:
            with self._lock:  # a thread that was told to stop is interrupted within this block at the latest
                self._inside.discard(thread)

    def stop(self) -> None:
        """Interrupt the threads that are at work. A thread in a compiled loop stops when the loop ends."""
        with self._lock:
            self._stopped = True
            for thread in self._inside:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Stopped))


def heard(future: Future[T]) -> T:
    """Return the result of a future, and hear of an interrupt meanwhile."""
    while True:
        try:
            return future.result(timeout=SIGNAL_SECONDS)
        except TimeoutError:
            if future.done():  # its own error
                raise


def run_threads(function: Callable[[Any], T], items: Iterable[Any], threads: int, phase: str | None = None) -> list[T]:
    """Return ``[function(item) for item in items]``, computed on up to ``threads`` threads, including the caller's.

    If ``phase`` is given, the number of items done is reported under that name. Within an item of another call, no more
    threads are taken than its other items leave of those that it was given. One item may take all ``threads``.
    """
    work: Sequence[Any] = list(items)
    if phase is not None:
        with Meter(phase, len(work)) as meter:

            def counted(item: Any) -> T:
                result = function(item)
                meter.add()
                return result

            return run_threads(counted, work, threads)
    left = _Team.left()
    if left <= threads and (left <= 1 or len(work) <= 1):  # what the items take changes as others end
        return [function(item) for item in work]
    threads = min(threads, left)
    results: list[Any] = [None] * len(work)
    numbers = iter(range(len(work)))  # number of the next item, shared by all threads

    def take() -> None:
        try:
            for i in numbers:
                results[i] = function(work[i])
        except BaseException:
            for _ in numbers:  # use up the items, so that the other threads end
                pass
            raise

    helpers: list[Future[None]] = []
    team = _Team(threads)
    try:
        started = (_helpers.submit(team.run, team.work, take) for _ in range(min(threads, len(work)) - 1))
        helpers.extend(helper for helper in started if helper is not None)
        team.work(take)
        helpers = _begun(helpers)
        while helpers:
            heard(helpers[-1])
            helpers.pop()
    except BaseException as error:
        if not isinstance(error, Exception):  # an interrupt; after an error, the threads finish their items
            team.stop()
        raise
    finally:
        if helpers:  # after an error or interrupt: no thread may still use arrays that the caller gives up
            wait(_begun(helpers))
    return results


def _begun(futures: Iterable[Future[T]]) -> list[Future[T]]:
    """Cancel futures that have not begun, and return the others.

    A task must not wait for one that has not begun, since it might never begin.
    """
    return [future for future in futures if not future.cancel()]


def return_free_memory() -> None:
    """Give memory that the allocator holds free back to the system, so that it does not count against the next task.

    glibc keeps freed memory, the more so as chunks grow. Other allocators are left alone.
    """
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)
