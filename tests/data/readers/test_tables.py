"""pandas frames: values, names and labels as they went in; columns without numbers are refused with a way out."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from dask_odm import InputError, ingest
from data.reading import read_all


def _frame(rows: int = 100) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "a": rng.normal(size=rows),
            "b": rng.integers(-9, 9, rows),
            "Label": rng.choice(["yes", "no"], rows),
            "c": rng.normal(size=rows).astype("float32"),
            "w": rng.uniform(size=rows),
        },
        index=rng.permutation(rows),
    )


@pytest.mark.parametrize("kind", [lambda y: y, np.asarray, list, lambda y: y.astype("category"), pd.DataFrame])
def test_labels_beside_a_frame(kind):
    frame = _frame()
    X, y, w = read_all((frame[["a", "b"]], kind(frame["Label"])), weight=frame["w"], dtype="float64", block_bytes=90)
    np.testing.assert_array_equal(X, frame[["a", "b"]].to_numpy())
    assert y.tolist() == frame["Label"].tolist()
    np.testing.assert_array_equal(w, frame["w"].to_numpy())


@pytest.mark.parametrize("column", [
    pd.array([1, 2, 3], dtype="Int64"), pd.array([1.5, 2, 3], dtype="Float32"),
    pd.array([1.5, 0, 3], dtype="float64[pyarrow]"),
    pd.arrays.SparseArray([0.0, 0.0, 3.0]), np.array([1, 2, 200], dtype="uint8"),
])  # fmt: skip
def test_numbers_of_every_kind(column):
    frame = pd.DataFrame({"x": column, "z": [4.0, 5.0, 6.0], "y": pd.array([0, 1, 0], dtype="Int64")})
    X, y, _ = read_all(frame)
    assert X.tolist() == [[float(a), b] for a, b in zip(column, [4, 5, 6], strict=True)]
    assert y.tolist() == [0, 1, 0]


WORDS = pd.DataFrame(
    {
        "city": ["here", "there"],
        "kind": pd.Categorical([1, 2]),
        "flag": [True, False],
        "day": pd.to_datetime(["2020-01-01", "2020-01-02"]),
        "span": pd.to_timedelta([1, 2], "D"),
        "odd": np.array([Decimal(1), "one"], dtype=object),
        "born": np.array([datetime.date(2000, 1, 1), None], dtype=object),
        "maybe": np.array([True, None], dtype=object),
        "name": pd.Series(["a", None], dtype=object),
        "x": [1.0, 2.0],
    }
)


@pytest.mark.parametrize(("columns", "message"), [
    (["city"], r"column 'city' \(str.*\) holds no numbers; .*: leave other columns out"),
    (["kind"], r"column 'kind' \(category\) holds no numbers"),
    (["name"], r"column 'name' \(object, string\)"),
    (["flag"], r"column 'flag' \(bool\)"),
    (["maybe"], r"column 'maybe' \(object, boolean\)"),
    (["day"], r"column 'day' \(datetime64.*\)"),
    (["span"], r"column 'span' \(timedelta.*\)"),
    (["born"], r"column 'born' \(object, date\)"),
    (["odd"], r"column 'odd' \(object, mixed\)"),
    (["city", "flag", "name"], r"'city' \(.*\), column 'flag' .* and column 'name' .* hold no numbers"),
    (list(WORDS)[:-1], r"column 'span' \(.*\) and 4 more columns hold no numbers"),
])  # fmt: skip
def test_columns_without_numbers(columns, message):
    frame = WORDS[[*columns, "x"]]
    with pytest.raises(InputError, match=f"^the DataFrame: .*{message}") as found:
        read_all((frame, [0, 1]))
    assert "label=" not in str(found.value), "the labels are given"
    with pytest.raises(InputError, match=r"or choose the labels by label= \(--label\), which now are .* 'x'\.$"):
        read_all(frame)


@pytest.mark.parametrize(("source", "options", "message"), [
    (_frame(), {"label": "z"}, "the DataFrame: no label column 'z'; the columns are a, b, Label, c, w"),
    (
        pd.get_dummies(_frame().assign(z="yes"), dtype=float),
        {"label": "z"},
        r"no label column 'z'; the columns are .*; 'z_yes' seems to encode it: leave the labels as they are",
    ),
    (_frame(), {"weight": "z"}, "no weight column 'z'"),
    (_frame(), {"label": 9}, "no label column 9; there are 5 columns"),
    (_frame(), {"n_features": 2}, "the DataFrame: 4 features, but n_features is 2"),
    ((_frame()[["a"]], [1, 2]), {}, "the DataFrame: y has 2 rows where X has 100"),
    (_frame()[["a", "b"]], {"weight": [1.0]}, "the DataFrame: weight has 1 rows where X has 100"),
    (_frame()[["a", "b"]], {"weight": ["x"] * 100}, "weight must be numbers"),
    (_frame()[["a", "b"]], {"weight": np.full(100, -1.0)}, "the DataFrame, row 0: weight -1.0"),
    (_frame()[["a", "a", "b"]], {}, "two columns are named 'a'"),
    (_frame()[["a"]], {}, "no feature columns beside label"),
    (_frame(), {"format": "csv"}, "format is for files, not for rows in memory"),
    (_frame(), {"drop": "id"}, r"not for rows in memory; leave columns out of a frame by frame\.drop\(columns="),
    (_frame(), {"header": True}, "header is for files"),
    (_frame()["a"], {}, "cannot ingest Series; give a path"),
    (pd.DataFrame({"a": [1.0, np.inf], "y": [0, 1]}), {}, "the DataFrame, row 1, column 'a': infinity"),
])  # fmt: skip
def test_frames_that_cannot_be_read(source, options, message):
    with pytest.raises(InputError, match=message):
        read_all(source, **options)


def test_an_empty_frame(tmp_path):
    with pytest.raises(InputError, match="the DataFrame: no rows"):
        ingest(_frame(0).drop(columns="Label"), tmp_path / "a.zarr")
