"""Events that algorithms report, and how to listen to them.

An algorithm calls `report(event)` and knows nothing of its listeners. Progress bars, histories and checkpoints are
callables that take an event. Listeners belong to a context (`listen`), so two fits in two threads do not hear each
other. This module also keeps a Ctrl-C from being lost in a callback.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(frozen=True)
class Event:
    """Base class of all events."""


@dataclass(frozen=True)
class Progress(Event):
    """``done`` of ``total`` ``unit`` of a phase; the first has ``done=0``. An unknown total is None.

    A ``passing`` phase is one of many, such as a pass over the rows. It begins when `Meter` first reports it, and a
    display should leave nothing of it behind. ``seconds`` are those that the phase and what follows it are expected to
    take in all, if that is known.
    """

    phase: str
    done: int
    total: int | None
    unit: str = "chunks"
    passing: bool = False
    seconds: float | None = None


@dataclass(frozen=True)
class Ingested(Event):
    """A source became one or two stores of ``rows`` in all; ``dropped`` more rows lacked a value.

    ``label`` says where the labels come from, such as ``column 'y'``, or is None if that is no question. ``target`` is
    what they became: ``classes``, ``real`` targets, or None without labels.
    """

    rows: int
    dropped: int
    label: str | None
    target: str | None = None


@dataclass(frozen=True)
class CheckpointOpened(Event):
    """A fit with a checkpoint begins. The digest ``fit`` of data, parameters and ``seed`` tells it from other fits.

    ``steps`` counts the steps or levels in the checkpoint that it goes on from; 0 if it begins anew.
    """

    path: str
    fit: str
    seed: int
    steps: int


@dataclass(frozen=True)
class PartitionSolved(Event):
    """One partition of a tree level was solved; ``level`` counts down to 0, the root."""

    level: int
    partition: int
    rows: int
    sweeps: int
    gap: float
    objective: float
    seconds: float


@dataclass(frozen=True)
class LevelFinished(Event):
    """All partitions of a tree level are solved.

    ``gap`` is the largest relative gap of the level's partitions, and ``start_gap`` the largest before they were
    solved. ``objective`` is the weighted mean of their dual objectives, which never falls from level to level.
    """

    level: int
    partitions: int
    rows: int
    sweeps: int
    converged: int
    start_gap: float
    gap: float
    objective: float
    seconds: float


@dataclass(frozen=True)
class IterationFinished(Event):
    """A step or an epoch of an iterative solver is done.

    ``gap`` is the relative duality gap and ``objective`` the primal objective. ``passes`` counts the passes over all
    rows so far, and ``hops`` the hand-overs from worker to worker.
    """

    iteration: int
    gap: float
    objective: float
    passes: float
    seconds: float
    hops: int = 0


TELL_SECONDS = 0.1  # seconds between two reports of a `Meter`, and before the first: shorter work is not reported
T = TypeVar("T")
Listener = Callable[[Event], object]
interrupt_dropped = threading.Event()  # set once Ctrl-C was raised where Python drops exceptions
_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("dask_odm_listeners", default=())


def report(event: Event) -> None:
    """Hand ``event`` to every listener of the current context, in the order they were added."""
    for listener in _listeners.get():
        listener(event)


def has_listeners() -> bool:
    """Return whether anybody listens in the current context."""
    return bool(_listeners.get())


@contextmanager
def listen(*listeners: Listener) -> Iterator[None]:
    """Call ``listeners`` with every event that is reported within the ``with`` block.

    Parameters
    ----------
    *listeners : callable
        Functions of one event, such as `ProgressBars` or a function of your own.
    """
    token = _listeners.set(_listeners.get() + listeners)
    try:
        yield
    finally:
        _listeners.reset(token)


def keep_interrupt(found: Any) -> None:
    """Send Ctrl-C once more, as `sys.unraisablehook`: Python drops it in callbacks, as the garbage collector's."""
    if found.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(found)
        return
    interrupt_dropped.set()
    if hasattr(signal, "pthread_kill"):
        main_thread = threading.main_thread().ident or 0
        threading.Timer(0.1, signal.pthread_kill, (main_thread, signal.SIGINT)).start()


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Make sure that no Ctrl-C is dropped, unless other code has replaced `sys.unraisablehook`."""
    if threading.current_thread() is not threading.main_thread() or sys.unraisablehook is not sys.__unraisablehook__:
        yield
        return
    sys.unraisablehook = keep_interrupt
    try:
        yield
    finally:
        sys.unraisablehook = sys.__unraisablehook__


class Meter:
    """Progress reports of work that threads share: they count what they did, and the thread that began it reports.

    Listeners belong to that thread, so it has to take part in the work, or wait for it step by step. Work that takes
    less than `TELL_SECONDS` is not reported.
    """

    def __init__(self, phase: str, total: int, unit: str = "parts") -> None:
        self._phase = phase
        self._total = total
        self._unit = unit
        self._told = False
        self._heard = has_listeners()
        self._counts = list[int]()
        self._thread = threading.get_ident()
        self._due = time.monotonic() + TELL_SECONDS

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._told or (self._heard and time.monotonic() >= self._due):
            self._tell(self._total)

    def add(self, count: int = 1) -> None:
        """Count ``count`` more as done."""
        if not self._heard:
            return
        self._counts.append(count)  # safe from any thread; a lock takes as long as a small group of rows
        if threading.get_ident() == self._thread and time.monotonic() >= self._due:
            self._tell(min(sum(self._counts), self._total))

    def over(self, items: Iterable[T], count: Callable[[T], int] = lambda item: 1) -> Iterator[T]:
        """Yield the items, and count each once the next is asked for."""
        for item in items:
            yield item
            self.add(count(item))

    def _tell(self, done: int) -> None:
        self._told, self._due = True, time.monotonic() + TELL_SECONDS
        report(Progress(self._phase, done, self._total, self._unit, passing=True))
