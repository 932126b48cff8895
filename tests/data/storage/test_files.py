"""Files that read and write, or raise; folders that appear whole or not at all, and folders that go."""

import errno
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dask_odm.data.storage import files
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
                Path(files.make_folders(str(root), f"X/c/{number}/0")).write_text("rows")
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
    assert files.make_folders(str(tmp_path), "X/c/3/0") == str(tmp_path / "X/c/3/0")
    assert files.make_folders(str(tmp_path), "X/c/3/1") == str(tmp_path / "X/c/3/1")
    assert os.listdir(tmp_path / "X/c") == ["3"]
    with pytest.raises(FileNotFoundError):
        files.make_folders(str(tmp_path / "gone"), "X/c/3/0")
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
    assert files.reason(OSError(28, "No space left on device")) == "No space left on device"
    assert files.reason(OSError("40 requested and 0 written")) == "40 requested and 0 written"
    assert files.reason(OSError()) == "OSError"


@pytest.mark.parametrize("nth", range(3))
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


X = np.random.default_rng(0).normal(size=(4, 3))


@pytest.fixture
def pipe():
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def test_what_is_put_off_is_an_error(pipe):
    reader, writer = files.WholeFile(pipe[0], "rb", closefd=False), files.WholeFile(pipe[1], "wb", closefd=False)

    def buffered() -> None:
        with files.open_whole(os.dup(pipe[0])) as file:
            file.read(3)

    for read in (reader.readall, lambda: reader.readinto(bytearray(3)), buffered):
        with pytest.raises(BlockingIOError, match="temporarily unavailable"):
            read()
    writer.write(b"some")
    with pytest.raises(BlockingIOError):  # rather than taken for the end
        reader.readall()
    with pytest.raises(BlockingIOError):
        all(writer.write(bytes(1 << 16)) for _ in range(1000))


def test_all_of_a_file_is_read(tmp_path):
    data = os.urandom((1 << 20) + 5)
    (tmp_path / "a").write_bytes(data)
    with files.open_whole(tmp_path / "a") as file:
        assert file.read(7) + file.read() == data


@pytest.mark.parametrize("values", [X, X.T, X[:0], X.astype("<f4"), np.arange(5), np.array(["é", "ab"]), np.float64(3)])
def test_arrays_as_numpy_reads_them(values, tmp_path):
    path = str(tmp_path / "a.npy")
    np.save(path, values)
    for read in (files.load_array, files.map_array) if np.size(values) else (files.load_array,):
        found = read(path)
        assert (found.dtype, found.shape) == (values.dtype, values.shape)
        np.testing.assert_array_equal(found, values)


def test_files_that_are_no_arrays(tmp_path):
    path = str(tmp_path / "a.npy")
    np.save(path, X)
    for left in (os.path.getsize(path) - 1, 100, 0):
        os.truncate(path, left)
        for read in (files.load_array, files.map_array):
            with pytest.raises(OSError, match="cut off"):
                read(path)
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x09\x00" + bytes(100))
    with pytest.raises(ValueError, match="version"):
        files.map_array(path)


def test_a_saved_array(tmp_path):
    for values in (X, X[:2]):
        files.save_array(str(tmp_path / "a.npy"), values)
        np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), values)
    assert [each.name for each in tmp_path.iterdir()] == ["a.npy"]
