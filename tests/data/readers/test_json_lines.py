"""JSON lines of numbers: the same rows as CSV text, and the line that is wrong by its number."""

import gzip

import pytest

from dask_odm import InputError, ingest
from data.reading import read_all, write_file


def test_the_content_tells_the_format_and_keys_any_order(tmp_path):
    text = '\n{"a": 1, "y": true}\n  {"y": false, "a": 2.5}\n\n'
    path = write_file(tmp_path / "rows.txt", text)
    packed = write_file(tmp_path / "rows.gz", gzip.compress(text.encode()))
    for each in (path, packed):
        rows, labels, _ = read_all(each)
        assert rows.tolist() == [[1.0], [2.5]]
        assert labels.tolist() == [True, False]


@pytest.mark.parametrize(("line", "message"), [
    ("[" * 100_000, "line 2: not a JSON object"),
    ('{"a": [1], "y": 0}', "line 2, column 'a': a value of type list is no number, word or date"),
    ('{"a": Infinity, "y": 0}', "line 2, column 'a': infinity"),
    (f'{{"a": 1{"0" * 400}, "y": 0}}', "line 2, column 'a': infinity"),
    (f'{{"a": 1{"0" * 9000}, "y": 0}}', "line 2: not a JSON object"),
    ('{"a": 1, "b": 2, "y": 0}', "line 2: 'b' is no column of the first line"),
    ('{"a": 1}', r"missing values in the label, column 'y' \(1 row\), first at line 2"),
    ('{"a": 1, "y": [0]}', "line 2: .0. is not a label"),
    (b'{"a": 1, "y": "\xff"}', "line 2: not UTF-8 text"),
])  # fmt: skip
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
