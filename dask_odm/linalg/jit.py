"""Compile hot loops with Numba: without the interpreter lock, cached on disk if possible, free to reorder sums.

Numba is imported when a loop is first called, since it takes as long to load as a small fit. If a loop calls other
loops, those become Numba functions before it is compiled.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial, update_wrapper
from importlib import import_module
from typing import Any

from dask_odm.linalg.threads import heard
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
_IN_ORDER = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_FAST = _IN_ORDER | {"fastmath": True}
COMPILING = (
    "Numba compiles code of dask_odm for this machine, once: some seconds now, and where other code is first used "
    "('dask-odm warmup' compiles all of it beforehand)"
)
UNKEPT = (
    "Numba cannot keep compiled code on disk, so every process compiles it anew, which takes some seconds; set the "
    "environment variable NUMBA_CACHE_DIR to a folder that can be written and has space."
)
_lock = threading.RLock()


class Loop:
    """A function that Numba compiles when it is first called.

    It finds the loops that it calls by their names in its module. ``options`` are those of `numba.njit`.
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
        return _named, (self._function.__module__, self._function.__qualname__)  # by name, as a function pickles

    def made(self) -> Any:
        """Return Numba's function; also replace the loops that it calls by Numba's functions in its module."""
        with _lock:
            if self._made is None:
                _listen()
                self._take_in_others()  # first: another thread may call this loop as soon as it is there
                self._made = self._make()
            return self._made

    def _make(self) -> Any:
        import numba

        try:
            made = numba.njit(**self._options)(self._function)
        except Exception:
            made = numba.njit(**self._options | {"cache": False})(self._function)
            _tell_unkept()
        made.compile = partial(_compiled_without_fail, made._cache, made.compile)
        return made

    def _take_in_others(self) -> None:
        """Replace the loops that this one calls by Numba's functions in its module."""
        names: dict[str, Any] = self._function.__globals__
        for name in self._function.__code__.co_names:
            if isinstance(names.get(name), Loop):
                names[name] = names[name].made()


def _compiled_without_fail(cache: Any, compile_for: Callable[[Any], Any], signature: Any) -> Any:
    """Compile, without the cache on disk if that fails, such as on a full disk or for a damaged file."""
    try:
        return _compiled_aside(compile_for, signature)
    except Exception:
        cache.disable()
        found = _compiled_aside(compile_for, signature)  # at once if the code is only not kept; raises if it is wrong
        _tell_unkept()
        return found


def _compiled_aside(compile_for: Callable[[Any], Any], signature: Any) -> Any:
    """Compile in another thread if this is the main one, so that Ctrl-C need not wait for LLVM.

    The result is kept even after an interrupt. No other thread is used while the compiler's lock is held, since that
    lock belongs to a thread.
    """
    from numba.core.compiler_lock import global_compiler_lock

    collects = gc.isenabled()
    gc.disable()  # the compiler keeps a million objects: to look for garbage among them takes a sixth of its time
    try:
        if threading.current_thread() is not threading.main_thread() or global_compiler_lock.is_locked():
            return compile_for(signature)
        thread = ThreadPoolExecutor(1, "dask-odm-compiler")
        try:
            return heard(thread.submit(compile_for, signature))
        finally:
            thread.shutdown(wait=False)
    finally:
        if collects:
            gc.enable()


def _named(module: str, name: str) -> Any:
    """Return the loop of this name in a module, or Numba's function that replaced it there."""
    return getattr(import_module(module), name)


class Emitted(Loop):
    """A helper of loops that Numba cannot write itself: its function generates LLVM instructions.

    They work on several numbers at once.
    """

    def _make(self) -> Any:
        from numba.extending import intrinsic

        return intrinsic(self._function)


@Emitted
def pointer(typing: Any, array: Any) -> Any:
    """Return the address of a C-contiguous array's numbers, by which a loop reads and writes them as a flat array.

    It regards neither shape nor sign of an index, so Numba compiles it in two thirds of the time.
    """
    from numba import types

    assert array.layout == "C"

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, given[0]).data

    return types.CPointer(array.dtype)(array), generate


def compiled(function: Callable[..., Any]) -> Any:
    """Make a loop that is called from Python."""
    return Loop(function, cache=True, **_FAST)


def compiled_in_order(function: Callable[..., Any]) -> Any:
    """Make a loop whose sums keep their order."""
    return Loop(function, cache=True, **_IN_ORDER)


def called(function: Callable[..., Any]) -> Any:
    """Make a helper that loops call and Python cannot, which spares compiling how Python would."""
    return Loop(function, cache=True, no_cpython_wrapper=True, **_FAST)


def inlined(function: Callable[..., Any]) -> Any:
    """Make a helper of loops that is inlined, so that the compiler knows the constant arguments of each call.

    Its code becomes part of the loop before that is compiled. Compiling it first and inlining it then took twice as
    long, for the same speed.
    """
    return Loop(function, inline="always", **_FAST)


@cache
def _listen() -> None:
    """Register a listener that reports when Numba compiles a loop, rather than loads it."""
    from numba.core import event

    class Compilations(event.Listener):
        def on_start(self, event: Any) -> None:
            _tell()

        def on_end(self, event: Any) -> None:
            """Do nothing."""

    event.register("numba:compile", Compilations())


@cache
def _tell() -> None:
    """Say once in a process that loops are being compiled: in the log, and on a terminal."""
    logger.info(COMPILING)
    # not by an event: listeners belong to the thread of a fit, and any thread may be the first to call a loop
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"{COMPILING} …\n")
        sys.stderr.flush()


@cache
def _tell_unkept() -> None:
    """Warn once in a process that compiled code is not kept."""
    logger.warning(UNKEPT)


def frozen(array: Array) -> Array:
    """Return a read-only view of ``array``, or the array itself if it is read-only already.

    Numba compiles a loop once more, for seconds, for read-only rows, such as memory maps and arrays from another
    process. A loop whose rows are always frozen is compiled once.
    """
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view
