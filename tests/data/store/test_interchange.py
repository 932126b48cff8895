"""A store as a Dataset: the same as xarray's own reading of it, lazy, and known again while unchanged."""

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr

from dask_odm import Store, StoreError, ingest
from dask_odm.data.store.interchange import as_store, open_store
from dask_odm.data.store.writer import StoreWriter


def _refuse(*args, **kwargs):
    raise AssertionError("something was computed")


@pytest.fixture
def store(tmp_path) -> Store:
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(250, 3)), rng.choice([-1, 1], 250)
    names = ",".join(["a", "b", "c", "w", "y"])
    table = np.column_stack([X, rng.uniform(size=250), labels])
    np.savetxt(tmp_path / "a.csv", table, delimiter=",", header=names, comments="", fmt="%.17g")
    return ingest(tmp_path / "a.csv", tmp_path / "a.zarr", weight="w", chunk_rows=100)


def test_opening_reads_no_rows(store, monkeypatch):
    monkeypatch.setattr(Store, "read_chunk", _refuse)
    with dask.config.set(scheduler=_refuse):
        dataset = open_store(store.path)
        assert as_store(dataset) == store
    monkeypatch.undo()
    assert dataset["X"].shape == (250, 3)


def test_one_chunk_is_read_for_rows_of_one_chunk(store):
    Path(store.path, "X/c/0/0").write_bytes(b"")  # after opening nothing may need it
    with pytest.raises(StoreError, match="chunk 0/0"):
        open_store(store.path)
    shutil.copy(Path(store.path, "X/c/1/0"), Path(store.path, "X/c/0/0"))
    dataset = open_store(store.path)
    Path(store.path, "X/c/0/0").unlink()
    np.testing.assert_array_equal(dataset["X"][120:130].values, store.read(1).X[20:30])
    with pytest.raises(StoreError, match="array 'X', chunk 0/0: missing"):
        dataset["X"].compute()


def test_names_depend_on_place_and_content(store, tmp_path):
    first, second = open_store(store.path), open_store(store.path)
    assert [v.data.name for v in first.data_vars.values()] == [v.data.name for v in second.data_vars.values()]
    assert len({variable.data.name for variable in first.data_vars.values()}) == 3
    ingest(np.zeros((250, 3)), store.path, overwrite=True, chunk_rows=100)
    assert open_store(store.path)["X"].data.name != first["X"].data.name


@pytest.mark.parametrize("same", [lambda ds: ds, lambda ds: ds.copy(), lambda ds: pickle.loads(pickle.dumps(ds))])
def test_an_unmodified_dataset_is_its_store(store, same):
    assert as_store(same(open_store(store.path))) == store


@pytest.mark.parametrize("change", [
    lambda ds: ds.isel(sample=slice(10)),
    lambda ds: ds.isel(sample=slice(None, None, -1)),
    lambda ds: ds.isel(feature=[0, 1]),
    lambda ds: ds.transpose("feature", "sample"),
    lambda ds: ds.drop_vars("y"), lambda ds: ds.drop_vars("weight"), lambda ds: ds.drop_vars("feature"),
    lambda ds: ds.rename(X="Z"), lambda ds: ds.rename(sample="row"), lambda ds: ds.assign(X=ds.X * 2),
    lambda ds: ds.assign(y=-ds.y),
    lambda ds: ds.assign(weight=ds.weight * 0 + 1),
    lambda ds: ds.assign(other=ds.y),
    lambda ds: ds.assign_coords(feature=["a", "c", "b"]),
    lambda ds: ds.astype("float64"), lambda ds: ds.compute(),
    lambda ds: ds.persist().map(lambda v: v + 0),
    lambda ds: ds.chunk(sample=50),
    lambda ds: xr.concat([ds, ds], "sample"),
    lambda ds: xr.Dataset(),
    lambda ds: xr.open_zarr(ds.encoding["source"]),
])  # fmt: skip
def test_a_modified_dataset_is_not(store, change):
    assert as_store(change(open_store(store.path))) is None


def test_a_store_that_was_replaced_moved_or_damaged_is_not(store, tmp_path):
    dataset = open_store(store.path)
    shutil.move(store.path, tmp_path / "b.zarr")
    assert as_store(dataset) is None
    shutil.copytree(tmp_path / "b.zarr", store.path)
    assert as_store(dataset) == store
    Path(store.path, "X/c/1/0").unlink()
    assert as_store(dataset) is None
    ingest((np.zeros((250, 3)), np.arange(250) % 2), store.path, overwrite=True)
    assert as_store(dataset) is None


@pytest.mark.parametrize(
    ("classes", "expected"),
    [((1, 2), [1.0, 2.0, np.nan]), ((0.5, 2.0), [0.5, 2.0, np.nan]), (("a", "b"), ["a", "b", None])],
)
def test_unknown_labels(tmp_path, classes, expected):
    with StoreWriter(tmp_path / "a.zarr") as writer:
        writer.append(np.zeros((3, 1)), [0, 1, -1])
        writer.finish(classes)
    y = open_store(tmp_path / "a.zarr")["y"]
    assert y.dtype == np.array(expected).dtype
    np.testing.assert_array_equal(y.values, np.array(expected))


def test_tasks_import_nothing_heavy(store):
    """A worker that runs a chunk's task needs neither xarray nor pandas nor dask.array."""
    (lazy,) = dask.optimize(open_store(store.path)["X"].data)
    tasks = dict(lazy.dask)
    data = pickle.dumps(tasks[lazy.name, 0, 0])
    assert len(tasks) == 3
    assert len(data) < 3000
    code = (
        "import sys, pickle; out = pickle.load(sys.stdin.buffer)(); "
        "print(out.shape, [m for m in ('xarray', 'pandas', 'sklearn', 'dask.array') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert found.stdout.decode().strip() == "(100, 3) []"
