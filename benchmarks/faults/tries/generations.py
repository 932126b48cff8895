"""Stores and records of which files are of another generation: any small array, or all files but one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tries.base import Kind, parts, pick
from tries.damage import NAMES, Readings, files_of, learner
from tries.outcomes import BREAK, SAME, Outcome


def mix(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """One of the files that differ, half of them, or all but one of another generation: that is named."""
    readings = Readings(folder)

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        name, how = parts(number, NAMES, ("one", "all but one", "some"))
        path, other = readings.copied(name), readings.things.older / name
        keys = [file.relative_to(path) for file in files_of(path) if (other / file.relative_to(path)).is_file()]
        differ = [key for key in keys if (path / key).read_bytes() != (other / key).read_bytes()]
        one = pick(rng, differ)
        left = [key for key in differ if key != one]
        chosen = {"one": [one], "all but one": left, "some": [one, *(key for key in left[1:] if rng.integers(2))]}[how]
        for key in chosen:
            shutil.copyfile(other / key, path / key)
        fault = f"{how} of another generation: {one}"
        turn, rest = divmod(number // len(NAMES), 2)
        fitting = learner(name, turn) if name in ("store.zarr", "sparse.zarr") and not rest else None
        outcome = readings.outcome(name, path, fault, expected=True, fitting=fitting)
        return Outcome(BREAK, outcome.fault, "read as good") if outcome.what == SAME else outcome

    return try_once


KINDS = [Kind("mixed generations", 300.0, mix)]
