"""The checkpoint of any solver's state: vectors, matrices and figures come back to the bit, in their shapes."""

import errno
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dask_odm import StoreError
from dask_odm.data.store.records import read_record
from dask_odm.learning.solution import StepClock
from dask_odm.learning.training.checkpoints import open_checkpoint, open_steps, save_checkpoint, sole_writer
from dask_odm.learning.training.run import FitRun


@dataclass(frozen=True, eq=False)
class ToyState:
    vector: np.ndarray
    nothing: np.ndarray
    row: np.ndarray
    matrix: np.ndarray
    known: float | None
    steps: int
    double: bool
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class ToyFit:
    run: FitRun

    def identity(self) -> dict[str, Any]:
        return {"lam": 1.0}


def settings(path: str | None, *, resume: bool) -> ToyFit:
    return ToyFit(FitRun(0, checkpoint=path, resume=resume))


@pytest.mark.parametrize("known", [None, 1 / 3])
def test_a_state_comes_back_as_it_was(tmp_path, known):
    path, rng = str(tmp_path / "c"), np.random.default_rng(0)
    state = ToyState(
        rng.normal(size=7),
        np.empty(0),
        rng.normal(size=(1, 5)),
        rng.normal(size=(3, 3)),
        known,
        4,
        True,
        [StepClock().record(0, 0.1, 1.0, 1.0, seconds=0.5)],
    )
    start, save = open_steps("toy", lambda: "rows", settings(path, resume=False), ToyState)
    assert start is None
    save(state)
    found, _ = open_steps("toy", lambda: "rows", settings(path, resume=True), ToyState)
    assert found is not None
    for name in ("vector", "nothing", "row", "matrix"):
        one, other = getattr(found, name), getattr(state, name)
        assert one.shape == other.shape, name
        assert one.tobytes() == other.tobytes()
    for name in ("known", "steps", "double", "history"):
        assert getattr(found, name) == getattr(state, name)
    for other, data, seed in (("other", "rows", 0), ("toy", "others", 0), ("toy", "rows", 1)):
        asked = ToyFit(FitRun(seed, checkpoint=path, resume=True))
        with pytest.raises(StoreError, match="is of another fit"):
            open_steps(other, lambda data=data: data, asked, ToyState)


def test_a_state_of_other_fields_is_named_and_so_is_the_way_out(tmp_path):
    @dataclass(frozen=True)
    class Older:
        vector: np.ndarray
        steps: int
        history: list[dict[str, Any]]

    path = str(tmp_path / "c")
    _, save = open_steps("toy", lambda: "rows", settings(path, resume=False), Older)
    save(Older(np.ones(3), 1, [StepClock().record(0, 0.1, 1.0, 1.0, seconds=0.5)]))
    with pytest.raises(StoreError, match=r"checkpoint '.*c' holds no state of this solver .*; remove it"):
        open_steps("toy", lambda: "rows", settings(path, resume=True), ToyState)


def test_without_a_checkpoint_nothing_is_read_and_nothing_saved(tmp_path):
    def data() -> str:
        raise AssertionError("a pass over the rows for nothing")

    start, save = open_steps("toy", data, settings(None, resume=False), ToyState)
    assert start is None
    save(ToyState(*[np.empty(0)] * 4, None, 0, False))
    assert not list(tmp_path.iterdir())


# One writer -------------------------------------------------------------------------------------------------


def test_what_a_killed_fit_left_aside_goes_with_the_next(tmp_path):
    path = tmp_path / "c.zarr"
    for ending in ("", ".old", ".old.gone"):
        (tmp_path / f".c.zarr.0123abcd{ending}").mkdir()
    before = sorted(os.listdir(tmp_path))
    with sole_writer(path):
        pass
    assert sorted(os.listdir(tmp_path)) == before  # there is no checkpoint: what cannot be read may be one
    save_checkpoint(tmp_path / ".c.zarr.4567abcd", {"w": np.ones(2)}, {})
    with sole_writer(path):
        pass
    assert os.listdir(tmp_path) == ["c.zarr"]
    assert read_record(path, "checkpoint").array("w").tolist() == [1.0, 1.0]


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    def refuse(path):
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(StoreError, match=r"checkpoint '.*c\.zarr' cannot be read: Input/output error\."):
        open_checkpoint(tmp_path / "c.zarr")
