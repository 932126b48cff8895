"""Missing values: refused with columns, counts and the first place, or their rows dropped, in every format."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest

from dask_odm.data.ingest import ingest
from dask_odm.errors import InputError
from dask_odm.events import Ingested, listen
from data.reading import read_all, stored, write_file

TABLE = pd.DataFrame(
    {
        "age": [1.0, None, 3.0, 4.0, None, 6.0, 7.0],
        "pay": [1.0, None, 3.0, 4.0, 5.0, 6.0, 7.0],
        "w": [1.0, 1.0, 1.0, None, 1.0, 1.0, 1.0],
        "y": ["p", "q", None, "q", "p", "q", "p"],
    }
)
MESSAGE = (
    "missing values in the weight (1 row), the label, {label} (1 row), {age} (2 rows) and {pay} (1 row), "
    "first at {place}; fill them in, or drop those rows with drop_missing=True (--drop-missing)."
)


def _source(kind: str, folder) -> tuple[object, dict, str]:
    """The table in a format, options to read it, and the whole message."""
    named = {"label": "column 'y'", "age": "column 'age'", "pay": "column 'pay'"}
    path = folder / f"a.{kind}"
    if kind == "csv":
        TABLE.to_csv(path, index=False)
        return path, {"weight": "w"}, f"{path}: {MESSAGE.format(**named, place='line 3')}"
    if kind == "parquet":
        TABLE.to_parquet(path)
        return path, {"weight": "w"}, f"{path}: {MESSAGE.format(**named, place='row 1')}"
    if kind == "npz":
        labels = TABLE["y"].map({"p": 1, "q": 2})
        np.savez(path, X=TABLE[["age", "pay"]], y=labels, weight=TABLE["w"])
        words = {"label": "array 'y'", "age": "column 0", "pay": "column 1"}
        return path, {}, f"{path}: {MESSAGE.format(**words, place='row 1')}"
    if kind == "dask":
        dd = pytest.importorskip("dask.dataframe")
        lazy = dd.from_pandas(TABLE, npartitions=3)
        return lazy, {"weight": "w"}, f"the dask DataFrame: {MESSAGE.format(**named, place='row 1')}"
    return TABLE, {"weight": "w"}, f"the DataFrame: {MESSAGE.format(**named, place='row 1')}"


@pytest.mark.parametrize("block_bytes", [1, 40, 10**6])
@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "pandas", "dask"])
def test_missing_values_are_counted_or_dropped(tmp_path, caplog, kind, block_bytes):
    source, options, message = _source(kind, tmp_path)
    before = sorted(each.name for each in tmp_path.iterdir())
    with pytest.raises(InputError) as caught:
        ingest(source, tmp_path / "a.zarr", block_bytes=block_bytes, **options)
    assert str(caught.value) == message
    assert sorted(each.name for each in tmp_path.iterdir()) == before
    events = []
    with listen(events.append), caplog.at_level(logging.INFO, logger="dask_odm"):
        store = ingest(source, tmp_path / "a.zarr", block_bytes=block_bytes, drop_missing=True, **options)
    X, y = stored(store)
    assert X.tolist() == [[1, 1], [6, 6], [7, 7]]
    assert y.tolist() == ([1, 2, 1] if kind == "npz" else ["p", "q", "p"])
    assert store.read_column("weight").tolist() == [1, 1, 1]
    assert (events[-1].rows, events[-1].dropped) == (3, 4)
    assert "4 rows with missing values dropped" in caplog.text


def test_the_worst_columns_come_first(tmp_path):
    X = np.ones((20, 9))
    for column, count in enumerate([1, 3, 0, 9, 2, 4, 0, 5, 6]):
        X[5 : 5 + count, column] = np.nan
    message = (
        r"X: missing values in column 3 \(9 rows\), column 8 \(6 rows\), column 7 \(5 rows\), column 5 \(4 rows\), "
        r"column 1 \(3 rows\) and 2 more columns, first at row 5;"
    )
    with pytest.raises(InputError, match=message):
        ingest(X, tmp_path / "a.zarr", block_bytes=100)


def test_rows_that_all_miss_something(tmp_path):
    with pytest.raises(InputError, match="X: no rows left; all 3 miss a value"):
        ingest(np.full((3, 2), np.nan), tmp_path / "a.zarr", drop_missing=True)


def test_a_split_of_rows_some_of_which_are_dropped(tmp_path):
    X = np.arange(1000.0)[:, None]
    X[::10] = np.nan
    events = []
    with listen(events.append):
        parts = ingest(X, tmp_path / "a.zarr", test_size=0.2, drop_missing=True, block_bytes=300)
    both = np.sort(np.concatenate([stored(store)[0] for store in parts]).ravel())
    np.testing.assert_array_equal(both, X[~np.isnan(X)])
    assert events[-1] == Ingested(rows=900, dropped=100, label=None)


def test_several_files_name_the_first_place(tmp_path):
    good, bad = write_file(tmp_path / "1.csv", "a,y\n1,2\n"), write_file(tmp_path / "2.csv", "a,y\n1,2\n,3\n4,\n")
    with pytest.raises(InputError) as caught:
        read_all([good, bad], block_bytes=3)
    message = "missing values in the label, column 'y' (1 row) and column 'a' (1 row), first at "
    assert str(caught.value).startswith(f"{good}, {bad}: {message}{bad}, line 3; fill")


def test_places_after_dropped_rows_are_right(tmp_path):
    path = write_file(tmp_path / "a.csv", "a,y\n,1\n1,2\n2,1\ninf,3\n")
    with pytest.raises(InputError, match=r"a\.csv, line 5, column 'a': infinity"):
        read_all(path, drop_missing=True)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_weights_held_as_objects_may_miss_one(tmp_path, missing):
    rows = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    weight = np.array([1.0, 2, missing, 1, 1, 1], object)
    with pytest.raises(InputError, match=r"missing values in the weight \(1 row\), first at row 2"):
        ingest(rows, tmp_path / "a.zarr", weight=weight)
    assert ingest(rows, tmp_path / "a.zarr", weight=weight, drop_missing=True).rows == 5
