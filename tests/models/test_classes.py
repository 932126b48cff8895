"""Labels of another type than a model's classes: what is the same without doubt counts, and the rest is refused."""

import datetime

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from dask_odm import CostScorer, InputError, ODMClassifier, ingest, load_model, open_store, permutation_importance
from dask_odm.data.store.writer import StoreWriter
from dask_odm.diagnostics.evaluation import evaluate
from dask_odm.models.classes import MISSING, UNKNOWN, codes_of
from small_problems import blobs


@pytest.mark.parametrize(("classes", "labels", "codes"), [
    ([0, 1], [1, 0, 1.0, True, 2], [1, 0, 1, 1, UNKNOWN]),
    ([0, 1], ["1", "0", "1.0", "true", "2", "one", ""], [1, 0, 1, 1, UNKNOWN, UNKNOWN, UNKNOWN]),
    ([0, 1], ["01", "1_0", "١"], [UNKNOWN, UNKNOWN, UNKNOWN]),  # which may be words
    ([False, True], ["False", "TRUE", " true ", "0", b"1"], [0, 1, 1, 0, 1]),
    (["0", "1"], [0, 1.0, True, 0.5], [0, 1, 1, UNKNOWN]),
    (["False", "True"], [False, True, 1, 2], [0, 1, 1, UNKNOWN]),
    (["no", "yes"], [b"no", "yes", 0], [0, 1, UNKNOWN]),
    ([b"no", b"yes"], ["no", "yes"], [0, 1]),
    (["1", "1.0"], [1, "1", "1.0"], [UNKNOWN, 0, 1]),  # two classes spell the number
    (["True", "true", "1"], [True], [UNKNOWN]),
    (["1", "2"], ["1.0", "01"], [0, UNKNOWN]),
    (["yes", "Yes"], ["YES"], [UNKNOWN]),
    ([-1, 2**60 + 1], ["-1", str(2**60 + 1), str(2**60)], [0, 1, UNKNOWN]),
    ([1e-5, 0.5], ["1e-05", "0.50", "nan"], [0, 1, UNKNOWN]),
    ([0, 1], [None, np.nan, pd.NA, pd.NaT], [MISSING] * 4),
])  # fmt: skip
def test_places_among_the_classes(classes, labels, codes):
    assert codes_of(labels, classes) == codes


X, Y = blobs(60, 3, seed=1)[:2]
Y = np.asarray(Y) > 0
TYPES = {
    "booleans": lambda y: y,
    "0 and 1": lambda y: y.astype(int),
    "0.0 and 1.0": lambda y: y.astype(float),
    "'0' and '1'": lambda y: np.where(y, "1", "0"),
    "words": lambda y: np.where(y, "True", "False"),
    "bytes": lambda y: np.where(y, b"True", b"False"),
    "objects": lambda y: np.where(y, "true", "false").astype(object),
}


@pytest.mark.parametrize("of_test", TYPES)
@pytest.mark.parametrize("of_fit", ["booleans", "0 and 1", "'0' and '1'", "words"])
def test_labels_of_other_types_are_matched_at_every_door(of_fit, of_test, tmp_path):
    model = ODMClassifier(solver="exact").fit(X, TYPES[of_fit](Y))
    labels = TYPES[of_test](Y)
    expected = float(np.mean((model.decision_function(X) > 0) == Y))
    assert model.score(X, labels) == expected
    assert model.score(da.from_array(X, chunks=(20, 3)), da.from_array(labels, chunks=25)) == pytest.approx(expected)
    assert model.calibrate(X, labels).calibration_rows_ == len(Y)
    if of_test == "bytes":
        return  # a store has words
    store = ingest((X, labels), tmp_path / "a.zarr")
    assert model.score(store) == expected
    found = evaluate(model, store)
    assert (found.accuracy, found.strangers) == (expected, [])
    assert permutation_importance(model, store, n_repeats=1).score == expected
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=2)
    assert model.score(frame, dd.from_pandas(pd.Series(labels), npartitions=3)) == expected


@pytest.mark.parametrize("of_fit", ["0 and 1", "'0' and '1'"])
def test_labels_that_match_nothing_are_refused(of_fit, tmp_path):
    model = ODMClassifier().fit(X, TYPES[of_fit](Y))
    words = np.where(Y, "yes", "no")
    store = ingest((X, words), tmp_path / "a.zarr")
    message = r"none of the labels of .*, \['(no|yes)', '(no|yes)'\], is the model's: \[.*\]; name the labels as for"
    for call in (
        lambda: model.score(X, words),
        lambda: model.score(da.from_array(X, chunks=(20, 3)), words),
        lambda: model.score(store),
        lambda: evaluate(model, store),
        lambda: permutation_importance(model, store),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_dates_are_no_numbers_that_a_model_might_lack():
    days = np.where(Y, "2020-01-01", "NaT").astype("datetime64[ns]")  # which `tolist` makes whole numbers
    model = ODMClassifier().fit(X, Y.astype(int))
    with pytest.raises(InputError, match=r"none of the labels of y, .*2020-01-01"):
        model.score(X, days)


@pytest.mark.parametrize("of_fit", ["datetime64[us]", "datetime64[ns]", "datetime64[D]", "timedelta64[s]"])
def test_dates_and_spans_are_labels_in_any_unit_and_in_files(of_fit, tmp_path):
    times = np.where(Y, 18_262, 18_628).astype("m8[D]" if of_fit[0] == "t" else "M8[D]")
    model = ODMClassifier().fit(X, times.astype(of_fit))
    model.save(tmp_path / "m.zarr")
    loaded = load_model(tmp_path / "m.zarr")
    assert loaded.classes_.dtype == of_fit
    expected = (model.predict(X) == times).mean()
    assert [each.score(X, times) for each in (model, loaded)] == [expected] * 2
    assert model.calibrate(X, times).calibration_rows_ == len(Y)
    if times.dtype.kind == "M":
        words = "2020-01-01", "2021-01-01"
        assert model.score(X, np.where(Y, *words)) == evaluate(loaded, (X, np.where(Y, *words))).accuracy == expected
    table = pd.DataFrame(X).assign(at=times.astype(of_fit))
    table.rename(columns=str).to_parquet(tmp_path / "rows.parquet")
    stores = [
        ingest(source, tmp_path / f"{i}.zarr", **more)
        for i, (source, more) in enumerate(
            [
                ((X, times.astype(of_fit)), {}),
                ((X, pd.Series(times.astype(of_fit)).astype("category")), {}),
                (table, {"label": "at"}),
                (tmp_path / "rows.parquet", {"label": "at"}),
            ]
        )
    ]
    assert len({store.classes for store in stores}) == 1
    assert (loaded.score(stores[0]), evaluate(loaded, stores[0]).accuracy) == (expected, expected)
    for store in stores:
        of_store = ODMClassifier().fit(store)
        np.testing.assert_array_equal(of_store.classes_, model.classes_)
        assert of_store.classes_.dtype == open_store(store.path).y.dtype  # frames and Parquet have other units
        assert of_store.score(store) == expected
    assert ODMClassifier().fit(stores[0]).classes_.dtype == of_fit
    if times.dtype.kind == "M":
        assert stores[0].classes == words
        assert ingest((X, pd.Series(times.tolist())), tmp_path / "days.zarr").classes == words


SOON, LATE = datetime.datetime(2020, 1, 31, 6), datetime.datetime(2020, 11, 30)
TIME_OBJECTS = {
    "dates": (SOON.date(), LATE.date(), "M8[D]"),
    "datetimes": (SOON, LATE, "M8[us]"),
    "timestamps": (pd.Timestamp(SOON).as_unit("ns"), pd.Timestamp(LATE).as_unit("ns"), "M8[ns]"),
    "a date and a datetime": (SOON, LATE.date(), "M8[us]"),
    "spans": (datetime.timedelta(9), datetime.timedelta(10), "m8[us]"),  # "10" is before "9"
}


@pytest.mark.parametrize("few", TIME_OBJECTS)
def test_dates_that_are_objects_are_the_same_classes_in_memory_and_in_a_store(few, tmp_path):
    *two, dtype = TIME_OBJECTS[few]
    labels = [two[int(each)] for each in Y]
    store = ingest((X, labels), tmp_path / "a.zarr", dtype="float64")
    copy, test = ingest(store, tmp_path / "b.zarr", dtype="float64", test_size=0.2)
    models = [ODMClassifier(random_state=0).fit(*rows) for rows in ((X, labels), (store,))]
    of_words = ODMClassifier(random_state=0).fit(X, [str(each) for each in Y])
    for model in models:
        assert model.classes_.dtype == dtype
        assert model.classes_.tolist() == np.array(two, dtype).tolist()
        assert model.score(X, labels) == model.score(store) == of_words.score(X, [str(each) for each in Y])
        np.testing.assert_array_equal(model.predict(X) == model.classes_[1], of_words.predict(X) == "True")
    for part in (copy, test):
        assert (part.classes, open_store(part.path).y.dtype) == (store.classes, dtype)
    weights = {two[0]: 0.5, two[1]: 1.0}, dict(zip(store.classes, (0.5, 1.0), strict=True))
    chosen, same = (ODMClassifier(class_weight=each, random_state=0).fit(store) for each in weights)
    np.testing.assert_array_equal(chosen.decision_function(X), same.decision_function(X))
    assert permutation_importance(chosen, store, n_repeats=1).score == evaluate(chosen, store).accuracy
    assert CostScorer(1 - np.eye(2))(chosen, X, labels) == pytest.approx(chosen.score(X, labels) - 1)


def test_dates_without_a_common_unit_or_among_words_stay_apart(tmp_path):
    far = [datetime.date(9999, 12, 31) if each else pd.Timestamp(SOON).as_unit("ns") for each in Y]
    with pytest.raises(InputError, match="Unknown label type"):
        ODMClassifier().fit(X, far)
    assert ingest((X, far), tmp_path / "a.zarr").classes == ("2020-01-31T06:00", "9999-12-31")
    mixed = [SOON.date() if each else datetime.timedelta(1) for each in Y]
    assert ingest((X, mixed), tmp_path / "b.zarr").classes == ("2020-01-31", "86400000000000 ns")


def test_unknown_dates_are_not_a_time(tmp_path):
    days = np.array(["2021", "2020", "NaT", "2021"], "M8[s]")
    with StoreWriter(tmp_path / "a.zarr") as writer:
        writer.append(np.eye(4), [0, 1, -1, 0])
        store = writer.finish(days[:2])
    found = open_store(store.path).y.values
    np.testing.assert_array_equal(found, days)
    assert found.dtype == days.dtype


def test_rows_of_classes_that_the_model_lacks_count_as_wrong(tmp_path):
    model = ODMClassifier().fit(X, Y.astype(int))
    one = np.full(len(X), 7)
    assert model.score(X, one) == 0.0  # as for a fold that leaves out all rows of a rare class
    assert model.score(ingest((X, one), tmp_path / "a.zarr")) == 0.0
    mixed = np.where(np.arange(len(X)) % 2, "other", np.where(model.predict(X), "1", "0"))
    assert model.score(X, mixed) == 0.5
    gaps = np.where(np.arange(len(X)) % 2, None, model.predict(X).astype(object))
    assert model.score(X, gaps) == 1.0


def test_groups_that_are_no_text_are_named_so():
    with pytest.raises(InputError, match=r"^groups, row 1: the label"):
        ODMClassifier(loo=True).fit(X, Y, groups=["a", "b\0", "a"] * 20)


@pytest.mark.parametrize("unit", ["ns", "s"])
def test_a_map_of_dates_has_gaps_and_spells_its_codes(unit):
    cube = xr.DataArray(X.reshape(6, 10, 3), dims=("y", "x", "band"), coords={"band": list("abc")})
    two = np.array(["2020-01-31", "2020-11-30"], f"M8[{unit}]")
    days = xr.DataArray(np.where(Y, *two).reshape(6, 10), dims=("y", "x"))
    model = ODMClassifier().fit(cube, days)
    assert model.predict(cube).attrs["flag_meanings"] == "2020-01-31 2020-11-30"
    found = model.predict(cube.where(cube.y > 0), decode=True)
    assert found.dtype == days.dtype
    assert found.isnull().sum() == 10
    assert (found == days)[1:].mean() == pytest.approx(model.score(cube[1:], days[1:]))
