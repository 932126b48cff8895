"""Tasks that lose the workers they run on, for the tests of what prefers one: workers import them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def kill_once(folder: str, name: str, processes: tuple[int, ...]) -> None:
    """Kill ``processes``, the one this runs in last, the first time that ``name`` is given."""
    try:
        (Path(folder) / name).touch(exist_ok=False)
    except FileExistsError:
        return
    for process in sorted(processes, key=os.getpid().__eq__):
        os.kill(process, signal.SIGKILL)


def halves(x: float, number: int, folder: str = "", deadly: int = -1, processes: tuple[int, ...] = ()) -> float:
    """A hop whose order shows in the bits; all ``processes`` die at the first visit of number ``deadly``."""
    if number == deadly:
        kill_once(folder, f"killed-{number}", processes)
    return x / 2 + number / 3


def process_after(shared: str, seconds: float) -> int:
    """Return the number of the process, after a while."""
    time.sleep(seconds)
    return os.getpid()
