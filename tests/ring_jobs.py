"""Hops and gradients that die on the way, for the tests of the ring: tasks that workers import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from dask_odm.papers.dsvrg import workers as ring


def _die_once(folder: str, name: str) -> None:
    """Kill the process this runs in, the first time that ``name`` is given."""
    marker = Path(folder) / name
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyHop:
    """`walk_partition`, whose worker dies in hop ``k`` of ``epoch``, after it took its steps."""

    def __init__(self, folder: str, epoch: int, k: int) -> None:
        self.folder, self.epoch, self.k = folder, epoch, k

    def __call__(self, w, job, snapshot, pull, step, epoch, k):
        end = ring.walk_partition(w, job, snapshot, pull, step, epoch, k)
        if (epoch, k) == (self.epoch, self.k):
            _die_once(self.folder, f"hop-{epoch}-{k}")
        return end


class DeadlySum:
    """`sum_partition`, whose worker dies at partition ``k`` once w is not zero."""

    def __init__(self, folder: str, k: int) -> None:
        self.folder, self.k = folder, k

    def __call__(self, job, w, k):
        if k == self.k and np.any(w):
            _die_once(self.folder, f"sum-{k}")
        return ring.sum_partition(job, w, k)


def where(x: list, number: int) -> list:
    """A hop that adds its number and its process to a list."""
    return [*x, (number, os.getpid())]


def slowly(x: int, seconds: float) -> int:
    time.sleep(seconds)
    return x + 1


def fails(x: int, number: int) -> int:
    if number == 2:
        raise ZeroDivisionError(f"at {number}, with {x}")
    return x + 1
