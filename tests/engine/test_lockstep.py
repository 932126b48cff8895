"""Works that take turns: answers are given together, one runs at a time, and an error or an interrupt ends all."""

from __future__ import annotations

import threading

import pytest

from dask_odm.engine.passes import current_turn, take_turns
from dask_odm.events import Progress, listen, report


def counting(number: int, asks: int, log: list):
    """A work that asks so often, and adds up the answers."""

    def work() -> int:
        total = 0
        for i in range(asks):
            log.append((number, i))
            total += current_turn.get().ask((number, i))
        return total

    return work


def test_all_that_have_not_ended_are_answered_together():
    log, asked = [], []

    def answer(questions: list) -> list:
        asked.append(list(questions))
        return [10 * number + i for number, i in questions]

    found = take_turns([counting(1, 2, log), counting(2, 0, log), counting(3, 3, log)], answer, 9)
    assert found == [10 + 11, 0, 30 + 31 + 32]
    assert asked == [[(1, 0), (3, 0)], [(1, 1), (3, 1)], [(3, 2)]]
    assert log == [pair for questions in asked for pair in questions], "they go on in order, one at a time"
    assert current_turn.get() is None


def test_where_one_ends_the_next_begins():
    log, asked = [], []

    def answer(questions: list) -> list:
        asked.append([number for number, _ in questions])
        return [0] * len(questions)

    take_turns((counting(number, asks, log) for number, asks in enumerate([1, 3, 0, 2, 1])), answer, 2)
    assert asked == [[0, 1], [1, 3], [1, 3], [4]]


def test_listeners_of_the_caller_hear_the_works():
    heard: list = []
    with listen(heard.append):
        take_turns([lambda: report(Progress("work", 0, 1))] * 2, lambda questions: questions, 9)
    assert heard == [Progress("work", 0, 1)] * 2


@pytest.mark.parametrize("where", ["a work", "the answer"])
def test_an_error_ends_all_works(where):
    before, cleaned = threading.active_count(), []

    def waits() -> None:
        try:
            current_turn.get().ask(0)
        finally:
            cleaned.append(True)

    def fails() -> None:
        current_turn.get().ask(0)
        if where == "a work":
            raise ZeroDivisionError
        raise AssertionError("it was not answered")

    def answer(questions: list) -> list:
        if where == "the answer":
            raise ZeroDivisionError
        return questions

    def last() -> None:
        waits()
        waits()

    with pytest.raises(ZeroDivisionError):
        take_turns([fails, last], answer, 9)
    assert cleaned
    assert threading.active_count() == before


def test_a_work_that_asks_while_it_tidies_up_ends():
    def work() -> None:
        try:
            current_turn.get().ask(0)
        finally:
            current_turn.get().ask(1)

    def ends() -> None:
        with pytest.raises(ZeroDivisionError):
            take_turns([work], lambda _: 1 / 0, 1)

    ended = threading.Thread(target=ends, daemon=True)
    ended.start()
    ended.join(5)
    assert not ended.is_alive()
