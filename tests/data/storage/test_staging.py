"""What a killed process left beside its output goes with the next one that writes there; what lives stays."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tries.client_faults import Touches

from dask_odm.data.storage import staging
from dask_odm.data.storage.staging import aside, disown, own, owned_file, remove_abandoned
from dask_odm.data.store.records import read_record, write_record
from dask_odm.errors import StoreError

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks, and sends POSIX signals"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


def write(path: Path, value: int) -> None:
    write_record(path, "model", {"x": np.full(3, value)}, {}, overwrite=True)


def value_in(path: Path) -> int:
    return int(read_record(path, "model").array("x")[0])


def killed_at(moment: int, word: str, function) -> bool:
    """Whether a process that runs ``function`` is killed at so many touches of a path with ``word``."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            sys.addaudithook(Touches(word, moment))
            function()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True])
def test_a_killed_writer_leaves_nothing_that_stays(tmp_path, replaced):
    moment = 0
    while True:
        moment += 1
        folder = tmp_path / str(moment)
        folder.mkdir()
        target, other = folder / "a.zarr", folder / "b.zarr"
        if replaced:
            write(target, 1)
        if not killed_at(moment, str(folder), lambda target=target: write(target, 2)):
            break
        assert not target.exists() or value_in(target) in (1, 2)
        write(other, 3)  # whatever is written next
        assert set(os.listdir(folder)) <= {"a.zarr", "b.zarr"}
        if replaced:
            assert value_in(target) in (1, 2)
        write(target, 4)
        assert (value_in(target), value_in(other)) == (4, 3)
    assert moment > 15


def test_a_killed_writer_of_a_file(tmp_path):
    def write_file() -> None:
        with owned_file(str(tmp_path / "a.csv")) as name:
            Path(name).write_text("half")
            os.rename(name, tmp_path / "a.csv")

    assert killed_at(4, str(tmp_path), write_file)
    assert len(os.listdir(tmp_path)) == 2
    write_file()
    assert os.listdir(tmp_path) == ["a.csv"]


def test_what_a_living_process_writes_stays(tmp_path):
    name = aside(str(tmp_path / "a.zarr"))
    own(name)
    os.mkdir(name)
    write(tmp_path / "a.zarr", 1)
    assert sorted(os.listdir(tmp_path)) == sorted([os.path.basename(name), f"{os.path.basename(name)}.lock", "a.zarr"])
    disown(name)
    assert os.listdir(tmp_path) == ["a.zarr"]


def test_an_empty_lock_is_of_a_process_that_was_killed_as_it_made_it(tmp_path):
    path = tmp_path / ".a.zarr.01234567.lock"
    path.touch()
    with path.open("r+b") as making:
        staging.fcntl.flock(making, staging.fcntl.LOCK_EX)
        remove_abandoned(str(tmp_path))
        assert path.exists()
    remove_abandoned(str(tmp_path))
    assert not path.exists()


def test_what_is_not_ours_stays(tmp_path):
    names = [".a.zarr.01234567", ".a.zarr.01234567.lock", ".a.zarr.0123.lock", "a.zarr.01234567.lock"]
    for each in names:
        (tmp_path / each).write_text("of another program")
    remove_abandoned(str(tmp_path))
    remove_abandoned(str(tmp_path / "no such folder"))
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_what_was_there_is_not_lost_where_it_cannot_be_put_back(tmp_path, monkeypatch):
    target = tmp_path / "a.zarr"
    write(target, 1)
    rename = os.rename

    def refused(source, to):
        if str(to) == str(target):
            raise OSError(5, "Input/output error")
        rename(source, to)

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(StoreError, match="Input/output error"):
        write(target, 2)
    assert not target.exists()
    monkeypatch.undo()
    write(tmp_path / "b.zarr", 3)
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "b.zarr"]
    assert value_in(target) == 1


def test_a_name_that_another_owns(tmp_path):
    name = str(tmp_path / ".a.zarr.01234567")
    own(name)
    with pytest.raises(FileExistsError):
        own(name, attempts=2)
    disown(name)
    assert not os.listdir(tmp_path)
