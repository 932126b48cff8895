"""Ingestions, predictions and saved models whose process is killed, and which are then made once more."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tries.base import Kind, parts
from tries.client_faults import Touches
from tries.outcomes import BREAK, SAME, Outcome, digest_of, judge, left_in, with_leftovers
from tries.processes import Process, answer_of, run
from tries.things import OPERATIONS, SECONDS, Operation, Things, fresh

WRITERS = [each for each in OPERATIONS if each.name.startswith(("ingest", "save", "predict"))]


class Writers:
    """What writes is killed, at a moment or at a touch of where it writes: it is there whole, or not at all.

    Then something else is written beside it, and it is written itself: nothing else is left.
    """

    def __init__(self, folder: Path) -> None:
        self.things, self.folder, self.disk = Things(folder), folder, folder / "disk"
        self._usual: dict[str, tuple[float, int]] = {}

    def _calm(self, operation: Operation) -> tuple[float, int]:
        """Seconds and touches of what nobody kills."""
        if operation.name not in self._usual:
            count = self.folder / "count"

            def counted() -> str:
                touches = Touches(str(self.disk), -1)
                sys.addaudithook(touches)
                operation.python(self.things, self.disk, self.disk)
                count.write_text(str(touches.count))
                return ""

            fresh(self.disk)
            began = time.monotonic()
            run(counted, self.folder, SECONDS)
            self._usual[operation.name] = time.monotonic() - began, int(count.read_text())
        return self._usual[operation.name]

    def _once(self, operation: Operation) -> str:
        return operation.run(self.things, self.disk, self.disk)

    def kill(self, number: int, rng: np.random.Generator) -> Outcome:
        """One try: again, and earlier, where it was over before the kill."""
        operation, at_touch = parts(number, WRITERS, (True, True, False))
        expected, (usual, touches) = operation.expected(self.things), self._calm(operation)
        for _ in range(6):
            moment, after = int(rng.integers(1, touches + 1)) if at_touch else 0, float(rng.uniform(0, usual))
            fault = f"killed {f'at touch {moment}' if moment else f'after {after:.2f} s'}, {operation.name}"
            if self._killed(operation, moment, after):
                break
            usual /= 2
        else:
            return Outcome(BREAK, fault, "it was always over before it was killed")
        output = operation.output(self.disk, self.disk)
        if os.path.lexists(output):
            found = judge(answer_of(lambda: digest_of(output)), expected, fault)
            if found.what != SAME:
                return found
            os.rename(output, self.disk / "first.zarr")
        again = judge(run(lambda: self._once(operation), self.folder, SECONDS), expected, f"{fault}, and once more")
        output.rename(self.disk / "second.zarr")
        third = judge(run(lambda: self._once(operation), self.folder, SECONDS), expected, f"{fault}, and a third time")
        names = ("first.zarr", "second.zarr", output.name)
        return with_leftovers(again if again.what == BREAK else third, left_in(self.disk, *names))

    def _killed(self, operation: Operation, moment: int, after: float) -> bool:
        def write() -> str:
            if moment:
                sys.addaudithook(Touches(str(self.disk), moment))
            operation.python(self.things, self.disk, self.disk)
            return ""

        fresh(self.disk)
        process = Process(lambda tell: tell(answer_of(write)), self.folder / "killed.txt")
        try:
            if not moment:
                time.sleep(after)
                process.kill()
            return "broken" in process.answer(SECONDS)
        finally:
            process.end()


def kill_writers(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Kills of the process that ingests, predicts or saves."""
    return Writers(folder).kill


KINDS = [Kind("writer kills", 400.0, kill_writers)]
