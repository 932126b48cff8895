"""The store: what is written is what zarr, xarray and `Store` read, and no damage passes unseen."""

import json
import os
import pickle
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import numcodecs
import numpy as np
import pandas as pd
import pytest
from dask.base import tokenize
from scipy.sparse import issparse

from dask_odm import Store, StoreError, ingest
from dask_odm.data.readers.tables import dense
from dask_odm.data.storage.storage import LocalStorage
from dask_odm.data.store.layout import crc32c, seal
from dask_odm.data.store.sealed import ENTRIES
from dask_odm.data.store.writer import StoreWriter
from data.stores import FEATURES, ROWS, made_up_rows, rewrite_y, write_store
from small_stores import forge, store_of


def test_a_buffer_is_used_again(pristine):
    store = pristine[None]
    out = store.buffer()
    first = store.read(0, out).X
    kept = first.copy()
    second = store.read(3, out).X
    assert np.shares_memory(first, second)
    np.testing.assert_array_equal(kept, store.read(0).X)
    np.testing.assert_array_equal(second, store.read(3).X)
    assert second.shape == (100, FEATURES)


@pytest.mark.parametrize("form", ["plain", "zstd", "sparse"])
def test_features_are_read_in_another_order(pristine, tmp_path, form):
    """As those of a store that was written so."""
    store = pristine["zstd" if form == "zstd" else None]
    if form == "sparse":
        frame = pd.DataFrame(np.maximum(made_up_rows()[0], 0.0), columns=store.feature_names)
        store = ingest((frame, made_up_rows()[1]), tmp_path / "a.zarr", sparse=True, chunk_rows=300)
    names = store.feature_names
    order = [4, 0, 2, 1, 3]
    found = store.of_features(names[j] for j in order)
    assert found.feature_names == tuple(names[j] for j in order)
    assert tokenize(found) != tokenize(store)
    np.testing.assert_array_equal(found.statistics.mean, store.statistics.mean[order])
    buffer = found.buffer()
    for i in range(store.n_chunks):
        expected = dense(store.read(i).X)[:, order]
        for X in (found.read(i).X, found.read(i, buffer).X, found.read_features(i)):
            np.testing.assert_array_equal(dense(X), expected)
            assert not issparse(X) or X.has_canonical_format
        if form != "sparse":
            assert found.read(i).X.flags.c_contiguous
            np.testing.assert_array_equal(np.concatenate([X.copy() for X in found.read_pieces(i, 70)]), expected)
    np.testing.assert_array_equal(dense(found.read_rows([5, 3]).X), dense(store.read_rows([5, 3]).X)[:, order])
    assert found.of_features(names).of_features(found.feature_names) == found
    for others in ((), names[:2], [*names[:4], "other"]):
        assert store.of_features(others) is store


def test_rows_of_other_classes_have_no_label(tmp_path):
    y = np.array(["a", "b", None, "c", "d"] * 10)
    store = store_of(tmp_path / "a.zarr", np.ones((50, 2)), y, weight=np.arange(50.0), chunk_rows=20)
    found = store.of_classes(np.array([1, 3]))
    assert (found.classes, found.class_counts, found.known_rows) == (("b", "d"), (10, 10), 20)
    np.testing.assert_array_equal(found.read_column("y"), [-1, 0, -1, -1, 1] * 10)
    np.testing.assert_array_equal(found.read_rows([4, 21, 23]).y, [1, 0, -1])
    np.testing.assert_array_equal(found.class_weights_total(), store.class_weights_total()[[1, 3]])
    assert tokenize(found) != tokenize(store)
    assert store.of_classes(np.arange(4)) is store


def test_gathering_rows_opens_only_their_chunks(store):
    X, codes, weight = made_up_rows()
    Path(store.path, "X/c/1/0").unlink()
    wanted = [999, 0, 5, 299, 601, 5]
    block = store.read_rows(wanted)
    np.testing.assert_array_equal(block.X, X[wanted].astype(np.float32))
    np.testing.assert_array_equal(block.y, codes[wanted])
    np.testing.assert_array_equal(block.weight, weight[wanted])
    with pytest.raises(StoreError, match="chunk 1/0: missing"):
        store.read_rows([0, 300])
    for outside in (-1, ROWS):
        with pytest.raises(IndexError, match=r"\[0, 1000\)"):
            store.read_rows([outside])
    assert store.read_rows([]).X.shape == (0, FEATURES)


def test_chunk_numbers_are_checked(pristine):
    for i in (-1, 4):
        with pytest.raises(IndexError, match=f"chunk {i}"):
            pristine[None].read(i)


def test_statistics_are_numpys(pristine):
    X = made_up_rows()[0].astype(np.float32).astype(np.float64)
    statistics = pristine[None].statistics
    np.testing.assert_array_equal(statistics.minimum, X.min(axis=0))
    np.testing.assert_array_equal(statistics.maximum, X.max(axis=0))
    np.testing.assert_allclose(statistics.mean, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(statistics.variance, X.var(axis=0), rtol=1e-12)
    np.testing.assert_allclose(statistics.total_variance, X.var(), rtol=1e-12)


# Damage ------------------------------------------------------------------------------------------------


def _damage(path: Path, how: str) -> str:
    """Damage a file and return what the error has to say."""
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
        return "missing"
    if how == "truncated":
        path.write_bytes(data[:-3])
        return "truncated|checksum|unreadable"
    if how == "empty":
        path.write_bytes(b"")
        return "truncated|checksum|unreadable"
    if how == "longer":
        path.write_bytes(bytes(data) + b"\0")
        return "truncated|checksum|unreadable"
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    return "checksum"


@pytest.mark.parametrize("i", [0, 1, 3], ids=["first", "middle", "last"])
@pytest.mark.parametrize("name", ["X", "y", "weight"])
@pytest.mark.parametrize("how", ["missing", "truncated", "empty", "longer", "bit"])
def test_damage_is_found_when_reading(store, name, i, how):
    array = store.layout.of_rows()[name]
    what = _damage(Path(store.path, array.chunk_key(i)), how)
    place = rf"store '.*a\.zarr', array '{name}', chunk {array.chunk_label(i)}: .*({what}).*re-ingest or restore"
    with pytest.raises(StoreError, match=place):
        store.read(i)
    if name == "X":
        with pytest.raises(StoreError, match=place):
            list(store.read_pieces(i, 70))
    with pytest.raises(StoreError, match=f"array '{name}', chunk {array.chunk_label(i)}"):
        store.verify()
    other = store.read((i + 2) % 4)
    assert len(other.X) == (300 if other.first < 900 else 100)


@pytest.mark.parametrize("how", ["missing", "truncated", "longer"])
@pytest.mark.parametrize("key", ["X/c/2/0", "y/c/0", "weight/c/3", "feature/c/0", "statistics/mean/c/0", "X/zarr.json"])
def test_opening_finds_files_that_are_missing_or_of_another_size(store, key, how):
    _damage(Path(store.path, key), how)
    name, _, chunk = key.partition("/c/")
    pattern = rf"array '{name}', chunk {chunk}: " if chunk else f"file '{key}': "
    with pytest.raises(StoreError, match=pattern):
        Store.open(store.path)


def test_verify_passes_an_undamaged_store(store):
    files = [path for path in Path(store.path).rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert store.verify() == sum(path.stat().st_size for path in files)


ARRAYS = ["X", "y", "weight", *(f"statistics/{name}" for name in ("minimum", "maximum", "mean", "variance"))]
SWAPPED_WITH = dict(pairwise(ARRAYS[3:]))  # the next, which is read later
SWAPPED = r"checksum differs from the manifest's \(swapped or of another store\); re-ingest or restore"


def _swap(first: Path, second: Path) -> None:
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)


def _read_array(store: Store, name: str, i: int) -> np.ndarray:
    """Read a chunk by the way a user of the array would."""
    if name.startswith("statistics/"):
        return getattr(store.statistics, name.partition("/")[2])
    return store.read_chunk(store.layout.of_rows()[name], i)


def _store_of_equal_sizes(path: Path, compression: str | None, seed: int = 0) -> Store:
    """A store whose packed chunks are of the same size too, so that opening it cannot tell them apart."""
    rng = np.random.default_rng(seed)
    codes = np.array([0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1])
    with StoreWriter(path, chunk_rows=4, compression=compression) as writer:
        writer.append(rng.normal(size=(16, 2)), codes, rng.uniform(size=16))
        return writer.finish()


@pytest.mark.parametrize("compression", [None, "zstd"], ids=["plain", "zstd"])
@pytest.mark.parametrize("name", ARRAYS[:-1])
@pytest.mark.parametrize("known", [True, False])
def test_reading_finds_swapped_chunks(tmp_path, compression, name, known):
    """Each is sound by itself, and of the size it should have; whether or not the process knows the manifest yet."""
    store = _store_of_equal_sizes(tmp_path / "a.zarr", compression)
    if name.startswith("statistics/"):
        _swap(Path(store.path, name, "c/0"), Path(store.path, SWAPPED_WITH[name], "c/0"))
    else:
        array = store.layout.of_rows()[name]
        _swap(Path(store.path, array.chunk_key(0)), Path(store.path, array.chunk_key(1)))
    if not known:
        ENTRIES.clear()
    with pytest.raises(StoreError, match=rf"array '{name}', chunk 0(/0)?: {SWAPPED}"):
        _read_array(store, name, 0)
    if name == "X":
        with pytest.raises(StoreError, match=SWAPPED):
            list(store.read_pieces(0, 3))
    with pytest.raises(StoreError, match=r"swapped.*\(1 more chunks"):
        store.verify()


@pytest.mark.parametrize("known", [True, False])
def test_reading_notices_that_the_store_was_replaced(tmp_path, known):
    store = write_store(tmp_path / "a.zarr")
    write_store(tmp_path / "a.zarr", seed=1, overwrite=True)
    if not known:
        ENTRIES.clear()
    for read in (
        lambda: store.read(1),
        lambda: [*store.read_pieces(1, 9)],
        lambda: store.statistics,
        lambda: store.read_rows([5]),
    ):
        with pytest.raises(StoreError, match=r"a\.zarr' was replaced since it was opened; open it again\."):
            read()
    again = Store.open(store.path)
    np.testing.assert_array_equal(again.read(1).X, made_up_rows(1)[0][300:600].astype(np.float32))


def test_the_manifest_is_read_once_a_process_and_store(store, monkeypatch):
    ENTRIES.clear()
    texts = []
    read = LocalStorage.read

    def count(storage, key, limit):
        texts.append(key)
        return read(storage, key, limit)

    monkeypatch.setattr(LocalStorage, "read", count)
    for i in range(store.n_chunks):
        store.read(i)
    assert texts == ["manifest.json"]


def test_a_store_of_many_chunks_stays_small(tmp_path):
    with StoreWriter(tmp_path / "a.zarr", chunk_rows=1) as writer:
        writer.append(np.arange(1000.0)[:, None], np.arange(1000) % 2)
        store = writer.finish()
    store.read(5)
    assert len(pickle.dumps(store)) < 2000


def test_what_is_known_of_stores_is_bounded(tmp_path):
    stores = [_store_of_equal_sizes(tmp_path / f"{i}.zarr", None, seed=i) for i in range(19)]
    assert len(ENTRIES) == 16
    assert [len(store.read(3).X) for store in stores] == [4] * len(stores)


# A manifest or document that is not what it should be ---------------------------------------------------


@pytest.mark.parametrize("change", [
    lambda m: m["layout"].update(rows=10**15),
    lambda m: m["layout"].update(features=10**15),
    lambda m: m["layout"].update(rows=-1),
    lambda m: m["layout"].update(rows=1000.0),
    lambda m: m["layout"].update(rows=True),
    lambda m: m["layout"].update(chunk_rows=299),
    lambda m: m["layout"].update(chunk_rows=10**9),
    lambda m: m["layout"].update(dtype="float64"),
    lambda m: m["layout"].update(dtype="object"),
    lambda m: m["layout"].update(y_dtype="../../etc"),
    lambda m: m["layout"].update(compression="gzip"),
    lambda m: m["layout"].update(has_weight=False),
    lambda m: m["layout"].update(path="/etc/passwd"),
    lambda m: m["layout"].update(coordinates=[["y", "number"]]),
    lambda m: m["layout"].update(coordinates=[["y", "word"]]),
    lambda m: m["layout"].update(coordinates=[[1, "date"]]),
    lambda m: m["layout"].update(coordinates=5),
    lambda m: m["layout"].pop("rows"),
    lambda m: m["chunks"].update({"../../etc/passwd": [[1, 1]]}),
    lambda m: m["chunks"]["X"].pop(),
    lambda m: m["chunks"]["X"].__setitem__(0, [6004, "0"]),
    lambda m: m["chunks"]["X"].__setitem__(0, [10**12, 0]),
    lambda m: m["chunks"]["X"].__setitem__(0, [m["chunks"]["X"][0][0], 10**39]),
    lambda m: m["chunks"]["X"].__setitem__(0, [m["chunks"]["X"][0][0], -1]),
    lambda m: m["documents"].update({"X/zarr.json": [10**39, 0]}),
    lambda m: m["layout"].update(rows=10**39, chunk_rows=10**39),
    lambda m: m["layout"].update(features=10**39),
    lambda m: m["chunks"].__setitem__("X", 5),
    lambda m: m["documents"].update({"../zarr.json": [1, 1]}),
    lambda m: m["documents"].pop("X/zarr.json"),
    lambda m: m.update(layout=[]), lambda m: m.clear(),
    lambda m: [m.pop(key) for key in [*m] if key != "format"],
    lambda m: m.update(format="other"), lambda m: m.update(format_version=99),
])  # fmt: skip
@pytest.mark.parametrize("store", [None], indirect=True)
def test_a_manifest_that_lies_is_refused(store, change):
    forge(store.path, lambda manifest: None)
    assert Store.open(store.path) == store  # the forgery itself is sound
    forge(store.path, change)
    with pytest.raises(StoreError, match=r"a\.zarr'"):
        Store.open(store.path)


@pytest.mark.parametrize("store", ["zstd"], indirect=True)
def test_an_array_document_that_lies_is_refused(store):
    """Even one whose checksum the manifest confirms."""
    document = json.loads(Path(store.path, "X/zarr.json").read_text())
    _rewrite(store, "X/zarr.json", json.dumps(document | {"shape": [10**9, FEATURES]}).encode())
    with pytest.raises(StoreError, match="not as the manifest has it"):
        Store.open(store.path)


# Content that lies, with checksums that fit ---------------------------------------------------------------


def _rewrite(store: Store, key: str, data: bytes) -> None:
    """Put other bytes in place of a file and have the manifest confirm them."""
    Path(store.path, key).write_bytes(data)
    name, _, chunk = key.partition("/c/")

    def confirm(manifest) -> None:
        if chunk:
            i = int(chunk.split("/")[0])
            manifest["chunks"][name][i] = [len(data), int.from_bytes(data[-4:], "little")]
        else:
            manifest["documents"][key] = [len(data), crc32c(data)]

    forge(store.path, confirm)


def _sealed(store: Store, array, values: np.ndarray) -> bytes:
    plain = values.astype(array.dtype).tobytes()
    return seal(bytes(numcodecs.Zstd(checksum=True).encode(plain)) if array.compression else plain)


@pytest.mark.parametrize("code", [2, -2, 127])
def test_a_label_code_without_a_class(store, code):
    codes = np.zeros(300)
    codes[7] = code
    _rewrite(store, "y/c/1", _sealed(store, store.layout.of_rows()["y"], codes))
    with pytest.raises(StoreError, match="array 'y', chunk 1: a label code without a class"):
        Store.open(store.path).read(1)
    with pytest.raises(StoreError, match="a label code without a class"):
        Store.open(store.path).read_column("y")


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_a_weight_that_is_none(store, weight):
    weights = np.ones(300)
    weights[-1] = weight
    _rewrite(store, "weight/c/2", _sealed(store, store.layout.of_rows()["weight"], weights))
    with pytest.raises(StoreError, match="array 'weight', chunk 2: a weight that is negative or not finite"):
        Store.open(store.path).read_column("weight")


@pytest.mark.parametrize("size", [300 * FEATURES * 4 - 4, 300 * FEATURES * 4 + 4, 1 << 40])
@pytest.mark.parametrize("store", ["zstd"], indirect=True)
def test_a_chunk_that_unpacks_to_another_size(store, size):
    """Refused by what its head says: no memory is taken for it."""
    if size > 1 << 30:
        packed = b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + bytes(50)  # a frame with an 8-byte size
    else:
        packed = bytes(numcodecs.Zstd().encode(bytes(size)))
    _rewrite(store, "X/c/1/0", seal(packed))
    with pytest.raises(StoreError, match=rf"array 'X', chunk 1/0: unreadable \({size} bytes, not 6000, are packed"):
        Store.open(store.path).read(1)


@pytest.mark.parametrize("change", [
    {"classes": ["no"]}, {"classes": ["yes", "no"]}, {"classes": ["no", "no"]}, {"classes": [0, 1]},
    {"classes": None}, {"class_type": "object"}, {"class_counts": [-1, 5]}, {"class_counts": [500, 501]},
    {"class_counts": ["1", "2"]}, {"class_counts": [1.0, 2.0]}, {"class_weights": [1.0]},
    {"class_weights": [1.0, -1.0]}, {"class_weights": [1, 2]}, {"class_weights": "12"},
    {"class_weights": [0.5, "nan"]}, {"class_dtype": "<M8[D]"},
    *({"classes": [low, 2], "class_type": "int", "class_dtype": dtype}
      for low, dtype in ((1, "<U2"), (1, "<f8"), (1, "V250000000"), (-(2**63), "<M8[D]"), (-(2**70), "<M8[D]"))),
])  # fmt: skip
def test_class_labels_that_lie_are_refused(store, change):
    rewrite_y(store, lambda attributes: attributes.update(change))
    with pytest.raises(StoreError, match=r"y/zarr\.json': no class labels"):
        Store.open(store.path)


@pytest.mark.parametrize("change", [
    lambda root: root["consolidated_metadata"]["metadata"]["X"].update(shape=[10**9, FEATURES]),
    lambda root: root["consolidated_metadata"]["metadata"].update(other={}),
    lambda root: root.pop("attributes"),
    lambda root: root.update(node_type="array"),
])  # fmt: skip
def test_a_group_document_that_lies_is_refused(store, change):
    """xarray and zarr would believe its copy of the arrays' documents."""
    root = json.loads(Path(store.path, "zarr.json").read_text())
    change(root)
    _rewrite(store, "zarr.json", json.dumps(root).encode())
    with pytest.raises(StoreError, match=r"'zarr\.json': not as the manifest has it"):
        Store.open(store.path)


def test_it_is_shown_in_a_line(tmp_path):
    store = write_store(tmp_path / "a\x1b.zarr")
    shown = repr(store)
    assert shown.startswith("Store('")
    assert shown.isprintable()
    assert f"{ROWS:,} rows of {FEATURES:,} features" in shown
    assert len(shown) < len(str(tmp_path)) + 100


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are text")
def test_a_path_need_not_be_text(tmp_path):
    plain = write_store(tmp_path / "a.zarr")
    shutil.copytree(tmp_path / "a.zarr", other := os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.zarr"))
    found = Store.open(other)
    assert tokenize(found) != tokenize(plain)
    assert pickle.loads(pickle.dumps(found)) == found
    np.testing.assert_array_equal(found.read(0).X, plain.read(0).X)
