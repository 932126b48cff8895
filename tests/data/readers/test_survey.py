"""What a survey finds in columns, beside pandas and scikit-learn: the same through every door, however rows are cut."""

import datetime
import io
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_odm import InputError, ingest
from dask_odm.data.readers import survey
from dask_odm.data.readers.column_values import UnfitError, moment_in, moments_in, numbers_in, spelled, values_by
from dask_odm.data.readers.frames import rows_by
from dask_odm.data.readers.survey import MAX_LEVELS, Survey
from dask_odm.data.readers.table_source import TableSource
from dask_odm.data.readers.tables import PandasTable
from data.doors import DOORS, through
from data.reading import stored

N = 120


def table(seed: int = 0, rows: int = N) -> pd.DataFrame:
    """A table of columns of all kinds, with gaps."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=rows).round(3),
            "count": rng.integers(0, 9, rows),
            "colour": rng.choice(["red", "green", "blue"], rows, p=[0.5, 0.3, 0.2]),
            "well": rng.random(rows) < 0.4,
            "at": pd.Timestamp("2021-03-01") + pd.to_timedelta(rng.integers(0, 10**7, rows), unit="s"),
            "name": [f"n{i}" for i in range(rows)],
            "note": [f"a note of more words than {i} four" for i in range(rows)],
            "nothing": None,
        }
    )
    frame.loc[rng.random(rows) < 0.2, "size"] = np.nan
    frame.loc[rng.random(rows) < 0.2, "colour"] = None
    frame.loc[rng.random(rows) < 0.2, "at"] = pd.NaT
    return frame.assign(y=rng.choice(["yes", "no"], rows))


def surveyed(frame: pd.DataFrame, *, cut: int = 10**9, **options):
    """The recipe of a frame that is read a few rows at a time, and its features."""
    survey = Survey(list(map(str, frame.columns)), **options)
    parts = [frame.iloc[start : start + cut] for start in range(0, len(frame), cut)]
    values = [survey.add(columns(part), len(part), "row {}".format, spells_all=False) for part in parts]
    recipe, encode = survey.recipe(lambda: iter(values), "float64", "X")
    return recipe, np.concatenate([encode(each) for each in values])


def columns(frame: pd.DataFrame):
    """The columns of a frame, one after another."""
    return (PandasTable(frame).column(j, 0, len(frame)) for j in range(frame.shape[1]))


def test_features_are_those_of_pandas():
    frame = table()
    recipe, found = surveyed(frame.drop(columns="y"))
    features = pd.DataFrame(found, columns=recipe.feature_names)
    assert [column.kind for column in recipe.columns] == [
        "number", "number", "words", "boolean", "date", "id", "texts", "empty"
    ]  # fmt: skip
    expected = pd.get_dummies(frame["colour"], prefix="colour", prefix_sep="=", dtype=float)
    pd.testing.assert_frame_equal(features[expected.columns], expected)
    np.testing.assert_array_equal(features["colour (missing)"], frame["colour"].isna())
    median = np.quantile(frame["size"].dropna(), 0.5, method="lower")
    np.testing.assert_array_equal(features["size"], frame["size"].fillna(median))
    np.testing.assert_array_equal(features["size (missing)"], frame["size"].isna())
    np.testing.assert_array_equal(features["well"], frame["well"])
    days = (frame["at"] - frame["at"].min()) / pd.Timedelta("1D")
    present = frame["at"].notna()
    np.testing.assert_allclose(features["at (days)"][present], days[present], atol=1e-9)
    np.testing.assert_array_equal(features["at (hour, sine)"][~present], 0.0)
    levels = frame["colour"].value_counts()
    assert recipe.columns[2].levels == tuple(levels.index)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 50), st.permutations(range(N)))
def test_neither_cuts_nor_order_change_the_recipe(cut, order):
    frame = table().drop(columns="y")
    expected, whole = surveyed(frame)
    recipe, found = surveyed(frame.iloc[list(order)], cut=cut)
    assert recipe == expected
    np.testing.assert_array_equal(found, whole[list(order)])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=1, max_size=60))
def test_gaps_become_the_lower_median(numbers):
    frame = pd.DataFrame({"a": [*numbers, None], "b": "x"}).astype({"a": float})
    recipe, _ = surveyed(frame)
    assert recipe.columns[0].fill == np.sort(np.float32(numbers))[(len(numbers) - 1) // 2]


@pytest.mark.parametrize("cut", [7, 1000, 10**9])
def test_medians_of_many_values_are_of_every_other_one(monkeypatch, cut):
    monkeypatch.setattr(survey, "MEDIAN_VALUES", 1)  # 128 of each column are taken
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(500, 5)), columns=list("abcde"))
    recipe, _ = surveyed(frame.assign(f="x"), cut=cut)
    medians = frame[::4].quantile(0.5, interpolation="lower")
    np.testing.assert_array_equal([column.fill for column in recipe.columns[:5]], medians)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return ingest(table(), tmp_path_factory.mktemp("doors") / "a.zarr", label="y")


@pytest.mark.parametrize("door", DOORS)
def test_every_door_gives_the_same_bits(tmp_path, expected, door):
    store = ingest(through(door, table(), tmp_path), tmp_path / "b.zarr", label="y")
    assert store.column_recipe == expected.column_recipe
    assert store.feature_names == store.column_recipe.feature_names
    for found, wanted in zip(stored(store), stored(expected), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_codes_after_a_block_of_words_keep_their_zeros(tmp_path):
    codes = ["none of them", *["7", "007"] * 200]
    frame = pd.DataFrame({"code": codes, "size": 1.5, "y": ["a", *["b"] * 400]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    store = ingest(tmp_path / "a.csv", tmp_path / "a.zarr", block_bytes=30)
    assert store.column_recipe.columns[0].levels == ("007", "7", "none of them")


def test_true_and_false_among_columns_of_numbers_are_booleans(tmp_path):
    """In the first lines and after them, beside a column of 0 and 1."""
    late = ["0"] * 150 + ["1"] * 50
    lines = (f"{['True', 'False'][i % 3 == 0]},{one},{i / 8},{'ab'[i % 2]}" for i, one in enumerate(late))
    (tmp_path / "a.csv").write_text("\n".join(["flag,one,size,y", *lines]) + "\n")
    store = ingest(tmp_path / "a.csv", tmp_path / "a.zarr")
    assert [column.kind for column in store.column_recipe.columns] == ["boolean", "number", "number"]
    np.testing.assert_array_equal(stored(store)[0][:, 1], np.float32(late))


def test_labels_beside_words_become_real_after_a_hundred(tmp_path):
    """Rows that wait for their recipe have codes until then."""
    y = [*range(101), 0.5, 3]
    frame = pd.DataFrame({"a": ["u", "v", "w"] * 34 + ["u"], "y": y})
    store = ingest(frame.iloc[:103], tmp_path / "b.zarr", label="y")
    frame.to_csv(tmp_path / "a.csv", index=False)
    parts = ingest(tmp_path / "a.csv", tmp_path / "a.zarr", label="y", block_bytes=60)
    for each in (store, parts):
        np.testing.assert_array_equal(stored(each)[1], y)


@pytest.mark.parametrize("value", ["1e39", "-1e39"])
def test_a_number_beside_words_that_float32_cannot_hold_is_named_with_its_line(tmp_path, value):
    (tmp_path / "a.csv").write_text(f"a,b,y\nu,1.5,0\nv,{value},1\n")
    with pytest.raises(InputError, match=r"a\.csv, line 3, .*b.*1e\+39.*float32"):
        ingest(tmp_path / "a.csv", tmp_path / "a.zarr")


def test_a_table_of_numbers_alone_has_no_recipe(tmp_path):
    assert ingest(table()[["count", "y"]], tmp_path / "a.zarr").column_recipe is None
    complete = ingest(table()[["size", "count", "y"]], tmp_path / "b.zarr", drop_missing=True)
    assert complete.column_recipe is None
    assert complete.rows == table()["size"].notna().sum()


def test_what_the_user_says_of_columns_counts(tmp_path):
    frame = pd.DataFrame({"zip": [101, 102] * 40, "age": ["1", "2", "old", "3"] * 20, "y": [0, 1] * 40})
    recipe = ingest(frame, tmp_path / "a.zarr", categories=["zip"], numbers=["age"]).column_recipe
    assert [(column.kind, column.levels, column.gap_words) for column in recipe.columns] == [
        ("words", ("101", "102"), ()), ("number", (), ("old",))
    ]  # fmt: skip
    with pytest.raises(InputError, match="no column 'town'"):
        ingest(frame, tmp_path / "b.zarr", categories=["town"])


def test_rare_words_share_a_feature():
    frame = pd.DataFrame({"a": ["x"] * 5 + ["z", "z", "y", "y", "w"]})
    recipe, found = surveyed(frame, max_levels=2)
    assert recipe.feature_names == ("a=x", "a=y", "a (other)")
    np.testing.assert_array_equal(found.sum(axis=0), [5, 2, 3])


@pytest.mark.parametrize("cut", [60, 400, 1000])
def test_more_words_than_are_told_apart_are_no_id_if_they_come_again(monkeypatch, cut):
    """The rest shares a feature with rare ones. How many rows filled the list is no matter of blocks."""
    monkeypatch.setattr(survey, "MOST_WORDS", 100)
    frame = pd.DataFrame({"twice": [f"w{i // 2}" for i in range(1000)], "once": [f"w{i}" for i in range(1000)]})
    recipe, found = surveyed(frame.assign(x=1.0), cut=cut, max_levels=64)
    twice, once, _ = recipe.columns
    assert (twice.kind, len(twice.levels), once.kind) == ("words", 64, "id")
    assert found[:, len(twice.levels)].sum() == 1000 - 2 * len(twice.levels)


def test_columns_that_tell_rows_apart_are_named_or_refused(tmp_path, caplog):
    surveyed(table().drop(columns="y"))
    assert "column 'name' holds another value in nearly every row; left out" in caplog.text
    assert (
        "column 'note' holds texts of many words; left out; to learn from texts alone, ingest them by text="
        in caplog.text
    )
    with pytest.raises(InputError, match=r"column 'name' holds another value .*; leave it out by drop= \(--drop\)"):
        ingest(table(), tmp_path / "a.zarr", label="y", ids="error")


SPELLED = [
    (" a b ", "a b"), (3, "3"), (3.0, "3"), (np.float32(0.5), "0.5"), (True, "True"), (np.True_, "True"), (b"x", "x"),
    (Decimal("2.50"), "2.5"), (None, None), (np.nan, None), (pd.NA, None), (pd.NaT, None), ("NA", None), ("", None),
    (" ? ", None), ("None", None), ("-nan", None), (datetime.date(2020, 1, 2), "2020-01-02"),
    ("101.0", "101"), ("-7.0", "-7"), ("1.0.0", "1.0.0"), (1 << 1024, "inf"),
    (datetime.timedelta(hours=36), "1.5"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "word"), SPELLED, ids=repr)
def test_values_are_spelled_alike_wherever_they_come_from(value, word):
    assert spelled(value) == word


@pytest.mark.parametrize(
    "word",
    ["2020-02-29", "1500-06-01T23:59:59.25", "2020-01-01 10:00", "2020-01-01T10:00:00Z", "3020-01-01 10:00+05:30"],
)
def test_moments_are_those_of_pandas(word):
    seconds, zoned = moment_in(word)
    expected = pd.Timestamp(word)
    assert zoned == (expected.tzinfo is not None)
    if zoned:
        expected = expected.tz_convert("UTC").tz_localize(None)
    assert seconds == (expected - pd.Timestamp("1970")).as_unit("ms") / pd.Timedelta("1s")


@pytest.mark.parametrize("word", ["2020-02-30", "2020-1-1", "1/2/2020", "25:00", "noon", "2020-01-01T10"])
def test_what_is_no_moment(word):
    assert moment_in(word) is None


def test_times_of_day_are_parts_of_a_day():
    assert moment_in("06:30:00.5") == (6.5 * 3600 + 0.5, False)
    frame = pd.DataFrame({"t": [datetime.time(h) for h in range(24)]})
    recipe, found = surveyed(frame)
    assert recipe.feature_names == ("t (days)", "t (hour, sine)", "t (hour, cosine)")
    np.testing.assert_allclose(found[:, 0], np.arange(24) / 24)


def test_the_first_value_of_another_kind_is_named():
    for read, column in (
        (numbers_in, pd.Series(["1", None, "x", "y"])),
        (lambda held: moments_in(held, zoned=False), pd.Series(["2020-01-01", "", "2020-01-01Z"])),
    ):
        with pytest.raises(UnfitError) as error:
            read(column)
        assert error.value.row == 2
    recipe, _ = surveyed(table().drop(columns="y"))
    bad = table(1).astype({"count": object})
    bad.loc[7, "count"] = "few"
    with pytest.raises(InputError, match="X, row 7, column 'count': 'few' is not a number"):
        values_by(recipe, columns(bad[list(recipe.names)]), N, lambda row: f"X, row {row}")


@pytest.mark.parametrize("dtype", ["datetime64[ns]", "datetime64[ns, Europe/Rome]"])
@pytest.mark.parametrize("zoned", [True, False])
def test_dates_that_all_are_missing_fit_with_and_without_a_zone(dtype, zoned):
    assert np.isnan(moments_in(pd.Series([None, None], dtype=dtype), zoned=zoned)).all()


def column(*values, dtype: object = object, rows: int = 60) -> pd.Series:
    """A column of these values again and again."""
    return pd.Series((list(values) * rows)[:rows], dtype=dtype)


def arrow(*values, of) -> pd.Series:
    """The same of a type of Arrow."""
    return column(*values, dtype=pd.ArrowDtype(of(pytest.importorskip("pyarrow"))))


UTC = datetime.UTC
HOSTILE = {  # a column, and what is found: kind and levels or range, or the message
    "gaps": (lambda: column(None), ("empty",)),
    "gaps that are numbers": (lambda: column(np.nan, dtype=float), ("empty",)),
    "gaps of Arrow": (lambda: arrow(None, of=lambda pa: pa.null()), ("empty",)),
    "one level": (lambda: column("x"), ("words", "x")),
    "numbers and words": (lambda: column(1, "x", 2.5), ("words", "1", "2.5", "x")),
    "booleans and numbers": (lambda: column(True, 1, 0), ("words", "0", "1", "True")),
    "booleans and gaps": (lambda: column(True, None), ("boolean", 1.0, 1.0)),
    "decimals": (lambda: column(Decimal("1.5"), Decimal(2), Decimal("NaN")), ("number", 1.5, 2.0)),
    "bytes": (lambda: column(b"x", b"\xff"), ("words", "x", "\ufffd")),
    "lists": (lambda: column([1], "x"), "row 0, column 'c': a value of type list is no number, word or date; "),
    "dicts after a gap": (lambda: column(None, {"a": 1}), "row 1, column 'c': a value of type dict is no number"),
    "late sets": (lambda: column(*"x" * 59, {1}), "row 59, column 'c': a value of type set is no number"),
    "tuples": (lambda: column((1,)), "row 0, column 'c': a value of type tuple"),
    "structs of Arrow": (lambda: arrow({"a": 1}, of=lambda pa: pa.struct([("a", pa.int64())])), "a value of type dict"),
    "lists of Arrow": (lambda: arrow([1], of=lambda pa: pa.list_(pa.int64())), "a value of type ndarray"),
    "complex numbers": (lambda: column(1j, dtype=complex), "row 0, column 'c': a value of type complex"),
    "complex objects": (lambda: column(None, 2j), "row 1, column 'c': a value of type complex"),
    "numbers as words": (lambda: column("1", " 2.5 ", ""), ("number", 1.0, 2.5)),
    "decimal commas": (lambda: column("1,5", "2", "3,25"), r"a comma, such as '1,5'; .* by categories= \(--cat"),
    "infinity as a word": (lambda: column("1", "-inf"), "column 'c': infinity; only finite numbers"),
    "a number beyond all floats": (lambda: column("1e999", "1"), "column 'c': infinity; only finite"),
    "words that are inf": (lambda: column("inf", "x"), ("words", "inf", "x")),
    "huge whole numbers": (lambda: column(10**30, 1), ("number", 1.0, 1e30)),
    "unsigned numbers": (lambda: column(2**64 - 1, None, dtype="UInt64"), ("number", 2.0**64, 2.0**64)),
    "old dates": (lambda: column("1500-01-01", datetime.date(1600, 1, 1)), ("date", -14831769600.0, -11676096000.0)),
    "late dates": (lambda: column(datetime.datetime(9999, 1, 1)), ("date", 253370764800.0, 253370764800.0)),
    "dates of Arrow": (
        lambda: arrow(datetime.date(1970, 1, 2), None, of=lambda pa: pa.date32()), ("date", 86400.0, 86400.0)
    ),
    "zones of Arrow": (
        lambda: arrow(datetime.datetime(1970, 1, 2, tzinfo=UTC), of=lambda pa: pa.timestamp("us", "UTC")),
        ("date", 86400.0, 86400.0),
    ),
    "zones of all kinds": (lambda: column("1970-01-01T01:00+01:00", "1970-01-02 00:00Z"), ("date", 0.0, 86400.0)),
    "some with a zone": (lambda: column("2020-01-01Z", "2020-01-01"), ("words", "2020-01-01", "2020-01-01Z")),
    "30 February": (lambda: column("2020-02-30", "2020-02-28"), ("words", "2020-02-28", "2020-02-30")),
    "spans": (lambda: column(pd.Timedelta("36h"), pd.NaT, dtype="timedelta64[s]"), ("span", 1.5, 1.5)),
    "periods": (lambda: column("1970-01", None, dtype="period[M]"), ("date", 0.0, 0.0)),
    "hidden names": (lambda: column("a=b", "other", "(other)"), ("words", "(other)", "a=b", "other")),
    "signs": (lambda: column("😀", "\0", "\x1b[31m", "\ud800"), ("words", "\0", "\x1b[31m", "\ud800", "😀")),
    "case and blanks": (lambda: column("A", "a", " a ", "A\t"), ("words", "A", "a")),
    "words for gaps": (lambda: column("NA", "None", "?", "x", ""), ("words", "x")),
    "numbers among categories": (lambda: column(2, 10, None, dtype="category"), ("words", "10", "2")),
    "categories in no row": (lambda: pd.Series(pd.Categorical(list("ab") * 30, list("cba"))), ("words", "a", "b")),
    "sparse numbers": (lambda: column(0.0, np.nan, dtype=pd.SparseDtype(float)), ("number", 0.0, 0.0)),
}  # fmt: skip


@pytest.mark.parametrize("which", HOSTILE)
def test_what_a_hostile_column_becomes(which):
    make, expected = HOSTILE[which]
    frame = pd.DataFrame({"c": make(), "size": range(60)})
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected) as error:
            surveyed(frame)
        assert str(error.value).isprintable()
        return
    recipe, found = surveyed(frame)
    held = recipe.columns[0]
    facts = {"words": held.levels, "empty": ()}.get(held.kind, (held.least, held.most))
    assert (held.kind, *facts) == expected
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, surveyed(frame, cut=7)[1])
    again = values_by(recipe, columns(frame), 60, str)
    np.testing.assert_array_equal(recipe.encode(again), found)


@pytest.mark.parametrize("door", ["csv", "parquet", "stream", "dask", "polars"])
def test_hostile_columns_are_the_same_through_every_door(tmp_path, door):
    kinds = [
        "one level", "booleans and gaps", "decimals", "numbers as words", "late dates", "zones of all kinds",
        "30 February", "hidden names", "case and blanks", "words for gaps", "categories in no row",
        "huge whole numbers",
    ]  # fmt: skip
    frame = pd.DataFrame({f"{which}={which}": HOSTILE[which][0]() for which in kinds}).assign(y=list("uvw") * 20)
    frame = frame.rename(columns={"one level=one level": "n" * 10_000, "hidden names=hidden names": "😀\x1b[31m"})
    frame["huge whole numbers=huge whole numbers"] = frame["huge whole numbers=huge whole numbers"].astype(float)
    expected = ingest(frame, tmp_path / "a.zarr", label="y")
    found = ingest(through(door, frame, tmp_path), tmp_path / "b.zarr", label="y")
    assert found.column_recipe == expected.column_recipe
    np.testing.assert_array_equal(stored(found)[0], stored(expected)[0])


LATE = {  # what a column begins with, and what comes last
    "a date": (["2020-01-01", "2021-01-01"], "x"), "a zone": (["2020-01-01", "2021-01-01"], "2020-01-01 10:00Z"),
    "a number after dates": (["2020-01-01"], "7"), "a number after booleans": (["True", "False"], "7"),
    "a boolean": (["1", "0"], "True"), "a gap": (["1", "2"], ""), "a sign for a gap": (["1", "2"], "?"),
    "a fraction": (["1", "2"], "1.5"), "a word among many numbers": (list(map(str, range(100))), "x"),
}  # fmt: skip


@pytest.mark.parametrize("which", LATE)
def test_kinds_that_change_late_take_at_most_two_passes(tmp_path, monkeypatch, which):
    first, last = LATE[which]
    frame = pd.DataFrame({"c": [*(first * 1000)[:1000], last], "size": range(1001), "y": [*["a", "b"] * 500, "a"]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    read = []
    monkeypatch.setattr(TableSource, "_blocks", _counted(TableSource._blocks, read))
    found = ingest(tmp_path / "a.csv", tmp_path / "a.zarr", block_bytes=3000)
    monkeypatch.undo()
    assert sum(read) <= 2 * len(frame)
    expected = ingest(pd.read_csv(tmp_path / "a.csv"), tmp_path / "b.zarr")
    assert found.column_recipe == expected.column_recipe
    np.testing.assert_array_equal(stored(found)[0], stored(expected)[0])


def _counted(blocks, read):
    """Blocks whose rows are counted in ``read``."""

    def counting(self, batches):
        for block in blocks(self, batches):
            read.append(len(block.X))
            yield block

    return counting


def test_words_of_a_stream_of_arrow_that_come_late(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    two = [pyarrow.table({"c": values * 20, "y": [0, 1] * 20}) for values in (["2020-01-01", "2021-01-01"], ["x", "z"])]
    batches = [batch for table in two for batch in table.to_batches()]
    stream = pyarrow.RecordBatchReader.from_batches(two[0].schema, batches)
    with pytest.raises(InputError, match=r"column 'c' holds other than it began with, .* categories= \(--category\)"):
        ingest(stream, tmp_path / "a.zarr")


def test_words_without_a_header_and_words_in_folders(tmp_path):
    (tmp_path / "a.csv").write_text("red,1,a\nblue,2,b\n" * 30)
    recipe = ingest(tmp_path / "a.csv", tmp_path / "a.zarr").column_recipe
    assert [(each.name, each.levels) for each in recipe.columns] == [("0", ("blue", "red")), ("1", ())]
    for colour in ("red", "caf%C3%A9", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / "b" / f"colour={colour}" / "day=2024-01-02").mkdir(parents=True)
        (tmp_path / "b" / f"colour={colour}" / "day=2024-01-02" / "a.csv").write_text("size,y\n1,a\n2,b\n")
    recipe = ingest(tmp_path / "b", tmp_path / "b.zarr", label="y").column_recipe
    assert [(each.name, each.kind, each.levels, each.gaps) for each in recipe.columns] == [
        ("size", "number", (), 0), ("colour", "words", ("café", "red"), 2), ("day", "date", (), 0)
    ]  # fmt: skip


def test_rows_that_are_no_training_rows_tell_nothing_of_columns(tmp_path):
    plain = pd.DataFrame({"c": ["p", "q"] * 200, "size": range(400), "y": [0, 1] * 200})
    test = ingest(plain.assign(i=range(400)), tmp_path / "a.zarr", label="y", test_size=0.3)[1]
    beyond = stored(test)[0][:, test.feature_names.index("i")].astype(int)
    odd = plain.assign(c=plain["c"].where(~plain.index.isin(beyond), "odd"))
    odd.loc[beyond, "size"] = np.nan
    train, test = ingest(odd, tmp_path / "b.zarr", label="y", test_size=0.3)
    assert train.column_recipe == test.column_recipe
    words, size = train.column_recipe.columns
    assert (words.levels, words.more_levels, size.gaps) == (("p", "q"), 0, 0)
    assert (stored(test)[0] == [0.0, 0.0, size.fill]).all()
    odd["size"] = odd["size"].astype(str).where(~odd.index.isin(beyond[:1]), "inf")
    with pytest.raises(InputError, match="column 'size': infinity"):
        ingest(odd, tmp_path / "c.zarr", label="y", test_size=0.3)


def test_gaps_in_labels_and_weights_and_rows_that_are_dropped(tmp_path):
    frame = pd.DataFrame({"c": ["p", "q", None] * 20, "w": [1.0, 2.0] * 30, "y": ["a", "b"] * 30})
    for change, message in (
        ({"y": [None, *"ab" * 29, "a"]}, "missing values in the label, column 'y'"),
        ({"w": [np.nan, *[1.0] * 59]}, "missing values in the weight"),
        ({"w": "heavy"}, "column 'w' .* holds no numbers"),
    ):
        with pytest.raises(InputError, match=message):
            ingest(frame.assign(**change), tmp_path / "a.zarr", weight="w")
    store = ingest(frame.assign(y=[None, *"ab" * 29, "a"]), tmp_path / "b.zarr", weight="w", drop_missing=True)
    assert (store.rows, set(store.feature_names)) == (39, {"c=p", "c=q"})
    with pytest.raises(InputError, match="no rows left; all 60 miss a value"):
        ingest(frame.assign(c=None), tmp_path / "c.zarr", weight="w", drop_missing=True)


def test_more_words_than_are_told_apart(monkeypatch):
    monkeypatch.setattr("dask_odm.data.readers.survey.MOST_WORDS", 1000)
    codes = "n" + pd.Series(range(2000)).astype(str)
    for values, kind in ((codes, "id"), (codes.astype("category"), "words")):
        recipe, found = surveyed(pd.DataFrame({"c": values, "size": range(2000)}))
        column = recipe.columns[0]
        assert (column.kind, len(column.levels)) == (kind, MAX_LEVELS if kind == "words" else 0)
        assert (found[:, :-1].sum(axis=1) == (kind == "words")).all()


def test_options_that_make_no_sense(tmp_path):
    frame = pd.DataFrame({"c": list("pq") * 30, "y": [0, 1] * 30})
    for option in ({"max_levels": 0}, {"max_levels": 1.5}, {"ids": "keep"}):
        with pytest.raises(InputError, match=f"^The '{next(iter(option))}' parameter of ingest must be"):
            ingest(frame, tmp_path / "a.zarr", **option)
    zips = pd.DataFrame({"zip": [101.0, 102.0, np.nan] * 20, "y": [0, 1] * 30})
    zips.to_csv(tmp_path / "a.csv", index=False)
    for i, source in enumerate((zips, tmp_path / "a.csv")):
        store = ingest(source, tmp_path / f"{i}.zarr", categories="zip")
        assert store.column_recipe.columns[0].levels == ("101", "102")


def test_a_stream_is_read_once(tmp_path, monkeypatch):
    """Standard input is saved, and read as a file; batches of Arrow are not."""
    text = table().to_csv(index=False).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    store = ingest("-", tmp_path / "a.zarr", label="y", format="csv")
    assert store.column_recipe == ingest(table(), tmp_path / "b.zarr", label="y").column_recipe
    late = b"code,y\n" + b"1,a\n2,b\n" * 500 + b"x,a\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(late)))
    assert len(ingest("-", tmp_path / "c.zarr", format="csv", block_bytes=500).column_recipe.columns[0].levels) == 3
    pa = pytest.importorskip("pyarrow")
    days = np.arange("2020-01-01", "2021-05-15", dtype="M8[D]").astype(str).tolist()
    rows = pa.table({"code": [*days, "x"], "y": [0, 1] * 250 + [1]})
    with pytest.raises(InputError, match=r"column 'code' holds other .* by categories= \(--category\), or read a file"):
        ingest(rows.to_reader(100), tmp_path / "d.zarr")


def test_rows_to_come_need_no_column_that_is_left_out_and_no_label(tmp_path, expected):
    recipe = expected.column_recipe
    frame = table(1).drop(columns=["name", "nothing", "y"])
    assert not {"name", "nothing"} & set(frame.columns)
    frame.to_csv(tmp_path / "new.csv", index=False)
    store = ingest(tmp_path / "new.csv", tmp_path / "new.zarr", columns=recipe)
    assert store.y_kind is None
    np.testing.assert_array_equal(stored(store)[0], rows_by(frame, recipe))
    frame.drop(columns=["size", "well"]).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(InputError, match=r"new\.csv has no columns 'size', 'well', of which the model learned"):
        ingest(tmp_path / "new.csv", tmp_path / "b.zarr", columns=recipe)


def test_what_is_likely_a_mistake_is_told(expected, caplog):
    surveyed(pd.DataFrame({"day": ["01.08.2023", "02.08.2023"] * 9, "x": 1.0}))
    assert "column 'day' holds words that look like dates, such as '01.08.2023'; write dates as 2023-" in caplog.text
    rows_by(table(1).assign(colour="RED"), expected.column_recipe)
    assert "X, row 0 and following: column 'colour' has none of the words that the model learned" in caplog.text
