"""Progress bars, and tables of a tree's levels and a solver's steps."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from dask import config

from dask_odm.events import Event, IterationFinished, LevelFinished, Progress, has_listeners, listen

# title, name in LevelFinished and in a history record, width, format
_COLUMNS = (
    ("level", "level", 5, "d"),
    ("partitions", "partitions", 10, "d"),
    ("rows", "rows", 11, "d"),
    ("sweeps", "sweeps", 7, "d"),
    ("converged", "converged", 9, "d"),
    ("start gap", "start_gap", 9, ".1e"),
    ("gap", "gap", 8, ".1e"),
    ("objective", "objective", 13, ".6g"),
    ("seconds", "seconds", 8, ".2f"),
)
_STEP_COLUMNS = (
    ("iteration", "iteration", 9, "d"),
    ("gap", "gap", 8, ".1e"),
    ("objective", "objective", 13, ".6g"),
    ("passes over rows", "passes", 16, ".4g"),
    ("seconds", "seconds", 8, ".2f"),
)
_MACHINE = ("machine", "machine", 7, "d")
Columns = tuple[tuple[str, str, int, str], ...]


def level_header() -> str:
    """Return the header of the table of levels, whose lines `level_row` makes."""
    return _header(_COLUMNS)


def _header(columns: Columns) -> str:
    return "  ".join(title.rjust(width) for title, _, width, _ in columns)


def _row(columns: Columns, record: Mapping[str, Any]) -> str:
    return "  ".join(_cell(record.get(name), spec).rjust(width) for _, name, width, spec in columns)


def step_header() -> str:
    """Return the header of the table of steps, whose lines `step_row` makes."""
    return _header(_STEP_COLUMNS)


def step_row(step: IterationFinished | Mapping[str, Any]) -> str:
    """Return one line of the table of a solver's steps, as `level_row` does for levels."""
    return _row(_STEP_COLUMNS, step if isinstance(step, Mapping) else vars(step))


def level_row(level: LevelFinished | Mapping[str, Any]) -> str:
    """Return one line of the table of levels, for an event or a record of a level.

    Missing values are shown as ``-``.
    """
    return _row(_COLUMNS, level if isinstance(level, Mapping) else vars(level))


def format_levels(levels: Iterable[LevelFinished | Mapping[str, Any]]) -> str:
    """Return the table of a tree's levels (events or records), with a header and without a final newline."""
    return "\n".join([level_header(), *map(level_row, levels)])


def format_history(history: Sequence[Mapping[str, Any]], most: int = 10) -> str:
    """Return the table of a fitted model's ``history_``, of levels or of steps, without a final newline.

    For several machines it has one line for the end of each of the first ``most``, since there may be hundreds.
    """
    columns = _STEP_COLUMNS if history and "iteration" in history[0] else _COLUMNS
    last = {record["machine"]: record for record in history if "machine" in record}
    if len(last) < 2:
        return "\n".join([_header(columns), *(_row(columns, record) for record in history)])
    columns = (_MACHINE, *columns)
    rows = [_row(columns, record) for record in list(last.values())[:most]]
    more = [f"… and {len(last) - most} more machines"] if len(last) > most else []
    return "\n".join([_header(columns), *rows, *more])


def _cell(value: Any, spec: str) -> str:
    return "-" if value is None else format(value, spec)


@cache
def _tqdm() -> Any:
    """Return tqdm's bars for this process: widgets in a notebook that has ipywidgets, else text."""
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # tqdm warns without ipywidgets, which is optional
        from tqdm.auto import tqdm
    return tqdm


def _is_watched() -> bool:
    """Return whether somebody sees what is written to stderr: it is a terminal's or a notebook's."""
    return sys.stderr is not None and (sys.stderr.isatty() or _in_notebook())


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which shows what is written to its stderr."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


class ProgressBars:
    """A listener that draws one bar per phase, and one line per tree level or step of a linear solver, on stderr.

    Parameters
    ----------
    force : bool, default=False
        Draw even if stderr is neither a terminal nor a notebook's; by default nothing is drawn there.

    Notes
    -----
    A phase ends with the event whose ``done`` is its ``total``; a phase of unknown total ends when it starts
    anew or at `close`. The bar of a passing phase, such as a pass over the rows, goes when it ends. Bars exist only
    while a phase runs, and stay in their process: a copy or pickle holds ``force`` and nothing else, so that
    estimators with this callback can be cloned and pickled.

    Examples
    --------
    >>> from dask_odm.events import Progress, listen, report
    >>> with listen(ProgressBars()):
    ...     report(Progress("ingest", 0, 2))
    ...     report(Progress("ingest", 2, 2))
    """

    def __init__(self, force: bool = False) -> None:
        self.force = force
        self._forget()

    def _forget(self) -> None:
        self._bars: dict[str, Any] = {}
        self._last_level: int | None = None
        self._last_step: int | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(force={self.force})"

    def __getstate__(self) -> dict[str, bool]:
        return {"force": self.force}

    def __setstate__(self, state: dict[str, bool]) -> None:
        self.force = state["force"]
        self._forget()

    def __call__(self, event: Event) -> None:
        """Show ``event``, if its kind is shown, on a terminal, in a notebook, or if ``force`` is set."""
        if sys.stderr is None or not (self.force or _is_watched()):
            return
        if isinstance(event, Progress):
            self._advance(event)
        elif isinstance(event, LevelFinished):
            self._write_level(event)
        elif isinstance(event, IterationFinished):
            self._write_step(event)

    def close(self) -> None:
        """Close the bars of phases that did not finish, such as after an error."""
        for bar in self._bars.values():
            bar.close()
        self._forget()

    def _advance(self, event: Progress) -> None:
        bar = self._bars.get(event.phase)
        if bar is not None and event.done < bar.n:
            self._bars.pop(event.phase).close()
            bar = None
        if bar is None:
            unit = f" {event.unit}"
            bar = _tqdm()(
                desc=event.phase, total=event.total, unit=unit, initial=event.done, leave=not event.passing,
                file=sys.stderr, dynamic_ncols=True, unit_scale=(event.total or 0) >= 100_000,
            )  # fmt: skip
            self._bars[event.phase] = bar
        bar.total = event.total
        bar.update(event.done - bar.n)
        if event.total is not None and event.done >= event.total:
            self._bars.pop(event.phase).close()

    def _write_level(self, event: LevelFinished) -> None:
        starts_table = self._last_level is None or event.level >= self._last_level
        self._last_level = event.level
        lines = [level_header()] if starts_table else []
        _tqdm().write("\n".join([*lines, level_row(event)]), file=sys.stderr)

    def _write_step(self, event: IterationFinished) -> None:
        starts_table = self._last_step is None or event.iteration <= self._last_step
        self._last_step = event.iteration
        lines = [step_header()] if starts_table else []
        _tqdm().write("\n".join([*lines, step_row(event)]), file=sys.stderr)


@contextmanager
def shown_if_long() -> Iterator[None]:
    """Draw passing progress bars on stderr for work that takes longer than ``dask_odm.progress-after`` seconds.

    This key of Dask's configuration is 5 by default; None turns the bars off. They are not drawn if stderr is neither a
    terminal nor a notebook's, if somebody listens already, or in threads and processes of a parallel search.
    """
    seconds = config.get("dask_odm.progress-after", 5.0)
    here = threading.current_thread() is threading.main_thread() and multiprocessing.parent_process() is None
    if seconds is None or has_listeners() or not here or not _is_watched():
        yield
        return
    due = time.monotonic() + seconds
    bars = ProgressBars()

    def show(event: Event) -> None:
        if isinstance(event, Progress) and time.monotonic() >= due:
            bars(replace(event, passing=True))

    try:
        with listen(show):
            yield
    finally:
        bars.close()
