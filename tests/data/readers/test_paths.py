"""Folders, patterns and standard input: which files are read, in which order, and what is told of their format."""

import gzip
import io
import sys

import numpy as np
import pytest
import xarray as xr
import zarr

from dask_odm import InputError, Store, StoreError, ingest
from dask_odm.data.readers.formats import find_files, open_source
from data.reading import COMPRESS, libsvm_bytes, read_all, sparse_rows, tarred, write_file, zipped, zstd


@pytest.fixture
def folder(tmp_path):
    """Eleven CSV files and what other programs leave beside such."""
    for i in range(11):
        write_file(tmp_path / f"part-{i}.csv", f"a,y\n{i},{i % 2}\n")
    for name in ("_SUCCESS", "_metadata", ".part-0.csv.crc", "part-0.csv.crc", "part-1.csv.sha256"):
        write_file(tmp_path / name, "no data")
    return tmp_path


@pytest.mark.parametrize("pattern", ["", "*", "part-*.csv", "*[0-9].csv", "**/*.csv"])
def test_folders_and_patterns_in_the_order_of_numbers(folder, pattern):
    X, y, _ = read_all(folder / pattern)
    assert X.ravel().tolist() == list(range(11))
    assert y.tolist() == [str(i % 2) for i in range(11)]
    assert open_source(folder / pattern).feature_names == ("a",)


def test_a_pattern_may_match_folders_and_a_name_may_look_like_a_pattern(folder):
    (folder / "deeper").mkdir()
    write_file(folder / "deeper" / "z.csv", "a,y\n99,1\n")
    found = find_files(str(folder / "*"))
    assert (len(found), found[0]) == (12, str(folder / "deeper" / "z.csv"))
    odd = write_file(folder / "a[1].csv", "a,y\n7,1\n")
    assert find_files(odd) == [odd]
    with pytest.raises(InputError, match=r"holds the folder .*deeper; name the files by a pattern such as"):
        find_files(folder)


def test_what_finds_nothing(tmp_path):
    with pytest.raises(InputError, match=r"\*\.csv: no file matches"):
        find_files(tmp_path / "*.csv")
    write_file(tmp_path / "_SUCCESS", "")
    with pytest.raises(InputError, match="is a folder without data files"):
        find_files(tmp_path)
    with pytest.raises(InputError, match="files of different formats"):
        open_source([write_file(tmp_path / "a.csv", "1,2\n"), write_file(tmp_path / "b.svm", "1 1:1\n")])


# Standard input ---------------------------------------------------------------------------------------------


class Drip(io.RawIOBase):
    """A pipe: hands out a few bytes at a time and cannot go back."""

    def __init__(self, data: bytes, most: int = 7) -> None:
        self._data, self._most = io.BytesIO(data), most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data = self._data.read(min(self._most, len(buffer)))
        buffer[: len(data)] = data
        return len(data)


def _pipe(monkeypatch, data: bytes, buffered: bool = True) -> None:
    stream = io.BufferedReader(Drip(data), 64) if buffered else Drip(data)
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": stream})())


@pytest.mark.parametrize("block_bytes", [1, 100, 10**6])
@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("buffered", [True, False])
def test_libsvm_through_a_pipe(monkeypatch, suffix, buffered, block_bytes):
    _pipe(monkeypatch, COMPRESS[suffix](libsvm_bytes()), buffered)
    X, y, _ = read_all("-", dtype="float64", block_bytes=block_bytes)
    expected, labels = sparse_rows()
    np.testing.assert_allclose(X, expected, rtol=1e-12)
    np.testing.assert_array_equal(y, labels)


@pytest.mark.parametrize("block_bytes", [1, 100, 10**6])
@pytest.mark.parametrize(
    "compress",
    [
        bytes,
        gzip.compress,
        lambda data: tarred({"a.csv": data}, "w:xz"),
        lambda data: zipped({"a.csv": data}),
        zstd,
        lambda data: (b"sep=,\n# wet\n" + data).replace(b"\n", b"\r"),
    ],
)
def test_csv_through_a_pipe(monkeypatch, compress, block_bytes):
    text = "\n\na,kind,b\n" + "".join(f"{i},{'pq'[i % 2]},{-i}\n" for i in range(300))
    _pipe(monkeypatch, compress(text.encode()))
    source = open_source("-", label="kind", block_bytes=block_bytes)
    assert (source.feature_names, source.label_name, source.description) == (
        ("a", "b"),
        "column 'kind'",
        "standard input",
    )
    blocks = list(source.blocks())
    np.testing.assert_array_equal(np.concatenate([b.X for b in blocks]), [[i, -i] for i in range(300)])
    assert np.concatenate([b.y for b in blocks]).tolist() == ["pq"[i % 2] for i in range(300)]
    assert blocks[-1].place(0).startswith("standard input, line ")


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (b"1 1:1\n1 1:x\n", {"n_features": 2}, "standard input, line 2: value 'x'"),
        (b"a,y\n1,2\nx,2\n", {}, r"standard input: column 'a' \('x' in line 3\) holds no numbers"),
        (b"a,y\n1,2\n,2\n", {}, r"standard input: missing values in column 'a' \(1 row\), first at line 3;"),
        (b"", {}, "standard input: the file is empty"),
        (b"\n \n", {}, "standard input: the file is empty"),
        (b"PAR1xxxx", {}, "standard input: must be JSON lines, LIBSVM or CSV, not parquet"),
        (b"\x93NUMPY\n", {}, "standard input: must be JSON lines, LIBSVM or CSV, not numpy"),
        (b"hello\n", {}, "standard input: neither name nor first line tells the format; give format="),
        (gzip.compress(b"1,2\n" * 9999, mtime=0)[:40], {}, "standard input: the compressed file is damaged or cut off"),
        (b"\xff\xfe1\x00", {}, "standard input: UTF-16 text"),
        (b"PK\3\4" + b"\0" * 999, {}, "standard input: the compressed file is damaged or cut off"),
    ],
)
def test_what_cannot_be_read_through_a_pipe(monkeypatch, data, options, message):
    _pipe(monkeypatch, data)
    with pytest.raises(InputError, match=message):
        read_all("-", **options)


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_data_of_another_program(tmp_path, version):
    group, array = tmp_path / "group.zarr", tmp_path / "array.zarr"
    xr.Dataset({"X": (("sample", "feature"), np.eye(3))}).to_zarr(group, zarr_format=version, consolidated=False)
    zarr.save_array(array, np.eye(3), zarr_format=version)
    for path, message in (
        (group, r"is a zarr group but not a dask_odm store: dask_odm\.ingest\(xarray\.open_zarr\('"),
        (array, r"is a zarr array, not a dask_odm store: dask_odm\.ingest\(\(zarr\.open\('"),
    ):
        with pytest.raises(InputError, match=message):
            ingest(path, tmp_path / "a.zarr")
        with pytest.raises(StoreError, match=message):
            Store.open(path)
    ingest(xr.open_zarr(group, consolidated=False), tmp_path / "a.zarr")  # the way out leads there
    ingest((zarr.open(array), [0, 1, 0]), tmp_path / "b.zarr")


def test_addresses_of_other_kinds_are_refused(tmp_path):
    for call in (
        lambda: ingest("ftp://bucket/a.csv", tmp_path / "a.zarr"),
        lambda: ingest(["https://host/a.csv"], tmp_path / "a.zarr"),
        lambda: ingest((np.eye(3), [0, 1, 0]), "hdfs://bucket/a.zarr"),
        lambda: Store.open("https://bucket/a.zarr"),
    ):
        with pytest.raises(InputError, match=r"begins with '(ftp|https|hdfs)://' cannot be read or written"):
            call()


def test_the_source_of_a_store_is_printable_whatever_its_file_is_called(tmp_path):
    (tmp_path / "a\x1b[31m.csv").write_text("a,label\n1,x\n2,y\n")
    store = ingest(tmp_path / "a\x1b[31m.csv", tmp_path / "a.zarr")
    assert store.source.endswith(r"a\x1b[31m.csv")
