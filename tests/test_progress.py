"""Progress bars: drawn on a terminal, a line a minute elsewhere, and nothing to carry when copied."""

import copy
import io
import pickle
import re
import sys
from dataclasses import asdict
from textwrap import dedent

import pytest
from dask import config

from dask_odm import ODMClassifier
from dask_odm.datasets import make_shells
from dask_odm.events import IterationFinished, LevelFinished, PartitionSolved, Progress, listen, report
from dask_odm.progress import LEVELS, STEPS, ProgressBars, format_history, header, line, one_a_minute, shown_if_long
from dask_odm.solvers import SODM
from notebooks import new_notebook, run_notebook, shown

LEAVES = LevelFinished(2, 4, 1000, 31, 4, 0.9, 8.5e-4, 13.25, 1.5)
ROOT = LevelFinished(0, 1, 1000, 3, 1, 2e-2, 6.1e-4, 13.5, 0.25)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch) -> Terminal:
    """Put a terminal in stderr's place; within the test, since pytest sets stderr anew after the fixtures."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def run_phases() -> None:
    for done in range(4):
        report(Progress("ingest", done, 3))
    report(PartitionSolved(2, 0, 250, 8, 8e-4, 13.0, 0.5))
    report(LEAVES)
    report(ROOT)


def test_one_bar_per_phase_and_a_row_per_level(monkeypatch, capsys) -> None:
    terminal = open_terminal(monkeypatch)
    bars = ProgressBars()
    with listen(bars):
        run_phases()
    shown = terminal.getvalue()
    assert "ingest" in shown
    assert "3/3" in shown
    assert [shown.count(line) for line in (header(LEVELS), line(LEVELS, vars(LEAVES)), line(LEVELS, vars(ROOT)))] == [
        1,
        1,
        1,
    ]
    assert bars._bars == {}
    assert capsys.readouterr().out == ""


def test_a_second_tree_gets_its_own_header(monkeypatch) -> None:
    terminal = open_terminal(monkeypatch)
    with listen(ProgressBars()):
        run_phases()
        run_phases()
    assert terminal.getvalue().count(header(LEVELS)) == 2


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_without_a_terminal_it_has_lines_in_place_of_bars(monkeypatch, seconds) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr("dask_odm.progress.LOG_SECONDS", seconds)
    with listen(ProgressBars()):
        run_phases()
        report(Progress("read", 1234, None, "rows"))
    phases = ["ingest: 0 of 3 chunks", "ingest: 1 of 3 chunks", "ingest: 2 of 3 chunks", "ingest: 3 of 3 chunks"]
    levels = [header(LEVELS), line(LEVELS, vars(LEAVES)), line(LEVELS, vars(ROOT))]
    wanted = levels if seconds else [*phases, *levels, "read: 1,234 rows"]
    assert sys.stderr.getvalue().splitlines() == wanted


def test_a_log_has_a_line_a_minute(monkeypatch) -> None:
    now, heard = [0.0], []
    monkeypatch.setattr("dask_odm.progress.time.monotonic", lambda: now[0])
    log = one_a_minute(heard.append)
    for seconds in (1, 59, 61, 100, 122, 181, 183):
        now[0] = seconds
        log(PartitionSolved(2, 0, 250, 8, 8e-4, 13.0, 0.5))  # is not shown
        log(Progress("pass", seconds, 200))
    assert [event.done for event in heard] == [61, 122, 183]


def test_bars_are_forced_without_a_terminal(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with listen(ProgressBars(force=True)):
        run_phases()
    assert "3/3" in sys.stderr.getvalue()


@pytest.mark.parametrize("watched", [True, False], ids=["bar", "line"])
def test_the_seconds_of_a_phase_are_told(monkeypatch, watched) -> None:
    monkeypatch.setattr("dask_odm.progress.LOG_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with listen(ProgressBars(force=watched)):
        report(Progress("search", 0, 60, "settings"))
        report(Progress("search", 20, 60, "settings", seconds=12.3))
        report(Progress("search", 60, 60, "settings"))
    assert re.search(r"search, about 12 s in all: .*(/| of )60", sys.stderr.getvalue())


def test_silent_without_stderr(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with listen(ProgressBars(), ProgressBars(force=True)):
        run_phases()


def test_interleaved_phases_have_a_bar_each(monkeypatch) -> None:
    open_terminal(monkeypatch)
    bars = ProgressBars()
    for phase, done in [("a", 0), ("b", 0), ("a", 1), ("b", 1)]:
        bars(Progress(phase, done, 2))
    assert sorted(bars._bars) == ["a", "b"]
    assert {bar.n for bar in bars._bars.values()} == {1}
    bars.close()
    assert bars._bars == {}


def test_a_phase_that_starts_anew_starts_at_zero(monkeypatch) -> None:
    open_terminal(monkeypatch)
    bars = ProgressBars()
    bars(Progress("pass", 5, 9))
    bars(Progress("pass", 0, 4))
    assert (bars._bars["pass"].n, bars._bars["pass"].total) == (0, 4)
    bars.close()


def test_an_unknown_total_counts_without_an_end(monkeypatch) -> None:
    terminal = open_terminal(monkeypatch)
    bars = ProgressBars()
    bars(Progress("read", 0, None, "rows"))
    bars(Progress("read", 7, None, "rows"))
    assert bars._bars["read"].n == 7
    bars.close()
    assert "7 rows" in terminal.getvalue()


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda bars: pickle.loads(pickle.dumps(bars))])
def test_copies_carry_settings_only(monkeypatch, copied) -> None:
    open_terminal(monkeypatch)
    bars = ProgressBars(force=True)
    bars(Progress("ingest", 1, 3))
    twin = copied(bars)
    assert (twin.force, twin._bars) == (True, {})
    assert bars._bars["ingest"].n == 1
    twin(Progress("ingest", 0, 3))
    twin.close()
    bars.close()


def test_table_lines_up_and_takes_records_too() -> None:
    table = format_history([asdict(LEAVES), asdict(ROOT)])
    lines = table.split("\n")
    assert lines[0].split()[:3] == ["level", "partitions", "rows"]
    assert lines[2].split() == ["0", "1", "1000", "3", "1", "2.0e-02", "6.1e-04", "13.5", "0.25"]
    assert len({len(line) for line in lines}) == 1
    assert table.count("\n") == 2
    assert line(LEVELS, {"level": 1, "partitions": 2}).split() == ["1", "2", *"-------"]


@pytest.mark.slow
def test_in_a_notebook_it_draws_without_being_forced_and_only_when_asked(tmp_path) -> None:
    listening = """
        from dask_odm.progress import ProgressBars
        from dask_odm.events import LevelFinished, Progress, listen, report
        def run():
            for done in range(4):
                report(Progress("ingest", done, 3))
            report(LevelFinished(0, 1, 1000, 3, 1, 2e-2, 6.1e-4, 13.5, 0.25))
        """
    notebook = run_notebook(
        new_notebook(dedent(listening), "run()", "with listen(ProgressBars()):\n    run()"), tmp_path
    )
    quiet, loud = notebook.cells[-2:]
    assert quiet.outputs == []
    text = shown(notebook, "stderr")
    assert line(LEVELS, vars(ROOT)) in text.splitlines()
    widgets = [o for o in loud.outputs if "application/vnd.jupyter.widget-view+json" in o.get("data", {})]
    assert ("3/3" in text) != bool(widgets)  # text, or widgets where ipywidgets is installed
    assert "Warning" not in text


def test_steps_of_a_linear_solver_make_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        {"iteration": 0, "gap": 3.5, "objective": 12.0, "passes": 1, "seconds": 0.1},
        {"iteration": 1, "gap": 1e-7, "objective": 8.25, "passes": 3, "seconds": 0.25},
    ]
    assert [line.split() for line in format_history(steps).splitlines()] == [
        ["iteration", "gap", "objective", "passes", "over", "rows", "seconds"],
        ["0", "3.5e+00", "12", "1", "0.10"],
        ["1", "1.0e-07", "8.25", "3", "0.25"],
    ]
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    bars = ProgressBars(force=True)
    for step in (*steps, *steps):
        bars(IterationFinished(**step))
    lines = stream.getvalue().splitlines()
    assert lines.count(header(STEPS)) == 2, "a fit that starts anew has a table of its own"
    assert lines[2] == line(STEPS, steps[1])


def test_of_many_machines_a_line_tells_what_each_ended_with() -> None:
    record = {"iteration": 0, "gap": 0.5, "objective": 2.0, "passes": 1, "seconds": 0.1}
    history = [record | {"machine": i, "iteration": step} for i in range(12) for step in range(3)]
    title, *lines, last = format_history(history).splitlines()
    assert title.split()[:2] == ["machine", "iteration"]
    assert [line.split()[:2] for line in lines] == [[str(i), "2"] for i in range(10)]
    assert last == "… and 2 more machines"
    assert format_history(history[:3]) == format_history([record | {"iteration": step} for step in range(3)])


def small_fit(**parameters: object) -> None:
    """Fit by a tree, which reports its levels."""
    X, y = make_shells(600, 3)
    ODMClassifier(solver=SODM(4), **parameters).fit(X, y)


@pytest.mark.parametrize("parameters", [{}, {"callbacks": []}])
@pytest.mark.parametrize(("seconds", "after"), [(0.0, 5.0), (60.0, 5.0), (0.0, None)])
def test_a_long_fit_without_a_terminal_has_a_line_a_minute(monkeypatch, parameters, seconds, after) -> None:
    monkeypatch.setattr("dask_odm.progress.LOG_SECONDS", seconds)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with config.set({"dask_odm.progress-after": after}):
        small_fit(**parameters)
    lines = stream.getvalue().splitlines()
    wanted = not parameters and seconds == 0.0 and after is not None
    assert (header(LEVELS) in lines) is wanted, "the first line comes after a minute, unless it is turned off"
    assert bool(lines) is wanted


@pytest.mark.parametrize(("settings", "parameters", "terminal", "drawn"), [
    ({"dask_odm.progress-after": 0}, {}, True, True),
    ({"dask_odm.progress-after": 0}, {}, False, False),  # the stderr of a script may be a file: a line a minute
    ({"dask_odm.progress-after": 0}, {"callbacks": []}, True, False),
    ({"dask_odm.progress-after": None}, {}, True, False),
    ({}, {}, True, False),  # the fit takes less than five seconds
])  # fmt: skip
def test_a_long_fit_says_what_it_does(monkeypatch, settings, parameters, terminal, drawn) -> None:
    monkeypatch.setattr("dask_odm.events.TELL_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", stream := Terminal() if terminal else io.StringIO())
    with config.set(settings):
        small_fit(**parameters)
    assert ("level 0" in stream.getvalue()) is drawn


def test_no_second_bars_beside_a_listener(monkeypatch) -> None:
    terminal = open_terminal(monkeypatch)
    with config.set({"dask_odm.progress-after": 0}), listen(lambda event: None), shown_if_long():
        run_phases()
    assert terminal.getvalue() == ""


def test_bars_of_long_work_go_when_it_ends(monkeypatch) -> None:
    terminal = open_terminal(monkeypatch)
    with config.set({"dask_odm.progress-after": 0}), shown_if_long():
        run_phases()
    shown = terminal.getvalue()
    assert "ingest" in shown
    assert header(LEVELS) not in shown
    assert shown.endswith("\r")
