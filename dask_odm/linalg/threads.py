"""Threads of this package and of BLAS. Work is split so that no bit of a result depends on their number."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

from dask_odm.events import Meter

T = TypeVar("T")
MOST_THREADS = 64  # threads of the pool of this process


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
                self._libraries = self._libraries or _blas_libraries()
                self._limits = self._libraries.limit(limits=1)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                _take_control()
                self._limits.restore_original_limits()
                _take_control()


def _blas_libraries() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  (loads SciPy's BLAS; imported here, since reading a store does not need it)

    return ThreadpoolController().select(user_api="blas")


def _take_control() -> None:
    """Let this thread set the limit: since 3.7, threadpoolctl ignores every thread but the first that set one."""
    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


single_threaded_blas = _SingleThreadedBlas()


# Threads wait here for work, since starting them anew takes as long as a pass over a few thousand rows.
_pools: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


def _pool() -> ThreadPoolExecutor:
    if not _pools:
        _pools.append(ThreadPoolExecutor(MOST_THREADS, "dask-odm"))
    return _pools[0]


class _Stopped(BaseException):
    """Raised in a helper thread when the thread that it works for was interrupted."""


class _Team:
    """Threads that work for one caller. The caller can interrupt them between two bytecodes, as Ctrl-C interrupts it.

    Checking for an interrupt between two items is not enough, since an item may be a gigabyte of rows.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: set[int] = set()
        self._stopped = False

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


@contextmanager
def _team() -> Iterator[_Team]:
    """Yield a team, and stop it if the caller is interrupted. After an error, its threads finish their items."""
    team = _Team()
    try:
        yield team
    except Exception:
        raise
    except BaseException:
        team.stop()
        raise


@contextmanager
def lent(free: list[T], make: Callable[[], T]) -> Iterator[T]:
    """Lend this thread something that no other thread uses meanwhile: one that is ``free``, else what ``make`` makes.

    Buffers are lent, since fresh pages are slow.
    """
    try:
        each = free.pop()
    except IndexError:
        each = make()
    try:
        yield each
    finally:
        free.append(each)


def run_threads(function: Callable[[Any], T], items: Iterable[Any], threads: int, phase: str | None = None) -> list[T]:
    """Return ``[function(item) for item in items]``, computed on up to ``threads`` threads, including the caller's.

    If ``phase`` is given, the number of items done is reported under that name.
    """
    work: Sequence[Any] = list(items)
    if phase is not None:
        with Meter(phase, len(work)) as meter:

            def counted(item: Any) -> T:
                result = function(item)
                meter.add()
                return result

            return run_threads(counted, work, threads)
    if threads <= 1 or len(work) <= 1:
        return [function(item) for item in work]
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
    try:
        with _team() as team:
            helpers.extend(_pool().submit(team.run, take) for _ in range(min(threads, len(work), MOST_THREADS) - 1))
            take()
            helpers = _begun(helpers)
            while helpers:
                helpers[-1].result()
                helpers.pop()
    finally:
        if helpers:  # after an error or interrupt: no thread may still use arrays that the caller gives up
            wait(_begun(helpers))
    return results


def stream_threads(function: Callable[[Any], T], items: Iterable[Any], threads: int) -> Iterator[T]:
    """Yield the results of `run_threads` in order, with at most ``threads`` of them computed ahead."""
    if threads <= 1:
        yield from map(function, items)
        return
    waiting: deque[tuple[Any, Future[T]]] = deque()
    try:
        with _team() as team:
            for item in items:
                if len(waiting) == min(threads, MOST_THREADS):
                    yield _taken(function, *waiting.popleft())
                waiting.append((item, _pool().submit(team.run, function, item)))
            while waiting:
                yield _taken(function, *waiting.popleft())
    finally:
        wait(_begun([future for _, future in waiting]))


def _begun(futures: Iterable[Future[T]]) -> list[Future[T]]:
    """Cancel futures that have not begun, and return the others.

    A task of the same pool must not wait for one that has not begun, since it might never begin.
    """
    return [future for future in futures if not future.cancel()]


def _taken(function: Callable[[Any], T], item: Any, future: Future[T]) -> T:
    """Return the result of a future, computed in this thread if no other has begun it, since none might ever."""
    return function(item) if future.cancel() else future.result()
