"""Works that take turns: each goes on alone until it asks for something, and all are answered at once.

Machines of many classes are such works. Each is a solver that asks for one pass over the rows after another; by turns
they share every pass. Threads hold the works where they stand, and never run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar, copy_context
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
_current: ContextVar[Turn[Any] | None] = ContextVar("dask_odm_turn", default=None)


class _Abandoned(BaseException):
    """Ends a work whose answer will not come."""


def current_turn() -> Turn[Any] | None:
    """The work that this is called from; None outside of all."""
    return _current.get()


def take_turns(works: Iterable[Callable[[], T]], answer: Callable[[list[Any]], list[Any]], most: int) -> list[T]:
    """``[work() for work in works]``, where what works `Turn.ask` for is answered together.

    Parameters
    ----------
    works : iterable of callables
        Called in order, in the context of the caller, as soon as fewer than ``most`` have not ended; the first error
        ends all of them.
    answer : callable
        Takes what all that have not ended ask for, in their order, and returns the answers; called in this thread.
    most : int
    """
    turns: list[Turn[T]] = []

    def answered(enough: int) -> None:
        """Answer until fewer than ``enough`` ask."""
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
        """What the work returned."""
        return cast(T, self._answer)

    def go_on(self, answer: Any = None) -> None:
        """Let the work begin, or go on with an ``answer``, until it asks again or ends; raises what ended it."""
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
        """The answer to what the work, which calls this, asks for."""
        if self._is_abandoned:  # it tidies up: no one answers any more
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
        """End the work, unless it has ended, at the next thing that it asks for."""
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
