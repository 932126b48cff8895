"""What every store keeps, whatever is in it: what was written comes back in every way, and damage is named."""

import pickle
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from dask.base import tokenize

from dask_odm.data.store.interchange import to_dataset
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter

ROWS, FEATURES, CHUNK = 23, 3, 5
Y = {
    "none": None,
    "two": np.arange(ROWS, dtype=np.int32) % 2,
    "many": np.arange(ROWS, dtype=np.int32) % 5,
    "unknown": np.arange(ROWS, dtype=np.int32) % 3 - 1,
    "real": np.where(np.arange(ROWS) % 7 == 3, np.nan, np.arange(ROWS) / 8),
}
LABELS = np.array(["a", "b", "c", "d", "e"], dtype=object)


@dataclass(frozen=True)
class Content:
    """What goes into a store."""

    dtype: str
    compression: str | None
    y: str
    weighted: bool

    @property
    def X(self) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(self.dtype)

    @property
    def weight(self) -> np.ndarray | None:
        return np.arange(ROWS) / 4.0 if self.weighted else None

    def write(self, path: Path) -> Store:
        classes = None if Y[self.y] is None or self.y == "real" else LABELS[: max(2, Y[self.y].max() + 1)].tolist()
        with StoreWriter(path, dtype=self.dtype, chunk_rows=CHUNK, compression=self.compression) as writer:
            for rows in (slice(0, 7), slice(7, ROWS)):
                weight = None if self.weight is None else self.weight[rows]
                writer.append(self.X[rows], None if Y[self.y] is None else Y[self.y][rows], weight)
            return writer.finish(classes, source="made up")


# Every y with weights and without; by five forms, an odd number, each form is there with weights and without.
FORMS = [("float32", "zstd"), ("float64", None), ("float32", None), ("float64", "zstd"), ("float32", "zstd")]
CONTENTS = [Content(*form, *each) for form, each in zip(2 * FORMS, product(Y, (False, True)), strict=True)]


@pytest.fixture(scope="module", params=CONTENTS, ids=str)
def made(request, tmp_path_factory) -> tuple[Content, Store]:
    return request.param, request.param.write(tmp_path_factory.mktemp("stores") / "a.zarr")


def check(content: Content, X: np.ndarray, y: np.ndarray | None, weight: np.ndarray | None, rows: np.ndarray) -> None:
    """Fail unless X, y (codes or values) and weights are those of ``rows``."""
    np.testing.assert_array_equal(X, content.X[rows])
    for found, expected in ((y, Y[content.y]), (weight, content.weight)):
        assert (found is None) == (expected is None)
        if expected is not None:
            np.testing.assert_array_equal(found, expected[rows])


def test_every_way_of_reading_gives_what_was_written(made):
    content, store = made
    every = np.arange(ROWS)
    blocks = [(block.X.copy(), block.y, block.weight, block.first) for block in store.blocks()]
    assert [first for *_, first in blocks] == list(range(0, ROWS, CHUNK))
    for X, y, weight, first in blocks:
        check(content, X, y, weight, every[first : first + CHUNK])
    for block in store.column_blocks():
        check(content, content.X[block.first :][:CHUNK], block.y, block.weight, every[block.first :][:CHUNK])
    wanted = np.array([22, 0, 7, 7, 11])
    gathered = store.read_rows(wanted)
    check(content, gathered.X, gathered.y, gathered.weight, wanted)
    check(content, content.X, store.read_column("y"), store.read_column("weight"), every)


def test_xarray_reads_it_as_it_is_and_lazily(made):
    content, store = made
    dataset = to_dataset(store)
    np.testing.assert_array_equal(dataset.X.to_numpy(), content.X)
    with xr.open_zarr(store.path) as plain:
        np.testing.assert_array_equal(plain.X.to_numpy(), content.X)
    if Y[content.y] is None:
        assert "y" not in dataset
        return
    values = dataset.y.to_numpy()
    if content.y == "real":
        np.testing.assert_array_equal(values, Y["real"])
    else:
        known = Y[content.y] >= 0
        assert values[known].tolist() == LABELS[Y[content.y][known]].tolist()
        assert all(value is None for value in values[~known])


def test_it_travels_small_and_compares_by_content(made):
    _, store = made
    again = pickle.loads(pickle.dumps(store))
    assert again == store
    assert tokenize(again) == tokenize(store) == tokenize(Store.open(store.path))
    assert len(pickle.dumps(store)) < 3000
    assert store.verify() > ROWS * FEATURES * store.dtype.itemsize
