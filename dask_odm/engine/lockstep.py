"""Run several functions in lockstep: each runs alone until it asks for something, then all requests are answered.

The functions, called works, are solvers of many classes' machines. Each asks for one pass over the rows after another;
in lockstep, they share every pass. A thread holds each work at its place, and no two of them run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar, copy_context
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
_current: ContextVar[Turn[Any] | None] = ContextVar("dask_odm_turn", default=None)


class _Abandoned(BaseException):
    """Raised in a work to end it, because no answer will come."""


def current_turn() -> Turn[Any] | None:
    """Return the `Turn` of the work that calls this; None outside of all works."""
    return _current.get()


def take_turns(works: Iterable[Callable[[], T]], answer: Callable[[list[Any]], list[Any]], most: int) -> list[T]:
    """Return ``[work() for work in works]``; what the works `Turn.ask` for is answered together.

    Works are called in order, in the context of the caller, as soon as fewer than ``most`` are unfinished. The first
    error ends all of them. ``answer`` takes the requests of all unfinished works, in their order, and returns the
    answers; it is called in this thread.
    """
    turns: list[Turn[T]] = []

    def answered(enough: int) -> None:
        """Answer requests until fewer than ``enough`` works ask."""
        while len(asking := [turn for turn in turns if turn.asks]) >= enough:
            for turn, each in zip(asking, answer([turn.asked for turn in asking]), strict=True):
                turn.go_on(each)

    try:
        for work in works:
            turns.append(Turn(work))
            turns[-1].go_on()
            answered(most)
        answered(1)
    finally:
        for turn in turns:
            turn.abandon()
    return [turn.result for turn in turns]


class Turn(Generic[T]):
    """One work, in a thread of its own that runs only while `go_on` waits for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work, self._error = work, cast(BaseException | None, None)
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._answer: Any = None
        self._is_abandoned = False
        self.asks, self.asked = False, cast(Any, None)
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True)

    @property
    def result(self) -> T:
        """The work's return value."""
        return cast(T, self._answer)

    def go_on(self, answer: Any = None) -> None:
        """Start the work, or resume it with an ``answer``, until it asks again or ends; raise what ended it."""
        self._answer = answer
        self.asks = False
        self.asked = None
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._mine.release()
        self._theirs.acquire()
        if self._error is not None:
            raise self._error

    def ask(self, asked: Any) -> Any:
        """Return the answer to a request of the work, which calls this from its thread."""
        if self._is_abandoned:  # the work asks while it cleans up, and nobody answers any more
            raise _Abandoned
        self.asks = True
        self.asked = asked
        self._theirs.release()
        self._mine.acquire()
        if self._is_abandoned:
            raise _Abandoned
        answer = self._answer
        self._answer = None
        return answer

    def abandon(self) -> None:
        """End the work at its next request, unless it has ended."""
        self._is_abandoned = True
        if self._thread.is_alive():
            self._mine.release()
            self._thread.join()

    def _run(self) -> None:
        _current.set(self)
        try:
            self._answer = self._work()
        except _Abandoned:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._theirs.release()
