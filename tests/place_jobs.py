"""Tasks that lose the workers they run on or take memory, for the tests of the cluster: workers import them."""

import logging
import os
import re
import signal
import time
from pathlib import Path

import numpy as np


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


class Heard(logging.Handler):
    """Messages of a worker's process."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.levelname} {record.getMessage()}")


HEARD = Heard()


def heard(level: int) -> list[str]:
    """Hear what this process logs from now on, and return what was heard so far."""
    logger = logging.getLogger("dask_odm")
    logger.setLevel(level)
    logger.addHandler(HEARD)
    found, HEARD.messages = HEARD.messages, []
    return found


def take(nbytes: int) -> int:
    """Take memory, more than this process ever had in use: only a new highest mark is seen."""
    status = Path("/proc/self/status").read_text()
    most, now = (1024 * int(re.search(name + r":\s+(\d+) kB", status)[1]) for name in ("VmHWM", "VmRSS"))
    return len(np.ones(most - now + nbytes, np.uint8))
