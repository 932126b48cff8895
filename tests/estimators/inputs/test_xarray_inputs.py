"""xarray in any dimension order, under any names: the same model, and predictions that keep the coordinates."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sklearn.exceptions import DataConversionWarning

from dask_odm import InputError, MDDRidge, ODMClassifier, ingest, load_model, open_store
from estimators.odm_models import SETTINGS
from small_stores import store_of

TIMES = pd.date_range("2024-01-01", periods=90, freq="h")
NAMES = ["length", "width", "depth"]


class Computed:
    """A scheduler that counts how often something is computed."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, graph, keys, **options):
        self.times += 1
        return dask.get(graph, keys, **options)


@pytest.fixture(scope="module")
def model(rows):
    return ODMClassifier(**SETTINGS).fit(*rows)


@pytest.fixture(scope="module")
def observed(rows) -> xr.Dataset:
    """Rows along ``time``, with coordinates of every sort."""
    X, y = rows
    coordinates = {
        "time": TIMES,
        "station": ("time", np.arange(90) % 7),
        "band": NAMES,
        "wavelength": ("band", [1.0, 2.0, 3.0]),
        "quality": (("time", "band"), np.ones((90, 3))),
        "mission": "A",
    }
    return xr.Dataset({"X": (("time", "band"), X), "y": ("time", y)}, coords=coordinates)


def turned(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.transpose("band", "time")


def chunked(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.chunk(time=40, band=2)


SHAPES = {"as is": lambda d: d, "turned": turned, "chunked": chunked, "both": lambda d: chunked(turned(d))}


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize("what", ["predict", "decision_function"])
@pytest.mark.parametrize("whole", [True, False], ids=["Dataset", "DataArray"])
@pytest.mark.parametrize("shape", SHAPES)
def test_predictions_keep_the_coordinates(rows, observed, model, shape, whole, what):
    given = SHAPES[shape](observed)
    scheduler = Computed()
    with dask.config.set(scheduler=scheduler):
        found = getattr(model, what)(given if whole else given["X"])
        assert scheduler.times == 0
        lazy = shape in ("chunked", "both")
        assert isinstance(found.data, da.Array if lazy else np.ndarray)
        np.testing.assert_allclose(found.values, getattr(model, what)(rows[0]), atol=1e-12)
        assert scheduler.times == int(lazy)
    assert type(found) is xr.DataArray
    assert found.dims == ("time",)
    assert found.name == {"predict": "y", "decision_function": "decision_function"}[what]
    assert set(found.coords) == {"time", "station", "mission"}
    for name in found.coords:
        assert found[name].equals(observed[name]), name
    assert found.indexes["time"].equals(TIMES)
    assert found.attrs == {}
    # and so it lies beside what it was made of
    assert float((found.sel(time="2024-01-02") == found[24:48]).mean()) == 1.0


@pytest.mark.parametrize("chunks", [None, {"sample": 50}], ids=["memory", "lazy"])
def test_several_targets_have_a_dimension(rows, chunks):
    X = np.asarray(rows[0])
    model = MDDRidge().fit(X, X[:, :2] + 1.0)
    found = model.predict(array(X, "sample", "feature").chunk(chunks) if chunks else array(X, "sample", "feature"))
    assert (found.name, found.dims) == ("y", ("sample", "target"))
    np.testing.assert_allclose(found.values, model.predict(X), atol=1e-12)


def test_an_index_of_many_levels_is_kept(rows, model):
    levels = pd.MultiIndex.from_product([range(9), range(10)], names=["row", "column"])
    X = xr.DataArray(rows[0].reshape(9, 10, 3), dims=("row", "column", "band")).stack(pixel=("row", "column"))
    found = model.predict(X)
    assert found.indexes["pixel"].equals(levels)
    image = found.unstack("pixel")
    assert image.dims == ("row", "column")
    np.testing.assert_array_equal(image.values.ravel(), model.predict(rows[0]))


def test_predictions_on_a_store_are_lazy_and_take_coordinates(rows, tmp_path, model):
    store = open_store(store_of(tmp_path / "a.zarr", *rows, chunk_rows=25).path).assign_coords(sample=TIMES)
    scheduler = Computed()
    with dask.config.set(scheduler=scheduler):
        found = model.predict(store)
    assert scheduler.times == 0
    assert found.chunks == ((25, 25, 25, 15),)
    assert found.indexes["sample"].equals(TIMES)
    np.testing.assert_array_equal(found, model.predict(rows[0]))


def test_weights_beside_the_rows(rows, observed):
    weight = np.random.default_rng(8).integers(0, 4, 90).astype(float)
    beside = xr.DataArray(weight, dims="time", coords={"time": TIMES})
    expected = ODMClassifier(**SETTINGS).fit(*rows, weight).decision_function(rows[0])
    for form in (observed, chunked(turned(observed))):
        for arguments in ((form["X"], form["y"], beside), (form.assign(weight=beside),)):
            fitted = ODMClassifier(**SETTINGS).fit(*arguments)
            found = fitted.decision_function(observed)
            np.testing.assert_allclose(found, expected, atol=1e-8)


def array(values, *dims: str) -> xr.DataArray:
    return xr.DataArray(values, dims=dims)


def test_which_dimension_runs_along_the_rows(rows, model):
    X, y = rows
    for one in (array(X, "a", "b"), array(X.T, "b", "a")):
        assert model.predict(one).dims == ("a",)  # the other has three entries
        assert ODMClassifier().fit(one, array(y, "a")).n_features_in_ == 3  # shared with y
    assert model.predict(array(X.T, "b", "sample")).dims == ("sample",)
    square = X[:3]
    with pytest.raises(InputError, match=r"both have 3 entries; rename .*X\.rename\(\{'a': 'sample'\}\)"):
        model.predict(array(square, "a", "b"))
    assert model.predict(array(square.T, "feature", "a")).dims == ("a",)
    expected = model.decision_function(square)
    np.testing.assert_allclose(model.decision_function(array(square.T, "b", "sample")), expected, atol=1e-12)
    beside = xr.Dataset({"X": array(square.T, "b", "a"), "y": array(y[:3], "a")})
    np.testing.assert_allclose(model.decision_function(beside), expected, atol=1e-12)


@pytest.mark.parametrize("form", [lambda X: X, lambda X: X.chunk()])
@pytest.mark.parametrize("saved", [False, True])
def test_as_many_rows_as_features(rows, observed, tmp_path, form, saved):
    """The names of the features tell their dimension, wherever it stands and whatever it is called."""
    fitted = ODMClassifier(**SETTINGS).fit(turned(observed))
    if saved:
        fitted.save(tmp_path / "model.zarr")
        fitted = load_model(tmp_path / "model.zarr")
    square = form(observed["X"][40:43])
    expected = fitted.decision_function(pd.DataFrame(rows[0][40:43], columns=NAMES))
    for one in (square, square.T, square.T.rename(band="b"), square.T.rename(time="feature")):
        found = fitted.decision_function(one)
        assert found.dims != ("band",)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_dimension_of_the_fit_tells_the_features(rows, tmp_path):
    """Where they have no names; but what xarray calls a dimension by itself tells nothing against the numbers."""
    fitted = ODMClassifier(**SETTINGS).fit(array(rows[0], "time", "band"), rows[1])
    square, expected = rows[0][40:43], fitted.decision_function(rows[0][40:43])
    fitted.save(tmp_path / "model.zarr")
    for each in (fitted, load_model(tmp_path / "model.zarr")):
        for one in (array(square, "time", "band"), array(square.T, "band", "time"), array(square.T, "band", "feature")):
            np.testing.assert_allclose(each.decision_function(one), expected, atol=1e-12)
        with pytest.raises(InputError, match="4 features"):
            each.predict(array(np.ones((3, 4)), "time", "band"))
    fitted.fit(xr.DataArray(rows[0]), rows[1])
    np.testing.assert_allclose(fitted.decision_function(xr.DataArray(square)), expected, atol=1e-12)
    assert len(fitted.predict(xr.DataArray(rows[0].T))) == 90


@pytest.mark.parametrize("chunks", [None, 30])
def test_a_column_of_labels(rows, model, chunks):
    X, y = array(rows[0], "a", "b"), array(rows[1][:, None], "a", "label")
    if chunks:
        X, y = X.chunk(a=chunks), y.chunk(a=chunks)
    with pytest.warns(DataConversionWarning, match="column-vector"):
        fitted = ODMClassifier(**SETTINGS).fit(X, y)
    np.testing.assert_allclose(fitted.decision_function(rows[0]), model.decision_function(rows[0]), atol=1e-10)


def test_numbered_features_have_no_names(rows):
    X = array(rows[0], "sample", "feature").assign_coords(feature=[4, 5, 6])
    assert not hasattr(ODMClassifier().fit(X, rows[1]), "feature_names_in_")


def test_rows_without_a_label_do_not_count(rows, model):
    X, y = rows
    labels = np.where(np.arange(90) % 9 == 0, np.nan, y)
    for form in (lambda d: d, lambda d: d.chunk(sample=25)):
        given = form(xr.Dataset({"X": array(X, "sample", "feature"), "y": array(labels, "sample")}))
        known = ~np.isnan(labels)
        assert model.score(given) == pytest.approx(model.score(X[known], y[known]))
        assert len(model.predict(given)) == 90
        with pytest.raises(InputError, match=r"y holds missing labels .* in 10 rows, first in row 0"):
            ODMClassifier().fit(given)


BAD = {
    "no X but a table": (
        lambda X, y: (xr.Dataset({"rows": (("s", "f"), X), "y": ("s", y)}),),
        r"no variable 'X' of rows; it has 'rows', 'y'\. Say which one holds the labels: fit\(dataset, ",
    ),
    "no X but columns": (
        lambda X, y: (xr.Dataset({"a": ("s", X[:, 0]), "y": ("s", y)}),),
        r"it has 'a', 'y'\. Say which one",
    ),
    "three dimensions": (lambda X, y: (array(X.reshape(9, 10, 3), "r", "c", "b"), y), "must have two dimensions"),
    "labels of another dimension": (lambda X, y: (array(X, "a", "b"), array(y, "c")), "y must share one dimension"),
    "labels in two columns": (
        lambda X, y: (array(X, "a", "b"), array(np.stack([y, y], 1), "a", "c")),
        "y must have the dimension 'a' of X alone",
    ),
    "other coordinates": (
        lambda X, y: (
            array(X, "a", "b").assign_coords(a=np.arange(90)),
            array(y, "a").assign_coords(a=np.arange(90)[::-1]),
        ),
        r"different coordinates along 'a'; align them first",
    ),
    "groups of other coordinates": (
        lambda X, y: (
            array(X, "a", "b").assign_coords(a=np.arange(90)),
            y,
            None,
            array(np.arange(90) // 9, "a").assign_coords(a=np.arange(90)[::-1]),
        ),
        r"X and groups have different coordinates along 'a'; align them first",
    ),
    "text": (lambda X, y: (array(X.astype(str), "sample", "b").assign_coords(b=list("abc")), y), "'a'.*no numbers"),
    "missing": (
        lambda X, y: (array(np.where(X > 2, np.nan, X), "sample", "b").assign_coords(b=list("abc")), y),
        r"missing values \(NaN\) in column '[abc]'",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_an_input_error(rows, what):
    make, message = BAD[what]
    with pytest.raises(InputError, match=message):
        ODMClassifier().fit(*make(*rows))


@pytest.mark.parametrize("form", ["columns", "a table"])
def test_the_name_of_the_labels_leads_there(rows, model, form):
    X, y = rows
    columns = {name: ("s", X[:, j]) for j, name in enumerate("abc")} if form == "columns" else {"rows": (("s", "f"), X)}
    dataset = xr.Dataset({**columns, "label": ("s", y)})
    fitted = ODMClassifier(**SETTINGS).fit(dataset, "label")
    np.testing.assert_allclose(fitted.decision_function(dataset), model.decision_function(X), atol=1e-10)


@pytest.mark.parametrize("chunks", [None, 30])
def test_labels_that_also_are_a_feature_are_refused(rows, chunks, tmp_path):
    X, y = rows
    names = [*"abc"[: X.shape[1]], "outcome"]
    table = xr.DataArray(np.column_stack([X, y]), dims=("row", "feature"), coords={"feature": names})
    labels = xr.DataArray(y, dims="row", name="outcome")
    table, labels = (each.chunk(row=chunks) if chunks else each for each in (table, labels))
    for call in (lambda: ODMClassifier().fit(table, labels), lambda: ingest((table, labels), tmp_path / "a.zarr")):
        with pytest.raises(InputError, match="the labels are also a feature, column 'outcome'"):
            call()
    assert ODMClassifier().fit(table, labels.rename("other")).n_features_in_ == len(names)
