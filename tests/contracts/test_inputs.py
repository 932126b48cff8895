"""Every estimator: one model from every form of its rows, predictions of the form's type, lazy ones; weights."""

import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score

import dask_odm
from contracts.cases import Case, each_case, each_of, scores
from dask_odm import InputError, OneClassODM, Store, load_model, open_store
from dask_odm.estimators.registry import ESTIMATORS
from small_problems import blobs
from small_tables import made_table


def dataset(X: np.ndarray, y: np.ndarray) -> xr.Dataset:
    return xr.Dataset({"X": (("sample", "feature"), X), "y": (("sample", "target")[: y.ndim], y)})


def series(y: np.ndarray) -> pd.Series | pd.DataFrame:
    return pd.Series(y) if y.ndim == 1 else pd.DataFrame(y)


def arrays(X: np.ndarray, y: np.ndarray, *, turned: bool = False) -> tuple[xr.DataArray, xr.DataArray]:
    found = dataset(X, y).chunk(sample=60)
    return found["X"].T if turned else found["X"], found["y"]


def unknown(array: np.ndarray) -> da.Array:
    """The rows in chunks whose sizes Dask does not know."""
    lazy = da.from_array(array, chunks=(70, *array.shape[1:]))
    return lazy[da.ones(len(lazy), chunks=70) > 0]


FORMS = {
    "lists": lambda X, y, path: (X.tolist(), y.tolist()),
    "columns one after the other": lambda X, y, path: (np.asfortranarray(X), y),
    "float32": lambda X, y, path: (X.astype(np.float32), y),
    "csr": lambda X, y, path: (csr_array(X), y),
    "pandas": lambda X, y, path: (pd.DataFrame(X), series(y)),
    "dask array": lambda X, y, path: (da.from_array(X, chunks=(70, 2)), da.from_array(y, chunks=(30, 1)[: y.ndim])),
    "dask array and labels in memory": lambda X, y, path: (da.from_array(X, chunks=31), y),
    "unknown chunks": lambda X, y, path: (unknown(X), unknown(y)),
    "dask frame": lambda X, y, path: (
        dd.from_pandas(pd.DataFrame(X), npartitions=3),
        dd.from_pandas(series(y), npartitions=3),
    ),
    "Dataset": lambda X, y, path: (dataset(X, y),),
    "turned Dataset": lambda X, y, path: (dataset(X, y).transpose("feature", "sample", ...),),
    "DataArray": lambda X, y, path: arrays(X, y),
    "turned DataArray": lambda X, y, path: arrays(X, y, turned=True),
    "path": lambda X, y, path: (path,),
    "open store": lambda X, y, path: (Store.open(path),),
    "store as Dataset": lambda X, y, path: (open_store(path),),
    "slice of a store": lambda X, y, path: (open_store(path).isel(sample=slice(0, len(y), 1)),),
}
IN_MEMORY = {"lists", "columns one after the other", "float32", "csr", "pandas"}
each_form = pytest.mark.parametrize("form", FORMS)


@pytest.fixture
def given(path_of) -> Callable[[Case, str], tuple[Any, ...]]:
    """``given(case, form)``: the rows of a case in a form, as `fit` takes them."""

    def make(case: Case, form: str) -> tuple[Any, ...]:
        if form == "csr" and not case.make().__sklearn_tags__().input_tags.sparse:
            pytest.skip(f"{case.name} takes dense rows only, as its tags say")
        if form == "csr":
            case.require("sparse")
        return FORMS[form](*case.rows(), path_of(case))

    return make


def learns_the_same(case: Case, data: tuple[Any, ...], expected: Any, *, exactly: bool = True) -> None:
    """Fail unless a fit on ``data`` gives the expected model's scores and, if ``exactly``, its classes."""
    X = case.rows()[0]
    with warnings.catch_warnings():
        if not exactly:  # whether float32 has the digits that a case's tol asks for depends on the processor
            warnings.simplefilter("ignore", ConvergenceWarning)
        model = case.fit(*data)
    case.same(scores(model, X), scores(expected, X))
    if exactly and not is_regressor(model):
        np.testing.assert_array_equal(model.predict(X), expected.predict(X))


# All estimators take what a user can hand over by one route: classes, values and the labels of outliers.
@each_form
@each_of("newton, pairs", "ridge", "one class, linear", "several targets, exact", "several labels, linear")
def test_every_form_gives_the_same_model(case, form, model_of, given):
    learns_the_same(case, given(case, form), model_of(case), exactly=form != "float32")


@each_case
def test_every_solver_takes_float32(case, model_of, given):
    learns_the_same(case, given(case, "float32"), model_of(case), exactly=False)


def matrix(X: np.ndarray) -> csr_matrix:
    """Rows as LIBSVM readers give them, with row bounds and columns of 64 bits."""
    found = csr_matrix(X)
    found.indices, found.indptr = found.indices.astype(np.int64), found.indptr.astype(np.int64)
    return found


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # float32 has no gap of 1e-8
@pytest.mark.parametrize(("empty", "dtype"), [(0, "float32"), (30, "float64")], ids=["full", "thin"])
@each_case
def test_every_solver_learns_from_and_predicts_sparse_matrices_of_any_density(case, empty, dtype):
    case.require("sparse")
    if not case.make().__sklearn_tags__().input_tags.sparse:
        pytest.skip(f"{case.name} takes dense rows only, as its tags say")
    X, y = case.rows()
    X = np.hstack([X[:400], np.zeros((len(X[:400]), empty))]).astype(dtype)
    y = y[:400]
    expected = case.fit(X, y)
    model = case.fit(matrix(X), y)
    case.same(scores(model, matrix(X)), scores(expected, X))
    if dtype == "float64":
        lazy = da.from_array(X, chunks=(150, -1)).map_blocks(matrix)
        case.same(np.asarray(scores(model, lazy)), scores(model, X))
        learned = case.fit(lazy, da.from_array(y, chunks=150))
        case.same(scores(learned, X), scores(expected, X))


@each_case
def test_rows_that_say_nothing_have_a_model_that_predicts_and_is_saved(case, tmp_path):
    """Equal rows of all classes alike, of which some models are zero."""
    y = case.rows()[1]
    _, first = np.unique(y, axis=0, return_index=True)
    alike = np.arange(60) % len(first)
    y = np.zeros((60, *y.shape[1:])) if is_regressor(case.make()) else y[first[alike]]
    for X in (np.zeros((60, 3)), np.ones((60, 3))):
        with warnings.catch_warnings(action="ignore"):
            model = case.fit(X, y)
        assert model.predict(X).shape == y.shape
        assert np.isfinite(scores(model, X)).all()
        model.save(tmp_path / "m.zarr", overwrite=True)
        np.testing.assert_array_equal(scores(load_model(tmp_path / "m.zarr"), X), scores(model, X))


@pytest.mark.parametrize("left", [2, 3])
@each_case
def test_a_class_whose_rows_have_no_weight_is_known_and_never_predicted(case, left, tmp_path):
    if is_regressor(case.make()) or case.kind is OneClassODM:
        pytest.skip(f"{case.name} tells no classes apart")
    X, y = blobs(120, 3, seed=7)
    codes = np.where(y > 0, np.arange(120) % 2 + 2, 0)  # and code 1, without weight
    X = X + 4.0 * np.eye(4)[codes][:, 1:]
    unlearned = np.arange(120) % 6 == 5
    codes[unlearned] = 1
    kept = ~unlearned if left == 3 else ~unlearned & (codes < 3)
    labels = np.array(["a", "b", "c", "d"])[codes]
    model = case.fit(X, labels, kept.astype(float))
    assert model.classes_.tolist() == ["a", "b", "c", "d"]
    found = np.asarray(model.decision_function(3.0 * X))
    assert found.shape == (120, 4)
    predicted = model.predict(3.0 * X)
    np.testing.assert_array_equal(model.classes_[found.argmax(axis=1)], predicted)
    assert set(predicted) <= set(labels[kept])
    alone = np.asarray(case.fit(X[kept], labels[kept]).decision_function(3.0 * X))
    learned = np.isin(model.classes_, labels[kept])
    case.same(found[:, learned], np.stack([-alone, alone], axis=1) if left == 2 else alone)
    model.save(tmp_path / "m.zarr")
    np.testing.assert_array_equal(load_model(tmp_path / "m.zarr").decision_function(3.0 * X), found)


class TooLazyError(Exception):
    pass


def never(*_args: Any, **_options: Any) -> None:
    raise TooLazyError("something was computed")


# One of each kind of model.
@each_form
@each_of(
    "exact", "cells, many", "landmark, many", "newton, pairs", "nearest point", "centroids", "ridge", "kernel ridge",
    "mixing", "one class", "several targets", "several labels",
)  # fmt: skip
def test_predictions_are_of_the_form_and_lazy(case, form, model_of, given):
    X = given(case, form)[0]
    model = model_of(case)
    with dask.config.set(scheduler=never):
        lazy = model.predict(X)
    if form in IN_MEMORY:
        assert type(lazy) is np.ndarray
    else:
        assert type(lazy) is (xr.DataArray if isinstance(X, xr.Dataset | xr.DataArray) else da.Array)
        if isinstance(lazy, da.Array) or form in ("DataArray", "turned DataArray", "store as Dataset"):
            with dask.config.set(scheduler=never), pytest.raises(TooLazyError):
                lazy.compute()
    if form not in ("dask frame", "unknown chunks"):  # whose lengths Dask does not know
        assert lazy.shape == case.rows()[1].shape
    expected = model.predict(case.rows()[0])
    if is_regressor(model):  # values in the rows' type, summed as their form has it
        assert lazy.dtype == (np.float32 if form == "float32" else np.float64)
        case.same(np.asarray(lazy), expected)
        return
    assert lazy.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(lazy), expected)


@each_of("exact", "newton, pairs", "ridge", "one class", "several targets", "several labels")
def test_a_score_of_every_form_is_that_of_memory(case, model_of, given):
    X, y = case.rows()
    expected = model_of(case).score(X, y)
    for form in ("dask array", "Dataset", "path"):
        assert model_of(case).score(*given(case, form)) == pytest.approx(expected, rel=1e-12), form


@pytest.mark.usefixtures("over_passes")
@each_case
def test_a_store_over_passes_gives_the_model_of_memory(case, model_of, path_of, tmp_path):
    case.require("passes")
    X = case.rows()[0]
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        model = case.fit(path_of(case))
    case.same(scores(model, X), scores(model_of(case), X))
    assert list(tmp_path.iterdir()) == [], "the scratch folder is left empty"


@each_case
def test_a_weight_of_two_is_a_repeated_row_and_of_zero_none(case):
    case.require("weights")
    X, y = case.rows()
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    weighted = case.fit(X, y, weight.astype(float))
    repeated = case.fit(np.repeat(X, weight, axis=0), np.repeat(y, weight, axis=0))
    case.same(scores(weighted, X), scores(repeated, X))


@each_case
def test_labels_that_are_no_text_are_refused(case):
    case.require("targets")
    if is_regressor(case.make()):
        pytest.skip("it learns from numbers")
    X = case.rows()[0]
    with pytest.raises(InputError, match=r"^y, row 1: the label '\\ud800' has half of a surrogate pair"):
        case.fit(X[:20], np.where(np.arange(20) % 2, "\ud800", "b"))
    labels = ["b", "b\0"] * 10  # NumPy's strings of fixed width are equal
    for y in (labels, np.array(labels, dtype=object), pd.Series(labels)):
        with pytest.raises(InputError, match=r"^y, row 1: the label 'b\\x00' ends in a NUL character"):
            case.fit(X[:20], y)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name in dask_odm.__all__])
def test_a_table_of_words_dates_and_gaps_is_learned_from_every_form(name, tmp_path):
    def made() -> Any:
        kind = getattr(dask_odm, name)
        return kind(**{each: 0 for each in signature(kind).parameters if each == "random_state"})

    table = made_table(60)
    X, y = table.drop(columns="kind"), table["kind"]
    new = made_table(20, seed=1).drop(columns="kind")
    new.loc[0, "job"] = "astronaut"
    is_real = is_regressor(made())
    labels = [] if name == "OneClassODM" else [pd.Series(np.arange(60) + 0.5)] if is_real else [y]
    model = made().fit(X, *labels)
    assert model.n_features_in_ == 4
    assert len(model.get_feature_names_out()) == model._model.features == 12
    model.save(tmp_path / "model.zarr")
    rows, of = ((X, *labels), {"target": "real"} if is_real else {}) if labels else (X, {"label": False})
    stored = dask_odm.ingest(rows, tmp_path / "a.zarr", **of)
    parts = [dd.from_pandas(each, npartitions=3) for each in (X, *labels)]
    expected = model.predict(new)
    for other in (load_model(tmp_path / "model.zarr"), made().fit(stored), made().fit(*parts)):
        assert other.column_recipe_ == model.column_recipe_
        found = other.predict(new.iloc[:, ::-1].assign(extra="x"))
        if is_real:
            np.testing.assert_allclose(found, expected, rtol=1e-4)
        else:
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(other.predict(dd.from_pandas(new, npartitions=2)), found)


def test_a_ridge_is_updated_by_further_rows_of_a_table():
    table = made_table(80)
    X, y = table.drop(columns="kind"), (table["kind"] == "yes") * 1.0
    model = dask_odm.MDDRidge(lam=1.0).fit(X[:40], y[:40])
    recipe = model.column_recipe_
    for start in (40, 60):
        model.update(X[start : start + 20], y[start : start + 20])
    assert model.column_recipe_ == recipe
    assert r2_score(y, model.predict(X)) > 0.2
