"""Frames and series of all libraries: the same model as from plain rows, and words on columns that are no numbers."""

import datetime
from decimal import Decimal

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.model_selection import cross_val_score

from dask_odm import InputError, ODMClassifier, ODMRegressor, ingest, load_model
from estimators.odm_models import SETTINGS

NAMES = ["length", "width", "depth"]
BACKENDS = {"pandas": lambda values: values, "dask": lambda values: dd.from_pandas(values, npartitions=3)}


@pytest.fixture(scope="module")
def frame(rows):
    return pd.DataFrame(rows[0], columns=NAMES)


LABELS = {
    "str": lambda y: pd.Series(np.where(y > 0, "yes", "no")),
    "category": lambda y: pd.Series(np.where(y > 0, "yes", "no"), dtype="category"),
    "category of numbers": lambda y: pd.Series((y > 0).astype(int), dtype="category"),
    "Int64": lambda y: pd.Series((y > 0).astype(int), dtype="Int64"),
    "boolean": lambda y: pd.Series(y > 0, dtype="boolean"),
    "int8": lambda y: pd.Series((y > 0).astype(np.int8)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_dtype(rows, frame, backend, kind):
    X, y = rows
    labels, make = LABELS[kind](y), BACKENDS[backend]
    fitted = ODMClassifier(**SETTINGS).fit(make(frame), make(labels))
    plain = ODMClassifier(**SETTINGS).fit(X, y)
    assert fitted.classes_.tolist() == sorted(set(labels.tolist()))
    expected = fitted.classes_[(plain.decision_function(X) > 0).astype(int)]
    np.testing.assert_array_equal(fitted.predict(frame), expected)
    assert fitted.score(make(frame), make(labels)) == pytest.approx(plain.score(X, y))
    assert fitted.score(make(frame), labels) == pytest.approx(plain.score(X, y))


@pytest.mark.parametrize("backend", BACKENDS)
def test_frames_of_float32_stay_so(frame, rows, backend):
    small = BACKENDS[backend](frame.astype(np.float32))
    fitted = ODMClassifier().fit(small, rows[1])
    assert fitted.support_vectors_.dtype == np.float32
    assert fitted.decision_function(small).dtype == np.float32


COLUMNS = {
    "text": (lambda n: np.where(np.arange(n) % 2, "red", "blue"), "str|string", "words"),
    "category": (lambda n: pd.Categorical(np.arange(n) % 3), "category", "words"),
    "boolean": (lambda n: np.arange(n) % 2 > 0, "bool", "boolean"),
    "nullable boolean": (lambda n: pd.array(np.arange(n) % 2 > 0, "boolean"), "boolean", "boolean"),
    "date": (lambda n: pd.date_range("2020", periods=n), "datetime64", "date"),
    "period": (lambda n: pd.period_range("2020", periods=n), "period", "date"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_that_are_no_numbers_are_learned_and_a_model_of_numbers_refuses_them(frame, rows, backend, kind):
    make, dtype, read_as = COLUMNS[kind]
    odd = BACKENDS[backend](frame.assign(colour=make(90)))
    fitted = ODMClassifier("linear").fit(odd, rows[1])
    assert fitted.column_recipe_.columns[3].kind == read_as
    model = ODMClassifier().fit(frame, rows[1])
    known = odd[NAMES[:2]].assign(depth=odd["colour"])
    hint = "the model learned from numbers: give numbers, leave out what is no feature of it, or fit it to a table"
    for given in (odd, known):
        with pytest.raises(InputError, match=rf"'(colour|depth)' \(.*({dtype}).*\) holds no numbers; {hint}"):
            model.predict(given)


TABLE = pd.DataFrame(
    {
        "colour": ["red", "green", None, "blue"] * 20, "size": np.arange(80.0) % 7, "well": [True, False] * 40,
        "at": pd.date_range("2020", periods=80, freq="7h"), "zoned": pd.date_range("2020", periods=80, tz="UTC"),
    }
)  # fmt: skip
UNFIT = {  # what takes the place of a column, and what a model of the table says of it
    "words": ({"size": "many\x1b[31m"}, "row 0, column 'size': 'many.*' is not a number"),
    "an infinite number": ({"size": [*range(79), np.inf]}, "row 79, column 'size': infinity"),
    "a number too large": ({"size": 1e300}, r"row 0, column 'size': 1e\+300 is too large for float32"),
    "digits without end": ({"size": "1" * 400}, "row 0, column 'size': infinity"),
    "a list": ({"size": [[1]] * 80}, r"row 0, column 'size': '\[1\]' is not a number"),
    "a dict among words": ({"colour": [None, {"a": 1}] * 40}, "row 1, column 'colour': .* is not a word"),
    "complex numbers": ({"colour": [1j] * 80}, "row 0, column 'colour': '1j' is not a word"),
    "a number for a boolean": ({"well": 2}, "row 0, column 'well': '2' is not True or False"),
    "a day that is none": ({"at": "2021-02-30"}, "row 0, column 'at': '2021-02-30' is not a date such as"),
    "a zone too many": ({"at": TABLE["zoned"]}, "row 0, column 'at': .* is not a date such as .*, without a time zone"),
    "a zone too few": ({"zoned": TABLE["at"]}, "row 0, column 'zoned': .* is not a date such as .*, with a time zone"),
}  # fmt: skip
FIT = {  # what takes the place of a column, and those that do the same
    "no value": ({"size": None, "well": None, "at": None}, {"size": np.nan, "well": pd.NA, "at": pd.NaT}),
    "numbers as words": ({"size": (np.arange(80.0) % 7).astype(str)}, {}),
    "other words": ({"colour": "pink"}, {"colour": "none of these"}),
    "other categories": ({"colour": pd.Categorical(["red", "pink"] * 40)}, {"colour": ["red", "pink"] * 40}),
    "categories of numbers": ({"size": pd.Categorical(np.arange(80) % 7)}, {}),
    "booleans as words": ({"well": ["TRUE", "false"] * 40}, {}),
    "dates as words": ({"at": TABLE["at"].astype(str)}, {}),
    "days": ({"at": TABLE["at"].dt.date}, {"at": TABLE["at"].dt.floor("D")}),
    "periods": ({"at": TABLE["at"].dt.to_period("D")}, {"at": TABLE["at"].dt.floor("D")}),
    "zones elsewhere": ({"zoned": TABLE["zoned"].dt.tz_convert("Asia/Tokyo")}, {}),
    "zones of Arrow": ({"zoned": TABLE["zoned"].astype("timestamp[us, UTC][pyarrow]")}, {}),
    "sparse numbers": ({"size": pd.arrays.SparseArray(np.arange(80.0) % 7)}, {}),
}


@pytest.fixture(scope="module")
def of_table():
    return ODMClassifier("linear").fit(TABLE, np.arange(80) % 2)


@pytest.mark.parametrize("which", UNFIT)
def test_what_a_model_of_a_table_cannot_read(of_table, which):
    change, message = UNFIT[which]
    with pytest.raises(InputError, match=f"^X, {message}") as error:
        of_table.predict(TABLE.assign(**change))
    assert str(error.value).isprintable()


@pytest.mark.parametrize("which", FIT)
def test_what_a_model_of_a_table_reads_in_another_form(of_table, which):
    change, same = FIT[which]
    found = of_table.decision_function(TABLE[TABLE.columns[::-1]].assign(more="x", **change))
    np.testing.assert_array_equal(found, of_table.decision_function(TABLE.assign(**same)))


def test_tables_that_are_none(of_table):
    for X, message in (
        (TABLE.drop(columns=["size", "at"]), "^X has no columns 'size', 'at', of which the model learned"),
        (pd.concat([TABLE, TABLE[["size"]]], axis=1), "^X: two columns are named 'size'; give each"),
        (TABLE.iloc[:0], "0 sample"),
        (TABLE.iloc[0].to_dict(), "If using all scalar values, you must pass an index"),
        (np.zeros((2, 2, 5)), r"^X has shape \(2, 2, 5\), but the model learned from 5 columns"),
    ):
        with pytest.raises(InputError, match=message):
            of_table.predict(X)
    with pytest.raises(InputError, match="0 sample"):
        ODMClassifier().fit(TABLE.iloc[:0], [])
    with pytest.raises(InputError, match="row 1, column 'size': 1e\\+39 is too large for float32; set dtype='float64'"):
        ODMClassifier(dtype="float32").fit(TABLE.assign(size=[1.0, 1e39] * 40), np.arange(80) % 2)


CLOSE = 1_600_000_000 + np.arange(80) * 37 % 3600  # seconds of an hour, which float32 rounds to two minutes
WIDTHS = {  # a column beside a word, the dtype of the fit, and that of the features
    "seconds": (CLOSE, None, "float64"),
    "seconds as words": (CLOSE.astype(str), None, "float64"),
    "seconds, narrowed": (CLOSE, "float32", "float32"),
    "numbers beyond float32": (CLOSE * 1e30, None, "float64"),
    "numbers beyond float32 in the last rows": (np.where(np.arange(80) < 70, np.arange(80) % 7, 1e39), None, "float64"),
    "a median beyond float32": ((np.arange(80) * 37 % 80 - 10) * 2e37, None, "float64"),
    "asked for": (np.arange(80), "float64", "float64"),
    "an identifier": (np.arange(80) * 10**9 + 7, None, "float32"),
    "years": (np.arange(80) % 3 + 2_000_000, None, "float32"),
    "one number": (0.1 + 0.2, None, "float32"),
    "rounding alone": (np.where(np.arange(80) % 2, 0.1 + 0.2, 0.3), None, "float32"),
    "fractions": (np.arange(80) / 7, None, "float32"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("which", WIDTHS)
def test_numbers_beside_words_are_float32_unless_that_loses_them(backend, which):
    values, dtype, expected = WIDTHS[which]
    table = pd.DataFrame({"x": values, "w": ["u", "v"] * 40})
    learned = ODMClassifier("linear", dtype=dtype).fit(BACKENDS[backend](table), np.arange(80) // 40)
    assert learned.column_recipe_.dtype == expected
    if expected == "float64":
        encoded = learned.column_recipe_.encode(np.c_[table["x"].astype(float), np.zeros(80)])
        np.testing.assert_array_equal(encoded[:, 0], table["x"].astype(float))
        assert learned.decision_function(table).dtype == np.float64


def test_a_gap_among_numbers_close_to_each_other_becomes_one_of_them():
    gaps = pd.DataFrame({"x": [None, *(4_500_000.1 + np.arange(60) / 1000)]})
    (column,) = ODMClassifier("linear").fit(gaps, np.arange(61) // 30).column_recipe_.columns
    assert column.fill == pytest.approx(gaps["x"].quantile(0.5, interpolation="lower"), abs=1e-6)


def test_a_value_in_a_partition(of_table):
    late = TABLE.assign(size=[*["1"] * 70, "many", *["1"] * 9])
    message = "^in a block of rows, X, row 30, column 'size': 'many' is not a number"
    with pytest.raises(InputError, match=message):
        of_table.predict(dd.from_pandas(late, npartitions=2)).compute()


def test_zones_of_polars(of_table):
    pl = pytest.importorskip("polars")
    expected = of_table.decision_function(TABLE)
    np.testing.assert_array_equal(of_table.decision_function(pl.from_pandas(TABLE)), expected)
    again = ODMClassifier("linear").fit(pl.from_pandas(TABLE), np.arange(80) % 2)
    assert again.column_recipe_ == of_table.column_recipe_


def test_sparse_columns_of_gaps():
    values = np.arange(60.0) % 5
    sparse = pd.DataFrame({"a": pd.arrays.SparseArray(values), "b": pd.arrays.SparseArray(values[::-1])})
    expected = ODMClassifier("linear").fit(sparse.sparse.to_dense(), values > 2).decision_function(sparse)
    found = ODMClassifier("linear").fit(sparse, values > 2).decision_function(sparse.sparse.to_dense())
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["Int64", "int64[pyarrow]"])
def test_gaps_of_integers_are_filled_if_all_other_columns_are_plain(dtype):
    frame = pd.DataFrame({"a": pd.array([1, None, 3] * 20, dtype=dtype), "b": range(60)})
    assert ODMClassifier("linear").fit(frame, [0, 1, 1] * 20).column_recipe_.columns[0].gaps == 20


@pytest.mark.parametrize("backend", BACKENDS)
def test_columns_that_are_missing_are_named(frame, rows, backend):
    model = ODMClassifier().fit(frame, rows[1])
    with pytest.raises(InputError, match=r"now missing:\n- length\n$"):
        model.predict(BACKENDS[backend](frame.drop(columns="length")))


MOMENTS = [datetime.datetime(2020, 1, 1, 6) + datetime.timedelta(days=i) for i in range(90)]
ZONE = datetime.timezone(-datetime.timedelta(hours=3, minutes=30))
TIMES = {
    "dates": [each.date() for each in MOMENTS],
    "moments": pd.Series(MOMENTS),
    "moments as objects": pd.Series(MOMENTS, dtype=object),
    "moments with a zone": pd.Series(MOMENTS).dt.tz_localize("Europe/Rome"),
    "spans": pd.Series(MOMENTS) - MOMENTS[0],
    "spans as objects": pd.Series([each - MOMENTS[0] for each in MOMENTS], dtype=object),
    "times": [each.time() for each in MOMENTS],
    "times with a zone": [each.time().replace(tzinfo=ZONE) for each in MOMENTS],
}


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("kind", TIMES)
def test_times_are_learned_as_days(frame, rows, tmp_path, kind, missing):
    whole = frame.assign(odd=TIMES[kind], y=rows[1])
    if missing:
        whole["odd"] = whole["odd"].where(whole.index > 0)
    whole.to_parquet(tmp_path / "a.parquet")
    for source in (whole, tmp_path / "a.parquet"):
        store = ingest(source, tmp_path / "a.zarr", overwrite=True)
        assert store.column_recipe.columns[3].gaps == missing
        np.testing.assert_allclose(np.diff(store.read(0).X[1:5, 3]), 0.0 if "times" in kind else 1.0)


def test_numbers_held_as_objects_are_numbers(frame, rows):
    fitted = ODMClassifier(**SETTINGS).fit(frame.astype(object), rows[1])
    expected = ODMClassifier(**SETTINGS).fit(*rows).decision_function(rows[0])
    np.testing.assert_allclose(fitted.decision_function(frame), expected, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float64", "Float64"])
def test_missing_values_are_learned_and_counted_by_column(frame, rows, backend, dtype):
    bad = frame.copy()
    bad.iloc[5:22, 1] = np.nan
    bad.iloc[7, 2] = np.nan
    model = ODMClassifier().fit(BACKENDS[backend](bad.astype(dtype)), rows[1])
    assert [column.gaps for column in model.column_recipe_.columns] == [0, 17, 1]


def test_missing_values_to_predict_on(frame, rows, tmp_path):
    """Those of a frame are the medians of its columns; rows without names, and of a model of such, are refused."""
    bad = frame.copy()
    bad.iloc[3, 0] = np.nan
    full = bad.fillna(frame.quantile(0.5, interpolation="lower"))
    for learned in (frame, dd.from_pandas(frame, npartitions=3), frame.astype("Float64")):
        model = ODMClassifier().fit(learned, rows[1])
        model.save(tmp_path / "m.zarr", overwrite=True)
        expected = model.decision_function(full)
        for each in (model, load_model(tmp_path / "m.zarr")):
            for new in (bad, bad.astype("Float64"), bad.astype(object), dd.from_pandas(bad, npartitions=3)):
                np.testing.assert_array_equal(np.asarray(each.decision_function(new)), expected)
        with pytest.raises(InputError, match="infinity"):
            model.predict(frame.replace(frame.iloc[3, 0], np.inf))
    with pytest.warns(UserWarning, match="valid feature names"), pytest.raises(InputError, match=r"'length' \(1 row\)"):
        model.predict(bad.to_numpy())
    model = ODMClassifier().fit(rows[0], rows[1])
    with pytest.warns(UserWarning, match="fitted without"), pytest.raises(InputError, match=r"'length' \(1 row\)"):
        model.predict(bad)
    lazy = model.predict(da.from_array(bad.to_numpy()))
    with pytest.raises(InputError, match="missing values"):
        lazy.compute()


def test_a_gap_in_one_fold(frame, rows):
    """A model of the others, which are numbers alone, judges it; a whole search does so."""
    some = frame.copy()
    some.iloc[3, 0] = np.nan
    assert np.isfinite(cross_val_score(ODMClassifier(), some, rows[1], cv=5, error_score="raise")).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_missing_labels(frame, rows, backend):
    labels = pd.Series(np.where(rows[1] > 0, "yes", "no")).where(np.arange(90) % 30 != 4)
    with pytest.raises(InputError, match=r"y holds missing labels .* in 3 rows, first in row 4"):
        ODMClassifier().fit(BACKENDS[backend](frame), BACKENDS[backend](labels))
    table = BACKENDS[backend](frame.assign(word="k", outcome=labels))
    with pytest.raises(InputError, match="3 rows") as error:
        ODMClassifier().fit(table, "outcome")
    assert "drop_missing" not in str(error.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_of_mixed_types(frame, rows, backend):
    bad = frame.set_axis(["a", 1, 2], axis=1)
    with pytest.raises(InputError, match="all input features have string names"):
        ODMClassifier().fit(BACKENDS[backend](bad), rows[1])


def _arrow(frame):
    return pytest.importorskip("pyarrow").Table.from_pandas(frame, preserve_index=False)


def _arrow_stream(frame):
    return pytest.importorskip("pyarrow").RecordBatchReader.from_stream(_arrow(frame))


def _polars(frame):
    return pytest.importorskip("polars").DataFrame({name: frame[name].tolist() for name in frame})


LIBRARIES = {"arrow": _arrow, "arrow stream": _arrow_stream, "polars": _polars}


@pytest.mark.parametrize("library", LIBRARIES)
def test_frames_of_other_libraries_are_as_those_of_pandas(frame, rows, library):
    make = LIBRARIES[library]
    words = np.where(rows[1] > 0, "yes", "no")
    whole = frame.assign(outcome=words)
    plain = ODMClassifier(**SETTINGS).fit(frame, words)
    model = ODMClassifier(**SETTINGS).fit(make(whole), "outcome")
    assert model.feature_names_in_.tolist() == NAMES
    np.testing.assert_array_equal(model.decision_function(make(frame)), plain.decision_function(frame))
    assert model.score(make(whole), "outcome") == plain.score(frame, words)
    if library != "arrow stream":  # which has no columns
        apart = ODMClassifier(**SETTINGS).fit(make(frame), make(whole)["outcome"])
        np.testing.assert_array_equal(apart.predict(make(frame)), plain.predict(frame))
    apart = r"fit\(frame\.to_pandas\(\)\.drop\(columns='outcome'\), frame\['outcome'\]\)"
    with pytest.raises(InputError, match=rf"y is missing\. Did you mean fit\(frame, 'outcome'\), or {apart}"):
        ODMClassifier().fit(make(whole))
    dated = ODMClassifier().fit(make(frame.assign(day=datetime.date(2020, 1, 1))), rows[1])
    assert dated.column_recipe_.columns[3].kind == "date"
    with pytest.raises(InputError, match=r"column 'width' \(bool\) holds no numbers; the model learned from numbers"):
        model.predict(make(frame.assign(width=rows[1] > 0)))
    gap = frame.assign(width=frame["width"].where(frame.index != 4))
    np.testing.assert_array_equal(model.decision_function(make(gap)), plain.decision_function(gap))


@pytest.mark.parametrize("some", [slice(1, None), [2, 0]])
def test_some_partitions_of_a_dask_frame(rows, frame, some):
    lazy = dd.from_pandas(frame.assign(outcome=rows[1]), chunksize=25).partitions[some]
    whole = lazy.compute()
    plain = ODMClassifier(**SETTINGS).fit(whole, "outcome")
    model = ODMClassifier(**SETTINGS).fit(lazy, "outcome")
    np.testing.assert_array_equal(model.dual_coef_, plain.dual_coef_)
    np.testing.assert_array_equal(model.predict(lazy[NAMES]), plain.predict(whole[NAMES]))


@pytest.mark.parametrize("name", ["Target", "outcome"])  # by its name, and as the only one without numbers
@pytest.mark.parametrize("backend", BACKENDS)
def test_labels_left_inside_the_frame(frame, rows, name, backend):
    y = np.where(rows[1] > 0, "yes", "no")
    whole = BACKENDS[backend](frame.assign(**{name: y}))
    message = rf"y is missing\. Did you mean fit\(frame, '{name}'\), or fit\(frame\.drop\(columns='{name}'\), frame\['"
    with pytest.raises(InputError, match=message):
        ODMClassifier().fit(whole)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_labels_beside_a_table_of_words(frame, backend):
    whole = BACKENDS[backend](frame.assign(colour="red", shape="round"))
    with pytest.raises(InputError, match=r"fit needs labels, but y is None|requires y to be passed"):
        ODMClassifier().fit(whole)


def test_a_feature_may_be_named_like_labels(frame, rows):
    named = frame.rename(columns={frame.columns[0]: "label"})
    assert len(ODMClassifier().fit(named, rows[1]).predict(named)) == len(frame)


@pytest.mark.parametrize("backend", BACKENDS)
def test_y_names_a_column(frame, rows, backend):
    y = np.where(rows[1] > 0, "yes", "no")
    whole = BACKENDS[backend](frame.assign(outcome=y))
    model = ODMClassifier(solver="exact").fit(whole, "outcome")
    apart = ODMClassifier(solver="exact").fit(frame, y)
    np.testing.assert_array_equal(model.dual_coef_, apart.dual_coef_)
    assert model.feature_names_in_.tolist() == list(frame.columns)
    assert model.score(whole, "outcome") == apart.score(frame, y)


@pytest.mark.parametrize("backend", BACKENDS)
def test_y_names_several_columns_and_groups_one(frame, rows, backend):
    values, several = np.column_stack([rows[0][:, 0], rows[1]]), ["u", "v"]
    whole = BACKENDS[backend](frame.assign(u=values[:, 0], v=values[:, 1]))
    model = ODMRegressor().fit(whole, several)
    assert model.feature_names_in_.tolist() == list(frame.columns)
    assert model.score(whole, several) == ODMRegressor().fit(frame, values).score(frame, values)
    assert ODMRegressor().fit(whole, ["u"]).feature_names_in_.tolist() == [*frame.columns, "v"]
    parts = np.arange(len(values)) // 5
    named = ODMClassifier(loo=True).fit(BACKENDS[backend](frame.assign(part=parts)), rows[1], groups="part")
    assert named.feature_names_in_.tolist() == list(frame.columns)
    assert named.loo_score_ == ODMClassifier(loo=True).fit(frame, rows[1], groups=parts).loo_score_


@pytest.mark.parametrize("backend", BACKENDS)
def test_y_names_no_column(frame, rows, backend):
    with pytest.raises(
        InputError, match=r"X has no column 'outcome', which y names\. Its columns are 'length', 'width', 'depth'\."
    ):
        ODMClassifier().fit(BACKENDS[backend](frame), "outcome")
    with pytest.raises(InputError, match=r"y may name a column of a frame, but X is ndarray\. Got y='outcome'"):
        ODMClassifier().fit(rows[0], "outcome")


@pytest.mark.parametrize("backend", BACKENDS)
def test_sample_weight_names_a_column(rows, frame, backend):
    X, y = rows
    weight, make = 1.0 + np.arange(len(y)) % 3, BACKENDS[backend]
    whole = make(frame.assign(outcome=y, weight=weight))
    model = ODMClassifier(**SETTINGS).fit(whole, "outcome", sample_weight="weight")
    plain = ODMClassifier(**SETTINGS).fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(model.decision_function(frame), plain.decision_function(X))
    assert model.score(whole, "outcome", sample_weight="weight") == pytest.approx(plain.score(X, y, weight))
    with pytest.raises(InputError, match="X has no column 'wait', which sample_weight names"):
        model.fit(whole, "outcome", sample_weight="wait")
    for name in (7, np.int64(7)):
        numbered = ODMClassifier(**SETTINGS).fit(whole.rename(columns={"weight": 7}), "outcome", sample_weight=name)
        np.testing.assert_array_equal(numbered.decision_function(frame), plain.decision_function(X))


def test_predictions_are_written_as_the_pages_say(tmp_path):
    """Warnings are errors here: zarr has one for words of fixed length, and none for strings."""
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
    labels = np.where(frame["a"] > 0, "above", "below")
    model = ODMClassifier("linear").fit(frame, labels)
    store = ingest((frame, labels), tmp_path / "a.zarr", chunk_rows=20)
    model.predict(store.path).astype("T").to_zarr(tmp_path / "labels.zarr")
    expected = model.predict(frame)
    assert zarr.open_array(tmp_path / "labels.zarr", mode="r")[:].tolist() == expected.tolist()
    frame.to_parquet(tmp_path / "a.parquet")
    unknown = dd.read_parquet(tmp_path / "a.parquet")
    unknown.assign(label=model.predict(unknown)).to_parquet(tmp_path / "labels", write_index=False)
    assert pd.read_parquet(tmp_path / "labels")["label"].tolist() == expected.tolist()


POLARS_COLUMNS = {
    "Date": (lambda pl, y: pl.Series([datetime.date(2020, 1, 1)] * len(y)), "date"),
    "Boolean": (lambda pl, y: pl.Series(y > 0), "boolean"),
    "Boolean, null": (lambda pl, y: pl.Series([None, *(y[1:] > 0).tolist()]), "boolean"),
    "Categorical": (lambda pl, y: pl.Series(["a"] * len(y), dtype=pl.Categorical), "words"),
    "Enum": (lambda pl, y: pl.Series(["a"] * len(y), dtype=pl.Enum(["a"])), "words"),
    "Time": (lambda pl, y: pl.Series([datetime.time(1)] * len(y)), "date"),
    "Duration": (lambda pl, y: pl.Series([datetime.timedelta(1)] * len(y)), "span"),
    "Int64, null": (lambda pl, y: pl.Series([None, *range(1, len(y))]), "number"),
    "Null": (lambda pl, y: pl.Series([None] * len(y)), "empty"),
}
POLARS_REFUSED = {
    "Struct": (lambda pl, y: pl.Series([{"a": 1}] * len(y)), "a value of type .* is no number, word or date"),
    "List": (lambda pl, y: pl.Series([[1]] * len(y)), "a value of type .* is no number, word or date"),
    "Int128": (lambda pl, y: pl.Series(range(len(y)), dtype=pl.Int128), r"cast\(\{'odd': polars.Float64\}\)"),
}


@pytest.mark.parametrize("kind", [*POLARS_COLUMNS, *POLARS_REFUSED])
def test_columns_of_polars(frame, rows, kind, tmp_path):
    pl = pytest.importorskip("polars")
    make, found = {**POLARS_COLUMNS, **POLARS_REFUSED}[kind]
    odd = _polars(frame).with_columns(make(pl, rows[1]).alias("odd"))
    for call in (
        lambda: ODMClassifier("linear").fit(odd, rows[1]).column_recipe_,
        lambda: ingest((odd, pl.Series(rows[1])), tmp_path / "a.zarr").column_recipe,
    ):
        if kind in POLARS_COLUMNS:
            assert call().columns[3].kind == found
            continue
        with pytest.raises(InputError, match=rf"column 'odd'.*{found}"):
            call()


POLARS_LABELS = {
    "String": lambda pl, y: pl.Series(np.where(y > 0, "yes", "no").tolist()),
    "Categorical": lambda pl, y: pl.Series(np.where(y > 0, "yes", "no").tolist(), dtype=pl.Categorical),
    "Enum": lambda pl, y: pl.Series(np.where(y > 0, "yes", "no").tolist(), dtype=pl.Enum(["yes", "no"])),
    "Boolean": lambda pl, y: pl.Series((y > 0).tolist()),
    "UInt8": lambda pl, y: pl.Series((y > 0).tolist(), dtype=pl.Boolean).cast(pl.UInt8),
    "Decimal": lambda pl, y: pl.Series([Decimal(int(each)) for each in y]),
}


@pytest.mark.parametrize("kind", POLARS_LABELS)
def test_labels_of_polars(frame, rows, kind, tmp_path):
    pl = pytest.importorskip("polars")
    y = POLARS_LABELS[kind](pl, rows[1])
    model = ODMClassifier(**SETTINGS).fit(_polars(frame), y)
    plain = ODMClassifier(**SETTINGS).fit(*rows)
    assert model.classes_.tolist() == sorted(set(y.to_list()))
    assert model.score(_polars(frame), y) == plain.score(*rows)
    assert model.score(ingest((_polars(frame), y), tmp_path / "a.zarr")) == plain.score(*rows)
    with_labels = _polars(frame).with_columns(y.alias("outcome"))
    assert ingest(with_labels, tmp_path / "b.zarr", label="outcome").classes == tuple(model.classes_.tolist())


def test_a_lazy_frame_of_polars_is_refused_with_a_way_out(frame, rows, tmp_path):
    pytest.importorskip("polars")
    lazy = _polars(frame).lazy()
    model = ODMClassifier().fit(*rows)
    for call in (
        lambda: ODMClassifier().fit(lazy, rows[1]),
        lambda: model.predict(lazy),
        lambda: ingest(lazy, tmp_path / "a.zarr"),
        lambda: ingest((lazy, rows[1]), tmp_path / "a.zarr"),
    ):
        with pytest.raises(InputError, match=r"a LazyFrame of polars has no rows yet: pass frame\.collect\(\)"):
            call()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_names_a_column_or_its_place_as_for_ingest(frame, rows, backend, tmp_path):
    make = BACKENDS[backend]
    numbered = pd.DataFrame(rows[0]).assign(**{"7": rows[1]}).rename(columns={"7": 7})
    plain = ODMClassifier(**SETTINGS).fit(*rows)
    for whole, label in ((numbered, 7), (numbered, np.int64(7)), (frame.assign(outcome=rows[1]), -1)):
        model = ODMClassifier(**SETTINGS).fit(make(whole), label)
        np.testing.assert_array_equal(model.dual_coef_, plain.dual_coef_)
        assert model.score(make(whole), label) == plain.score(*rows)
    assert ingest(make(numbered), tmp_path / "a.zarr", label=7).layout.features == 3
    with pytest.raises(InputError, match="X has no column 9, which y names"):
        ODMClassifier().fit(make(numbered), 9)


def test_columns_that_numbers_name_are_called_so():
    whole = pd.DataFrame({0: ["u", "v"] * 9, 1: [5, 6] * 9, 3: [np.nan, 1.0] * 9})
    y = [0, 1] * 9
    assert ODMClassifier().fit(whole, y).feature_names_in_.tolist() == ["0", "1", "3"]
    model = ODMClassifier().fit(whole.assign(**{"0": 1.0})[["0", 1, 1]].set_axis([0, 1, 3], axis=1), y)
    with pytest.raises(InputError, match=r"column 0 \(str.*\) holds no numbers"):
        model.predict(whole)
    with pytest.raises(InputError, match=r"infinity .*column 3 \(9 rows\)"):
        model.predict(whole.assign(**{"0": 1.0})[["0", 1, 3]].set_axis([0, 1, 3], axis=1).fillna(np.inf))


@pytest.mark.parametrize("library", ["pandas", "dask", *LIBRARIES])
@pytest.mark.filterwarnings("ignore:You are using pyarrow")
def test_labels_that_also_are_a_feature_are_refused(frame, rows, library, tmp_path):
    make = {**BACKENDS, **LIBRARIES}[library]
    whole = make(frame.assign(outcome=rows[1]))
    message = r"the labels are also a feature, column 'outcome', which a model would copy; .*leave it out of the"
    if library.startswith("arrow"):  # whose columns have no names
        labels = pd.Series(rows[1], name="outcome")
    else:
        labels = whole["outcome"]
    with pytest.raises(InputError, match=message):
        ODMClassifier().fit(whole, labels)
    whole = make(frame.assign(outcome=rows[1]))  # a stream is read once
    with pytest.raises(InputError, match=message):
        ingest((whole, labels), tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()
    if library in BACKENDS:
        for given in (whole[["outcome"]], whole["outcome"].astype(float)):
            with pytest.raises(InputError, match=message):
                ODMClassifier().fit(whole, given)
    other = frame.assign(outcome=-rows[1])
    assert ODMClassifier().fit(other, pd.Series(rows[1], name="outcome")).n_features_in_ == 4


def test_labels_of_numpys_strings(rows, tmp_path):
    X, y = rows
    words = np.where(y > 0, "yes", "no").astype(np.dtypes.StringDType(na_object=None))
    plain = ODMClassifier(**SETTINGS).fit(X, y)
    for labels in (words, da.from_array(words, chunks=20)):
        model = ODMClassifier(**SETTINGS).fit(da.from_array(X, chunks=(20, 3)), labels)
        assert model.classes_.tolist() == ["no", "yes"]
        assert model.score(X, labels) == model.score(da.from_array(X, chunks=(20, 3)), labels) == plain.score(X, y)
        assert ingest((X, labels), tmp_path / "a.zarr", overwrite=True).classes == ("no", "yes")
    words[4] = None
    with pytest.raises(InputError, match=r"y holds missing labels \(NaN or None\) in 1 row, first in row 4"):
        ODMClassifier().fit(X, words)
    with dask.config.set({"dask_odm.read-into-memory": 1}):
        spooled = ODMClassifier(**SETTINGS).fit(
            da.from_array(X, chunks=(20, 3)),
            da.from_array(np.where(y > 0, "yes", "no").astype(np.dtypes.StringDType()), chunks=20),
        )
    assert spooled.classes_.tolist() == ["no", "yes"]


def test_numbers_held_as_objects_may_miss_values(frame, rows, tmp_path):
    held = frame.assign(depth=[Decimal(int(each)) for each in 9 * rows[0][:, 2]]).astype(object)
    ingest((held, rows[1]), tmp_path / "a.zarr")
    model = ODMClassifier().fit(held, rows[1])
    held.loc[3, "length"] = pd.NA
    held.loc[5, "depth"] = None
    with dask.config.set({"dataframe.convert-string": False}):
        objects = dd.from_pandas(held, npartitions=2)
    for recipe in (
        ODMClassifier().fit(held, rows[1]).column_recipe_,
        ingest((held, rows[1]), tmp_path / "d.zarr").column_recipe,
        ingest((objects, rows[1]), tmp_path / "c.zarr").column_recipe,
    ):
        assert [(column.kind, column.gaps) for column in recipe.columns] == [("number", gaps) for gaps in (1, 0, 1)]
    assert np.isfinite(model.decision_function(held)).all()
    for call in (
        lambda: ODMClassifier().fit(held.to_numpy(), rows[1]),
        lambda: ingest((held.to_numpy(), rows[1]), tmp_path / "b.zarr"),
    ):
        with pytest.raises(InputError, match=r"missing values .*in column (0|1) \(1 row\).*, first .*row 3"):
            call()
