"""What algorithms report, and how to listen.

An algorithm calls `report(event)` and knows nothing of who listens; progress bars, histories and
checkpoints are callables that take an event. Listeners belong to a context (`listen`), so two fits in
two threads do not hear each other. What the user sends, Ctrl-C, is kept from being lost on its way.
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
    """Base class of everything that is reported."""


@dataclass(frozen=True)
class Progress(Event):
    """``done`` of ``total`` ``unit`` of a phase; the first has ``done=0``. An unknown total is None.

    A ``passing`` phase is one of many, such as a pass over the rows: it begins where `Meter` first tells of it, and
    what shows it leaves nothing behind.
    """

    phase: str
    done: int
    total: int | None
    unit: str = "chunks"
    passing: bool = False


@dataclass(frozen=True)
class Ingested(Event):
    """A source became one store or two of ``rows`` in all; ``dropped`` more lacked a value.

    ``label`` says where the labels come from, such as ``column 'y'``; None where that is no question. ``target`` is
    what they became: ``classes``, ``real`` targets, or None without labels.
    """

    rows: int
    dropped: int
    label: str | None
    target: str | None = None


@dataclass(frozen=True)
class CheckpointOpened(Event):
    """A fit with a checkpoint begins; its digest ``fit``, of data, parameters and ``seed``, tells it from others.

    ``steps`` of it, or levels, are in the checkpoint that it goes on from; 0 where it begins anew.
    """

    path: str
    fit: str
    seed: int
    steps: int


@dataclass(frozen=True)
class PartitionSolved(Event):
    """One partition of one tree level was solved (``level`` counts down to 0, the root)."""

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

    ``gap`` is the largest relative gap of the level's partitions, ``start_gap`` the largest before they
    were solved, ``objective`` the weighted mean of their dual objectives, which never falls from level
    to level.
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
    """A step or an epoch of a linear solver is done.

    ``gap`` is the relative duality gap, ``objective`` the primal, ``passes`` those over all rows so far, and
    ``hops`` the hand-overs from worker to worker so far.
    """

    iteration: int
    gap: float
    objective: float
    passes: float
    seconds: float
    hops: int = 0


TELL_SECONDS = 0.1  # between two reports of a `Meter`, and before the first: shorter work is not worth a word
T = TypeVar("T")
Listener = Callable[[Event], object]
_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("dask_odm_listeners", default=())


def report(event: Event) -> None:
    """Hand ``event`` to every listener of the current context, in the order they were added."""
    for listener in _listeners.get():
        listener(event)


@contextmanager
def listen(*listeners: Listener) -> Iterator[None]:
    """Within the ``with`` block, `report` also calls ``listeners``."""
    token = _listeners.set(_listeners.get() + listeners)
    try:
        yield
    finally:
        _listeners.reset(token)


def send_interrupt_again() -> None:
    """Send Ctrl-C once more: it fell into a callback, as of the garbage collector's, where Python drops exceptions."""
    if hasattr(signal, "pthread_kill"):
        main_thread = threading.main_thread().ident or 0
        threading.Timer(0.1, signal.pthread_kill, (main_thread, signal.SIGINT)).start()


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """See to it that no Ctrl-C is dropped, unless someone else looks at what Python drops."""
    if threading.current_thread() is not threading.main_thread() or sys.unraisablehook is not sys.__unraisablehook__:
        yield
        return

    def unraisable(found: Any) -> None:
        if found.exc_type is KeyboardInterrupt:
            send_interrupt_again()
        else:
            sys.__unraisablehook__(found)

    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = sys.__unraisablehook__


class Meter:
    """Tells how far work has come that threads share: they count what they did, and the one that began it reports.

    Listeners belong to that thread, so it has to take part in the work, or to wait for it step by step. Nothing is
    reported of what takes less than `TELL_SECONDS`.

    Parameters
    ----------
    phase : str
    total : int
    unit : str
        As of `Progress`.

    Examples
    --------
    >>> with Meter("pass", 1000, "rows") as meter:
    ...     for rows in (400, 600):
    ...         meter.add(rows)
    """

    def __init__(self, phase: str, total: int, unit: str = "parts") -> None:
        self._phase = phase
        self._total = total
        self._unit = unit
        self._told, self._heard, self._counts = False, bool(_listeners.get()), list[int]()
        self._thread, self._due = threading.get_ident(), time.monotonic() + TELL_SECONDS

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._told or (self._heard and time.monotonic() >= self._due):
            self._tell(self._total)

    def add(self, count: int = 1) -> None:
        """So much more is done."""
        if not self._heard:
            return
        self._counts.append(count)  # any thread may: a lock takes as long as a small group of rows
        if threading.get_ident() == self._thread and time.monotonic() >= self._due:
            self._tell(min(sum(self._counts), self._total))

    def over(self, items: Iterable[T], count: Callable[[T], int] = lambda item: 1) -> Iterator[T]:
        """The items, each counted once the next is asked for."""
        for item in items:
            yield item
            self.add(count(item))

    def _tell(self, done: int) -> None:
        self._told, self._due = True, time.monotonic() + TELL_SECONDS
        report(Progress(self._phase, done, self._total, self._unit, passing=True))
