"""Files of checkpoints: a later one replaces an earlier one, and a kill at any moment leaves a sound one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from dask_odm.events import LevelFinished
from dask_odm.learning.training.checkpoints import open_checkpoint, save_checkpoint


def level(value: float, number: int) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Arrays and attributes of a checkpoint."""
    entry = LevelFinished(number, 1, 5, 1, 1, 0.5, 0.5, 0.5, 0.5)
    attributes = {"fit": "x", "seed": 0, "level": number, "history": [asdict(entry)]}
    return {"dual": np.full((1, 5), value), "figures": np.ones((1, 13))}, attributes


def number_of(path: Path) -> int | None:
    """Number of the level in a checkpoint, or None if there is no checkpoint."""
    found = open_checkpoint(path)
    return None if found is None else found.attributes["level"]


KILLED = """
import os, sys
from dask_odm.learning.training.checkpoints import open_checkpoint, save_checkpoint

def deadly(function, moment, calls=[0]):
    def call(*args, **kwargs):
        calls[0] += 1
        if calls[0] == moment:
            os._exit(9)
        return function(*args, **kwargs)
    return call

target, moment, status = sys.argv[1], 0, 9
first = open_checkpoint(target)
arrays, attributes = {name: first.array(name) for name in first.arrays}, first.attributes
while status:
    moment += 1
    save_checkpoint(target, arrays, attributes | {"level": 1})
    child = os.fork()
    if not child:
        for name in ("rename", "replace", "mkdir", "fsync", "rmdir", "unlink"):
            setattr(os, name, deadly(getattr(os, name), moment))
        save_checkpoint(target, arrays, attributes | {"level": 0})
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = open_checkpoint(target)
    assert found.array("dual").tobytes() == arrays["dual"].tobytes()
    print(found.attributes["level"], end="")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment_a_sound_checkpoint_is_left(tmp_path):
    """The process dies at its n-th call that changes the folder; a reader finds the old level, later the new."""
    save_checkpoint(tmp_path / "c.zarr", *level(1.0, 1))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "c.zarr")], capture_output=True, text=True, check=False
    )
    assert re.fullmatch("1{20,}0+", done.stdout), done
    assert os.listdir(tmp_path) == ["c.zarr"]


def test_between_the_two_renames_the_checkpoint_is_found(tmp_path):
    """As a kill leaves it: the old one moved away, the new one not yet in place, whole or not."""
    target = tmp_path / "c.zarr"
    save_checkpoint(target, *level(1.0, 1))
    os.rename(target, tmp_path / ".c.zarr.0123abcd.old")
    (tmp_path / ".c.zarr.0123abcd").mkdir()
    assert number_of(target) == 1
    shutil.rmtree(tmp_path / ".c.zarr.0123abcd")
    save_checkpoint(tmp_path / ".c.zarr.0123abcd", *level(1.0, 0))
    assert number_of(target) == 0
    (tmp_path / ".d.zarr.0123abcd").mkdir()
    assert number_of(tmp_path / "d.zarr") is None
