"""What all readers have in common: formats told, compression undone, bounded memory, clear errors."""

import gzip
import sys

import numpy as np
import pytest

from dask_odm.data.readers import lines
from dask_odm.data.readers.formats import detect_format, open_source
from dask_odm.errors import InputError
from data.reading import COMPRESS, libsvm_bytes, read_all, tarred, write_file, zipped, zstd


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_a_compressed_file_that_is_cut_or_has_a_flipped_bit(tmp_path, suffix):
    whole = COMPRESS[suffix](libsvm_bytes(3000))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    cut_off = r"a\.svm.*: the compressed file is damaged or cut off"
    for data, message in ((whole[:-9], cut_off), (whole[: len(whole) // 2], cut_off), (flipped, r"a\.svm")):
        with pytest.raises(InputError, match=message):
            read_all(write_file(tmp_path / f"a.svm{suffix}", data), n_features=9)


CSV = b"a,y\n1,2\n3,4\n"


PACKED = {
    "train.csv.zip": lambda: zipped({"train.csv": CSV}),
    "by_macos.zip": lambda: zipped({"x/": b"", "x/train.csv": CSV, "__MACOSX/x/._train.csv": b"\0"}),
    "zip without a name": lambda: zipped({"train.csv": CSV}),
    "svm.zip": lambda: zipped({"a.libsvm": b"2 1:1\n4 1:3\n"}),
    "lines.zip": lambda: zipped({"a": b'{"a": 1, "y": 2}\n{"a": 3, "y": 4}\n'}),
    "train.csv.tar": lambda: tarred({"._train.csv": b"\0", "train.csv": CSV}),
    "train.csv.tar.gz": lambda: tarred({"train.csv": CSV}, "w:gz"),
    "train.tar.xz": lambda: tarred({"train.csv": CSV}, "w:xz"),
    "train.tbz2": lambda: tarred({"train.csv": CSV}, "w:bz2"),
    "train.csv.zst": lambda: zstd(CSV),
    "a.svm.zst": lambda: zstd(b"2 1:1\n4 1:3\n"),
    "gzip.zip": lambda: gzip.compress(CSV),
}


@pytest.mark.parametrize("block_bytes", [1, 10**6])
@pytest.mark.parametrize("name", PACKED)
def test_text_in_archives(tmp_path, name, block_bytes):
    path = write_file(tmp_path / name, PACKED[name]())
    X, y, _ = read_all(path, block_bytes=block_bytes)
    assert X.tolist() == [[1.0], [3.0]]
    assert [float(each) for each in y] == [2.0, 4.0]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.zip", zipped({".x": b"", "y/": b""}), "the archive holds no file"),
        ("a.tar", tarred({"a.csv": CSV, "b.csv": CSV}), r"holds 2 files, a\.csv, b\.csv; unpack it, and name those"),
        ("a.tgz", tarred({".x": b""}, "w:gz"), "the archive holds no file"),
        ("a.zip", zipped({}), "the archive holds no file"),
        ("a.csv.zip", zipped({}), "the archive holds no file"),
        ("a.zip", zipped({"a.parquet": b"PAR1"}), "only text is read from a packed file, not parquet; unpack it first"),
        ("a.parquet.gz", gzip.compress(b"PAR1"), "only text is read from a packed file, not parquet; unpack it first"),
        ("a.csv.7z", b"7z\xbc\xaf\x27\x1c" + CSV, r"unpack it first; only \.gz, \.bz2, \.xz, \.zst, \.zip and"),
        ("a.csv.zip", CSV, "is not zip-compressed; fetch it again"),
        ("a.zip", b"PK\3\4" + CSV, "the compressed file is damaged or cut off"),
        ("a.zip", zipped({"a.csv": CSV})[:-30], "the compressed file is damaged or cut off"),
        ("a.tar", tarred({"a.csv": CSV * 500})[:900], "the compressed file is damaged or cut off"),
        ("a.zip", zipped({"a.csv": CSV}).replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"), "is encrypted"),
    ],
    ids=lambda each: "data" if isinstance(each, bytes) else None,  # archives hold the time
)
def test_archives_that_are_refused(tmp_path, name, data, message):
    with pytest.raises(InputError, match=rf"{name}: .*{message}"):
        read_all(write_file(tmp_path / name, data))


def test_zstd_without_pyarrow(tmp_path, monkeypatch):
    path = write_file(tmp_path / "a.csv.zst", zstd(CSV))
    cut = write_file(tmp_path / "cut.csv.zst", zstd(CSV)[:-3])
    with pytest.raises(InputError, match=r"cut\.csv\.zst: the compressed file is damaged or cut off"):
        read_all(cut)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"zst: zstd-compressed text needs pyarrow; pip install pyarrow, or unpack it"):
        read_all(path)


def test_a_zip_archive_of_zeros_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "TEXT_BYTES", 1 << 16)
    path = write_file(tmp_path / "a.csv.zip", zipped({"a.csv": b"a,y\n" + b"0,0\n" * 10**6}))
    with pytest.raises(InputError, match=r"unpack to more than .*; is this a file of zeros"):
        read_all(path)


def test_text_of_two_bytes_a_letter_is_refused(tmp_path):
    with pytest.raises(InputError, match="UTF-16 text; save it as UTF-8"):
        read_all(write_file(tmp_path / "a.csv", "a,b,y\n1,2,3\n".encode("utf-16")))


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("a9a", b"-1 3:1 11:1\n", "libsvm"),
    ("a9a.t", b"\n+1 3:1 # x\n", "libsvm"),
    ("data.txt", b"1,2,3\n", "csv"), ("data.txt", b"a\tb\tc\n", "csv"),
    ("data.json", b'[{"a": 1, "y": 0}]\n', "jsonl"),  # an array, which is refused as such
    ("data.json", b"[\n", "jsonl"), ("data.txt", b"[1],2\n", "csv"), ("x.SVM.XZ", b"", "libsvm"),
    ("x.csv.gz", b"", "csv"), ("x.tsv", b"", "csv"), ("x.npz", b"", "numpy"),
])  # fmt: skip
def test_formats_are_told(tmp_path, name, content, expected):
    assert detect_format(write_file(tmp_path / name, content)) == expected


def test_formats_that_do_not_fit(tmp_path):
    odd = write_file(tmp_path / "odd", "hello\n")
    with pytest.raises(InputError, match=r"neither name nor first line tells the format; give format="):
        open_source(odd)
    svm, csv = write_file(tmp_path / "a.svm", "1 1:1\n"), write_file(tmp_path / "a.csv", "1,2\n")
    with pytest.raises(InputError, match="format must be one of jsonl, libsvm, csv, numpy, parquet, arrow"):
        open_source(svm, format="excel")
    with pytest.raises(InputError, match="drop is for columns of JSON lines, CSV, Parquet or Arrow, not NumPy"):
        open_source(tmp_path / "a.npy", drop=0)
    with pytest.raises(InputError, match="header is for CSV, not"):
        open_source(svm, header=True)
    for options in ({"label": "y"}, {"weight": 1}):
        with pytest.raises(InputError, match="leave label and weight out"):
            open_source(svm, **options)
    with pytest.raises(InputError, match="weight as an array goes with arrays in memory"):
        open_source(csv, weight=np.ones(1))
