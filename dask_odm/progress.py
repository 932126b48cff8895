"""Progress bars, and tables of a tree's levels and a solver's steps."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Any

from dask import config

from dask_odm.events import Event, IterationFinished, LevelFinished, Listener, Progress, has_listeners, listen

LOG_SECONDS = 60.0  # between two lines about running phases, where no bars are drawn
Columns = tuple[str, ...]  # names in an event and in a history record
LEVELS: Columns = ("level", "partitions", "rows", "sweeps", "converged", "start_gap", "gap", "objective", "seconds")
STEPS: Columns = ("iteration", "gap", "objective", "passes", "seconds")
NODES: Columns = ("level", "nodes", "cells", "least_rows", "most_rows", "seconds")
CELLS: Columns = (
    "iteration", "rows", "cells", "mean_classes", "gap", "worst_gap", "mean_gap", "objective", "seconds"
)  # fmt: skip
_TITLES = {"passes": "passes over rows", "mean_classes": "classes a cell"}  # other names have their own
# else that of the title
_WIDTHS = {"nodes": 7, "cells": 7, "sweeps": 7, "seconds": 8, "gap": 8, "rows": 11, "most_rows": 11, "objective": 13}
_FORMATS = {
    "gap": ".1e", "start_gap": ".1e", "worst_gap": ".1e", "mean_gap": ".1e", "objective": ".6g", "passes": ".4g",
    "mean_classes": ".3g", "seconds": ".2f",
}  # fmt: skip


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("_", " "))


def _aligned(name: str, text: str) -> str:
    return text.rjust(_WIDTHS.get(name, len(_title(name))))


def header(columns: Columns) -> str:
    """Return the header of a table, whose lines `line` makes."""
    return "  ".join(_aligned(name, _title(name)) for name in columns)


def line(columns: Columns, record: Mapping[str, Any]) -> str:
    """Return one line of a table for a record; missing values are shown as ``-``."""
    values = {name: record.get(name) for name in columns}
    cells = {name: "-" if value is None else format(value, _FORMATS.get(name, "")) for name, value in values.items()}
    return "  ".join(map(_aligned, cells, cells.values()))


def format_history(history: Sequence[Mapping[str, Any]], most: int = 10) -> str:
    """Return the tables of a fitted model's ``history_``, of levels and of steps, without a final newline.

    For several machines it has one line for the end of each of the first ``most``, since there may be hundreds.
    """
    last = {record["machine"]: record for record in history if "machine" in record}
    if len(last) < 2:
        parts = groupby(history, _columns_of)
        return "\n\n".join("\n".join([header(each), *(line(each, record) for record in of)]) for each, of in parts)
    columns = ("machine", *_columns_of(history[0]))
    rows = [line(columns, record) for record in list(last.values())[:most]]
    more = [f"… and {len(last) - most} more machines"] if len(last) > most else []
    return "\n".join([header(columns), *rows, *more])


def _columns_of(record: Mapping[str, Any]) -> Columns:
    """Return the columns of the table that a record of a history belongs to."""
    if "iteration" in record:
        return CELLS if "worst_gap" in record else STEPS
    return NODES if "nodes" in record else LEVELS


@cache
def _tqdm() -> Any:
    """Return tqdm's bars for this process: widgets in a notebook that has ipywidgets, else text."""
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # tqdm warns without ipywidgets, which is optional
        from tqdm.auto import tqdm
    return tqdm


def is_watched() -> bool:
    """Return whether somebody sees what is written to stderr: on a terminal, or in the notebook of this kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    in_notebook = shell is not None and "IPKernelApp" in shell.config
    return sys.stderr is not None and (sys.stderr.isatty() or in_notebook)


@dataclass(eq=False)
class ProgressBars:
    """A listener that draws one bar per phase, and one line per tree level or step of an iterative solver, on stderr.

    If stderr is neither a terminal nor in a notebook, it has a line a minute about what is running in place of bars.

    Parameters
    ----------
    force : bool, default=False
        Draw bars even there.

    Notes
    -----
    The bar of a short phase, such as a pass over the rows, disappears when the phase ends. The bar of a phase with an
    unknown total ends when the phase starts again, or at `close`. A copy or pickle only has ``force``, so that
    estimators with this callback can be cloned and pickled.

    Examples
    --------
    >>> from dask_odm.events import Progress, listen, report
    >>> with listen(ProgressBars()):
    ...     report(Progress("ingest", 0, 2))
    ...     report(Progress("ingest", 2, 2))
    """

    force: bool = False
    _bars: dict[str, Any] = field(init=False, repr=False, default_factory=dict)
    _last: tuple[Columns, int] | None = field(init=False, repr=False, default=None)  # table and number of its last line
    _log: Listener = field(init=False, repr=False, default_factory=lambda: one_a_minute(_write_phase))

    def __reduce__(self) -> tuple[type[ProgressBars], tuple[bool]]:
        return type(self), (self.force,)

    def __call__(self, event: Event) -> None:
        """Show ``event``, if its kind is shown."""
        if sys.stderr is None:
            return
        if isinstance(event, Progress):
            if self.force or is_watched():
                self._advance(event)
            else:
                self._log(event)
        elif isinstance(event, LevelFinished):
            self._write(LEVELS, -event.level, event)  # levels count down
        elif isinstance(event, IterationFinished):
            self._write(STEPS, event.iteration, event)

    def close(self) -> None:
        """Close the bars of phases that did not finish, such as after an error."""
        for bar in self._bars.values():
            bar.close()
        self._bars.clear()
        self._last = None

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
        if event.seconds is not None:
            bar.set_description_str(_expected(event), refresh=False)
        bar.update(event.done - bar.n)
        if event.total is not None and event.done >= event.total:
            self._bars.pop(event.phase).close()

    def _write(self, columns: Columns, number: int, event: Event) -> None:
        """Write a line of a table, after a header if a new one starts."""
        starts = self._last is None or self._last[0] is not columns or number <= self._last[1]
        self._last = columns, number
        lines = [header(columns)] if starts else []
        _tqdm().write("\n".join([*lines, line(columns, vars(event))]), file=sys.stderr)


def one_a_minute(listener: Listener) -> Listener:
    """Return a listener that hands on one event a minute of those that are shown, the first after a minute."""
    due = time.monotonic() + LOG_SECONDS

    def hand_on(event: Event) -> None:
        nonlocal due
        if isinstance(event, Progress | LevelFinished | IterationFinished) and time.monotonic() >= due:
            listener(event)
            due = time.monotonic() + LOG_SECONDS

    return hand_on


def _expected(event: Progress) -> str:
    return event.phase if event.seconds is None else f"{event.phase}, about {event.seconds:.0f} s in all"


def _write_phase(event: Event) -> None:
    assert isinstance(event, Progress)
    total = "" if event.total is None else f" of {event.total:,}"
    sys.stderr.write(f"{_expected(event)}: {event.done:,}{total} {event.unit}\n")
    sys.stderr.flush()


@contextmanager
def shown_if_long() -> Iterator[None]:
    """Draw passing progress bars on stderr for work that takes longer than ``dask_odm.progress-after`` seconds.

    This key of Dask's configuration is 5 by default; None turns progress off. If stderr is neither a terminal nor a
    notebook's, there is a line a minute instead. Nothing is shown if somebody listens already, or in threads and
    processes of a parallel search.
    """
    here = threading.current_thread() is threading.main_thread() and multiprocessing.parent_process() is None
    seconds = config.get("dask_odm.progress-after", 5.0) if here and not has_listeners() else None
    if seconds is None:
        yield
        return
    due = time.monotonic() + seconds
    bars = ProgressBars()

    def show(event: Event) -> None:
        if isinstance(event, Progress) and time.monotonic() >= due:
            bars(replace(event, passing=True))

    try:
        with listen(show if is_watched() else one_a_minute(bars)):
            yield
    finally:
        bars.close()
