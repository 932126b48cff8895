"""Seconds of a search, told from the first trials: right where the same work takes as long, and in the right order."""

import logging

import pytest

from dask_odm.learning import solution
from dask_odm.methods.search.forecast import Forecast

WORK = {0: 2.0, 1: 30.0, 2: 0.0, 4: 8.0}
TRIALS = {0: 20, 1: 10, 2: 5, 4: 3}
AFTER = 50.0


@pytest.fixture
def clock(monkeypatch):
    """Give a clock of a machine that does so much work in a second."""
    now = [100.0]
    monkeypatch.setattr(solution.time, "perf_counter", lambda: now[0])

    def work(done: float) -> float:
        now[0] += done / 4.0
        return done / 4.0

    return work


def test_what_is_told_first_is_true_where_work_takes_as_long(clock, caplog):
    whole = (sum(TRIALS[stage] * work for stage, work in WORK.items()) + AFTER) / 4.0
    told = Forecast(WORK.__getitem__, AFTER)
    told.begin(TRIALS)
    assert told.seconds is None
    with caplog.at_level(logging.INFO, "dask_odm"):
        told.tell()  # nothing is known yet
        for stage, count in [(0, 5), (0, 15), (1, 4), (1, 6), (4, 3)]:
            told.add(stage, count, clock(count * WORK[stage]))
            assert told.seconds == pytest.approx(whole)
            told.tell()
    assert caplog.messages == [f"the search takes about {whole:.0f} s, as its first trials tell"]
    clock(AFTER)
    assert told.first == pytest.approx(told.taken) == pytest.approx(whole)


def test_what_the_first_trials_compile_is_not_expected_again(clock):
    whole = (sum(TRIALS[stage] * work for stage, work in WORK.items()) + AFTER) / 4.0
    told = Forecast(WORK.__getitem__, AFTER)
    told.begin(TRIALS)
    told.add(0, 5, clock(5 * WORK[0]) + clock(400.0))
    assert told.seconds > 10 * whole
    told.add(0, 15, clock(15 * WORK[0]))
    assert told.seconds == pytest.approx(whole + 100.0)


def test_trials_that_are_left_out_are_no_longer_expected(clock):
    told = Forecast(WORK.__getitem__, AFTER)
    told.begin(TRIALS)
    told.add(0, 20, clock(40.0))
    told.add(4, 1, clock(8.0))  # nothing of a stage before comes any more, and this one goes on longer than expected
    assert told.seconds == pytest.approx((40.0 + 3 * 8.0 + AFTER) / 4.0)
    told.add(4, 7, clock(56.0))
    assert told.seconds == pytest.approx((40.0 + 8 * 8.0 + AFTER) / 4.0)


def test_trials_of_a_run_before_were_timed_there(clock):
    told = Forecast(WORK.__getitem__, 0.0)
    told.begin(TRIALS)
    told.add(0, 20, 10.0)
    assert told.seconds == pytest.approx((30.0 * 10 + 8.0 * 3) / 4.0)
