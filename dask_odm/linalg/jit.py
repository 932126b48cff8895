"""How every hot loop is compiled: without the interpreter lock, kept on disk, free to reorder sums.

Numba is imported with the first call of a loop: it takes as long to load as a small fit. What a loop calls are loops
themselves; they are made before it is compiled.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, update_wrapper
from importlib import import_module
from typing import Any

from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
_FAST = {"nogil": True, "fastmath": True, "error_model": "numpy"}
COMPILING = (
    "dask_odm compiles its loops for this machine, once: some seconds, now and where others are first used "
    "('dask-odm warmup' does all of it beforehand)"
)
_lock = threading.RLock()
_told = False


class Loop:
    """A function that Numba compiles when it is first called.

    Parameters
    ----------
    function : callable
        Whatever loops it calls it knows by its module's names.
    options : keyword arguments
        Of `numba.njit`.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        update_wrapper(self, function)
        self._function = function
        self._options = options
        self._made: Any = None

    def __call__(self, *arguments: Any) -> Any:
        made = self._made
        return (self.made() if made is None else made)(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self._function.__module__, self._function.__qualname__)  # as a function travels

    @property
    def is_made(self) -> bool:
        """Whether it was called before, so that another call waits neither for Numba nor for the compiler."""
        return self._made is not None

    def made(self) -> Any:
        """Numba's function; the loops that it calls take their place in its module."""
        with _lock:
            if self._made is None:
                import numba

                _listen_once()
                self._take_in_others()  # first: another thread may call this loop as soon as it is there
                made = numba.njit(**self._options)(self._function)
                made.compile = partial(_compiled_aside, made.compile)
                self._made = made
            return self._made

    def _take_in_others(self) -> None:
        """Loops that this one calls become Numba's functions in its module."""
        names: dict[str, Any] = self._function.__globals__
        for name in self._function.__code__.co_names:
            if isinstance(names.get(name), Loop):
                names[name] = names[name].made()


def _compiled_aside(compile_for: Callable[[Any], Any], signature: Any) -> Any:
    """Have another thread compile if this is the main one, so that Ctrl-C need not wait for LLVM.

    What it compiles is kept all the same. Within the compiler, whose lock belongs to a thread, there is no other.
    """
    from numba.core.compiler_lock import global_compiler_lock

    if threading.current_thread() is not threading.main_thread() or global_compiler_lock.is_locked():
        return compile_for(signature)
    thread = ThreadPoolExecutor(1, "dask-odm-compiler")
    try:
        return thread.submit(compile_for, signature).result()
    finally:
        thread.shutdown(wait=False)


def _named(module: str, name: str) -> Any:
    """The loop by that name of a module, or Numba's function that took its place there."""
    return getattr(import_module(module), name)


class Pointed(Loop):
    """A loop that others call by its address: it is no part of theirs, and they need no variant for each such loop."""

    def __init__(self, function: Callable[..., Any], signature: str, **options: Any) -> None:
        super().__init__(function, **options)
        self._signature = signature

    @property
    def address(self) -> int:
        """Where the machine's instructions are, as long as this lives."""
        return int((self.made() if self._made is None else self._made).address)

    def made(self) -> Any:
        with _lock:
            if self._made is None:
                import numba

                _listen_once()
                self._take_in_others()
                self._made = numba.cfunc(self._signature, **self._options)(self._function)
            return self._made


class Emitted(Loop):
    """What a loop calls and Numba cannot write by itself: a function that gives LLVM's instructions for it."""

    def made(self) -> Any:
        with _lock:
            if self._made is None:
                from numba.extending import intrinsic

                self._made = intrinsic(self._function)
            return self._made


def compiled(function: Callable[..., Any]) -> Any:
    """A loop that is called from Python."""
    return Loop(function, cache=True, **_FAST)


def compiled_in_order(function: Callable[..., Any]) -> Any:
    """A loop whose sums keep their order."""
    return Loop(function, cache=True, nogil=True)


def pointed(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """A loop of Numba's ``signature`` that others call by its `Pointed.address`."""
    return lambda function: Pointed(function, signature, cache=True, **_FAST)


def inlined(function: Callable[..., Any]) -> Any:
    """A helper of loops whose constant arguments must be known to the compiler where it is called.

    Its code becomes part of the loop before that is compiled: compiled by itself and then taken in, it took twice as
    long, for the same speed.
    """
    return Loop(function, inline="always", **_FAST)


def emitted(function: Callable[..., Any]) -> Any:
    """A helper of loops in LLVM's instructions, for what they can do with several numbers at once."""
    return Emitted(function)


def _listen_once() -> None:
    """Say once in a process that a loop is compiled, not only loaded: in the log, and on a terminal."""
    from numba.core import event

    class Told(event.Listener):
        def on_start(self, event: Any) -> None:
            global _told
            if not _told:
                _told = True
                _tell()

        def on_end(self, event: Any) -> None:
            """Nothing."""

    if not _listeners:
        _listeners.append(Told())
        event.register("numba:compile", _listeners[0])


_listeners: list[Any] = []


def _tell() -> None:
    logger.info(COMPILING)
    # no event: listeners belong to the thread of a fit, and any thread may be the first to call a loop
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"{COMPILING} …\n")
        sys.stderr.flush()


def frozen(array: Array) -> Array:
    """A read-only view, or the array if it is so already.

    A loop is compiled once more, for seconds, for rows that may not be written, as memory maps and what came from
    another process are. Where its rows are always frozen it is compiled once.
    """
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view
