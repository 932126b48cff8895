"""The writer: zarr's own bytes, labels as they went in, a whole store or nothing at all."""

import errno
import json
import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dask_odm import InputError, Store, StoreError
from dask_odm.data.storage.storage import LocalStorage
from dask_odm.data.store.layout import MAX_CHUNK_BYTES, STORE_CHUNK_BYTES, decode_strings, encode_strings, rows_of_chunk
from dask_odm.data.store.writer import StoreWriter, publish_all
from data.stores import write_store


def _write_parts(path: Path, *parts: tuple, end: dict | None = None, **options) -> Store:
    with StoreWriter(path, **options) as writer:
        for part in parts:
            writer.append(*part)
        return writer.finish(**(end or {}))


def _zarr_copy(store: Store, folder: Path) -> Path:
    """Write the same arrays through zarr's own encoder, and return the folder."""
    group = zarr.create_group(folder, zarr_format=3)
    original = zarr.open_group(store.path, mode="r")
    for array in store.layout.arrays():
        source = original[array.name]
        copy = group.create_array(
            array.name, shape=source.shape, chunks=source.chunks, dtype=source.dtype, fill_value=source.fill_value,
            compressors=source.compressors, dimension_names=source.metadata.dimension_names,
            attributes=dict(source.attrs), config={"write_empty_chunks": True},
        )  # fmt: skip
        copy[:] = source[:]
    return folder


def test_files_are_those_zarr_writes(pristine, tmp_path):
    """Chunks byte for byte and documents entry for entry, plain and compressed, strings included."""
    for kind, store in pristine.items():
        copy = _zarr_copy(store, tmp_path / str(kind))
        for array in store.layout.arrays():
            for i in range(array.n_chunks):
                ours, theirs = (Path(root, array.chunk_key(i)).read_bytes() for root in (store.path, copy))
                assert ours == theirs, (kind, array.name, i)
            ours, theirs = (json.loads(Path(root, array.name, "zarr.json").read_text()) for root in (store.path, copy))
            assert ours == theirs


def test_labels_that_do_not_occur_are_left_out(tmp_path):
    with StoreWriter(tmp_path / "a.zarr") as writer:
        writer.append(np.zeros((3, 1)), [3, 1, 3])
        store = writer.finish(("a", "b", "c", "d", "e"))
    assert (store.classes, store.class_counts) == (("b", "d"), (1, 2))
    assert store.read_column("y").tolist() == [1, 0, 1]


@pytest.mark.parametrize(("classes", "dtype"), [(1, "int8"), (128, "int8"), (129, "int16")])
def test_codes_take_the_smallest_type(tmp_path, classes, dtype):
    codes = np.arange(classes)
    with StoreWriter(tmp_path / "a.zarr") as writer:
        writer.append(np.zeros((classes, 1)), codes)
        store = writer.finish()
    np.testing.assert_array_equal(store.read_column("y"), codes.astype(dtype), strict=True)


@pytest.mark.parametrize("features", [1, 3, 18, 2000, 100_000, 1_900_000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_default_chunks_have_8_to_16_megabytes(features, dtype):
    row = max(features * np.dtype(dtype).itemsize, 8)
    rows = rows_of_chunk(None, features, dtype)
    assert 8_000_000 <= rows * row <= STORE_CHUNK_BYTES or rows == 1
    assert rows * 8 <= MAX_CHUNK_BYTES


# Writing -------------------------------------------------------------------------------------------------


def test_overwriting_replaces_only_when_complete(tmp_path):
    old = write_store(tmp_path / "a.zarr")

    def interrupted():
        with StoreWriter(old.path, overwrite=True) as writer:
            writer.append(np.zeros((10, 2)))
            writer.prepare()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert Store.open(old.path) == old
    old.verify()
    new = write_store(tmp_path / "a.zarr", seed=1, overwrite=True)
    assert new.digest != old.digest
    assert os.listdir(tmp_path) == ["a.zarr"]


def test_a_full_disk_is_named_where_the_library_names_nothing(tmp_path, monkeypatch):
    """Some of NumPy's writing raises an OSError that has no number."""

    def full(*args, **kwargs):
        raise OSError("1200 requested and 0 written")

    monkeypatch.setattr(LocalStorage, "write", full)
    with pytest.raises(StoreError, match=r"cannot write store '.*a.zarr': 1200 requested and 0 written"):
        write_store(tmp_path / "a.zarr")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_while_the_folder_is_made_leaves_nothing(tmp_path, monkeypatch, after):
    make = os.mkdir

    def interrupted(*args, **kwargs):
        if after:
            make(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "a.zarr")
    assert os.listdir(tmp_path) == []


def test_stores_that_belong_together_appear_together(tmp_path, monkeypatch):
    def prepared(stack: ExitStack, name: str, **options) -> StoreWriter:
        writer = stack.enter_context(StoreWriter(tmp_path / name, **options))
        writer.append(np.zeros((3, 1)))
        writer.prepare()
        return writer

    rename = os.rename

    def second_fails(source, target):
        if str(target).endswith("b.zarr"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    with ExitStack() as stack, monkeypatch.context() as patch:
        patch.setattr(os, "rename", second_fails)
        writers = [prepared(stack, "a.zarr"), prepared(stack, "b.zarr")]
        with pytest.raises(StoreError, match="Input/output error"):
            publish_all(writers)
    assert os.listdir(tmp_path) == []
    with ExitStack() as stack:
        stores = publish_all([prepared(stack, "a.zarr"), prepared(stack, "b.zarr")])
    assert [store.verify() > 0 for store in stores] == [True, True]


def test_the_manifest_comes_last_and_after_everything_was_synced(tmp_path, monkeypatch):
    """At the moment of the rename all files but the folder's name are final."""
    seen = []
    synced = set()
    fsync, rename = os.fsync, os.rename

    def note(descriptor):
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def watch(source, target):
        files = {os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names}
        seen.append(files - {path.removesuffix(".tmp") for path in synced})
        rename(source, target)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "rename", watch)
    write_store(tmp_path / "a.zarr")
    assert seen == [set()]
    assert str(tmp_path) in synced


@pytest.mark.parametrize(("X", "codes", "weight", "message"), [
    (np.zeros(3), None, None, "two dimensions"),
    (np.zeros((3, 0)), None, None, "two dimensions"),
    (np.full((3, 1), np.nan), None, None, "NaN, infinity or a value too large for float32"),
    (np.full((3, 1), 1e300), None, None, "too large for float32"),
    (np.zeros((3, 1)), [0, 1], None, r"y must have shape \(3,\)"),
    (np.zeros((3, 1)), [0, 1, -2], None, "at least -1"),
    (np.zeros((3, 1)), [True, False, True], None, "must be integers"),
    (np.zeros((3, 1)), [0.5, np.inf, 1.0], None, "must be finite, or NaN"),
    (np.zeros((3, 1)), None, [1.0, -1.0, 0.0], "weight must be finite and not negative"),
    (np.zeros((3, 1)), None, [1.0, np.inf, 0.0], "weight must be finite and not negative"),
    (np.zeros((0, 1)), None, None, "no rows"),
])  # fmt: skip
def test_rows_that_cannot_be_stored(tmp_path, X, codes, weight, message):
    with pytest.raises(InputError, match=message):
        _write_parts(tmp_path / "a.zarr", (X, codes, weight))
    assert os.listdir(tmp_path) == []


def test_labels_for_some_rows_only(tmp_path):
    with pytest.raises(InputError, match="y must be given for all rows or for none"):
        _write_parts(tmp_path / "a.zarr", (np.zeros((3, 1)), [0, 1, 0]), (np.zeros((3, 1)),))


@pytest.mark.parametrize(("options", "message"), [
    ({"classes": ("a",)}, "label code 1, but only 1 classes"),
    ({"classes": ("a", 1)}, "all be numbers, all strings or all booleans"),
    ({"classes": (float("nan"), 1.0)}, "not NaN"),
    ({"feature_names": ["a"]}, "must be 2 strings"),
    ({"feature_names": ["a", "a"]}, "'a' occurs more than once"),
])  # fmt: skip
def test_a_wrong_end(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        _write_parts(tmp_path / "a.zarr", (np.zeros((2, 2)), [0, 1]), end=options)
    assert os.listdir(tmp_path) == []


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_strings_come_back(values):
    assert decode_strings(encode_strings(values)) == tuple(values)
