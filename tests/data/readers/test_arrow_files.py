"""Parquet and Arrow, files and objects: values, names and labels as they went in, one batch at a time."""

import datetime
import subprocess
import sys
from decimal import Decimal

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_odm import InputError, ingest
from dask_odm.data.readers.formats import open_source
from data.reading import read_all, read_blocks, stored, write_file

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
pq = pytest.importorskip("pyarrow.parquet")


def _table(rows: int = 200, seed: int = 0) -> object:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "a": rng.normal(size=rows),
            "target": pa.array(rng.choice(["yes", "no"], rows)).dictionary_encode(),
            "b": pa.array(rng.integers(-99, 99, rows), pa.int16()),
            "c": pa.array(rng.normal(size=rows).astype("float16")),
            "d": pa.array([Decimal(i) / 4 for i in range(rows)]),
            "w": rng.uniform(size=rows),
        }
    )


def _write(kind: str, table, path) -> object:
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=70)
    elif kind == "feather":
        feather.write_feather(table, path, chunksize=70)
    else:
        opened = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with opened(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    return path


def _check(store, table) -> None:
    X, y = stored(store)
    expected = np.column_stack([np.array(table[name].to_pylist(), dtype=float) for name in "abcd"])
    np.testing.assert_array_equal(X, expected)
    assert y.tolist() == table["target"].to_pylist()
    assert store.read_column("weight").tolist() == table["w"].to_pylist()
    assert store.feature_names == ("a", "b", "c", "d")


@pytest.mark.parametrize("block_bytes", [1, 700, 10**6])
@pytest.mark.parametrize("kind", ["parquet", "feather", "file", "stream"])
def test_files_are_what_went_in(tmp_path, kind, block_bytes):
    path = _write(kind, _table(), tmp_path / f"a.{'parquet' if kind == 'parquet' else 'arrow'}")
    store = ingest(path, tmp_path / "a.zarr", weight="w", dtype="float64", block_bytes=block_bytes, chunk_rows=60)
    _check(store, _table())
    assert open_source(path, weight="w").label_name == "column 'target'"
    blocks = list(read_blocks(path, weight="w", block_bytes=block_bytes))
    assert blocks[-1].position == open_source(path).size
    assert max(len(block.X) for block in blocks) <= max(1, block_bytes // 32)


FRAME = pd.DataFrame({"a": np.arange(6.0), "id": [7, 8, 9, 5, 4, 3], "y": [0, 1] * 3}, index=[3, 1, 4, 0, 2, 6])
INDEXED = {
    "shuffled": (FRAME, ("a", "id")),
    "named": (FRAME.set_index("id"), ("a",)),
    "by number": (FRAME.reset_index(drop=True), ("a", "id")),
    "of two levels": (FRAME.set_index("id", append=True), ("a",)),  # which Dask lacks
}


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask, as it writes
@pytest.mark.parametrize(
    ("kind", "index"),
    [(kind, index) for kind in ("parquet", "feather", "table", "folder of Dask") for index in INDEXED][:-1],
)
def test_the_index_of_a_frame_is_no_feature(tmp_path, kind, index):
    """As `pandas.read_parquet` has it; its name still names it."""
    frame, names = INDEXED[index]
    table = pa.Table.from_pandas(frame, preserve_index=True)
    if kind == "folder of Dask":
        source = str(tmp_path / "frames")
        dd.from_pandas(frame, npartitions=2, sort=False).to_parquet(source)
    else:
        source = table if kind == "table" else _write(kind, table, tmp_path / "a")
    assert ingest(source, tmp_path / "s.zarr").feature_names == names
    if "id" in frame.index.names:
        assert read_all(source, label="id")[1].tolist() == frame.index.get_level_values("id").tolist()
        assert open_source(source, weight="id").feature_names == ("a",)


def test_files_with_and_without_an_index_are_one_data_set(tmp_path):
    FRAME.to_parquet(tmp_path / "1.parquet")
    FRAME.reset_index(drop=True).to_parquet(tmp_path / "2.parquet")
    bare = pa.Table.from_pandas(FRAME).replace_schema_metadata({"pandas": "{"})  # by a program that knows no pandas
    pq.write_table(bare.rename_columns(["a", "id", "y", "__null_dask_index__"]), tmp_path / "3.parquet")
    X, y, _ = read_all(tmp_path)
    np.testing.assert_array_equal(X, np.tile(FRAME[["a", "id"]], (3, 1)))
    assert y.tolist() == [0, 1] * 9


@pytest.mark.parametrize("kind", ["parquet", "file"])
def test_a_folder_is_one_data_set(tmp_path, kind):
    folder = tmp_path / "parts"
    folder.mkdir()
    tables = [_table(30, seed) for seed in range(11)]
    for i, table in enumerate(tables):
        _write(kind, table, folder / f"part.{i}")
    for name in ("_SUCCESS", "_metadata", ".hidden", "part.0.crc"):
        write_file(folder / name, "no data")
    store = ingest(folder, tmp_path / "a.zarr", weight="w", dtype="float64")
    _check(store, pa.concat_tables(table.unify_dictionaries() for table in tables))
    assert store.source.endswith("part.2 and 8 more files")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array(["p", "q"]), r"column 'x' \((str|object, string)\) holds no numbers; .*: leave other columns out"),
        (pa.array(["p", "q"]).dictionary_encode(), r"column 'x' \(category\) holds no numbers"),
        (pa.array([True, None]), r"column 'x' \(bool\[pyarrow\]\) holds no numbers"),
        (pa.array([datetime.date(2020, 1, 1)] * 2), r"column 'x' \(date32\[day\]\[pyarrow\]\) holds no numbers"),
        (pa.array([[1], [2]]), r"column 'x' \(list<.*>\[pyarrow\]\) holds no numbers"),
        (pa.array([1, None]), r"missing values in column 'x' \(1 row\), first at row 1;"),
        (pa.array([None, None], pa.null()), r"missing values in column 'x' \(2 rows\), first at row 0;"),
        (pa.array([1.0, -np.inf]), "row 1, column 'x': infinity"),
        (pa.array([1.0, 1e300]), "row 1, column 'x': 1e\\+300 is too large for float32"),
    ],
)
def test_columns_without_numbers(tmp_path, column, message):
    table = pa.table({"x": column, "y": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf"a\.parquet[,:] {message}"):
        read_all(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf"the Table[,:] {message}"):
        read_all(table)


def test_labels_of_a_dictionary_of_lists_or_in_memory(tmp_path):
    lists = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 3), pa.array([[1], [2]]))
    table = pa.table({"a": np.arange(6.0), "c": lists})
    with pytest.raises(InputError, match=r"a.feather, row 0: .*1.* is not a label; use"):
        ingest(_write("feather", table, tmp_path / "a.feather"), tmp_path / "s.zarr", label="c")
    with pytest.raises(InputError, match=r"the DataFrame, row 0: .*1.* is not a label; use"):
        ingest(table.to_pandas(), tmp_path / "s.zarr", label="c")


def test_labels_keep_their_type(tmp_path):
    for labels in ([1, 2, None], [True, False, None], [0.5, 2.0, None], ["a", "b", None]):
        pq.write_table(pa.table({"x": [1.0, 2.0, 3.0], "y": labels}), tmp_path / "a.parquet")
        store = ingest(tmp_path / "a.parquet", tmp_path / "a.zarr", drop_missing=True, overwrite=True, block_bytes=1)
        assert sorted(store.classes) == sorted(labels[:2])
        assert {type(label) for label in store.classes} == {type(labels[0])}


def test_files_that_cannot_be_read(tmp_path):
    path = _write("parquet", _table(), tmp_path / "a.parquet")
    whole = path.read_bytes()
    for bad in (whole[:100], whole[:-9], b"PAR1" + b"x" * 50):
        with pytest.raises(InputError, match=r"a\.parquet: cannot be read; the file is damaged or of another format"):
            read_all(write_file(path, bad))
    flipped = bytearray(whole)
    flipped[40:60] = b"x" * 20
    with pytest.raises(InputError, match=r"a\.parquet"):
        read_all(write_file(path, flipped))
    with pytest.raises(InputError, match=r"a\.arrow: cannot be read; the file is damaged"):
        read_all(write_file(tmp_path / "a.arrow", b"ARROW1\x00\x00nothing else"))
    one, two = (tmp_path / f"{i}.parquet" for i in (1, 2))
    pq.write_table(_table(), one)
    pq.write_table(_table().drop_columns(["b"]), two)
    with pytest.raises(InputError, match=r"2\.parquet: the columns are not those of .*1\.parquet"):
        read_all([one, two])
    with pytest.raises(InputError, match=r"1\.parquet: no label column 'z'; the columns are a, target"):
        read_all(one, label="z")
    with pytest.raises(InputError, match="header is for CSV, not Parquet"):
        read_all(one, header=True)


@pytest.mark.slow
def test_without_pyarrow(tmp_path):
    write_file(tmp_path / "a.parquet", b"PAR1")
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from dask_odm.data.readers.formats import open_source\n"
        f"open_source({str(tmp_path / 'a.parquet')!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Parquet files need pyarrow; pip install pyarrow, or dask-odm[parquet]." in done.stderr
