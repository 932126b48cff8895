"""The record of a step, one for all solvers, and the history it goes to: listeners hear what the history keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

Record = dict[str, Any]
OnStep = Callable[[Record], object]


def step_record(iteration: int, gap: float, objective: float, passes: float, seconds: float, **more: Any) -> Record:
    """A step's number, relative duality gap, P, and the passes over the rows and seconds so far, as plain figures."""
    return {"iteration": iteration, "gap": gap, "objective": objective, "passes": passes, "seconds": seconds} | more


def record_after(ahead: Sequence[Record], record: Record) -> Record:
    """A record of a run that follows the one of the records ``ahead``, if there are any."""
    if not ahead:
        return record
    figures = {name: ahead[-1][name] + record[name] for name in ("passes", "seconds")}
    return record | figures | {"iteration": record["iteration"] + len(ahead)}


class StepLog:
    """Records of a run in order, each reported once it is certain.

    Parameters
    ----------
    on_step : callable
        Told of every record: of those before where the next is added, unless they are held, or `settle` is called.
    began : float, optional
        What `time.perf_counter` said when the seconds of the records began; now without.
    """

    def __init__(self, on_step: OnStep, began: float | None = None) -> None:
        self._on_step = on_step
        self._told = 0
        self.history: list[Record] = []
        self.began = time.perf_counter() if began is None else began

    def take_up(self, history: Sequence[Record]) -> Record:
        """Go on from the ``history`` of a lost run, but for its last record, which is returned: it is made again."""
        *before, last = history
        self.history, self._told = list(before), len(before)
        self.began -= last["seconds"]
        return last

    def add(self, gap: float, objective: float, passes: float, *, hold: bool = False, **more: Any) -> None:
        """A record more; those before are reported, if they were not, unless ``hold`` leaves them to `settle`."""
        if not hold:
            self.settle()
        seconds = time.perf_counter() - self.began
        self.history.append(step_record(len(self.history), gap, objective, passes, seconds, **more))

    def amend(self, **figures: Any) -> None:
        """Correct figures of the last record, which was not reported yet."""
        self.history[-1] = self.history[-1] | figures

    def settle(self) -> None:
        """Report the last record: nothing will change in it."""
        for record in self.history[self._told :]:
            self._told += 1
            self._on_step(record)
