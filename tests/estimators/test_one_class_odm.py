"""One class: beside kernel ridge on targets of 1, refits, the one-class SVM, and rows that were not learned from."""

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from dask_odm import OneClassODM
from dask_odm.solvers import Exact, Landmark
from small_stores import store_of

SQUARES = {"upsilon": 1.0, "theta": 0.0, "tol": 1e-10, "scale": None}  # the loss is (1 - f)^2
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((300, 3))
FRESH = RNG.standard_normal((20_000, 3))


def test_without_a_band_it_is_ridge_on_targets_of_one():
    ones = np.ones(len(ROWS))
    model = OneClassODM(gamma=0.5, lam=300.0, **SQUARES).fit(ROWS)
    expected = KernelRidge(alpha=1.0, kernel="rbf", gamma=0.5).fit(ROWS, ones).predict(FRESH)
    np.testing.assert_allclose(model.score_samples(FRESH), expected, atol=1e-5)
    linear = OneClassODM(kernel="linear", lam=300.0, **SQUARES).fit(ROWS + 2.0)
    expected = Ridge(alpha=1.0, fit_intercept=False).fit(ROWS + 2.0, ones).predict(FRESH)
    np.testing.assert_allclose(linear.score_samples(FRESH), expected, atol=1e-6)


@pytest.mark.parametrize("solver", [Exact(), Landmark(300)])
def test_left_out_values_are_those_of_refits(solver):
    model = OneClassODM(gamma=0.5, lam=3000.0, scale=None, tol=1e-10, solver=solver, random_state=0).fit(ROWS)
    rows = np.arange(0, len(ROWS), 6)
    again = [  # lam / rows is the same
        OneClassODM(gamma=0.5, lam=2990.0, scale=None, tol=1e-10)
        .fit(np.delete(ROWS, i, axis=0))
        .score_samples(ROWS[[i]])[0]
        for i in rows
    ]
    errors = np.abs(model.loo_decision_function_[rows] + model.offset_ - again)
    assert errors.mean() < 0.01
    assert np.median(errors) < 1e-4, "exact where leaving a row out moves no other across the band"


@pytest.mark.parametrize("gamma", [0.1, 2.0])
@pytest.mark.parametrize("nu", [0.05, 0.3])
def test_the_rate_of_false_alarms_holds_for_narrow_kernels_too(nu, gamma):
    model = OneClassODM(nu, gamma=gamma, random_state=0).fit(ROWS)
    assert np.mean(model.loo_decision_function_ < 0) == pytest.approx(nu, abs=1.0 / len(ROWS))
    assert np.mean(model.predict(FRESH) == -1) == pytest.approx(nu, abs=3.0 * np.sqrt(nu * (1 - nu) / len(ROWS)))


def known_and_others():
    X, y = load_breast_cancer(return_X_y=True)
    yield X[y == 1], X[y == 0]
    X, y = load_digits(return_X_y=True)
    yield from ((X[y == digit], X[y != digit]) for digit in (0, 1, 8))


def test_it_finds_outliers_as_well_as_the_one_class_svm():
    for own, others in known_and_others():
        learned, fresh = train_test_split(own, test_size=0.4, random_state=0)
        scaling = StandardScaler().fit(learned)
        learned, rows = scaling.transform(learned), scaling.transform(np.concatenate([fresh, others]))
        inside = np.arange(len(rows)) < len(fresh)
        areas = [
            roc_auc_score(inside, model.fit(learned).decision_function(rows))
            for model in (OneClassODM(), OneClassSVM(nu=0.1))
        ]
        assert areas[0] > areas[1] - 0.01


def test_stores_with_labels_and_without_and_lazy_rows_make_the_same_model(tmp_path):
    labels = np.where(np.arange(len(ROWS)) % 3 == 0, "a", "b")
    stores = [store_of(tmp_path / f"{i}.zarr", ROWS, y, chunk_rows=70) for i, y in enumerate((None, labels))]
    made = OneClassODM(gamma=0.5, solver=Landmark(100), random_state=0)
    expected = made.fit(ROWS).decision_function(FRESH)
    lazy = da.from_array(ROWS, chunks=(90, 3))
    for rows in (*stores, lazy):
        np.testing.assert_allclose(made.fit(rows).decision_function(FRESH), expected, atol=1e-3)
        np.testing.assert_array_equal(made.classes_, [-1, 1])
    assert len(made.loo_decision_function_) == len(ROWS)
    with dask.config.set({"dask_odm.read-into-memory": 0}):  # so that it is written to a store
        numbers = da.from_array(np.arange(300.0) / 7, chunks=90)
        np.testing.assert_allclose(made.fit(lazy, numbers).decision_function(FRESH), expected, atol=1e-3)


def test_maps_name_no_labels_that_were_not_learned():
    cube = xr.DataArray(ROWS.reshape(15, 20, 3), dims=("y", "x", "band"))
    forest = xr.DataArray(np.ones((15, 20)), dims=("y", "x"), attrs={"flag_values": [1.0], "flag_meanings": "forest"})
    model = OneClassODM(gamma=0.5).fit(cube, forest)
    assert "forest" not in str(model.predict(cube).attrs)
    scores = model.score_samples(cube)
    assert scores.name == "score_samples"
    np.testing.assert_allclose(scores.values.ravel(), model.score_samples(ROWS))


def test_leaving_out_warns_where_it_is_too_hopeful():
    with pytest.warns(UserWarning, match="too hopeful"):
        OneClassODM(gamma=50.0, lam=1e6).fit(ROWS)


def test_score_is_the_share_of_rows_that_are_told_apart():
    X, y = load_breast_cancer(return_X_y=True)
    model = OneClassODM(0.05, scale="standard").fit(X[y == 1])
    labels = np.where(y == 1, 1, -1)
    assert model.score(X, labels) == pytest.approx(np.mean(model.predict(X) == labels))


def test_defaults_suit_rows_of_unlike_columns():
    far = ROWS + 5.0
    linear = OneClassODM(kernel="linear").fit(far)
    assert linear.scale_ is None, "a shift of the rows to 0 would take them outside"
    assert (linear.predict(far) == 1).mean() > 0.85
    units = 10.0 ** np.array([-3.0, 0.0, 3.0])
    model = OneClassODM(random_state=0).fit(ROWS * units)
    assert (model.lam_, model.scale_) == (600.0, "standard")
    expected = OneClassODM(lam=600.0, scale="standard", random_state=0).fit(ROWS)
    np.testing.assert_allclose(model.decision_function(FRESH * units), expected.decision_function(FRESH), atol=1e-6)
