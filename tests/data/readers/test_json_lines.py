"""JSON lines of numbers: the same rows as CSV text, and the line that is wrong by its number."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from dask_odm.data.ingest import ingest
from dask_odm.errors import InputError
from data.reading import read_all, stored, write_file
from small_texts import write_lines

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 3))
Y = RNG.choice(["ja", "nein"], 50)


def columns() -> dict:
    return {"a": X[:, 0].tolist(), "kind": Y.tolist(), "b": X[:, 1].tolist(), "w": RNG.uniform(size=50).tolist()}


@pytest.mark.parametrize("block_bytes", [1, 300, 10**6])
def test_rows_labels_and_weights_are_what_was_written(tmp_path, block_bytes):
    named = columns()
    path = write_lines(tmp_path / "a.jsonl", **named)
    store = ingest(path, tmp_path / "a.zarr", label="kind", weight="w", dtype="float64", block_bytes=block_bytes)
    rows, labels = stored(store)
    np.testing.assert_array_equal(rows, X[:, :2])
    np.testing.assert_array_equal(labels, Y)
    np.testing.assert_array_equal(store.read_column("weight"), named["w"])
    assert store.feature_names == ("a", "b")


def test_the_content_tells_the_format_and_keys_any_order(tmp_path):
    text = '\n{"a": 1, "y": true}\n  {"y": false, "a": 2.5}\n\n'
    path = write_file(tmp_path / "rows.txt", text)
    packed = write_file(tmp_path / "rows.gz", gzip.compress(text.encode()))
    for each in (path, packed):
        rows, labels, _ = read_all(each)
        assert rows.tolist() == [[1.0], [2.5]]
        assert labels.tolist() == [True, False]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": 1, "y"', "line 2: not a JSON object .*; each line must hold one"),
        ("[1, 2]", r"line 2: not a JSON object but '\[1, 2\]'"),
        ("[" * 100_000, "line 2: not a JSON object"),
        ('{"a": "x", "y": 0}', "line 2, column 'a': 'x' is not a number; choose the label"),
        ('{"a": true, "y": 0}', "line 2, column 'a': 'True' is not a number"),
        ('{"a": [1], "y": 0}', "line 2, column 'a': .* is not a number"),
        ('{"a": Infinity, "y": 0}', "line 2, column 'a': infinity"),
        (f'{{"a": 1{"0" * 400}, "y": 0}}', "a number is too large"),
        (f'{{"a": 1{"0" * 9000}, "y": 0}}', "line 2: not a JSON object"),
        ('{"a": 1, "b": 2, "y": 0}', "line 2: 'b' is no column of the first line"),
        ('{"y": 0}', r"missing values in column 'a' \(1 row\), first at line 2"),
        ('{"a": 1, "y": [0]}', "line 2: .0. is not a label"),
        (b'{"a": 1, "y": "\xff"}', "line 2: not UTF-8 text"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, line, message):
    data = line if isinstance(line, bytes) else line.encode()
    path = write_file(tmp_path / "a.jsonl", b'{"a": 1, "y": 0}\n' + data + b"\n")
    with pytest.raises(InputError, match=message):
        ingest(path, tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()


def test_a_key_that_utf8_cannot_write_is_named(tmp_path):
    path = write_file(tmp_path / "a.jsonl", b'{"\\ud800": 1, "y": 0}\n{"\\ud800": 2, "y": 1}\n')
    with pytest.raises(InputError, match=r"feature names must be text that UTF-8 can write; '\\ud800' is none"):
        ingest(path, tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()
