"""Files of checkpoints: a later one replaces an earlier one, and a kill at any moment leaves a sound one."""

import os
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np

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
