"""Folders of temporary data: gone after use, and after a kill at the next start; never what is not ours."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest

from dask_odm.data.storage.scratch import lasting_folder, scratch_folder
from dask_odm.data.storage.staging import Holder, node
from dask_odm.errors import InputError

CLIENT = """
import sys
from pathlib import Path
from dask_odm.data.storage.scratch import scratch_folder

with scratch_folder() as folder:
    Path(folder, "rows").write_bytes(b"x" * 100)
    print("there", flush=True)
    sys.stdin.read()
"""
LASTING = """
import sys
from dask_odm.data.storage.scratch import lasting_folder
print(lasting_folder(), flush=True)
sys.stdin.read()
"""


def started(code: str) -> subprocess.Popen:
    command = [sys.executable, "-c", code]
    env = {**os.environ, "DASK_TEMPORARY_DIRECTORY": dask.config.get("temporary-directory")}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


@pytest.fixture
def parent(tmp_path) -> Iterator[Path]:
    (tmp_path / "scratch").mkdir()
    with dask.config.set({"temporary-directory": str(tmp_path / "scratch")}):
        yield tmp_path / "scratch"


def folders(parent: Path) -> list[str]:
    """Paths of the folders in a folder, each of which has its lock beside it."""
    found = sorted(str(each) for each in parent.iterdir() if each.is_dir())
    assert sorted(map(str, parent.iterdir())) == sorted([*found, *(f"{each}.lock" for each in found)])
    return found


@pytest.mark.slow
def test_what_a_killed_process_leaves_is_removed_at_the_next_start(parent):
    with started(CLIENT) as client:
        assert client.stdout.readline() == "there\n"
        (left,) = folders(parent)
        with scratch_folder() as mine:
            assert folders(parent) == sorted([left, mine])  # its owner lives
        client.send_signal(signal.SIGKILL)
    with scratch_folder() as mine:
        assert folders(parent) == [mine]
    assert not os.listdir(parent)


@pytest.mark.slow
def test_a_folder_for_tasks_lasts_as_long_as_its_process(parent):
    for end in ("exit", "kill"):
        with started(LASTING) as client:
            left = client.stdout.readline().strip()
            assert folders(parent) == [left]
            client.stdin.close() if end == "exit" else client.kill()
        assert os.path.isdir(left) == (end == "kill")
    with scratch_folder():
        assert not os.path.isdir(left)


def test_a_removal_that_was_cut_off_is_taken_up(parent):
    with started(LASTING) as client:
        left = client.stdout.readline().strip()
        client.kill()
    (Path(left) / "rows").write_bytes(b"x" * 100)
    os.rename(left, f"{left}.gone")
    with scratch_folder() as mine:
        assert folders(parent) == [mine]


def test_nothing_is_removed_that_is_not_ours(parent, tmp_path):
    holder = Holder(node(), 1 << 30, "0", locks=False).text()
    for name in ("dask-odm-thesis", ".dask-odm.0123456a", ".dask-odm.0123456b", "results"):  # some have a lock
        (parent / name).mkdir()
        (parent / name / "thesis.tex").touch()
    for name in ("dask-odm-thesis", "results"):
        (parent / f"{name}.lock").write_bytes(holder)
    (parent / ".dask-odm.0123456a.lock").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.tex").touch()
    before = sorted(parent.rglob("*"))
    with scratch_folder():
        pass
    assert sorted(parent.rglob("*")) == before
    (parent / ".dask-odm.0123456b.lock").write_bytes(holder)  # a dead process's
    (parent / ".dask-odm.0123456c.lock").write_bytes(holder)
    (parent / ".dask-odm.0123456c").symlink_to(tmp_path / "elsewhere")
    with scratch_folder():
        assert not (parent / ".dask-odm.0123456b").exists()
        assert not os.path.lexists(parent / ".dask-odm.0123456c")
    assert os.listdir(tmp_path / "elsewhere") == ["thesis.tex"]


def test_two_of_one_process_live_side_by_side(parent):
    with scratch_folder() as one, scratch_folder() as other:
        assert os.path.isdir(one)
        assert os.path.isdir(other)
        lasting = lasting_folder()
    assert folders(parent) == [lasting]


def test_an_object_store_is_no_folder():
    with (
        dask.config.set({"temporary-directory": "s3://bucket/a"}),
        pytest.raises(InputError, match="must be a folder that all workers see"),
        scratch_folder(),
    ):
        pass
