"""AnnData on disk, written by its specification: rows, labels and names are what went in; damage is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from scipy.sparse import csr_array, random_array

from dask_odm import InputError, ingest
from dask_odm.data.readers.formats import open_source
from data.reading import stored

X = csr_array(random_array((60, 3000), density=0.01, format="csr", random_state=np.random.default_rng(0)))
KINDS = np.random.default_rng(1).choice(["B cell", "T cell", "Käfer"], 60)
NAMES = [f"gene{i}" for i in range(3000)]


def words(group: Any, name: str, values: Any) -> None:
    """Write strings, as both zarr and h5py hold them."""
    if isinstance(group, zarr.Group):
        node = group.create_array(name, shape=(len(values),), dtype=str)
        node[:] = np.array(values, dtype=object)
    else:
        node = group.create_dataset(name, data=np.array(values, dtype=object))
    node.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})


def numbers(group: Any, name: str, values: np.ndarray, kind: str | None = "array") -> Any:
    node = (
        group.create_array(name, data=values)
        if isinstance(group, zarr.Group)
        else group.create_dataset(name, data=values)
    )
    if kind is not None:
        node.attrs.update({"encoding-type": kind, "encoding-version": "0.2.0"})
    return node


def write(root: Any, rows: Any = X) -> None:
    root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    if isinstance(rows, np.ndarray):
        numbers(root, "X", rows)
    else:
        group = root.create_group("X")
        group.attrs.update(
            {"encoding-type": f"{rows.format}_matrix", "encoding-version": "0.1.0", "shape": list(rows.shape)}
        )
        for name in ("data", "indices", "indptr"):
            numbers(group, name, getattr(rows, name), None)
    frame = {"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"}
    obs = root.create_group("obs")
    obs.attrs.update({**frame, "column-order": ["kind", "batch", "share"]})
    words(obs, "_index", [f"cell{i}" for i in range(rows.shape[0])])
    classes, codes = np.unique(KINDS, return_inverse=True)
    categorical = obs.create_group("kind")
    categorical.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
    numbers(categorical, "codes", codes.astype(np.int8))
    words(categorical, "categories", classes.tolist())
    words(obs, "batch", [f"b{i % 2}" for i in range(60)])
    numbers(obs, "share", np.linspace(0, 1, 60))
    var = root.create_group("var")
    var.attrs.update({**frame, "column-order": []})
    words(var, "_index", NAMES[: rows.shape[1]])


@pytest.fixture(params=["zarr2", "zarr3", "h5ad"])
def made(request, tmp_path):
    """A function that writes rows as AnnData, and returns the path."""

    def make(rows: Any = X) -> str:
        if request.param == "h5ad":
            h5py = pytest.importorskip("h5py")
            with h5py.File(tmp_path / "cells.h5ad", "w") as root:
                write(root, rows)
            return str(tmp_path / "cells.h5ad")
        root = zarr.open_group(tmp_path / "cells.zarr", mode="w", zarr_format=int(request.param[-1]))
        write(root, rows)
        return str(tmp_path / "cells.zarr")

    return make


@pytest.mark.parametrize("block_bytes", [1, 900, 10**6])
def test_rows_labels_weights_and_names_are_what_went_in(made, tmp_path, block_bytes):
    path = made()
    store = ingest(path, tmp_path / "a.zarr", label="kind", weight="share", dtype="float64", block_bytes=block_bytes)
    assert store.is_sparse
    found, labels = stored(store)
    assert abs(found - X).max() == 0
    np.testing.assert_array_equal(labels, KINDS)
    np.testing.assert_array_equal(store.read_column("weight"), np.linspace(0, 1, 60))
    assert store.feature_names == tuple(NAMES)


def test_the_label_is_the_column_that_is_named(made, tmp_path):
    path = made()
    assert set(ingest(path, tmp_path / "b.zarr", label="batch").classes) == {"b0", "b1"}
    assert ingest(path, tmp_path / "c.zarr").y_kind is None


def test_dense_rows(made, tmp_path):
    rows = X.toarray()[:, :7]
    store = ingest(made(rows), tmp_path / "a.zarr", label="kind", dtype="float64", block_bytes=200)
    np.testing.assert_array_equal(stored(store)[0], rows)


def test_what_cannot_be_read_is_named(made, tmp_path):
    path = made(X.tocsc())
    with pytest.raises(InputError, match=r"X is a csc_matrix, not rows; set adata.X = adata.X.tocsr\(\)"):
        open_source(path)


def test_a_column_that_is_not_there_and_bounds_that_lie(tmp_path):
    root = zarr.open_group(tmp_path / "cells.zarr", mode="w")
    write(root)
    path = str(tmp_path / "cells.zarr")
    with pytest.raises(InputError, match="no label column 'sort' in obs; the columns are kind, batch, share"):
        open_source(path, label="sort")
    with pytest.raises(InputError, match="text names a column"):
        open_source(path, text="kind")
    del root["var"]["_index"]
    with pytest.raises(InputError, match=r"it is damaged or no AnnData of this version \(_index|'_index'"):
        open_source(path)
    words(root["var"], "_index", NAMES)
    for name, at, value, message in (
        ("indptr", 5, 10**6, "X/indptr is damaged"),
        ("indptr", 0, 1, "X/indptr is damaged"),
        ("indices", 3, 3000, "X is a damaged sparse array"),
        ("indices", 3, -1, "X is a damaged sparse array"),
    ):
        sound = root["X"][name][at]
        root["X"][name][at] = value
        with pytest.raises(InputError, match=message):
            ingest(path, tmp_path / "a.zarr", label="kind")
        root["X"][name][at] = sound
    assert not Path(tmp_path / "a.zarr").exists()
    chunk = max((tmp_path / "cells.zarr" / "X" / "data").rglob("*"), key=lambda path: path.stat().st_size)
    sound_bytes = chunk.read_bytes()
    chunk.write_bytes(sound_bytes[: len(sound_bytes) // 2] + b"\0" * 9)
    with pytest.raises(InputError, match=r"cannot be read; it is damaged|damaged"):
        ingest(path, tmp_path / "a.zarr", label="kind")
    chunk.write_bytes(sound_bytes)
    assert ingest(path, tmp_path / "a.zarr", label="kind").rows == 60


def test_a_file_that_is_no_anndata(tmp_path):
    (tmp_path / "cells.h5ad").write_bytes(b"no HDF5")
    with pytest.raises(InputError, match=r"needs h5py; pip install h5py|cannot be read; it is damaged"):
        open_source(tmp_path / "cells.h5ad")
