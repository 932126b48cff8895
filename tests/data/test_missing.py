"""Missing values: refused with columns, counts and the first place, or their rows dropped, in every format."""

import numpy as np
import pandas as pd
import pytest

from dask_odm import InputError, ingest
from dask_odm.events import Ingested, listen
from data.reading import read_all, stored, write_file


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
