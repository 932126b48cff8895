"""Records of steps, the same for all solvers, and the log that keeps them and reports them to listeners."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

Record = dict[str, Any]
OnStep = Callable[[Record], object]


def step_record(iteration: int, gap: float, objective: float, passes: float, seconds: float, **more: Any) -> Record:
    """Return the record of a step: its number, relative duality gap, P, passes over the rows and seconds so far."""
    return {"iteration": iteration, "gap": gap, "objective": objective, "passes": passes, "seconds": seconds} | more


def record_after(ahead: Sequence[Record], record: Record) -> Record:
    """Return ``record`` with its counts continued from the last of the records ``ahead``, if there are any."""
    if not ahead:
        return record
    figures = {name: ahead[-1][name] + record[name] for name in ("passes", "seconds")}
    return record | figures | {"iteration": record["iteration"] + len(ahead)}


class StepLog:
    """Records of a run in order. Each is reported once it is certain.

    ``on_step`` is called with every record when the next one is added, unless that one is held; `settle` reports all at
    once. ``began`` is `time.perf_counter` when the seconds of the records began; now by default.
    """

    def __init__(self, on_step: OnStep, began: float | None = None) -> None:
        self._on_step = on_step
        self._told = 0
        self.history: list[Record] = []
        self.began = time.perf_counter() if began is None else began

    def take_up(self, history: Sequence[Record]) -> Record:
        """Resume from the ``history`` of a lost run, without its last record, which is returned to be made again."""
        *before, last = history
        self.history, self._told = list(before), len(before)
        self.began -= last["seconds"]
        return last

    def add(self, gap: float, objective: float, passes: float, *, hold: bool = False, **more: Any) -> None:
        """Add a record. Earlier ones are reported first, unless ``hold`` leaves them to `settle`."""
        if not hold:
            self.settle()
        seconds = time.perf_counter() - self.began
        self.history.append(step_record(len(self.history), gap, objective, passes, seconds, **more))

    def amend(self, **figures: Any) -> None:
        """Change figures of the last record, which was not reported yet."""
        self.history[-1] = self.history[-1] | figures

    def settle(self) -> None:
        """Report all records that were not yet reported. They will not change."""
        for record in self.history[self._told :]:
            self._told += 1
            self._on_step(record)
