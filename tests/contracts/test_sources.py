"""Every source: its rows in order whatever the blocks, in the type asked for, and the place of what is wrong in them.

The reference is what was written, by pandas, NumPy, Arrow and zarr.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from pyarrow import feather, parquet
from scipy.sparse import coo_array, csr_array

from dask_odm import InputError, Store, ingest, open_store
from dask_odm.data.readers.formats import open_source
from data.reading import read_all, read_blocks, stored
from small_stores import store_of

ROWS, BAD = 60, 37  # rows, and the one that is made bad
NAMES = ["a", "b", "c"]


def table() -> tuple[np.ndarray, np.ndarray]:
    """Numbers that are the same in text, float32 and float64, and labels 3 and 7."""
    rng = np.random.default_rng(0)
    return rng.integers(1, 400, size=(ROWS, 3)) / 8, rng.choice([3, 7], ROWS)


def frame(X: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(X, columns=NAMES).assign(label=y)


def libsvm(X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    lines = (f"{label} " + " ".join(f"{j}:{x}" for j, x in enumerate(row, 1)) for row, label in zip(X, y, strict=True))
    (folder / "a.svm").write_text("\n".join(lines) + "\n")
    return folder / "a.svm"


def csv(X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    frame(X, y).to_csv(folder / "a.csv", index=False)
    return folder / "a.csv"


def json_lines(X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    lines = map(json.dumps, frame(X, y).to_dict("records"))
    (folder / "a.jsonl").write_text("\n".join(lines).replace("Infinity", "1e999") + "\n")
    return folder / "a.jsonl"


def npy(X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    np.save(folder / "a.npy", np.column_stack([X, y]))
    return folder / "a.npy"


def npz(X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    np.savez(folder / "a.npz", X=X, y=y)
    return folder / "a.npz"


def parquet_file(X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    parquet.write_table(pa.Table.from_pandas(frame(X, y)), folder / "a.parquet", row_group_size=25)
    return folder / "a.parquet"


def feather_file(X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    feather.write_feather(frame(X, y), str(folder / "a.feather"), chunksize=25)
    return folder / "a.feather"


def zarr_array(X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    array = zarr.create_array(folder / "x.zarr", shape=X.shape, chunks=(25, 3), dtype="float64")
    array[:] = X
    return array, y


def dataset(X: np.ndarray, y: np.ndarray) -> xr.Dataset:
    return xr.Dataset({"X": (("sample", "feature"), X), "y": ("sample", y)})


@dataclass(frozen=True)
class SourceCase:
    """What makes a source of rows and labels in a folder, its label, and how an error says where row `BAD` is."""

    name: str
    make: Callable[[np.ndarray, np.ndarray, Path], Any]
    place: str | None = f"row {BAD}"
    label: str | int | None = None
    file: str = ""

    def options(self) -> dict[str, Any]:
        return {} if self.label is None else {"label": self.label}


NEVER_BAD = None  # a store has no such rows
CASES = [
    SourceCase("LIBSVM text", libsvm, f"line {BAD + 1}", file="a.svm"),
    SourceCase("CSV text", csv, f"line {BAD + 2}", file="a.csv"),
    SourceCase("JSON lines", json_lines, f"line {BAD + 1}", file="a.jsonl"),
    SourceCase("npy", npy, label=3, file="a.npy"),
    SourceCase("npz", npz, file="a.npz"),
    SourceCase("Parquet", parquet_file, file="a.parquet"),
    SourceCase("Feather", feather_file, file="a.feather"),
    SourceCase("Arrow table", lambda X, y, folder: pa.Table.from_pandas(frame(X, y))),
    SourceCase("NumPy", lambda X, y, folder: (X, y)),
    SourceCase("CSR", lambda X, y, folder: (csr_array(X), y)),
    SourceCase("COO", lambda X, y, folder: (coo_array(X), y)),
    SourceCase("pandas", lambda X, y, folder: frame(X, y), label="label"),
    SourceCase("dask array", lambda X, y, folder: (da.from_array(X, chunks=(25, 2)), da.from_array(y, chunks=20))),
    SourceCase("dask frame", lambda X, y, folder: dd.from_pandas(frame(X, y), npartitions=3), label="label"),
    SourceCase("zarr array", zarr_array),
    SourceCase("Dataset", lambda X, y, folder: dataset(X, y)),
    SourceCase("turned Dataset", lambda X, y, folder: dataset(X, y).chunk(sample=25).transpose("feature", "sample")),
    SourceCase("store", lambda X, y, folder: store_of(folder / "s.zarr", X, y, chunk_rows=25).path, NEVER_BAD),
    SourceCase("open store", lambda X, y, to: Store.open(store_of(to / "s.zarr", X, y, chunk_rows=25).path), NEVER_BAD),
    SourceCase("store as Dataset", lambda X, y, folder: open_store(store_of(folder / "s.zarr", X, y).path), NEVER_BAD),
]
each_source = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.mark.parametrize(("block_bytes", "dtype"), [(1, "float32"), (300, "float64"), (10**6, "float32")])
@each_source
def test_its_rows_in_order(case, tmp_path, block_bytes, dtype):
    X, y = table()
    options = {**case.options(), "block_bytes": block_bytes, "dtype": dtype}
    rows, labels, weight = read_all(case.make(X, y, tmp_path), **options)
    np.testing.assert_array_equal(rows, X.astype(dtype), strict=True)
    np.testing.assert_array_equal(labels.astype(float), y)
    assert weight is None


@each_source
def test_blocks_tell_how_far_they_are_and_where_each_row_is(case, tmp_path):
    source = open_source(case.make(*table(), tmp_path), **case.options(), block_bytes=300)
    found = [(block.position, [block.place(i) for i in range(len(block.X))]) for block in source.blocks()]
    assert len(found) > 1
    assert all(before <= after for (before, _), (after, _) in pairwise(found))
    assert found[-1][0] == source.size or source.size == 0
    places = [place for _, each in found for place in each]
    assert len(set(places)) == len(places) == ROWS


@each_source
def test_the_store_does_not_depend_on_the_blocks(case, tmp_path):
    X, y = table()
    source, options = case.make(X, y, tmp_path), {**case.options(), "chunk_rows": 17}
    stores = [ingest(source, tmp_path / f"{size}.zarr", block_bytes=size, **options) for size in (1, 300, 10**7)]
    for rows, labels in map(stored, stores):
        np.testing.assert_array_equal(rows, X.astype(np.float32), strict=True)
        np.testing.assert_array_equal(labels, y)
    assert len({store.digest for store in stores}) == 1


@pytest.mark.parametrize("block_bytes", [1, 300])
@each_source
def test_the_place_of_a_number_that_is_none(case, tmp_path, block_bytes):
    if case.place is NEVER_BAD:
        pytest.skip("a store has finite numbers only")
    X, y = table()
    X[BAD, 1] = np.inf
    with pytest.raises(InputError, match=rf"{case.file}.*{case.place}\b.*infinity") as error:
        list(read_blocks(case.make(X, y, tmp_path), **case.options(), block_bytes=block_bytes))
    assert any(column in str(error.value) for column in ("column 1", "column 'b'", "feature 1", "index 2"))


@each_source
def test_rows_that_lack_a_value_are_told_or_dropped(case, tmp_path):
    if case.place is NEVER_BAD:
        pytest.skip("a store has finite numbers only")
    X, y = table()
    X[BAD, 1] = np.nan
    source = case.make(X, y, tmp_path)
    with pytest.raises(InputError, match=rf"{case.file}.*missing values in .*first at .*{case.place}\b"):
        list(read_blocks(source, **case.options(), block_bytes=300))
    rows, labels, _ = read_all(source, **case.options(), block_bytes=300, drop_missing=True, dtype="float64")
    np.testing.assert_array_equal(rows, np.delete(X, BAD, axis=0))
    np.testing.assert_array_equal(labels.astype(float), np.delete(y, BAD))
