"""The face of regressors: real targets in memory, lazy and in a store, held against scikit-learn's Ridge."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.sparse import csr_array
from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import check_estimator

from dask_odm import InputError, ingest, load_model, open_store
from dask_odm.estimators.registry import ESTIMATORS, register
from estimators.toy_ridge import ToyRidge


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 4))
    return X, X @ [1.0, -2.0, 0.5, 0.0] + 0.1 * rng.normal(size=300)


@pytest.fixture(scope="module")
def expected(rows):
    return Ridge(fit_intercept=False).fit(*rows)


@pytest.fixture(params=[0, "256MiB"], ids=["by passes", "read into memory"])
def limit(request):
    with dask.config.set({"dask_odm.read-into-memory": request.param}):
        yield


FORMS = {
    "numpy": lambda X, y: (X, y),
    "csr": lambda X, y: (csr_array(X), y),
    "pandas": lambda X, y: (pd.DataFrame(X), pd.Series(y)),
    "dask": lambda X, y: (da.from_array(X, chunks=(70, 4)), da.from_array(y, chunks=70)),
    "xarray": lambda X, y: (xr.DataArray(X, dims=("sample", "feature")), xr.DataArray(y, dims="sample")),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("limit")
def test_every_form_gives_the_ridge_of_scikit_learn(rows, expected, form):
    X, y = FORMS[form](*rows)
    model = ToyRidge().fit(X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(model.predict(X)), expected.predict(rows[0]), rtol=1e-7, atol=1e-9)
    assert model.score(X, y) == pytest.approx(expected.score(*rows), rel=1e-9)
    assert not hasattr(model, "classes_")


def test_weights_count_as_rows(rows):
    weight = np.arange(300) % 3.0
    model = ToyRidge().fit(*rows, sample_weight=weight)
    np.testing.assert_allclose(
        model.coef_, Ridge(fit_intercept=False).fit(*rows, sample_weight=weight).coef_, rtol=1e-9
    )
    assert model.score(*rows, sample_weight=weight) == pytest.approx(
        Ridge(fit_intercept=False).fit(*rows, sample_weight=weight).score(*rows, sample_weight=weight), rel=1e-9
    )


@pytest.mark.usefixtures("limit")
def test_a_store_of_real_targets(rows, expected, tmp_path, monkeypatch):
    monkeypatch.setitem(ESTIMATORS, "ToyRidge", None)  # put back afterwards
    register("ToyRidge", "estimators.toy_ridge", "toy-ridge")
    path = tmp_path / "a.zarr"
    ingest(rows, path, dtype="float64", chunk_rows=64, target="real")
    model = ToyRidge().fit(open_store(path))
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)
    predicted = model.predict(path)
    assert isinstance(predicted, da.Array)
    np.testing.assert_allclose(predicted.compute(), expected.predict(rows[0]), rtol=1e-7, atol=1e-9)
    assert model.score(path) == pytest.approx(expected.score(*rows), rel=1e-9)
    model.save(tmp_path / "m.zarr")
    np.testing.assert_array_equal(load_model(tmp_path / "m.zarr").predict(rows[0]), model.predict(rows[0]))


def test_labels_are_no_targets_and_targets_no_labels(rows, tmp_path):
    ingest((rows[0], (rows[1] > 0).astype(int)), tmp_path / "classes.zarr")
    with pytest.raises(InputError, match=r"holds the labels of classes.*target='real'"):
        ToyRidge().fit(tmp_path / "classes.zarr")
    with pytest.raises(InputError, match="y must be numbers"):
        ToyRidge().fit(rows[0], np.where(rows[1] > 0, "yes", "no"))
    with pytest.raises(InputError, match="score needs targets"):
        ToyRidge().fit(*rows).score(rows[0])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")  # checks that need other libraries
def test_scikit_learn_takes_it_as_a_regressor():
    check_estimator(ToyRidge())
