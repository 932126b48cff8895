"""Stores and records in an object store: whole or not at all, whatever the server, the network and other writers do."""

import pickle
import subprocess
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr

from dask_odm import InputError, ObjectStoreError, Store, StoreError, open_store
from dask_odm.data.storage.locations import client_of, explained
from dask_odm.data.storage.objects import NewObjects, ObjectStorage, claimed
from dask_odm.data.store.records import check_target, read_kind, read_record, write_record
from dask_odm.data.store.writer import StoreWriter, publish_all
from object_server import BUCKET, KEY, SECRET
from small_stores import store_of

X = np.random.default_rng(0).standard_normal((250, 3)).astype("float32")
Y = np.where(X[:, 0] > 0, "yes", "no")


def put_store(place: str) -> Store:
    """A store of three chunks."""
    return store_of(f"{place}/a.zarr", X, Y)  # type: ignore[arg-type]


def key_of(location: str, key: str) -> str:
    return f"{location.removeprefix(f's3://{BUCKET}/')}/{key}"


def check(store: Store) -> None:
    np.testing.assert_array_equal(np.concatenate([block.X.copy() for block in store.blocks()]), X)
    np.testing.assert_array_equal(store.labels(store.read_column("y")), Y)


# Bytes -------------------------------------------------------------------------------------------------------


def test_bytes_come_back(place):
    storage, data = ObjectStorage(place), np.random.default_rng(0).bytes(3500)
    storage.part_bytes = 1000
    storage.write("a/b", data)
    storage.write("a/c", memoryview(np.arange(3)))
    assert storage.sizes() == {"a/b": 3500, "a/c": 24}
    assert storage.read("a/b", 3500) == data
    with pytest.raises(OSError, match="3500 bytes, more than 3499"):
        storage.read("a/b", 3499)
    for size in (1, 999, 1000, 1001, 2000, 3499, 3500, 3501, 5000):
        buffer = bytearray(size)
        assert storage.read_into("a/b", memoryview(buffer)) == min(3500, size + 1)
        if size >= 3500:  # what does not fit is not looked at
            assert buffer[:3500] == data
    storage.write("empty", b"")
    assert storage.read_into("empty", memoryview(bytearray(4))) == 0
    storage.remove_all(["a/b", "a/c", "nothing"])
    assert storage.sizes() == {"empty": 0}
    with pytest.raises(FileNotFoundError):
        storage.read("a/b", 5)
    with pytest.raises(FileNotFoundError):
        storage.read_into("a/b", memoryview(bytearray(4)))


def test_parts_of_a_chunk_are_read_at_the_same_time(place, object_server):
    storage = ObjectStorage(place)
    storage.part_bytes = 1000
    storage.write("a", bytes(8000))
    object_server.fail("slow", match="GET", seconds=0.3)
    began = time.monotonic()
    assert storage.read_into("a", memoryview(bytearray(8000))) == 8000
    assert time.monotonic() - began < 4 * 0.3  # eight parts: one after another they take 2.4 s


READ = """
import re, sys
from dask_odm.data.store.store import Store
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
store = Store.open(sys.argv[1])
buffer, before = store.buffer(), peak()
for i in [*range(store.n_chunks)] * 3:
    store.read(i, buffer)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_reads_hold_a_chunk_and_some_pieces(place):
    with StoreWriter(f"{place}/a.zarr") as writer:
        for _ in range(4):
            writer.append(np.zeros((100_000, 40), np.float32))
        store = writer.finish()
    assert store.n_chunks >= 4
    done = subprocess.run([sys.executable, "-c", READ, store.path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < store.chunk_nbytes + 40e6  # of 64 MB that are read three times


# Stores and records --------------------------------------------------------------------------------------------


def test_a_store_is_the_one_on_disk_byte_for_byte(place, object_server, tmp_path):
    local, remote = store_of(tmp_path / "a.zarr", X, Y), put_store(place)
    files = {str(path.relative_to(local.path)): path for path in Path(local.path).rglob("*") if path.is_file()}
    prefix = key_of(remote.path, "")
    assert {key.removeprefix(prefix) for key in object_server.keys(prefix)} == set(files)
    for key, path in files.items():
        assert object_server.get(prefix + key) == path.read_bytes()
    check(remote)
    assert (remote.digest, remote.layout, remote.facts) == (local.digest, local.layout, local.facts)
    assert remote.verify() == local.verify()
    assert Store.open(f"{place}/a.zarr") == Store.open(remote.path) == pickle.loads(pickle.dumps(remote)) == remote
    assert read_kind(f"{place}/a.zarr") == "store"
    xr.testing.assert_equal(open_store(f"{place}/a.zarr").compute(), open_store(local.path).compute())


def test_zarr_and_xarray_read_it_where_it_is(place):
    from obstore.store import S3Store
    from zarr.storage import ObjectStore

    bucket = S3Store(BUCKET, prefix=key_of(put_store(place).path, "")[:-1], client_options={"allow_http": True})
    found = xr.open_zarr(ObjectStore(bucket, read_only=True))
    np.testing.assert_array_equal(found["X"].values, X)


def test_a_folder_that_was_copied_as_it_is(place, object_server, tmp_path):
    local = store_of(tmp_path / "a.zarr", X, Y)
    for path in Path(local.path).rglob("*"):
        if path.is_file():
            object_server.put(key_of(place, f"a.zarr/{path.relative_to(local.path)}"), path.read_bytes())
    store = Store.open(f"{place}/a.zarr")
    check(store)
    assert store.path == f"{place}/a.zarr"
    with pytest.raises(InputError, match="exists; pass overwrite=True"):
        put_store(place)
    with StoreWriter(store.path, overwrite=True) as writer:
        writer.append(X[:5])
        assert writer.finish().rows == 5
    assert not [key for key in object_server.keys(key_of(place, "a.zarr/")) if "/X/c/2" in key], "the old one is gone"
    with pytest.raises(StoreError, match="was replaced since"):
        store.verify()


def test_what_is_not_there_and_what_is_no_store(place, object_server):
    with pytest.raises(StoreError, match=r"does not exist; make one"):
        Store.open(f"{place}/none.zarr")
    with pytest.raises(StoreError, match=r"model '.*' does not exist"):
        read_record(f"{place}/none.zarr", "model")
    assert read_kind(f"{place}/none.zarr") is None
    object_server.put(key_of(place, "notes/a.txt"), b"mine")
    with pytest.raises(StoreError, match="unfinished or not a store"):
        Store.open(f"{place}/notes")
    with pytest.raises(InputError, match="is not a zarr store"):
        write_record(f"{place}/notes", "model", {"x": np.arange(3)}, {}, overwrite=True)
    put_store(place)
    with pytest.raises(InputError, match="exists and is not a model"):
        check_target(f"{place}/a.zarr", "model", overwrite=True)
    with pytest.raises(ObjectStoreError, match="no such bucket"):
        Store.open("s3://nowhere/a.zarr")
    object_server.put(key_of(place, "bad/current.json"), b'{"format": "dask_odm.current", "generation": "../x"}')
    with pytest.raises(StoreError, match=r"current\.json' is damaged"):
        Store.open(f"{place}/bad")


def test_records_are_replaced_whole_and_the_old_ones_go(place, object_server):
    write_record(f"{place}/m", "model", {"x": np.arange(3)}, {})
    old = read_record(f"{place}/m", "model")
    write_record(f"{place}/m", "model", {"x": np.arange(4)}, {"a": 1}, overwrite=True)
    new = read_record(f"{place}/m", "model")
    assert (new.array("x").tolist(), new.attributes) == ([0, 1, 2, 3], {"a": 1})
    with pytest.raises(StoreError, match="was replaced since it was loaded; load it again"):
        old.array("x")
    assert len(object_server.keys(key_of(place, "m/"))) == len(ObjectStorage(new.path).sizes()) + 1


# Writers -------------------------------------------------------------------------------------------------------


def writer_of(target: str, text: bytes, *, overwrite: bool = False) -> NewObjects:
    storage = NewObjects(target)
    storage.begin(overwrite=overwrite)
    storage.write("zarr.json", text)
    storage.complete("manifest.json", text)
    return storage


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_writers_that_race_one_wins(place, overwrite):
    if overwrite:
        writer_of(place, b"first").publish(overwrite=False)
    writers = [writer_of(place, b"%d" % i, overwrite=overwrite) for i in range(6)]
    assert ObjectStorage(place).exists() == overwrite, "nothing is seen before it is published"
    errors: list[Exception | None] = [None] * len(writers)

    def publish(i: int) -> None:
        try:
            writers[i].publish(overwrite=overwrite)
        except Exception as error:
            errors[i] = error
        finally:
            writers[i].discard()

    threads = [threading.Thread(target=publish, args=(i,)) for i in range(len(writers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (won,) = [i for i, error in enumerate(errors) if error is None]
    assert all("written by another process meanwhile" in str(error) for i, error in enumerate(errors) if i != won)
    found = ObjectStorage(ObjectStorage(place).resolved())
    assert {found.read(key, 100) for key in ("zarr.json", "manifest.json")} == {b"%d" % won}
    assert len(ObjectStorage(place).sizes()) == 3, "nothing is left of the others"


def test_what_one_process_claims_another_does_not_replace(place):
    with claimed(place):
        writer_of(place, b"mine", overwrite=True).publish(overwrite=True)
        writer_of(place, b"mine again", overwrite=True).publish(overwrite=True)
        current = ObjectStorage(place).current()
        ObjectStorage(place).make_current("f" * 32, current)  # as another process does
        with pytest.raises(StoreError, match="written by another process meanwhile"):
            writer_of(place, b"mine", overwrite=True)
    writer_of(place, b"anyone's", overwrite=True).publish(overwrite=True)


def test_a_writer_that_fails_leaves_nothing(place, object_server):
    def write(error: type[BaseException]) -> None:
        with StoreWriter(f"{place}/a.zarr", chunk_rows=10) as writer:
            writer.append(X[:25])
            assert object_server.keys(key_of(place, ""))
            raise error

    for error in (InputError, KeyboardInterrupt):
        with pytest.raises(error):
            write(error)
    assert object_server.keys(key_of(place, "")) == []


def test_stores_that_belong_together_appear_together(place, object_server):
    with StoreWriter(f"{place}/a.zarr") as one, StoreWriter(f"{place}/b.zarr") as two:
        for writer in (one, two):
            writer.append(X)
            writer.prepare()
        put = object_server.keys(key_of(place, ""))
        object_server.fail("status", status=403, match=r"PUT .*b\.zarr/current")
        with pytest.raises(ObjectStoreError, match=r"refuses access \(403"):
            publish_all([one, two])
        assert len(put) > 10
    assert object_server.keys(key_of(place, "")) == []


def test_what_killed_writers_left_goes_after_a_day(place):
    writer_of(place, b"killed")
    writer_of(place, b"one", overwrite=True).publish(overwrite=True)
    assert len(ObjectStorage(place).sizes()) == 5, "it may be being written"
    later = writer_of(place, b"two", overwrite=True)
    later.kept = -timedelta(seconds=1)
    later.publish(overwrite=True)
    assert len(ObjectStorage(place).sizes()) == 3


# Faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "method"), [("status", "GET"), ("refuse", "PUT"), ("cut", "GET"), ("lost", "PUT")])
def test_a_fault_that_passes_costs_time_only(place, object_server, kind, method):
    """Answers of 500; connections that are cut before the answer, in its midst, or with the request carried out."""
    object_server.fail(kind, match=rf"{method} .*(c/1/0|manifest|current)", times=3, status=500)
    check(put_store(place))
    store = Store.open(f"{place}/a.zarr")
    check(store)
    assert len(ObjectStorage(f"{place}/a.zarr").sizes()) == len(ObjectStorage(store.path).sizes()) + 1


@pytest.mark.parametrize(("method", "kind", "status", "said"), [
    ("GET", "status", 503, r"answers 503 .*tried for 0\.5 s; see whether it is up"),
    ("PUT", "refuse", 0, r"does not answer, tried for 0\.5 s"),
    ("GET", "status", 403, r"refuses access \(403.*\); check the credentials \(AWS_ACCESS_KEY_ID"),
])  # fmt: skip
def test_a_fault_that_stays_is_one_error_without_a_secret(place, object_server, method, kind, status, said):
    store = put_store(place)
    object_server.fail(kind, status=status, match=f"{method} /{BUCKET}/")
    began = time.monotonic()
    with (
        dask.config.set({"dask_odm.object-store-patience": "0.5s"}),
        pytest.raises(ObjectStoreError, match=said) as caught,
    ):
        store.read(1) if method == "GET" else write_record(f"{place}/m", "model", {"x": X}, {})
    assert time.monotonic() - began < 10
    told = "".join(traceback.format_exception(caught.value))
    assert "'s3://rows/" in str(caught.value)
    assert not [word for word in (SECRET, KEY, "Signature") if word in told]
    object_server.fail()
    check(store)
    assert object_server.keys(key_of(place, "m/")) == []


def test_words_of_a_key_do_not_say_what_is_wrong():
    with pytest.raises(ObjectStoreError, match="does not answer"), explained("s3://rows/credentials/a.zarr", "read"):
        raise OSError("timed out: http://host/rows/credentials/a.zarr/X/c/0/0")


def test_no_secret_is_kept_or_shown(place, object_server):
    store = put_store(place)
    write_record(f"{place}/m", "model", {"x": X}, {})
    client = client_of(place)
    shown = [repr(store), repr(client), repr(read_record(f"{place}/m", "model")), str(pickle.dumps(store))]
    shown += [str(object_server.get(key)) for key in object_server.keys(key_of(place, ""))]
    assert not [text for text in shown if SECRET in text or KEY in text]


def test_errors_say_nothing_of_the_request():
    from obstore.exceptions import GenericError

    with pytest.raises(ObjectStoreError) as caught, explained("az://b/a", "read"):
        raise GenericError("Generic error: http://a?sig=hidden status code: 409 Conflict: <Code>hidden?</Code>")
    assert "answers 409 Conflict, tried" in str(caught.value)
    assert "hidden" not in "".join(traceback.format_exception(caught.value))
