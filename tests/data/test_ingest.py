"""Ingest: one pass, bounded memory, labels as they went in, nothing left behind by a failure."""

import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file

from dask_odm import InputError, ODMClassifier, Store, open_store
from dask_odm.data.ingest import RandomSplit, ingest
from dask_odm.events import Event, Ingested, Progress, listen
from data.reading import stored


def _table(rows: int = 500, features: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, features)), rng.choice([-1, 1], rows)


def _write_libsvm(path: Path, X: np.ndarray, y: np.ndarray) -> Path:
    dump_svmlight_file(X, y, str(path), zero_based=False)
    return path


# Several targets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["frame", "csv", "parquet", "json", "dask", "array", "pair", "lazy pair", "store"])
def test_several_columns_are_targets(tmp_path, form):
    X, _ = _table()
    Y = np.random.default_rng(1).normal(size=(500, 2))
    frame = pd.DataFrame(X, columns=list("abcd")).assign(u=Y[:, 0], v=Y[:, 1])[list("abucdv")]
    source, label = frame, ["u", "v"]
    path = str(tmp_path / f"rows.{form if form != 'json' else 'jsonl'}")
    if form == "csv":
        frame.to_csv(path, index=False)
    elif form == "parquet":
        frame.to_parquet(path)
    elif form == "json":
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    elif form == "dask":
        source = dd.from_pandas(frame, npartitions=3)
    elif form == "array":
        source, label = frame.to_numpy(), (2, -1)
    elif form != "frame":
        source, label = (X, Y), None
    if form == "lazy pair":
        source = da.from_array(X, chunks=(150, 2)), da.from_array(Y, chunks=(70, 1))
    elif form == "store":
        source = ingest((X, Y), tmp_path / "first.zarr", dtype="float64")
    source = path if form in ("csv", "parquet", "json") else source
    train, test = ingest(source, tmp_path / "a.zarr", label=label, dtype="float64", test_size=0.2, block_bytes=2000)
    assert (train.targets, test.targets, train.features) == (2, 2, 4)
    parts = [np.hstack([part.read_column("y"), part.read_rows(np.arange(part.rows)).X]) for part in (train, test)]
    everything, both = np.concatenate(parts), np.hstack([Y, X])
    np.testing.assert_allclose(everything[everything[:, 0].argsort()], both[both[:, 0].argsort()], atol=1e-12)


def test_targets_that_cannot_be_read_are_refused(tmp_path):
    X, y = _table()
    frame = pd.DataFrame(X, columns=list("abcd"))
    np.save(tmp_path / "X.npy", X)
    _write_libsvm(tmp_path / "a.svm", X, y)
    for source, label, message in (
        (frame, ["a", "z"], "no label column 'z'"),
        (frame, ["a", "a"], "no feature columns beside label and weight"),
        (frame.assign(d="word"), ["a", "d"], "column 'd' .* holds no numbers"),
        (frame.where(frame < 2), ["a", "b"], "missing values in .*the label, column 'a' and column 'b'"),
        (tmp_path / "X.npy", [0, 1], "label names several columns, as of tables"),
        (str(tmp_path / "a.svm"), [0, 1], "label"),
        ((X, np.where(X > 0, X, np.inf)), None, r"^y, row 0: inf is no finite number"),
    ):
        with pytest.raises(InputError, match=message):
            ingest(source, tmp_path / "s.zarr", label=label)
    assert ingest(frame, tmp_path / "s.zarr", label=["b"]).targets == 0


# Labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("written", "classes"), [
    (("-1", "+1"), (-1, 1)), (("-1.0", "1.0"), (-1, 1)), (("0", "1"), (0, 1)), (("2", "1"), (1, 2)),
    (("1e3", "7"), (7, 1000)), (("0.5", "1"), (0.5, 1.0)), (("1", "2", "3"), (1, 2, 3)), (("5",), (5,)),
    (("007", "1E5"), (7, 100_000)),
    (("-1234567890123456789", "+1234567890123456790"), (-1234567890123456789, 1234567890123456790)),
    (("1e300", "7"), (7.0, 1e300)),
])  # fmt: skip
def test_labels_of_libsvm_text(tmp_path, written, classes):
    (tmp_path / "a.svm").write_text("".join(f"{label} 1:{i}\n" for i, label in enumerate(written)))
    store = ingest(tmp_path / "a.svm", tmp_path / "a.zarr")
    assert store.classes == classes
    assert {type(label) for label in store.classes} == {type(classes[0])}
    assert list(map(float, stored(store)[1])) == [float(label) for label in written]
    assert Store.open(store.path) == store


@pytest.mark.parametrize(("written", "values"), [
    (("-1", "+1"), (-1, 1)), (("-1.0", "1.0"), (-1.0, 1.0)), (("1", "1.0", "2"), (1.0, 1.0, 2.0)),
    (("yes", "no"), ("yes", "no")),
    ((" yes", "yes ", "no"), (" yes", "yes ", "no")),
    ((" 1", "2 ", "3"), (1, 2, 3)), (("1", "b"), ("1", "b")), (("007", "7"), ("007", "7")),
    (("07", "10"), ("07", "10")), (("1E5", "100000"), ("1E5", "100000")), (("1E5", "7"), (1e5, 7.0)),
    (("0.0e+00", "1.0e+00"), (0.0, 1.0)),
    (("+.50", "0.5", "-0", "0"), (0.5, 0.5, 0.0, 0.0)),
    (("1234567890123456789", "1234567890123456790", "5"), (1234567890123456789, 1234567890123456790, 5)),
    (("12345678901234567890", "5"), ("12345678901234567890", "5")),
    (("1e25", "5"), (1e25, 5.0)),
    (("1234567890123456789", "1234567890123456790", ".5"), ("1234567890123456789", "1234567890123456790", ".5")),
    (("9" * 30, "9" * 29 + "8"), ("9" * 30, "9" * 29 + "8")),
    (("True", "False"), ("True", "False")), (("nan", "inf"), ("nan", "inf")), (("1_0", "2"), ("1_0", "2")),
    ((".5", "-2.", "1e-3"), (0.5, -2.0, 0.001)),
    (("0x10", "2"), ("0x10", "2")),
    (("ja, oft", 'sag "nie"'), ("ja, oft", 'sag "nie"')),
    (("é", "ß"), ("é", "ß")),
])  # fmt: skip
@pytest.mark.parametrize("block_bytes", [1, 10**6])
def test_labels_of_csv_text(tmp_path, written, values, block_bytes):
    pd.DataFrame({"x": np.arange(len(written)), "y": written}).to_csv(tmp_path / "a.csv", index=False)
    store = ingest(tmp_path / "a.csv", tmp_path / "a.zarr", block_bytes=block_bytes)
    assert store.classes == tuple(sorted(set(values)))
    assert {type(label) for label in store.classes} == {type(values[0])}
    assert stored(store)[1].tolist() == list(values)


@pytest.mark.parametrize("labels", [
    [-1, 1], [-1.0, 1.0], [True, False], ["a", "b"], [0.25, 0.5], np.array([3, 4], dtype="uint8"),
    np.array(["x", "y"], dtype=object),
])  # fmt: skip
def test_labels_of_arrays(tmp_path, labels):
    store = ingest((np.zeros((2, 1)), labels), tmp_path / "a.zarr")
    expected = np.asarray(labels).tolist()
    assert stored(store)[1].tolist() == expected
    assert store.classes == tuple(sorted(expected))
    assert [type(label) for label in store.classes] == [type(label) for label in sorted(expected)]
    y = open_store(store.path)["y"]
    np.testing.assert_array_equal(y.values, np.array(expected), strict=True)
    assert y.dtype == np.array(expected).dtype


@pytest.mark.parametrize(("labels", "message"), [
    ([1.0, np.nan], r"X: missing values in the label, y \(1 row\), first at row 1; fill"),
    (np.array(["a", None], dtype=object), r"X: missing values in the label, y \(1 row\), first at row 1; fill"),
    (np.array([1.0, np.inf]), "^y, row 1: .*inf.* is not a label"),
    (np.array([(1,), 2], dtype=object), r"^y, row 0: \(1,\) is not a label"),
    (np.array(["a", 1], dtype=object), "all be numbers, all strings or all booleans"),
])  # fmt: skip
def test_labels_that_are_none(tmp_path, labels, message):
    with pytest.raises(InputError, match=message):
        ingest((np.zeros((2, 1)), labels), tmp_path / "a.zarr")
    assert os.listdir(tmp_path) == []


BIG = (1234567890123456789, 1234567890123456790)  # one number in float64


def _doors(folder, labels: list) -> dict:
    """The same rows and labels in every form that has them."""
    frame = pd.DataFrame({"a": np.arange(len(labels)), "label": labels})
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_json(folder / "a.jsonl", orient="records", lines=True)
    doors = {"csv": folder / "a.csv", "jsonl": folder / "a.jsonl", "frame": frame, "array": (frame[["a"]], labels)}
    doors["dask"] = dd.from_pandas(frame, npartitions=2)
    if not isinstance(labels[0], str):
        (folder / "a.svm").write_text("".join(f"{label} 1:{i}\n" for i, label in enumerate(labels)))
        doors["libsvm"] = folder / "a.svm"
    if importlib.util.find_spec("pyarrow"):
        frame.to_parquet(folder / "a.parquet")
        frame.to_parquet(folder / "folders", partition_cols=["label"], index=False)
        doors |= {"parquet": folder / "a.parquet", "folders": folder / "folders"}
    return doors


@pytest.mark.parametrize(
    "labels", [[5, *BIG, 5], ["007", "7", "x", "7"], ["7", "007", "7"], ["a ", "a", "a"], ["1E5", "100000", "1E5"]]
)
def test_one_rule_for_labels_of_all_doors(tmp_path, labels):
    for door, source in _doors(tmp_path, labels).items():
        store = ingest(source, tmp_path / f"{door}.zarr")
        assert store.classes == tuple(sorted(set(labels))), door
        assert sorted(stored(store)[1].tolist()) == sorted(labels), door


@pytest.mark.parametrize("labels", [[BIG[0], 0.5], [2**53 + 1, 0.5], [10**22, 1], [10**400, 1], [10**400, 0.5]])
def test_numbers_that_cannot_be_kept_are_no_labels(tmp_path, labels):
    with pytest.raises(InputError, match=r"label \d+ is too long to be kept as a number; give all labels as strings"):
        ingest((np.zeros((len(labels), 1)), np.array(labels, dtype=object)), tmp_path / "a.zarr")
    mixed = ingest((np.zeros((3, 1)), np.array([2**53, 0.5, 7], dtype=object)), tmp_path / "a.zarr")
    assert stored(mixed)[1].tolist() == [2.0**53, 0.5, 7.0]


def test_labels_that_look_alike_are_told(tmp_path, caplog):
    for labels, said in ((["7", "007"], "'7' and '007' are two"), (["a", "b", "a "], "'a' and 'a ' are two")):
        caplog.clear()
        ingest((np.zeros((len(labels), 1)), labels), tmp_path / "a.zarr", overwrite=True)
        (record,) = caplog.records
        assert f"the labels {said} classes, as they are spelled differently." in record.getMessage()


def test_whole_numbers_that_are_rounded_are_told(tmp_path, caplog):
    """An identifier of 64 bits becomes another number in float32; a measurement only has fewer digits."""
    rng = np.random.default_rng(0)
    ids = rng.integers(2**40, 2**50, 60)
    frame = pd.DataFrame({"size": rng.normal(size=60) * 1e9, "id": ids, "count": np.arange(60), "y": ids % 2})
    doors = _doors(tmp_path, [0, 1]) | {"frame": frame, "dask": dd.from_pandas(frame, npartitions=3)}
    doors["array"] = (frame[["id", "count"]].to_numpy(), frame["y"])
    doors["sparse"] = (csr_array(frame[["id", "count"]].to_numpy()), frame["y"])
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    (tmp_path / "a.svm").write_text("".join(f"{i % 2} 1:{i} 2:7\n" for i in ids))
    if "parquet" in doors:
        frame.to_parquet(tmp_path / "a.parquet")
    doors.pop("folders", None)
    names, column = {"array": "column 0", "sparse": "column 0", "libsvm": "index 1"}, "column 'id'"
    for door, source in doors.items():
        for options in ({}, {"sparse": True}, {"block_bytes": 500}, {"dtype": "float64"}):
            caplog.clear()
            ingest(source, tmp_path / "s.zarr", overwrite=True, **options)
            said = [record.getMessage() for record in caplog.records]
            if "dtype" in options:
                assert said == [], door
            else:
                (message,) = said
                example = f"such as {ids[0]} to {int(np.float32(ids[0]))}; leave an identifier out"
                assert f"{names.get(door, column)}: numbers are rounded, {example}" in message, door
                assert "dtype='float64'" in message


def test_numbers_too_close_for_float32_are_told(tmp_path, caplog):
    """With words beside them, too, and from all rows: a column that reaches farther later on loses nothing."""
    close = 4_500_000 + np.arange(400) * 0.0371
    frame = pd.DataFrame({"close": close, "far": np.where(np.arange(400) < 300, close, 0.0), "y": np.arange(400) % 2})
    for rows in (frame, frame.assign(w="k", id=np.arange(400) * 2**40 + 1)):
        for options in ({}, {"block_bytes": 2000}):
            caplog.clear()
            ingest(rows, tmp_path / "a.zarr", label="y", overwrite=True, **options)
            (message,) = [record.getMessage() for record in caplog.records]
            also = " and column 'id'" if "id" in rows else ""
            assert f"the DataFrame: column 'close'{also}: numbers are rounded, such as 45000" in message
    caplog.clear()
    ingest(frame, tmp_path / "a.zarr", dtype="float64", overwrite=True)
    ingest(frame.astype(np.float32), tmp_path / "a.zarr", overwrite=True)
    assert not caplog.records


def test_a_number_that_text_already_rounded_is_told_as_what_it_became(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text('{"id": 1234567890123456789, "y": 0}\n{"id": 5, "y": 1}\n')
    ingest(tmp_path / "a.jsonl", tmp_path / "s.zarr", dtype="float64")
    (record,) = caplog.records
    assert "numbers are rounded, such as one to 1234567890123456768; leave" in record.getMessage()


def test_bytes_that_are_no_text_are_no_label(tmp_path):
    """A replacement character would make them one class."""
    labels = np.array([b"x", b"\xfe", b"\xff"], dtype=object)
    with pytest.raises(InputError, match=r"^y, row 1: the label b'\\xfe' is bytes that are no UTF-8 .* label\.hex\(\)"):
        ingest((np.zeros((3, 1)), labels), tmp_path / "a.zarr")
    store = ingest((np.zeros((3, 1)), [label.hex() for label in labels]), tmp_path / "a.zarr")
    assert store.classes == ("78", "fe", "ff")


@pytest.mark.parametrize("nul", ["\0", b"\0"])
@pytest.mark.parametrize("door", [list, lambda y: np.array(y, dtype=object), pd.Series])
def test_labels_that_numpy_would_merge_are_refused(tmp_path, door, nul):
    with pytest.raises(InputError, match=r"^y, row 1: the label b?'\\x00' ends in a NUL .* label\.rstrip\(b?'\\x00'\)"):
        ingest((np.zeros((3, 1)), door([nul[:0], nul, nul])), tmp_path / "a.zarr")


@pytest.mark.parametrize("blank", ["", " "])
def test_an_empty_string_is_a_label_as_in_a_fit_and_an_empty_field_of_csv_is_missing(tmp_path, blank):
    frame = pd.DataFrame({"x": np.arange(20.0), "y": [blank, "a"] * 10})
    rows = frame[["x"]].to_numpy()
    sources = [
        frame,
        (rows, frame["y"].tolist()),
        (rows, frame["y"].to_numpy(object)),
        dd.from_pandas(frame, npartitions=2),
    ]
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    frame.to_csv(tmp_path / "a.csv", index=False)
    for source in [*sources, tmp_path / "a.jsonl"]:
        store = ingest(source, tmp_path / "a.zarr", overwrite=True)
        assert store.classes == (blank, "a")
    for lazy in (rows, da.from_array(rows, chunks=5)):
        model = ODMClassifier(solver="newton", kernel="linear").fit(lazy, frame["y"].to_numpy(object))
        assert model.classes_.tolist() == [blank, "a"]
    with pytest.raises(InputError, match=r"missing values in the label, column 'y' \(10 rows\)"):
        ingest(tmp_path / "a.csv", tmp_path / "a.zarr", overwrite=True)


def test_a_measurement_is_no_label(tmp_path):
    with pytest.raises(InputError, match="row 32767: more than 32767 different labels"):
        ingest((np.zeros((40_000, 1)), np.arange(40_000) + 0.5), tmp_path / "a.zarr", target="classes")
    with pytest.raises(InputError, match=r"row 32767: .*target='real'"):
        ingest((np.zeros((40_000, 1)), np.arange(40_000)), tmp_path / "a.zarr")
    store = ingest((np.zeros((32_767, 1)), np.arange(32_767)), tmp_path / "a.zarr")
    assert store.read_column("y").dtype == np.int16


# Split ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test_size", [0.2, 0.333, 0.005, 0.95])
def test_the_split_takes_every_row_once_and_the_share_exactly(tmp_path, test_size):
    X = np.arange(10_000.0)[:, None]
    train, test = ingest((X, X[:, 0] % 2), tmp_path / "a.zarr", test_size=test_size, seed=3)
    both = np.concatenate([stored(train)[0], stored(test)[0]]).ravel()
    np.testing.assert_array_equal(np.sort(both), X.ravel())
    assert test.rows == round(10_000 * test_size)
    assert test.path == str(tmp_path / "a-test.zarr")
    for store in (train, test):
        rows, labels = stored(store)
        np.testing.assert_array_equal(rows.ravel() % 2, labels)
        assert (np.diff(rows.ravel()) > 0).all()


def test_the_split_depends_on_the_seed_alone(tmp_path):
    X, y = _table(rows=700)
    _write_libsvm(tmp_path / "a.svm", X, y)

    def drawn(i: int, **options) -> np.ndarray:
        return stored(ingest(tmp_path / "a.svm", tmp_path / f"{i}.zarr", test_size=0.3, **options)[1])[0]

    first = drawn(0)
    np.testing.assert_array_equal(first, drawn(1, block_bytes=50, chunk_rows=13))
    np.testing.assert_allclose(first, drawn(2, dtype="float64"), rtol=1e-6)
    assert not np.array_equal(first, drawn(3, seed=1))


def test_the_split_draws_all_places_alike():
    counts = np.sum([RandomSplit(0.25, seed).take(200) for seed in range(2000)], axis=0)
    spread = np.sqrt(2000 * 0.25 * 0.75)
    assert np.abs(counts - 500).max() < 5 * spread
    assert counts.sum() == 2000 * 50


# Failure -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError, OSError])
def test_an_interrupt_leaves_nothing(tmp_path, failure):
    X, y = _table()

    def listener(event):
        if isinstance(event, Progress) and event.done > 5000:
            raise failure

    with pytest.raises(failure), listen(listener):
        ingest((X, y), tmp_path / "a.zarr", block_bytes=1000, chunk_rows=50)
    assert os.listdir(tmp_path) == []


def test_existing_outputs_are_refused_before_anything_is_read(tmp_path):
    old = ingest(_table(), tmp_path / "a-test.zarr")
    with pytest.raises(InputError, match=r"a-test\.zarr' exists; pass overwrite=True"):
        ingest(tmp_path / "no such file", tmp_path / "a.zarr", test_size=0.5)
    assert os.listdir(tmp_path) == ["a-test.zarr"]
    train, test = ingest(_table(seed=1), tmp_path / "a.zarr", test_size=0.5, overwrite=True)
    assert Store.open(tmp_path / "a-test.zarr") == test != old
    assert Store.open(tmp_path / "a.zarr") == train


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"test_size": share}, r"'test_size' parameter of ingest must be a float in the range \(0.0, 1.0\)")
            for share in (0.0, 1.0, -0.1, 5)
        ),
        ({"test_size": 0.001}, "leaves one side without any"),
        ({"test_size": 0.5, "test_store": "a.zarr"}, "same folder"),
        ({"test_store": "b.zarr"}, "test_store is given without test_size"),
        ({"dtype": "float16"}, "dtype must be 'float32' or 'float64'. Got 'float16'"),
        ({"columns": "b.zarr"}, r"columns must be store\.column_recipe or model\.column_recipe_\. Got str instead"),
        ({"compression": "lz4"}, "compression must be None or 'zstd'"),
        ({"chunk_rows": 0}, "chunk_rows=0"),
        ({"chunk_rows": 10**7}, "chunk_rows=10000000 makes chunks of 80000000 bytes"),
    ],
)
def test_options_that_do_not_fit(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        ingest(np.zeros((2, 2)), "a.zarr", **options)
    assert os.listdir(tmp_path) == []


def test_labels_in_the_place_of_the_store() -> None:
    X, y = np.zeros((4, 2)), np.array([0, 1, 0, 1])
    with pytest.raises(InputError, match=r"^store must be a path\. Got ndarray instead; .* together, as \(X, y\)\.$"):
        ingest(X, y)


# Progress, memory, real data -------------------------------------------------------------------------------


def test_progress_runs_from_nothing_to_all(tmp_path):
    path = _write_libsvm(tmp_path / "a.svm", *_table())
    events: list[Event] = []
    with listen(events.append):
        ingest(path, tmp_path / "a.zarr", block_bytes=1000)
    for phase in ("scan", "ingest"):
        done = [event.done for event in events if isinstance(event, Progress) and event.phase == phase]
        assert done[0] == 0
        assert done == sorted(done)
        assert done[-1] == path.stat().st_size
        assert len(done) > 10
    assert events[-1] == Ingested(rows=500, dropped=0, label=None, target="classes")


# VmHWM, unlike ru_maxrss, is not inherited from the process that starts this one.
_MEASURE = """
import sys
from dask_odm.data.ingest import ingest

def kib(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))

ingest(sys.argv[1], sys.argv[3] + "/warm.zarr")
with open("/proc/self/clear_refs", "w") as peak:
    peak.write("5")
before = kib("VmRSS")
ingest(sys.argv[2], sys.argv[3] + "/a.zarr", block_bytes=500_000, chunk_rows=4000)
print(kib("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("kind", ["csv", "parquet", "feather", "npz", "npy", "svm"])
def test_peak_memory_does_not_grow_with_the_file(tmp_path, kind):
    """A file, and a store, several times larger than the growth allowed."""
    allowed = 12 * 2**20
    rows = np.random.default_rng(0).integers(-9, 9, size=(400, 100)).astype(np.float64)
    rows[:, 99] = 1
    path, small = tmp_path / f"a.{kind}", tmp_path / f"small.{kind}"
    for name, times in ((path, 200), (small, 1)):
        if kind == "npz":  # column by column
            np.savez(name, X=np.asfortranarray(np.tile(rows, (times, 1))))
        elif kind == "npy":
            np.save(name, np.tile(rows, (times, 1)))
        elif kind in ("csv", "svm"):
            text = io.BytesIO()
            np.savetxt(text, rows, delimiter=",", fmt="%.3f")
            if kind == "svm":
                text = io.BytesIO()
                dump_svmlight_file(rows, np.arange(400) % 2, text, zero_based=False)
            name.write_bytes(text.getvalue() * times)
        else:
            pytest.importorskip("pyarrow")
            values = np.random.default_rng(0).normal(size=(400 * times, 100))  # which no encoding makes small
            values[:, 99] = 1
            frame = pd.DataFrame(values, columns=[f"c{i}" for i in range(100)])
            small_pieces = (
                {"use_dictionary": False, "data_page_size": 1 << 14} if kind == "parquet" else {"chunksize": 900}
            )
            getattr(frame, f"to_{kind}")(name, **small_pieces)
    result = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(small), str(path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    size = sum(file.stat().st_size for file in Path(tmp_path, "a.zarr/X").rglob("*") if file.is_file())
    assert min(size, path.stat().st_size) > 2.5 * allowed
    assert int(result.stdout) * 1024 < allowed


@pytest.mark.parametrize(("text", "options", "warned"), [
    ("u,v,w\n1,2,3\n3,4,5\n5,6,7\n", {}, "the last column, column 'w', which holds 3 different values;"),
    ("1,2,3\n3,4,3\n", {}, "the last column, column 2, which holds 1 different value;"),
    (
        "u,k_no,k_yes\n1,0,1\n3,1,0\n",
        {},
        "the last column, column 'k_yes', which holds 2 different values, and 'k_no' is a feature;",
    ),
    ("u,k_no,k_yes\n1,0,1\n3,1,0\n", {"label": "k_yes"}, None),
    ("u,k_yes\n1,1\n3,0\n", {}, None), ("u,v,w\n1,2,3\n3,4,5\n", {}, None),
    ("u,v,w\n1,2,3\n3,4,5\n5,6,7\n", {"label": "w"}, None),
    ("u,v,w\n1,2,3\n3,4,5\n5,6,7\n", {"label": 1}, None),
    ("u,v,w\n1,2,3\n3,4,5\n5,6,7\n", {"label": False}, None),
    ("u,v,y\n1,2,3\n3,4,5\n5,6,7\n", {}, None),
])  # fmt: skip
def test_a_last_column_that_may_not_be_the_labels(tmp_path, caplog, text, options, warned):
    (tmp_path / "a.csv").write_text(text)
    ingest(tmp_path / "a.csv", tmp_path / "a.zarr", **options)
    messages = [record.getMessage() for record in caplog.records]
    if warned is None:
        assert messages == []
    else:
        (message,) = messages
        assert warned in message
        assert "label= (--label)" in message


# Real targets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "options"), [
    (101, {}), (100, {}), (101, {"target": "classes"}), (101, {"target": "real"}),
])  # fmt: skip
def test_many_whole_numbers_are_told_to_become_classes(tmp_path, caplog, count, options):
    (tmp_path / "a.svm").write_text("".join(f"{1000 * i} 1:{i}\n" for i in range(count)))
    ingest(tmp_path / "a.svm", tmp_path / "a.zarr", **options)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (count > 100 and not options)
    assert all("101 different numbers" in each and "--target real" in each for each in said)


def _measured(rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(rows, 3)), np.round(rng.normal(size=rows) * 100, 3)


@pytest.mark.parametrize(("labels", "kind"), [
    (np.arange(100) + 0.5, "classes"), (np.arange(101) + 0.5, "real"), (np.arange(1000.0), "classes"),
    (np.append(np.arange(1000), 0.5), "real"),
    (np.arange(1000) % 2 == 0, "classes"),
    (np.array(["a", *(np.arange(300) + 0.5).astype(str)]), "classes"),
    (np.tile([0.25, 0.75], 500), "classes"),
])  # fmt: skip
@pytest.mark.parametrize("block_bytes", [1, 10**7])
def test_how_many_numbers_are_real(tmp_path, labels, kind, block_bytes):
    store = ingest((np.zeros((len(labels), 1)), labels), tmp_path / "a.zarr", block_bytes=block_bytes)
    assert store.y_kind == kind
    assert store.labels(store.read_column("y")).tolist() == labels.tolist()


def test_target_is_what_was_asked_for(tmp_path):
    X, y = _measured()
    classes = ingest((X, y), tmp_path / "c.zarr", target="classes")
    assert classes.classes == tuple(sorted(set(y.tolist())))
    whole = ingest((X, np.arange(400) % 3), tmp_path / "r.zarr", target="real")
    np.testing.assert_array_equal(whole.read_column("y"), np.arange(400.0) % 3, strict=True)
    again = ingest(whole, tmp_path / "again.zarr", chunk_rows=7)
    assert again.y_kind == "real", "a store's own y stays what it is"
    assert ingest(classes, tmp_path / "d.zarr").classes == classes.classes
    assert ingest(whole, tmp_path / "e.zarr", target="classes").classes == (0.0, 1.0, 2.0)
    with pytest.raises(InputError, match=r"target must be one of 'auto', 'classes', 'real'\. Got 'number'"):
        ingest((X, y), tmp_path / "f.zarr", target="number")


def test_real_targets_that_are_no_numbers(tmp_path):
    frame = pd.DataFrame({"x": range(3), "y": ["1.5", "2.5", "much"]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    for block_bytes in (1, 10**6):
        message = r"a\.csv, line 4: 'much' is no finite number; .* target='classes' \(--target classes\)"
        with pytest.raises(InputError, match=message):
            ingest(tmp_path / "a.csv", tmp_path / "a.zarr", target="real", block_bytes=block_bytes)
    frame = pd.DataFrame({"x": range(151), "y": [*(np.arange(150) + 0.5).astype(str), "much"]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    for block_bytes in (1, 10**6):
        with pytest.raises(InputError, match=r"a\.csv, line 152: labels so far are real targets, and 'much' is no"):
            ingest(tmp_path / "a.csv", tmp_path / "a.zarr", block_bytes=block_bytes)
    with pytest.raises(InputError, match=r"row 0: inf is no finite number"):
        ingest((np.zeros((2, 1)), [np.inf, 1.0]), tmp_path / "a.zarr", target="real")
    assert not (tmp_path / "a.zarr").exists()
