"""Records: zarr opens them, every bit comes back, no damage passes unseen, all or nothing on disk."""

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr

from dask_odm import InputError, Store, StoreError
from dask_odm.data.storage.storage import LocalStorage
from dask_odm.data.store import records, schemas
from dask_odm.data.store.layout import crc32c
from dask_odm.data.store.records import read_kind, read_record, write_record
from dask_odm.data.store.writer import StoreWriter
from dask_odm.events import IterationFinished
from dask_odm.learning.training.checkpoints import save_checkpoint
from small_stores import forge, store_of

ATTRIBUTES = {
    "estimator": "ODMClassifier",
    "model": {"kind": "linear"},
    "parameters": {"gamma": 0.1, "nested": {"n": 3, "none": None}},
    "schema": {"n_features": 7, "classes": ["nein", "ja"]},
    "fitted": {},
}


def made_up_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "vectors": rng.normal(size=(1000, 7)).astype(np.float32),
        "dual_coef": rng.normal(size=(1, 1000)),
        "support": rng.integers(0, 2**40, 1000),
        "cube": rng.normal(size=(30, 2, 3)),
        "codes": rng.integers(-128, 127, 11).astype(np.int8),
        "scalar": np.array(np.pi),
        "none": np.empty((0, 4)),
        "narrow": np.empty((5, 0), dtype=np.int16),
        "special": np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324]),
    }


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    """A record of several chunks an array."""
    monkeypatch.setattr(records, "STORE_CHUNK_BYTES", 300 * 28)
    write_record(tmp_path / "m.zarr", "model", made_up_arrays(), ATTRIBUTES)
    return tmp_path / "m.zarr"


def bits(array: np.ndarray) -> tuple:
    return array.dtype, array.shape, array.tobytes()


def test_what_goes_in_comes_out(path):
    record = read_record(path, "model")
    assert record.attributes == ATTRIBUTES
    assert {k: bits(record.array(k)) for k in record.arrays} == {k: bits(v) for k, v in made_up_arrays().items()}
    assert record.verify() > 0
    assert record.arrays["vectors"].n_chunks == 4
    assert os.listdir(path.parent) == ["m.zarr"]


def test_any_zarr_reader_opens_it(path):
    group = zarr.open_group(path, mode="r")  # warnings are errors in this suite
    for name, array in made_up_arrays().items():
        np.testing.assert_array_equal(group[name][...], array, strict=True)
    assert dict(group.attrs)["content"] == ATTRIBUTES
    assert dict(group.attrs)["kind"] == "model"
    assert sorted(group.array_keys()) == sorted(made_up_arrays())


def test_rows_read_only_their_chunks(path):
    record, vectors = pickle.loads(pickle.dumps(read_record(path, "model"))), made_up_arrays()["vectors"]
    for start, stop in [(0, 1000), (0, 1), (299, 301), (300, 600), (950, 1000), (5, 5), (1000, 1000)]:
        np.testing.assert_array_equal(record.rows("vectors", start, stop), vectors[start:stop], strict=True)
    (path / "vectors/c/1/0").unlink()
    np.testing.assert_array_equal(record.rows("vectors", 600, 1000), vectors[600:], strict=True)
    with pytest.raises(StoreError, match=r"'vectors', chunk 1/0: missing"):
        record.rows("vectors", 0, 301)
    for start, stop in [(-1, 3), (3, 2), (0, 1001)]:
        with pytest.raises(IndexError, match=r"array 'vectors' of shape \(1000, 7\)"):
            record.rows("vectors", start, stop)
    with pytest.raises(StoreError, match="has no array 'x'; it has vectors, "):
        record.array("x")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_rows_are_streamed_in_and_out(tmp_path):
    """Neither writing nor reading row ranges holds the array."""
    code = """
import re, sys
import numpy as np
from dask_odm.data.store.records import read_record, write_record

class Rows:
    shape, dtype = (150_000, 256), np.dtype(np.float32)
    def __getitem__(self, rows):
        return np.full((len(range(*rows.indices(150_000))), 256), rows.start, np.float32)

def peak():
    return int(re.search(r"VmHWM: *\\t* *([0-9]+) kB", open("/proc/self/status").read())[1])

before = peak()
write_record(sys.argv[1], "model", {"X": Rows()}, {})
record = read_record(sys.argv[1], "model")
assert all((record.rows("X", start, start + 10_000)[0] <= start).all() for start in range(0, 150_000, 10_000))
print(peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.zarr")], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 90_000  # kB, for 154 MB of rows
    assert (tmp_path / "m.zarr/X/c/0/0").stat().st_size <= 16_000_004


# Damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [
    lambda m: m["arrays"]["vectors"].update(shape=[10**15, 7]),
    lambda m: m["arrays"]["vectors"].update(shape=[-1, 7]),
    lambda m: m["arrays"]["vectors"].update(shape=[0, 10**39]),
    lambda m: m["arrays"]["vectors"].update(shape=[1000, 10**39]),
    lambda m: m["arrays"]["vectors"].update(shape=[10**39, 7], chunk_rows=10**39),
    lambda m: m["arrays"]["vectors"].update(shape=[1000.0, 7]),
    lambda m: m["arrays"]["vectors"].update(shape=[1000, 8]),
    lambda m: m["arrays"]["vectors"].update(shape="1000"),
    lambda m: m["arrays"]["vectors"].update(dtype="object"),
    lambda m: m["arrays"]["vectors"].update(dtype=["float32"]),
    lambda m: m["arrays"]["vectors"].update(chunk_rows=0),
    lambda m: m["arrays"]["vectors"].update(chunk_rows=10**9),
    lambda m: m["arrays"]["vectors"].pop("shape"),
    lambda m: m["arrays"].update({"../x": {"shape": [1], "dtype": "int8", "chunk_rows": 1}}),
    lambda m: m["arrays"].pop("vectors"), lambda m: m.update(arrays=[]),
    lambda m: m["chunks"].update({"../../etc/passwd": []}),
    lambda m: m["chunks"]["vectors"].pop(),
    lambda m: m["chunks"].__setitem__("vectors", 5),
    lambda m: m["documents"].update({"../zarr.json": [1, 1]}),
    lambda m: m["documents"].pop("zarr.json"),
    lambda m: m.pop("kind"), lambda m: m.update(kind="checkpoint"), lambda m: m.update(format="other"),
])  # fmt: skip
def test_a_manifest_that_lies_is_refused(path, change):
    forge(path, lambda manifest: None)
    assert read_record(path, "model").verify() > 0  # the forgery itself is sound
    forge(path, change)
    with pytest.raises(StoreError, match=r"m\.zarr'"):
        read_record(path, "model")


def test_a_chunk_of_another_generation_is_named(path, tmp_path):
    """It is sound in itself, and as long as it should be."""
    others = {name: array[::-1] if array.ndim else array for name, array in made_up_arrays().items()}
    write_record(tmp_path / "other.zarr", "model", others, ATTRIBUTES)
    for name, key in (("vectors", "1/0"), ("codes", "0")):
        own, theirs = (folder / name / "c" / key for folder in (path, tmp_path / "other.zarr"))
        whole = own.read_bytes()
        assert whole != theirs.read_bytes()
        shutil.copy(theirs, own)
        for read in (lambda name=name: read_record(path, "model").array(name), read_record(path, "model").verify):
            with pytest.raises(StoreError, match=f"array '{name}', chunk {key}: .* of another store"):
                read()
        own.write_bytes(whole)


@pytest.mark.parametrize("change", [{"content": 3}, {"kind": "checkpoint"}, None])
def test_a_group_document_that_lies_is_refused(path, change):
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"] = None if change is None else document["attributes"] | change
    text = json.dumps(document).encode()
    (path / "zarr.json").write_bytes(text)
    forge(path, lambda m: m["documents"].update({"zarr.json": [len(text), crc32c(text)]}))
    with pytest.raises(StoreError, match=r"no attributes of a model|are not an object|not as the manifest"):
        read_record(path, "model")


def test_what_is_no_model(path, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"'.*file' is a file, not a model;"):
        read_record(tmp_path / "file", "model")
    store_of(tmp_path / "a.zarr", np.zeros((3, 2)), None)
    kinds = [read_kind(tmp_path / name) for name in ("m.zarr", "a.zarr", "thesis", "x")]
    assert kinds == ["model", "store", None, None]
    (path / "manifest.json").rename(tmp_path / "manifest.json")
    (path / "manifest.json").symlink_to(tmp_path / "manifest.json")
    with pytest.raises(StoreError, match=r"model '.*m\.zarr': manifest\.json cannot be read \(Too many levels"):
        read_record(path, "model")


@dataclass(frozen=True)
class StepWithFigures(IterationFinished):
    """A step with figures that not every solver has."""

    kept: int | None = None
    share: float | None = None


def test_a_figure_of_a_step_may_be_none_if_its_type_says_so():
    check = schemas._figures_of(StepWithFigures)
    step = {"iteration": 0, "gap": 0.5, "objective": 1.0, "passes": 1.0, "seconds": 0.1}
    for more in ({}, {"kept": None, "share": 0.5}, {"kept": 3, "share": None}):
        check(step | more, "step")
    for name, value in (("kept", 0.5), ("gap", None)):
        with pytest.raises(ValueError, match=f"step.{name} is .*, not a"):
            check(step | {name: value}, "step")


# Writing ----------------------------------------------------------------------------------------------------


def test_what_reads_something_else_is_said(tmp_path):
    for kind, reader in (
        ("prediction", r"zarr\.open_group"),
        ("model", r"dask_odm\.load_model"),
        ("odd", "another version"),
    ):
        write_record(tmp_path / kind, kind, {"y": np.arange(3)}, {"classes": [0, 1]})
        with pytest.raises(StoreError, match=rf"is a {kind}, not a store; check the path \({reader}.* reads it\)"):
            Store.open(tmp_path / kind)
    assert read_record(tmp_path / "prediction", "prediction").verify() > 0


@pytest.mark.parametrize("kind", ["model", "checkpoint"])
@pytest.mark.parametrize("moment", ["after", "between the renames"])
def test_a_record_that_is_replaced_while_it_is_read_says_so(tmp_path, kind, moment):
    target = tmp_path / "r"
    write_record(target, kind, {"x": np.arange(3)}, {})
    record = read_record(target, kind)
    if moment == "after":
        write_record(target, kind, {"x": np.arange(5)}, {}, overwrite=True)
    else:
        os.rename(target, tmp_path / ".r.0123abcd.old")
    with pytest.raises(StoreError, match=f"{kind} '.*r' was replaced since it was loaded; "):
        record.array("x")


def test_a_record_that_is_replaced_while_it_is_opened_is_the_old_or_the_new(tmp_path, monkeypatch):
    """A writer gets in between the manifest and the files that are held against it, and between the two renames."""
    target, sizes = tmp_path / "r", LocalStorage.sizes
    write_record(target, "model", {"x": np.arange(3)}, {})

    def after_another(storage):
        monkeypatch.setattr(LocalStorage, "sizes", sizes)
        write_record(target, "model", {"x": np.arange(5)}, {}, overwrite=True)
        return sizes(storage)

    monkeypatch.setattr(LocalStorage, "sizes", after_another)
    assert read_record(target, "model").array("x").tolist() == [0, 1, 2, 3, 4]
    os.rename(target, tmp_path / ".r.0123abcd.old")
    back = threading.Timer(0.03, os.rename, (tmp_path / ".r.0123abcd.old", target))
    back.start()
    assert read_record(target, "model").array("x").tolist() == [0, 1, 2, 3, 4]
    back.join()


@pytest.mark.parametrize("kind", ["store", "checkpoint", "zarr", "damaged", "folder"])
def test_nothing_but_a_model_is_ever_replaced_by_one(tmp_path, kind):
    target = tmp_path / "x.zarr"
    if kind == "store":
        with StoreWriter(target) as writer:
            writer.append(np.zeros((3, 2)))
            writer.finish()
    elif kind == "checkpoint":
        save_checkpoint(target, {}, {})
    elif kind == "zarr":
        zarr.create_group(target)
    else:
        target.mkdir()
        (target / ("zarr.json" if kind == "damaged" else "thesis.tex")).write_text("years of work")
    files = {file: file.read_bytes() for file in target.rglob("*") if file.is_file()}
    with pytest.raises(InputError, match=r"x\.zarr' exists and is not a .*; remove it yourself"):
        write_record(target, "model", {}, {}, overwrite=True)
    assert {file: file.read_bytes() for file in target.rglob("*") if file.is_file()} == files


@pytest.mark.parametrize(("arrays", "attributes", "message"), [
    ({"../x": np.zeros(3)}, {}, r"array '\.\./x' of type float64 cannot be stored"),
    ({"x": np.zeros(3, dtype=object)}, {}, "of type object cannot be stored; types are float32, float64, int8"),
    ({"x": np.zeros(3, dtype=complex)}, {}, "of type complex128 cannot be stored"),
    ({}, {"gamma": float("nan")}, "attributes of a model must be JSON"),
    ({}, {"gamma": object()}, "attributes of a model must be JSON"),
])  # fmt: skip
def test_what_cannot_be_stored_is_refused(tmp_path, arrays, attributes, message):
    with pytest.raises(InputError, match=message):
        write_record(tmp_path / "m.zarr", "model", arrays, attributes)
    with pytest.raises(InputError, match="there is no folder"):
        write_record(tmp_path / "no/m.zarr", "model", {}, {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename", "replace"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failure_leaves_nothing_and_harms_nothing(tmp_path, monkeypatch, call, overwrite):
    target = tmp_path / "m.zarr"
    if overwrite:
        write_record(target, "model", {"x": np.arange(3)}, {})

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(StoreError, match=r"cannot write model '.*': No space left"):
        write_record(target, "model", made_up_arrays(), {}, overwrite=overwrite)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == (["m.zarr"] if overwrite else [])
    if overwrite:
        np.testing.assert_array_equal(read_record(target, "model").array("x"), [0, 1, 2])
