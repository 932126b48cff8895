"""Folders that appear whole or not at all, also under an interrupt; folders that go, also under a writer."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from dask_odm.data.storage.files import make_folders, reason
from dask_odm.data.storage.staging import aside, left_aside, remove_folder, replace_folder
from dask_odm.data.store.records import read_record, write_record
from dask_odm.errors import InputError, StoreError


def folder(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "zarr.json").write_text(content)
    return path


@pytest.mark.parametrize("moment", range(1, 20))
@pytest.mark.parametrize("replaced", [False, True])
def test_an_interrupt_leaves_the_old_or_the_new(tmp_path, monkeypatch, moment, replaced):
    target = tmp_path / "a.zarr"
    if replaced:
        folder(target, "old")
    new = folder(Path(aside(str(target))), "new")
    calls = 0

    def interrupted(function):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == moment:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return call

    for name in ("rename", "fsync", "unlink", "rmdir", "open", "scandir"):
        monkeypatch.setattr(os, name, interrupted(getattr(os, name)))
    try:
        replace_folder(str(new), str(target), overwrite=True)
    except KeyboardInterrupt:
        pass
    else:
        assert moment > calls
    finally:
        monkeypatch.undo()
        remove_folder(str(new))  # as whoever wrote it does
    assert os.listdir(tmp_path) == (["a.zarr"] if replaced or target.exists() else [])
    if target.exists():
        assert (target / "zarr.json").read_text() in ({"old", "new"} if replaced else {"new"})


def test_a_folder_goes_under_a_thread_that_writes_to_it(tmp_path):
    root, stop, failed = folder(tmp_path / "scratch", ""), threading.Event(), []

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                Path(make_folders(str(root), f"X/c/{number}/0")).write_text("rows")
            except FileNotFoundError:
                failed.append(number)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not (root / "X/c/20").exists():
        pass
    remove_folder(str(root))
    while len(failed) < 50:
        pass
    stop.set()
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == []


def test_folders_are_made_below_a_root_that_is_there(tmp_path):
    assert make_folders(str(tmp_path), "X/c/3/0") == str(tmp_path / "X/c/3/0")
    assert make_folders(str(tmp_path), "X/c/3/1") == str(tmp_path / "X/c/3/1")
    assert os.listdir(tmp_path / "X/c") == ["3"]
    with pytest.raises(FileNotFoundError):
        make_folders(str(tmp_path / "gone"), "X/c/3/0")
    assert not (tmp_path / "gone").exists()


def test_what_was_left_aside_is_found(tmp_path):
    target = tmp_path / "a.zarr"
    left = [aside(str(target)), f"{aside(str(target))}.old", f"{aside(str(target))}.old.gone"]
    for path in (*left, str(tmp_path / ".a.zarr.notours"), str(tmp_path / ".b.zarr.01234567")):
        os.mkdir(path)
    assert sorted(left_aside(str(target))) == sorted(left)


def test_removing_what_is_not_there_is_no_error(tmp_path):
    remove_folder(str(tmp_path / "nothing"))
    shutil.rmtree(tmp_path)
    remove_folder(str(tmp_path / "nothing"))


def test_an_error_without_a_number_has_a_reason():
    assert reason(OSError(28, "No space left on device")) == "No space left on device"
    assert reason(OSError("40 requested and 0 written")) == "40 requested and 0 written"
    assert reason(OSError()) == "OSError"


@pytest.mark.parametrize("nth", range(4))
def test_a_folder_that_is_to_be_replaced_and_cannot_be_listed(tmp_path, monkeypatch, nth):
    path, asked, listdir = tmp_path / "m.zarr", [], os.listdir
    write_record(path, "model", {"x": np.arange(3)}, {})

    def refused(folder):
        asked.extend([folder] if str(folder) == str(path) else [])
        if str(folder) == str(path) and len(asked) == nth + 1:
            raise OSError(errno.EIO, "Input/output error", folder)
        return listdir(folder)

    monkeypatch.setattr(os, "listdir", refused)
    with pytest.raises((InputError, StoreError), match=r"m\.zarr.* Input/output error"):
        write_record(path, "model", {"x": np.arange(4)}, {}, overwrite=True)
    monkeypatch.undo()
    assert len(asked) == nth + 1
    assert os.listdir(tmp_path) == ["m.zarr"]
    np.testing.assert_array_equal(read_record(path, "model").array("x"), np.arange(3))
