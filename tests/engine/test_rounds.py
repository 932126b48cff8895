"""Rounds: the same bits by threads and by any workers, whoever dies; chains that are cut; nothing left behind."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import round_jobs as jobs
from dask_odm.engine import watch
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.rounds import Rounds, places
from dask_odm.errors import ClusterError

HERE = Cluster(None, 1, 2, 10**9, 10**9)
SHARDS = 5  # an odd one out in two of three levels of a sum
MESSAGES = [np.linspace(-1, 1, 4) / (i + 1) for i in range(4)]
POSIX = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes by POSIX signals")


@pytest.fixture(scope="module")
def rounds(tmp_path_factory) -> Callable[..., Rounds]:
    scratch = str(tmp_path_factory.mktemp("states"))

    def begun(cluster: Cluster, **options) -> Rounds:
        told = {"name": "walk", "hold": jobs.rows, "scratch": scratch, **options}
        return Rounds(cluster, range(SHARDS), jobs.start, **told)

    return begun


def asked(r: Rounds, walk=jobs.walk, messages=MESSAGES) -> list[bytes]:
    """Bits of all that a few questions of every kind answer."""
    found = []
    for message in messages:
        found.extend(answer.tobytes() for answer in r.ask(walk, message))
        found.append(r.ask(walk, message, summed=True).tobytes())
        found.append(np.array([*r.read(jobs.distance, 0.3), r.read(jobs.distance, 0.7, summed=True)]).tobytes())
    return found + [state.w.tobytes() for state in r.snapshot()]


@pytest.fixture(scope="module")
def expected():
    """By a loop that knows nothing of rounds."""
    held = [jobs.rows(j) for j in range(SHARDS)]
    states, found = [jobs.start(h) for h in held], []
    for message in MESSAGES:
        for kind in ("ask", "sum"):
            moved = [jobs.walk(h, s, message) for h, s in zip(held, states, strict=True)]
            states, answers = [list(each) for each in zip(*moved, strict=True)]
            a, b, c, d, e = answers
            found += [x.tobytes() for x in answers] if kind == "ask" else [(((a + b) + (c + d)) + e).tobytes()]
        a, b, c, d, e = (jobs.distance(h, s, 0.7) for h, s in zip(held, states, strict=True))
        read = [jobs.distance(h, s, 0.3) for h, s in zip(held, states, strict=True)]
        found.append(np.array([*read, ((a + b) + (c + d)) + e]).tobytes())
    return found + [state.w.tobytes() for state in states]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_of_this_process(rounds, expected, threads):
    assert asked(rounds(Cluster(None, 1, threads, 10**9, 10**9))) == expected


@pytest.mark.slow
def test_any_number_of_workers(rounds, expected, client, scale_workers):
    for count, options in ((1, {}), (3, {"checkpoint_every": 3}), (2, {})):
        scale_workers(client, count)
        assert asked(rounds(Cluster.current(), **options)) == expected, (count, options)


def test_states_stay_where_they_are(rounds, client):
    r = rounds(Cluster.current())
    first, second = r.read(jobs.places_of), r.read(jobs.places_of)
    assert first == second, "a question that changes nothing copies nothing"
    assert [len({pid for pid, *_ in first[a:b]}) for a, b in ((0, 3), (3, 5), (0, 5))] == [1, 1, 2]
    r.ask(jobs.walk, MESSAGES[0])
    third = r.read(jobs.places_of)
    assert [place[:2] for place in third] == [place[:2] for place in first]


@pytest.fixture
def quick_to_look(monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", replace(watch.PATIENCE, poll=0.2))


@POSIX
@pytest.mark.slow
@pytest.mark.usefixtures("quick_to_look")
def test_a_worker_killed_within_a_step(rounds, expected, client, tmp_path):
    """After its step was done, and before anyone knew: it runs twice."""
    states = tmp_path / "states"
    states.mkdir()
    for steps, every in ((0, 100), (6, 3)):
        deadly = jobs.DeadlyWalk(str(tmp_path), steps, jobs.rows(1)[0].tobytes())
        assert asked(rounds(Cluster.current(), checkpoint_every=every, scratch=str(states)), deadly) == expected
        assert (tmp_path / f"killed-{steps}").exists()
        client.wait_for_workers(2, timeout=60)
    assert len(os.listdir(states)) == SHARDS, "one checkpoint is kept"


@POSIX
@pytest.mark.slow
@pytest.mark.usefixtures("quick_to_look")
def test_all_workers_killed(rounds, expected, start_workers, tmp_path):
    """Within a step and between questions: they come back under other addresses."""
    with start_workers(2) as client:
        pids = tuple(client.run(os.getpid).values())
        deadly = jobs.DeadlyWalk(str(tmp_path), 4, jobs.rows(1)[0].tobytes(), pids)
        r = rounds(Cluster.current(), checkpoint_every=3)
        assert asked(r, deadly) == expected
        client.wait_for_workers(2, timeout=60)
        for pid in client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)
        assert [state.w.tobytes() for state in r.snapshot()] == expected[-SHARDS:]


@POSIX
@pytest.mark.slow
@pytest.mark.usefixtures("quick_to_look")
def test_no_more_is_done_again_than_since_the_checkpoint(client, tmp_path):
    shards = [(str(tmp_path), j) for j in range(2)]
    r = Rounds(
        Cluster.current(),
        shards,
        jobs.start,
        name="walk",
        hold=jobs.noted_rows,
        checkpoint_every=2,
        scratch=str(tmp_path),
    )
    here = Rounds(HERE, range(2), jobs.start, name="walk", hold=jobs.rows)
    for message in MESSAGES[:3]:
        r.ask(jobs.walk, message)
        here.ask(jobs.walk, message)
    tasks = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
    assert len(tasks) <= 2 * 4, f"held, checkpoint, a step and perhaps its answer of two shards: {tasks}"
    assert len(client.futures) == 2 * 2, "all that the client holds on to: futures of what is held, and of states"
    killed = r.read(jobs.places_of)[0][0]
    os.kill(killed, signal.SIGKILL)
    assert [s.w.tobytes() for s in r.snapshot()] == [s.w.tobytes() for s in here.snapshot()]
    made = [len((tmp_path / f"rows-{j}").read_text().splitlines()) for j in range(2)]
    assert made == [2, 1], "what the other worker holds is not made again"


def test_going_on_from_a_snapshot(rounds, client, tmp_path):
    whole = rounds(HERE)
    asked(whole)
    for cluster in (HERE, Cluster.current()):
        first = rounds(cluster, scratch=str(tmp_path))
        asked(first, messages=MESSAGES[:2])
        second = rounds(cluster, states=first.snapshot(), scratch=str(tmp_path))
        assert asked(second, messages=MESSAGES[2:])[-SHARDS:] == [s.w.tobytes() for s in whole.snapshot()]


def test_large_messages_are_sent_once(rounds, client):
    message = np.arange(4000.0)
    r = rounds(Cluster.current())
    for answer in r.ask(jobs.remembered, message):
        np.testing.assert_array_equal(answer, message)
    keys = client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
    assert sum("-read-only-" in key for key in keys) == 1


def test_what_a_step_is_given_is_read_only(rounds, client):
    for cluster in (HERE, Cluster.current()):
        for what in ("held", "state"):
            with pytest.raises(ValueError, match="read-only"):
                rounds(cluster).ask(jobs.writing, what)


def test_messages_are_the_callers_to_change(rounds, client):
    for cluster in (HERE, Cluster.current()):
        r, message = rounds(cluster), np.ones(4)
        r.ask(jobs.remembered, message)
        message[:] = 7.0
        assert r.snapshot()[0].w.tolist() == [1.0] * 4


def test_an_error_leaves_no_tasks(rounds, client):
    r = rounds(Cluster.current())
    r.ask(jobs.walk, MESSAGES[0])
    with pytest.raises(ZeroDivisionError, match="in a step"):
        r.ask(jobs.failing, jobs.rows(3)[0, 0])
    with pytest.raises(ClusterError, match="rounds of 'walk' ended with an error; begin anew"):
        r.ask(jobs.walk, MESSAGES[0])
    del r
    nothing_left(client)


def test_nothing_is_left_once_it_is_let_go(rounds, client):
    asked(rounds(Cluster.current()))
    nothing_left(client)


def nothing_left(client) -> None:
    deadline = time.monotonic() + 20
    while left := client.run_on_scheduler(lambda dask_scheduler: list(map(str, dask_scheduler.tasks))):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_an_error_in_this_process_changes_no_state(rounds):
    r = rounds(HERE)
    before = [state.w.tobytes() for state in r.snapshot()]
    with pytest.raises(ZeroDivisionError):
        r.ask(jobs.failing, jobs.rows(3)[0, 0])
    assert [state.w.tobytes() for state in r.snapshot()] == before


def test_places():
    assert places([None] * 5, ["a", "b"]) == ["a", "a", "a", "b", "b"]
    assert places(["a", "a", "b", "b"], ["b"]) == ["b"] * 4
    assert places(["a", "a", "b", "b"], ["b", "c"]) == ["c", "c", "b", "b"], "who is left keeps what it has"
    assert places(["b"] * 4, ["b", "c"]) == ["b", "b", "c", "c"], "who comes back gets its share again"
    assert places(["a", "b"], []) == [None, None]
    assert places(["a"], ["a", "b", "c"]) == ["a"]
