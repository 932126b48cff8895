"""One model from every form the rows may come in, and lazy predictions on every form, equal to those in memory."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.sparse import csr_array
from sklearn.exceptions import DataConversionWarning

from dask_odm import InputError, ODMClassifier, Store, ingest, open_store, permutation_importance
from dask_odm.data.store.writer import StoreWriter
from dask_odm.diagnostics.evaluation import evaluate
from dask_odm.estimators.inputs import resolving as inputs
from dask_odm.solvers import SODM
from estimators.odm_models import SETTINGS
from small_stores import store_of
from small_tables import made_table

NAMES = ["length", "width", "depth"]


@pytest.fixture(scope="module")
def weight():
    return np.random.default_rng(8).integers(0, 4, 90).astype(float)


@pytest.fixture(scope="module")
def path(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return store_of(folder / "a.zarr", rows[0], rows[1], chunk_rows=25, names=NAMES).path


@pytest.fixture(scope="module")
def weighted_path(rows, weight, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return store_of(folder / "w.zarr", rows[0], rows[1], weight=weight, chunk_rows=25).path


@pytest.fixture(scope="module")
def model(rows):
    return ODMClassifier(**SETTINGS, random_state=0).fit(*rows)


def dataset(X, y, **more) -> xr.Dataset:
    return xr.Dataset({"X": (("sample", "feature"), X), "y": ("sample", y), **more})


FORMS = {
    "frame": lambda X, y, path: (pd.DataFrame(X, columns=NAMES), pd.Series(y)),
    "dask frame": lambda X, y, path: (
        dd.from_pandas(pd.DataFrame(X, columns=NAMES), npartitions=4),
        dd.from_pandas(pd.Series(y), npartitions=3),
    ),
    "path": lambda X, y, path: (path, None),
    "open store": lambda X, y, path: (Store.open(path), None),
    "store": lambda X, y, path: (open_store(path), None),
}


@pytest.mark.parametrize("form", ["frame", "dask frame", "path", "open store", "store"])
def test_feature_names_are_kept(rows, path, form):
    X, y = FORMS[form](*rows, path)
    fitted = ODMClassifier().fit(X, y)
    assert fitted.feature_names_in_.tolist() == NAMES
    fitted.fit(*rows)
    assert not hasattr(fitted, "feature_names_in_")


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_slice_of_a_store_is_its_rows(rows, path):
    chosen = open_store(path).isel(sample=slice(10, 70))
    Z = rows[0][10:70]
    expected = ODMClassifier(**SETTINGS).fit(rows[0][10:70], rows[1][10:70])
    fitted = ODMClassifier(**SETTINGS).fit(chosen)
    np.testing.assert_allclose(fitted.decision_function(rows[0]), expected.decision_function(rows[0]), atol=1e-9)
    np.testing.assert_allclose(fitted.decision_function(chosen), fitted.decision_function(Z), atol=1e-12)
    assert fitted.feature_names_in_.tolist() == NAMES


@pytest.mark.parametrize("solver", ["auto", SODM(5)], ids=str)
@pytest.mark.parametrize("class_weight", [None, "balanced", {-1.0: 0.5, 1.0: 2.0}], ids=str)
def test_weights_count_in_every_form(rows, weight, weighted_path, solver, class_weight):
    X, y = rows
    settings = {**SETTINGS, "solver": solver, "class_weight": class_weight}
    expected = ODMClassifier(**settings).fit(X, y, weight).decision_function(X)
    lazy = [da.from_array(a, chunks=(30, *a.shape[1:])) for a in (X, y, weight)]
    for arguments in (lazy, [weighted_path], [open_store(weighted_path)], [dataset(X, y, weight=("sample", weight))]):
        fitted = ODMClassifier(**settings).fit(*arguments)
        np.testing.assert_allclose(fitted.decision_function(X), expected, atol=1e-7)


def test_scores_agree(rows, weight, path, weighted_path, model):
    X, y = rows
    plain, weighted = model.score(X, y), model.score(X, y, weight)
    assert 0.8 < plain != weighted
    lazy = [da.from_array(a, chunks=(30, *a.shape[1:])) for a in (X, y, weight)]
    assert model.score(path) == model.score(open_store(path)) == model.score(*lazy[:2]) == pytest.approx(plain)
    assert model.score(weighted_path) == model.score(*lazy) == pytest.approx(weighted)
    assert model.score(dataset(X, y)) == pytest.approx(plain)
    for score in (model.score(path), model.score(X, y)):
        assert type(score) is float


def test_a_store_without_labels(rows, tmp_path, model):
    store = store_of(tmp_path / "a.zarr", rows[0], None)
    np.testing.assert_allclose(model.predict(store.path), model.predict(rows[0]))
    with pytest.raises(InputError, match="has no labels"):
        ODMClassifier().fit(store.path)
    with pytest.raises(InputError, match="score needs labels"):
        model.score(store.path)


def test_a_store_of_real_targets(rows, tmp_path, model):
    with StoreWriter(tmp_path / "a.zarr") as writer:
        writer.append(rows[0], np.linspace(0.0, 1.0, len(rows[0])))
        path = writer.finish().path
    np.testing.assert_allclose(model.predict(path), model.predict(rows[0]))
    for use in (ODMClassifier().fit, model.score):
        with pytest.raises(InputError, match=r"holds real targets.*target='classes'"):
            use(path)


BAD = {
    "y beside a path": (lambda X, y, p: (p, y), "y must be None when X is a store"),
    "y beside a Dataset": (lambda X, y, p: (open_store(p), y), "y must be None when X is a Dataset"),
    "y beside an open store": (lambda X, y, p: (Store.open(p), y), "y must be None when X is a store"),
    "weights beside a path": (lambda X, y, p: (p, None, y), "sample_weight must be None when X is a store"),
    "no X": (lambda X, y, p: (xr.Dataset({"y": ("sample", y)}),), "no variable 'X'.*'y'"),
    "a dask vector": (lambda X, y, p: (da.from_array(y), y), "two dimensions"),
    "other lengths": (lambda X, y, p: (da.from_array(X), y[:-1]), r"y must have shape \(90,\)"),
    "no y": (lambda X, y, p: (da.from_array(X),), "y is None"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_an_input_error(rows, path, what):
    make, message = BAD[what]
    with pytest.raises(InputError, match=message):
        ODMClassifier().fit(*make(*rows, path))


def test_prediction_checks_features_and_values(rows, model, tmp_path):
    narrow = store_of(tmp_path / "a.zarr", rows[0][:, :2].copy(), None)
    for X in (da.from_array(rows[0][:, :2]), narrow.path):
        with pytest.raises(InputError, match="X has 2 features, but ODMClassifier is expecting 3 features"):
            model.predict(X)
    with pytest.raises(InputError, match=r"missing values \(NaN\) in column 0 \(4 rows\)"):
        model.predict(da.from_array(np.full((4, 3), np.nan))).compute()


def test_unknown_chunk_sizes_of_the_caller_stay_unknown(rows):
    X, y = (da.from_array(each, chunks=17)[da.ones(90, chunks=17) > 0] for each in rows)
    ODMClassifier().fit(X, y)
    assert np.isnan(X.shape[0])
    assert np.isnan(y.shape[0])


def test_a_dask_column_of_labels_is_taken_as_scikit_learn_does(rows, model):
    X, y = (da.from_array(a, chunks=(40, -1)) for a in (rows[0], rows[1][:, None]))
    for labels in (y, dd.from_dask_array(y, columns=["label"])):
        with pytest.warns(DataConversionWarning, match="column-vector y was passed"):
            fitted = ODMClassifier(**SETTINGS).fit(X, labels)
        np.testing.assert_allclose(fitted.decision_function(rows[0]), model.decision_function(rows[0]), atol=1e-8)
    with pytest.raises(InputError, match=r"y has several columns, which must be 0 or 1"):
        ODMClassifier().fit(X, da.concatenate([y, y], axis=1))


def test_a_large_dask_frame_goes_through_a_store(rows, monkeypatch, model):
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": 100})
    X, y = FORMS["dask frame"](*rows, None)
    fitted = ODMClassifier(**SETTINGS).fit(X, y)
    assert fitted.feature_names_in_.tolist() == NAMES
    frame = pd.DataFrame(rows[0], columns=NAMES)
    np.testing.assert_allclose(fitted.decision_function(frame), model.decision_function(rows[0]), atol=1e-8)
    frame.iloc[70, 1] = np.nan
    with pytest.raises(InputError, match=r"column 'width' \(1 row\), first in row 70"):
        ODMClassifier().fit(dd.from_pandas(frame, npartitions=4), y)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_features_of_a_store_are_picked_by_name(rows, tmp_path, kernel):
    X, y = rows
    own = store_of(tmp_path / "own.zarr", X, y, chunk_rows=25, names=NAMES)
    other = store_of(tmp_path / "other.zarr", X[:, [2, 0, 1]], y, chunk_rows=25, names=["depth", "length", "width"])
    model = ODMClassifier(kernel, gamma=0.5).fit(pd.DataFrame(X, columns=NAMES), y)
    for source in (other, other.path, open_store(other.path)):
        np.testing.assert_array_equal(model.decision_function(source), np.asarray(model.decision_function(own)))
        assert model.score(source) == model.score(own)
    assert evaluate(model, other).facts() == evaluate(model, own).facts()
    found, expected = (permutation_importance(model, store, n_repeats=2) for store in (other, own))
    assert found.feature_names == NAMES
    np.testing.assert_array_equal(found.importances, expected.importances)
    stranger = store_of(tmp_path / "stranger.zarr", X, y, names=["depth", "length", "height"])
    with pytest.raises(InputError, match="feature names should match"):
        model.predict(stranger)


def test_rows_without_names_are_told_as_arrays_are(rows, tmp_path):
    X, y = rows
    model = ODMClassifier().fit(pd.DataFrame(X, columns=NAMES), y)
    store = store_of(tmp_path / "a.zarr", X, y)
    for source in (X, store, da.from_array(X, chunks=40)):
        with pytest.warns(UserWarning, match="^X does not have valid feature names, but ODMClassifier was fitted with"):
            model.predict(source)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool"])
def test_lazy_rows_count_as_what_a_model_makes_of_them(rows, monkeypatch, dtype):
    """Bytes and bits become numbers of 8 bytes: an array just below the limit would take eight times as much."""
    X, y = da.from_array((rows[0] > 0).astype(dtype), chunks=(17, 3)), da.from_array(rows[1], chunks=17)
    learned = np.dtype(dtype if dtype == "float32" else "float64")
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": X.size * learned.itemsize - 1})
    assert isinstance(inputs.resolve_training(X, y, None), inputs.LazyArrays)
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": X.size * learned.itemsize})
    found = inputs.resolve_training(X, y, None)
    assert found.X.dtype == learned, "read as they are learned, since another copy would take as much again"
    np.testing.assert_array_equal(found.X, rows[0] > 0)


@pytest.mark.parametrize("kind", ["plain", "wider", "sparse", "masked", "masked later"])
def test_lazy_rows_are_read_as_dask_puts_blocks_together(rows, kind):
    X, y = da.from_array(rows[0], chunks=(17, 3)), da.from_array(rows[1], chunks=17)
    later = {"wider": lambda b: b.astype(np.longdouble), "masked later": lambda b: np.ma.masked_greater(b, 0.5)}
    every = {"sparse": csr_array, "masked": lambda b: np.ma.masked_greater(b, 0.5)}
    if kind in later:
        X = da.concatenate([X[:51], X[51:].map_blocks(later[kind], dtype=X.dtype)])
    X = X.map_blocks(every.get(kind, np.asarray)) if kind not in later else X
    found = inputs.resolve_training(X, y, None)
    wanted = X.compute(scheduler="threads")
    assert (type(found.X), found.X.shape) == (type(wanted), wanted.shape)
    assert found.X.dtype == (np.longdouble if kind == "wider" else wanted.dtype), "Dask has that of the first block"
    as_dense = (lambda a: a.toarray()) if kind == "sparse" else (lambda a: np.ma.filled(a, np.nan))
    np.testing.assert_array_equal(as_dense(found.X), as_dense(wanted))
    np.testing.assert_array_equal(found.y, rows[1])


LIKE_TABLES = {
    "objects": lambda X: X.to_numpy(dtype=object),
    "lists": lambda X: X.to_numpy(dtype=object).tolist(),
    "dask frame": lambda X: dd.from_pandas(X, npartitions=2),
}
LIKE_NUMBERS = {
    "array": lambda X: X.to_numpy(),
    "sparse rows": lambda X: csr_array(X.to_numpy()),
    "dask array": lambda X: da.from_array(X.to_numpy(), chunks=(17, 2)),
    "DataArray": lambda X: xr.DataArray(X.to_numpy(), dims=("sample", "feature"), coords={"feature": list(X)}),
}


@pytest.fixture(scope="module")
def table():
    table = made_table()
    return table.drop(columns="kind"), table["kind"]


@pytest.mark.parametrize("kind", LIKE_TABLES)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_columns_without_names_are_read_by_their_places(table, kind):
    X, y = table
    model = ODMClassifier("linear").fit(X, y)
    found = np.asarray(model.decision_function(LIKE_TABLES[kind](X)))
    np.testing.assert_array_equal(found, model.decision_function(X))


@pytest.mark.parametrize("kind", LIKE_NUMBERS)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_arrays_of_numbers_are_read_as_the_table_with_gaps_that_was_learned(table, kind):
    X, y = table[0][["age"]].assign(size=1.0), table[1]
    model = ODMClassifier("linear").fit(X, y)
    assert model.n_features_in_ == 2
    assert model.coef_.shape == (1, len(model.get_feature_names_out())) == (1, 3)
    given = X if kind != "sparse rows" else X.fillna(7.0)
    found = np.asarray(model.decision_function(LIKE_NUMBERS[kind](given)))
    np.testing.assert_array_equal(found, model.decision_function(given))
    for other in (np.ones((2, 3)), csr_array(np.ones((2, 3))), da.ones((2, 3)), [[1.0]], np.ones(2)):
        with pytest.raises(InputError, match=r"X has shape .*, but the model learned from 2 columns: 'age', 'size'\.$"):
            model.predict(other)


def test_arrays_beside_a_table_are_told_as_scikit_learn_does(table):
    model = ODMClassifier("linear").fit(*table)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model.predict(table[0].to_numpy())


def test_a_cube_is_no_table(table):
    model = ODMClassifier("linear").fit(table[0][["age"]].assign(size=1.0), table[1])
    cube = xr.Dataset({name: (("y", "x"), np.ones((2, 3))) for name in ("age", "size")})
    with pytest.raises(InputError, match="X is a cube, but the model learned from a table with words, dates or gaps"):
        model.predict(cube)


def test_a_store_of_other_columns_is_refused(table, tmp_path):
    X, y = table
    model = ODMClassifier("linear").fit(X, y)
    for given, what in ((X[["age"]].fillna(1.0), "no recipe"), (X[["age", "job"]], "another recipe")):
        store = ingest((given, y), tmp_path / f"{what}.zarr")
        with pytest.raises(InputError, match=rf"has {what} of columns.*columns=model\.column_recipe_ \(--like\)\.$"):
            model.predict(store)
