"""Files that cannot be ingested: what is wrong is named with its line, and no store is left."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dask_odm.data.ingest import ingest
from dask_odm.data.readers import lines
from data.reading import zipped
from faults.table import Fault, check_fault, each_way, raises, refused, tree


def npz() -> bytes:
    """An archive of arrays."""
    out = io.BytesIO()
    np.savez(out, X=np.eye(2), y=[0, 1])
    return out.getvalue()


TABLE = b"u,v,label\n1,2,a\n3,4,b\n"
GOOD = {
    "a.csv": TABLE,
    "a.svm": "1 1:1 2:2\n-1 1:3 2:4\n",
    "a.jsonl": '{"u": 1, "label": "a"}\n{"u": 2, "label": "b"}\n',
    "b.jsonl": '{"t": "a b", "label": "a"}\n{"t": "c", "label": "b"}\n',
    "a": TABLE,
    "a.zip": zipped({"a.csv": TABLE}),
    "a.npz": npz(),
    "a.csv.gz": gzip.compress(TABLE),
}


def write(name: str, content: str | bytes | None) -> Callable[[Path], Any]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: data is not None and (folder / name).write_bytes(data)


def of_file(name: str, bad: str | bytes | None, **options: Any) -> dict[str, Any]:
    """A file with bad content (None: it is not there), and the same with good content."""
    flags = [each for key, value in options.items() for each in (f"--{key}", *([] if value is True else [value]))]
    return {
        "cause": write(name, bad),
        "cure": write(name, GOOD[name]),
        "python": lambda folder: ingest(folder / name, folder / "s.zarr", **options).verify(),
        "command": lambda folder: ["ingest", folder / name, folder / "s.zarr", *flags],
    }


def spreadsheet(content: bytes) -> dict[str, Any]:
    """A workbook in a folder, and the same as text."""

    def save_as_text(folder: Path) -> None:
        (folder / "data" / "a.xlsx").unlink()
        (folder / "data" / "a.csv").write_bytes(GOOD["a.csv"])

    return {
        "cause": lambda folder: [(folder / "data").mkdir(), write("data/a.xlsx", content)(folder)],
        "cure": save_as_text,
        "python": lambda folder: ingest(folder / "data", folder / "s.zarr").verify(),
        "command": lambda folder: ["ingest", folder / "data", folder / "s.zarr"],
    }


def of_arrays(**arrays: Any) -> dict[str, Any]:
    """An .npz archive."""
    good = {"X": np.eye(4), "y": np.arange(4) % 2}
    return {
        "cause": lambda folder: np.savez(folder / "a.npz", **{**good, **arrays}),
        "cure": lambda folder: np.savez(folder / "a.npz", **good),
        "python": lambda folder: ingest(folder / "a.npz", folder / "s.zarr").verify(),
        "command": lambda folder: ["ingest", folder / "a.npz", folder / "s.zarr"],
    }


def csv(*lines: str, **options: Any) -> dict[str, Any]:
    return of_file("a.csv", "u,v,label\n" + "".join(f"{line}\n" for line in lines), **options)


def parquet(labels: list[Any], values: tuple[Any, Any] = (1.0, 2.0)) -> dict[str, Any]:
    def write(folder: Path, labels: list[Any], values: tuple[Any, Any] = (1.0, 2.0)) -> None:
        arrow, parquet = (pytest.importorskip(f"pyarrow{name}") for name in ("", ".parquet"))
        parquet.write_table(arrow.table({"u": list(values), "label": labels}), folder / "a.parquet")

    return {
        "cause": lambda folder: write(folder, labels, values),
        "cure": lambda folder: write(folder, ["a", "b"]),
        "python": lambda folder: ingest(folder / "a.parquet", folder / "s.zarr").verify(),
        "command": lambda folder: ["ingest", folder / "a.parquet", folder / "s.zarr"],
    }


def svm(*lines: str) -> dict[str, Any]:
    return of_file("a.svm", "".join(f"{line}\n" for line in lines))


NAN = np.where(np.eye(4) > 0, np.nan, 1.0)

FAULTS = [
    Fault("No such file", **of_file("a.csv", None)),
    Fault("Empty file", **of_file("a.csv", "")),
    Fault("Empty file", **of_file("a.svm", ""), note="LIBSVM"),
    Fault("Empty file", **of_file("a.csv", "\n\n"), note="blank lines"),
    Fault("Empty file", **of_file("a.zip", zipped({})), note="an archive"),
    Fault("No rows", **csv()),
    Fault("Damaged compressed file", **of_file("a.csv.gz", GOOD["a.csv.gz"][:-12])),
    Fault("Not compressed", **of_file("a.csv.gz", "u,v,label\n1,2,a\n3,4,b\n")),
    Fault("Spreadsheet", **spreadsheet(b"PK\x03\x04 and what follows")),
    Fault("Not a zip file", **of_file("a.npz", b"PK\x03\x04 and what follows")),
    Fault("Damaged compressed file", **of_file("a", b"PK\x03\x04 and what follows"), note="zip"),
    Fault("Archive of several files", **of_file("a.zip", zipped({"a.csv": TABLE, "b.csv": TABLE}))),
    Fault("One column", **of_file("a.csv", "u:v:label\n1:2:a\n3:4:b\n")),
    Fault("Decimal comma", **of_file("a.csv", 'u,v,label\n"1,5",2,a\n"3,5",4,b\n')),
    Fault("Value that is none", **parquet(["a", "b"], ([1.0], [2.0]))),
    Fault("Decimal comma", **of_file("a.csv", 'u,v,label\n"1,5",2,a\n3,4,b\n', sparse=True), note="sparse"),
    Fault(
        "Label of too many digits", **of_file("a.jsonl", f'{{"u": 1, "label": 1{"0" * 20}}}\n{{"u": 2, "label": 0}}\n')
    ),
    Fault("Ragged rows", **csv("1,2,a", "3,b")),
    Fault("Ragged rows", **csv("1,2,a", "3,4,b,5"), note="too many"),
    Fault("Not a number", **csv("1,2,a", "3,oops,b", sparse=True)),
    Fault("Not a number", **svm("1 1:1 2:2", "-1 1:oops"), note="LIBSVM"),
    Fault("LIBSVM index 0", **svm("1 1:1 2:2", "-1 0:3 2:4")),
    Fault("LIBSVM indices that do not ascend", **svm("1 1:1 2:2", "-1 2:3 1:4")),
    Fault("LIBSVM indices that do not ascend", **svm("1 1:1 2:2", "-1 2:3 2:4"), note="twice"),
    Fault("Index far beyond all others", **svm("-1 10000000:1", *["1 1:1 2:2"] * 20)),
    Fault("LIBSVM line without a label", **svm("1 1:1 2:2", "1:3 2:4")),
    Fault("Not JSON lines", **of_file("a.jsonl", '{"u": 1, "label": "a"}\n[2, "b"]\n')),
    Fault("Not JSON lines", **of_file("a.jsonl", '{"u": 1, "label": "a"}\n{"u": 2'), note="cut off"),
    Fault("Not a string", **of_file("b.jsonl", '{"t": "a b", "label": "a"}\n{"t": 2, "label": "b"}\n', text="t")),
    Fault("Missing value", **csv("1,2,a", "3,,b", sparse=True)),
    Fault("Missing value", **csv("1,2,a", "3,nan,b", sparse=True), note="nan"),
    Fault("Missing value", **svm("1 1:1 2:2", "-1 1:nan"), note="LIBSVM"),
    Fault("Missing value", **of_arrays(X=NAN), note="npz"),
    Fault("Missing value", **csv("1,2,a", "3,4,"), note="label"),
    Fault("Infinity", **csv("1,2,a", "3,-inf,b")),
    Fault("Infinity", **svm("1 1:1 2:2", "-1 1:inf"), note="LIBSVM"),
    Fault("Infinity", **of_arrays(X=np.where(np.eye(4) > 0, np.inf, 1.0)), note="npz"),
    Fault("Too large for float32", **csv("1,2,a", "3,1e300,b")),
    Fault("No such column", **of_file("a.csv", "u,v,w\n1,2,a\n3,4,b\n", label="label")),
    Fault("Label that is a list or a struct", **parquet([[1], [2]])),
    Fault("Label that is a list or a struct", **parquet([{"a": 1}, {"a": 2}]), note="structs"),
    Fault("Label that is no text", **of_file("a.jsonl", '{"u": 1, "label": "a"}\n{"u": 2, "label": "\\ud800"}\n')),
    Fault("Lengths in a file that differ", **of_arrays(y=np.arange(3) % 2)),
    Fault("Negative weight", **of_arrays(weight=np.array([1.0, -1.0, 1.0, 1.0]))),
]


def test_sources_of_another_form(tmp_path):
    (tmp_path / "a.svm").write_text(GOOD["a.svm"])
    cells = zarr.open_group(tmp_path / "cells.zarr", mode="w", attributes={"encoding-type": "anndata"})
    cells.create_group("obs")
    cells.create_group("X").attrs.update({"encoding-type": "csc_matrix", "shape": [2, 2]})
    before = tree(tmp_path)
    for row, name, options in (
        ("Texts of a file without columns", "a.svm", {"text": "t"}),
        ("AnnData by columns", "cells.zarr", {}),
    ):
        raises(row, lambda: ingest(tmp_path / name, tmp_path / "s.zarr", **options))  # noqa: B023
        flags = [each for key, value in options.items() for each in (f"--{key}", value)]
        refused(row, "ingest", tmp_path / name, tmp_path / "s.zarr", *flags)
    assert tree(tmp_path) == before


ZEROS = [("a.csv", b"u,v,label\n" + b"0,0,a\n" * 60_000), ("a.svm", b"1 1:0\n" * 60_000)]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gz", "bz2", "xz"])
@pytest.mark.parametrize(("name", "text"), ZEROS, ids=["csv", "LIBSVM"])
def test_a_compressed_file_of_zeros(pack, name, text, tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "TEXT_BYTES", 1 << 17)
    path = tmp_path / name
    path.write_bytes(pack(text))
    before = tree(tmp_path)
    raises("Compressed file of zeros", lambda: ingest(path, tmp_path / "s.zarr"))
    refused("Compressed file of zeros", "ingest", path, tmp_path / "s.zarr")
    assert tree(tmp_path) == before
    assert ingest(path, tmp_path / "s.zarr", allow_large=True).rows == 60_000
    monkeypatch.undo()
    assert ingest(path, tmp_path / "t.zarr").rows == 60_000  # less than is looked at


# an archive that was read to where it is bad is closed by the garbage collector
@pytest.mark.filterwarnings("ignore:.*a.npz:pytest.PytestUnraisableExceptionWarning")
@each_way(FAULTS)
def test_a_bad_file(fault, way, tmp_path):
    check_fault(fault, tmp_path, way)
