"""Hive-partitioned folders: the columns in the names of folders are columns, whoever wrote them and in which format."""

from urllib.parse import quote

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_odm import InputError, ingest
from dask_odm.data.readers.formats import find_files, open_source
from data.reading import read_all, stored, write_file

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(60, 2)), columns=["a", "b"]).assign(
    year=RNG.choice([2023, 2024], 60), kind=RNG.choice(["a & b", "no way"], 60)
)


def by_pandas(folder, frame: pd.DataFrame, columns: list[str]) -> None:
    pytest.importorskip("pyarrow")
    frame.to_parquet(folder, partition_cols=columns, index=False)


def by_dask(folder, frame: pd.DataFrame, columns: list[str]) -> None:
    pytest.importorskip("pyarrow")
    dd.from_pandas(frame, npartitions=2).to_parquet(folder, partition_on=columns)


def by_arrow(folder, frame: pd.DataFrame, columns: list[str]) -> None:
    pa, dataset = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.dataset")
    kinds = pa.schema([(name, pa.int64() if name == "year" else pa.string()) for name in columns])
    table = pa.Table.from_pandas(frame)
    dataset.write_dataset(table, folder, format="feather", partitioning=dataset.partitioning(kinds, flavor="hive"))


def as_text(kind: str):
    def write(folder, frame: pd.DataFrame, columns: list[str]) -> None:
        for values, part in frame.groupby(columns):
            pairs = zip(columns, values, strict=True)
            inner = folder.joinpath(*(f"{name}={quote(str(value))}" for name, value in pairs))
            inner.mkdir(parents=True)
            part = part.drop(columns=columns)
            if kind == "jsonl":
                part.to_json(inner / "part-0.jsonl", orient="records", lines=True)
            else:
                part.to_csv(inner / f"part-0.{kind}", index=False)

    return write


WRITERS = {
    "pandas": by_pandas,
    "dask": by_dask,
    "feather": by_arrow,
    "csv": as_text("csv"),
    "csv.gz": as_text("csv.gz"),
    "jsonl": as_text("jsonl"),
}


def in_order(X: np.ndarray, y) -> list:
    return sorted([*row, label] for row, label in zip(np.round(X, 5).tolist(), list(y), strict=True))


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask, as it writes
@pytest.mark.parametrize("columns", [["kind", "year"], ["year", "kind"]])
@pytest.mark.parametrize("writer", WRITERS)
def test_columns_in_folders_are_features_and_labels(tmp_path, writer, columns):
    WRITERS[writer](tmp_path / "data", FRAME, columns)
    for name in ("_SUCCESS", "_metadata", ".hidden"):
        write_file(tmp_path / "data" / name, "no data")
    expected = in_order(FRAME[["a", "b", "year"]].to_numpy(), FRAME["kind"])
    suffix = {"pandas": "parquet", "dask": "parquet"}.get(writer, writer)
    files = sorted(map(str, (tmp_path / "data").rglob(f"*.{suffix}")))
    for i, source in enumerate((tmp_path / "data", f"{tmp_path}/data/**/*.{suffix}", f"{tmp_path}/data/**/*", files)):
        store = ingest(source, tmp_path / f"{i}.zarr", label="kind", dtype="float64")
        assert store.feature_names == ("a", "b", "year")
        assert in_order(*stored(store)) == expected
    store = ingest(tmp_path / "data", tmp_path / "year.zarr", label="year", drop="kind")
    assert (store.classes, store.feature_names) == ((2023, 2024), ("a", "b"))
    left = open_source(tmp_path / "data", label=False, weight="year", drop=["kind", "a"])
    assert left.feature_names == ("b",)
    assert {block.weight.max() for block in left.blocks()} <= {2023, 2024}


def test_a_label_in_folders_is_found(tmp_path):
    """The column with a usual name, else the last; the values are text, as in CSV."""
    for name in ("label", "site"):
        folder = tmp_path / name
        as_text("csv")(folder, FRAME[["a", "b"]].assign(**{name: np.where(FRAME["a"] > 0, "007", "7")}), [name])
        source = open_source(folder)
        assert source.label_name == f"column {name!r}"
        assert source.label_is_guessed == (name == "site")
        assert ingest(folder, tmp_path / f"{name}.zarr").classes == ("007", "7")


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask, as it writes
@pytest.mark.parametrize("writer", ["pandas", "dask"])
def test_missing_values_in_folders(tmp_path, writer):
    frame = FRAME.assign(kind=FRAME["kind"].astype(object), year=FRAME["year"].astype("Int64"))
    frame.loc[:5, "kind"] = None
    frame.loc[3:9, "year"] = pd.NA
    WRITERS[writer](tmp_path / "data", frame, ["kind", "year"])
    with pytest.raises(InputError, match=r"missing values in the label, column 'kind' \(6 .*column 'year' \(7 rows\)"):
        read_all(tmp_path / "data", label="kind")
    X, y, _ = read_all(tmp_path / "data", label="kind", drop_missing=True, dtype="float64")
    kept = FRAME.iloc[10:]
    assert in_order(X, y) == in_order(kept[["a", "b", "year"]].to_numpy(), kept["kind"])


def test_words_in_folders_are_no_numbers(tmp_path):
    as_text("csv")(tmp_path / "data", FRAME, ["year", "kind"])
    with pytest.raises(InputError, match=r"column 'kind' \('a & b' in line 2\) holds no .*drop= \(--drop\)\.$"):
        read_all(tmp_path / "data", label="year")
    assert open_source(tmp_path / "data", label="year", drop="kind").feature_names == ("a", "b")


@pytest.mark.parametrize("names", [["data/year=2023", "data/year=2024"], ["data/year=2023/*", "data/year=2024/*"]])
def test_lists_of_folders_and_patterns_tell_the_columns_that_lists_of_files_do(tmp_path, names):
    as_text("csv")(tmp_path / "data", FRAME, ["year", "kind"])
    sources = [str(tmp_path / name) for name in names]
    assert open_source(sources, label="kind").feature_names == ("a", "b", "year")
    found = find_files(sources)
    assert open_source(found, label="kind").feature_names == ("a", "b", "year")  # the shell finds files first
    assert sorted(found) == sorted(map(str, (tmp_path / "data").rglob("*.csv")))


def test_bytes_in_names_of_folders_that_are_no_text_are_no_label(tmp_path):
    for kind in ("%FE", "%FF"):  # which a replacement character would make one class
        (tmp_path / f"kind={kind}").mkdir()
        write_file(tmp_path / f"kind={kind}" / "part-0.csv", "a\n1\n")
    with pytest.raises(InputError, match="half of a surrogate pair"):
        ingest(tmp_path, tmp_path / "s.zarr", label="kind")


def test_which_folders_tell_columns(tmp_path):
    run = tmp_path / "lr=0.1"
    text = "a,y\n1,2\n3,4\n"
    for i in range(2):
        (run / "data" / f"day={i}").mkdir(parents=True)
        write_file(run / "data" / f"day={i}" / "part-0.csv", text)
    assert open_source(run / "data").feature_names == ("a", "day")
    assert open_source(run / "data" / "day=0").feature_names == ("a",)
    assert open_source(run / "data" / "day=0" / "part-0.csv").feature_names == ("a",)
    assert open_source(run / "data" / "*" / "*.csv").feature_names == ("a", "day")
    write_file(run / "data" / "day=1" / "part-1.csv", "a,y,day\n1,2,3\n")
    with pytest.raises(InputError, match=r"part-1\.csv, line 1: the columns are not those of"):
        read_all(run / "data")
    inside = write_file(run / "data" / "day=0" / "part-0.csv", "a,y,day\n1,2,3\n")  # the file's own column counts
    assert open_source([inside, str(run / "data" / "day=1" / "part-1.csv")]).feature_names == ("a", "day")
    write_file(run / "data" / "odd.csv", text)
    with pytest.raises(InputError, match=r"folders on its way do not name the columns that those of .*day=0"):
        open_source(run / "data")


def test_csv_without_a_header_in_folders(tmp_path):
    """As Spark writes by default."""
    for kind in ("p", "q"):
        (tmp_path / f"kind={kind}").mkdir()
        write_file(tmp_path / f"kind={kind}" / "part-0.csv", "1,2\n3,4\n")
    source = open_source(tmp_path)
    assert (source.feature_names, source.label_name) == (("0", "1"), "column 'kind'")
    X, y, _ = read_all(tmp_path)
    assert X.tolist() == [[1, 2], [3, 4]] * 2
    assert y.tolist() == ["p", "p", "q", "q"]


def test_another_folder_is_named_with_a_pattern(tmp_path):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    write_file(tmp_path / "data" / "deep" / "part.jsonl", "{}")
    with pytest.raises(InputError, match=r"holds the folder .*deep; name the files by a pattern .*\*\*/\*\.jsonl'"):
        find_files(tmp_path / "data")
    inner = tmp_path / "x[1]" / "kind=p" / "deep"
    inner.mkdir(parents=True)
    write_file(inner / "part.csv", "a\n1\n")
    with pytest.raises(InputError, match="by a pattern such as") as refused:
        find_files(tmp_path / "x[1]")
    pattern = str(refused.value).split("'")[1]
    assert open_source(pattern, label="kind").feature_names == ("a",)  # what the message says keeps the columns
