"""Meters: work that threads share tells how far it is, in the thread that waits for it; short work says nothing."""

import gc
import io
import signal
import sys
import time

import numpy as np
import pytest

import dask_odm.events
from dask_odm import ODMClassifier, ProgressBars
from dask_odm.events import Meter, Progress, listen
from dask_odm.linalg.threads import run_threads
from dask_odm.solvers import SODM, Landmark
from small_stores import store_of


@pytest.fixture
def at_once(monkeypatch):
    """Everything is told, however short."""
    monkeypatch.setattr(dask_odm.events, "TELL_SECONDS", 0.0)


def test_a_meter_counts_what_all_threads_do(at_once) -> None:
    told: list[Progress] = []
    with listen(told.append):
        found = run_threads(lambda i: i * i, range(50), 4, "squares")
    assert found == [i * i for i in range(50)]
    counts = [event.done for event in told]
    assert counts == sorted(counts)
    assert told[-1] == Progress("squares", 50, 50, "parts", passing=True)


def test_short_work_and_work_that_nobody_listens_to_says_nothing() -> None:
    told: list[Progress] = []
    with listen(told.append), Meter("short", 3) as meter:
        assert list(meter.over("abc")) == ["a", "b", "c"]
    assert told == []


@pytest.mark.parametrize(("options", "phases"), [
    ({"solver": Landmark(30)}, {"pass", "kernel values", "preconditioner", "read"}),
    ({"solver": "exact"}, {"kernel product", "kernel values", "read"}),
    ({"solver": SODM(4)}, {"level 1", "level 0"}),
    ({"kernel": "linear"}, {"pass"}),
])  # fmt: skip
def test_every_phase_of_a_fit_has_its_bar(at_once, tmp_path, monkeypatch, options, phases) -> None:
    """In rows where rows are passed, up to all of them; and a terminal shows them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3200, 3)).astype(np.float32)
    store = store_of(tmp_path / "a.zarr", X, np.where((X**2).sum(1) > 2.4, "a", "b"), chunk_rows=600)
    told: list[Progress] = []
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    bars = ProgressBars(force=True)
    ODMClassifier(**options, random_state=0, callbacks=[told.append, bars]).fit(store.path)
    bars.close()
    found = {event.phase for event in told if isinstance(event, Progress)}
    assert phases <= found
    assert all(f"{phase}:" in terminal.getvalue() for phase in phases)
    passes = [event for event in told if isinstance(event, Progress) and event.phase == "pass"]
    assert all(event.unit == "rows" for event in passes)
    assert not passes or passes[-1].done == passes[-1].total


def test_an_interrupt_is_not_lost_where_python_drops_exceptions(monkeypatch):
    """Dask has the garbage collector call it: one Ctrl-C in ten fell in there, and the fit went on to its end."""

    def collected(phase, info):
        gc.callbacks.remove(collected)
        signal.raise_signal(signal.SIGINT)

    def stop(event):
        if not stopped:
            stopped.append(event)
            gc.callbacks.append(collected)
            gc.collect()
            time.sleep(5)

    stopped = []
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with pytest.raises(KeyboardInterrupt):
        ODMClassifier("linear", callbacks=[stop]).fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])
    assert stopped
    assert sys.unraisablehook is sys.__unraisablehook__
