"""Files that read and write, or raise, and the arrays that are read by them."""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np
import pytest

from dask_odm.data.storage.files import WholeFile, load_array, map_array, open_whole, save_array

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
    reader, writer = WholeFile(pipe[0], "rb", closefd=False), WholeFile(pipe[1], "wb", closefd=False)
    for read in (reader.readall, lambda: reader.readinto(bytearray(3)), lambda: open_whole(pipe[0]).read(3)):
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
    with open_whole(tmp_path / "a") as file:
        assert file.read(7) + file.read() == data


@pytest.mark.parametrize("values", [X, X.T, X[:0], X.astype("<f4"), np.arange(5), np.array(["é", "ab"]), np.float64(3)])
def test_arrays_as_numpy_reads_them(values, tmp_path):
    path = str(tmp_path / "a.npy")
    np.save(path, values)
    for read in (load_array, map_array) if np.size(values) else (load_array,):
        found = read(path)
        assert (found.dtype, found.shape) == (values.dtype, values.shape)
        np.testing.assert_array_equal(found, values)


def test_a_map_that_is_written_to(tmp_path):
    path = str(tmp_path / "a.npy")
    np.save(path, X)
    found = map_array(path, writable=True)
    found[1] = 7
    found.flush()
    assert (np.load(path)[1] == 7).all()


def test_files_that_are_no_arrays(tmp_path):
    path = str(tmp_path / "a.npy")
    np.save(path, X)
    os.truncate(path, os.path.getsize(path) - 1)
    with pytest.raises(OSError, match="cut off"):
        load_array(path)
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x09\x00" + bytes(100))
    with pytest.raises(ValueError, match="version"):
        map_array(path)


def test_a_saved_array(tmp_path):
    for values in (X, X[:2]):
        save_array(str(tmp_path / "a.npy"), values)
        np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), values)
    assert [each.name for each in tmp_path.iterdir()] == ["a.npy"]
