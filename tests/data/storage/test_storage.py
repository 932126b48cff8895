"""The local storage, and documents that are no documents: bounded, typed, never a hang."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from dask_odm import InputError, Store, StoreError
from dask_odm.data.storage import storage
from dask_odm.data.storage.storage import LocalStorage, new_storage, storage_of
from dask_odm.data.store.manifest import other_zarr, read_document
from dask_odm.data.store.records import check_target, read_kind, read_record, write_record
from data.stores import write_store

BROKEN = {
    "fifo": None,
    "huge": None,
    "nested": b"[" * 200_000,
    "nested objects": b'{"attributes":' * 100_000,
    "no attributes": b'{"attributes": null}',
    "attributes are a list": b'{"attributes": []}',
    "list": b"[]",
    "null": b"null",
    "number": b"1e999",
    "no text": b"\xff\xfe\x00",
    "empty": b"",
    "long number": b"1" * 10_000,
}


def put(path: Path, what: str) -> None:
    """Put something else in place of a document."""
    path.unlink(missing_ok=True)
    data = BROKEN[what]
    if what == "fifo":
        os.mkfifo(path)
    elif data is None:
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("key", ["manifest.json", "zarr.json", "y/zarr.json"])
def test_a_store_with_a_broken_document(tmp_path, key, what):
    store = write_store(tmp_path / "a.zarr")
    put(Path(store.path, key), what)
    of_file = r"manifest\.json (is damaged|cannot be read)" if key == "manifest.json" else ""
    for use, message in ((lambda: Store.open(store.path), of_file), (store.verify, "")):
        with pytest.raises(StoreError, match=rf"a\.zarr'.*{message}"):
            use()
    with pytest.raises(StoreError):
        read_document(storage_of(store.path), key)
    assert read_kind(store.path) == (None if key == "manifest.json" else "store")


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("key", ["manifest.json", "zarr.json", "x/zarr.json"])
def test_a_record_with_a_broken_document(tmp_path, key, what):
    path = tmp_path / "m.zarr"
    write_record(path, "model", {"x": np.arange(3)}, {})
    put(path / key, what)
    with pytest.raises(StoreError, match=r"model '.*m\.zarr'"):
        read_record(path, "model")
    if key == "zarr.json":
        with pytest.raises(InputError, match=r"is not a model|is not a zarr store"):
            check_target(path, "model", overwrite=True)


@pytest.mark.parametrize("what", BROKEN)
def test_a_folder_without_manifest_and_with_a_broken_document(tmp_path, what):
    put(tmp_path / "zarr.json", what)
    assert other_zarr(str(tmp_path)) is None
    with pytest.raises(StoreError, match="unfinished or not a store"):
        Store.open(tmp_path)


@pytest.mark.parametrize("what", ["fifo", "folder"])
def test_a_chunk_that_is_no_file(tmp_path, what):
    store = write_store(tmp_path / "a.zarr")
    chunk = Path(store.path, "X/c/1/0")
    chunk.unlink()
    chunk.mkdir() if what == "folder" else os.mkfifo(chunk)
    with pytest.raises(StoreError, match=r"array 'X', chunk 1/0: unreadable \((not a file|Is a directory)\)"):
        store.read(1)
    with pytest.raises(StoreError, match="chunk 1/0: missing"):
        Store.open(store.path)


def test_bytes_come_back(tmp_path):
    storage = LocalStorage(str(tmp_path))
    storage.write("a/b/c", b"12345")
    storage.write("d", memoryview(np.arange(3)))
    assert storage.sizes() == {"a/b/c": 5, "d": 24}
    assert storage.read("a/b/c", 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, more than 4"):
        storage.read("a/b/c", 4)
    buffer = bytearray(8)
    for size, found in ((8, 5), (5, 5), (4, 5), (2, 3)):
        assert storage.read_into("a/b/c", memoryview(buffer)[:size]) == found
    with pytest.raises(FileNotFoundError):
        storage.read("a/b/d", 5)


def test_nothing_is_seen_before_it_is_published(tmp_path):
    target = str(tmp_path / "a.zarr")
    storage = new_storage(target)
    storage.begin(overwrite=False)
    storage.write("zarr.json", b"{}")
    storage.complete("manifest.json", json.dumps({}).encode())
    assert not os.path.exists(target)
    storage.publish(overwrite=False)
    storage.discard()
    assert storage_of(target).sizes() == {"zarr.json": 2, "manifest.json": 2}
    assert os.listdir(tmp_path) == ["a.zarr"]
    other = new_storage(target)
    with pytest.raises(InputError, match="exists; pass overwrite=True"):
        other.begin(overwrite=False)
    other.begin(overwrite=True)
    other.write("zarr.json", b"{}")
    other.discard()
    assert os.listdir(tmp_path) == ["a.zarr"]


def test_a_write_that_does_not_take_everything(tmp_path, monkeypatch):
    class Slow(storage.WholeFile):
        def write(self, data):
            return super().write(data[:3])

    monkeypatch.setattr(storage, "WholeFile", Slow)
    target = new_storage(str(tmp_path / "a"))
    target.begin(overwrite=False)
    target.write("x/y", b"0123456789")
    assert (Path(target.location) / "x/y").read_bytes() == b"0123456789"
