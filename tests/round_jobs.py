"""Questions for the tests of rounds: tasks that workers import."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from place_jobs import kill_once


@dataclass(frozen=True)
class Walk:
    """A state whose bits show in which order it was made of what."""

    w: np.ndarray
    steps: int


def rows(shard: int) -> np.ndarray:
    """What a shard holds."""
    return np.random.default_rng(shard).standard_normal((30, 4))


def noted_rows(shard: tuple[str, int]) -> np.ndarray:
    """As `rows`, and a line in a file for each time they are made."""
    folder, number = shard
    with open(Path(folder) / f"rows-{number}", "a") as file:
        file.write("made\n")
    return rows(number)


def start(held: np.ndarray) -> Walk:
    return Walk(held[0] / 3, 0)


def walk(held: np.ndarray, state: Walk, message: np.ndarray) -> tuple[Walk, np.ndarray]:
    w = np.tanh(held.T @ (held @ (state.w + message)) / 7)
    return Walk(w, state.steps + 1), w * (state.steps + 1)


@dataclass(frozen=True)
class DeadlyWalk:
    """`walk`, which kills ``processes`` (by default its own) at the first run of a step; its rows know the shard."""

    folder: str
    steps: int
    row: bytes
    processes: tuple[int, ...] = ()

    def __call__(self, held, state, message):
        moved = walk(held, state, message)
        if state.steps == self.steps and held[0].tobytes() == self.row:
            kill_once(self.folder, f"killed-{self.steps}", self.processes or (os.getpid(),))
        return moved


def failing(held: np.ndarray, state: Walk, message: float) -> tuple[Walk, float]:
    if held[0, 0] == message:
        raise ZeroDivisionError("in a step")
    return state, 0.0


def writing(held: np.ndarray, state: Walk, message: str) -> tuple[Walk, float]:
    target = {"held": held, "state": state.w}[message]
    target[0] = 1.0
    return state, 0.0


def distance(held: np.ndarray, state: Walk, message: float) -> float:
    return float(np.sum(held @ state.w) * message)


def places_of(held: np.ndarray, state: Walk, message: None) -> tuple[int, int, int]:
    """Process and address of what a shard holds, and of its state."""
    return os.getpid(), held.ctypes.data, state.w.ctypes.data


def remembered(held: np.ndarray, state: Walk, message: np.ndarray) -> tuple[Walk, np.ndarray]:
    return Walk(message, state.steps + 1), message
