"""Records of steps: told once, when they are certain, and what is told is what the history keeps."""

from dask_odm.learning.solution import StepLog


def test_a_corrected_record_is_told_as_it_is_kept():
    told: list = []
    log = StepLog(told.append)
    log.add(0.5, 2.0, 1)
    assert told == [], "it may still change"
    log.amend(gap=0.4, passes=2)
    log.add(0.1, 1.0, 3, hops=7)
    assert told == log.history[:1]
    log.settle()
    log.settle()
    assert told == log.history
    assert [(r["iteration"], r["gap"], r["passes"]) for r in told] == [(0, 0.4, 2), (1, 0.1, 3)]
    assert told[1]["hops"] == 7


def test_a_lost_run_is_taken_up_without_its_last_record():
    first = StepLog(lambda record: None)
    for gap in (0.5, 0.2, 0.1):
        first.add(gap, 1.0, 1)
    told: list = []
    rest = StepLog(told.append)
    assert rest.take_up(first.history) == first.history[-1]
    rest.add(0.1, 1.0, 3)
    rest.settle()
    assert [r["iteration"] for r in told] == [2]
    assert [r["gap"] for r in rest.history] == [0.5, 0.2, 0.1]
    assert told[0]["seconds"] >= first.history[-1]["seconds"]
