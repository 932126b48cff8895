"""Several targets of a row at once, beside one machine each."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.multioutput import MultiOutputRegressor

from dask_odm import InputError, ODMRegressor, load_model
from dask_odm.solvers import Landmark

TIGHT = {"tol": 1e-11, "random_state": 0}
WAYS = {
    "exact": {"solver": "exact", "gamma": 0.3},
    "band": {"solver": "exact", "gamma": 0.3, "theta": 0.1, "upsilon": 3.0},
    "landmark": {"solver": Landmark(80, choice="uniform"), "gamma": 0.3, "theta": 0.1},
    "linear": {"kernel": "linear", "upsilon": 0.4},
}
each_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    return X, np.sin(X @ rng.normal(size=(4, 3))) * [1.0, 10.0, 1e3] + [5.0, 0.0, -3.0] + 0.2 * rng.normal(
        size=(400, 3)
    )


@each_way
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_several_targets_are_one_machine_each(rows, way, dtype):
    X, Y = rows[0].astype(dtype), rows[1]
    weight = np.random.default_rng(1).integers(0, 3, len(X)).astype(float)
    model = ODMRegressor(**WAYS[way], **TIGHT).fit(X, Y, weight)
    alone = MultiOutputRegressor(ODMRegressor(**WAYS[way], **TIGHT)).fit(X, Y, sample_weight=weight)
    scale = Y.std(axis=0) * (1e-6 if dtype == "float64" else 1e-4)
    np.testing.assert_allclose((model.predict(X) - alone.predict(X)) / scale, 0.0, atol=1.0)
    gaps = [each.dual_gap_ for each in alone.estimators_]
    assert model.dual_gap_ <= 1e-10 or np.isnan(gaps).any()
    assert model.score(X, Y) == pytest.approx(alone.score(X, Y), abs=1e-5)
    assert model.lam_ == pytest.approx(2.0 * weight.sum())


@each_way
def test_left_out_rows_and_intervals_are_those_of_one_machine_each(rows, way):
    X, Y = rows
    model = ODMRegressor(**WAYS[way], **TIGHT, loo=True).fit(X, Y)
    alone = MultiOutputRegressor(ODMRegressor(**WAYS[way], **TIGHT, loo=True)).fit(X, Y).estimators_
    assert model.loo_score_ == pytest.approx(np.mean([each.loo_score_ for each in alone]))
    assert model.loo_parameters_ == pytest.approx(sum(each.loo_parameters_ for each in alone))
    found = model.predict_interval(X, coverage=0.8)
    for j, each in enumerate(alone):
        unit = Y[:, j].std()
        np.testing.assert_allclose(model.loo_prediction_[:, j], each.loo_prediction_, atol=1e-6 * unit)
        np.testing.assert_allclose(found[:, j], each.predict_interval(X, coverage=0.8), atol=1e-6 * unit)


@each_way
def test_models_of_several_targets_are_saved(rows, way, tmp_path):
    X, Y = rows
    model = ODMRegressor(**WAYS[way], loo=True).fit(X, Y)
    model.save(tmp_path / "model.zarr")
    held = load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(held.predict(X), model.predict(X))
    np.testing.assert_array_equal(held.predict_interval(X), model.predict_interval(X))


def test_groups_are_left_out_of_several_targets(rows):
    X, Y = rows
    groups = np.arange(len(X)) % 9
    settings = {"solver": "exact", "gamma": 0.3, "loo": True, **TIGHT}
    model = ODMRegressor(**settings).fit(X, Y, groups=groups)
    alone = ODMRegressor(**settings).fit(X, Y[:, 1], groups=groups)
    np.testing.assert_allclose(model.loo_prediction_[:, 1], alone.loo_prediction_, rtol=1e-6)


def test_targets_may_be_a_frame_beside_a_table_with_words(rows):
    X, Y = rows
    table = pd.DataFrame(X[:, :2], columns=["a", "b"]).assign(word=np.where(X[:, 2] > 0, "up", "down"))
    settings = WAYS["exact"] | TIGHT
    model = ODMRegressor(**settings).fit(table, pd.DataFrame(Y, columns=["u", "v", "w"]))
    assert model.predict(table).shape == Y.shape
    np.testing.assert_allclose(model.predict(table), ODMRegressor(**settings).fit(table, Y).predict(table), rtol=1e-4)


def test_a_constant_target_is_predicted_beside_others(rows):
    X, Y = rows
    found = ODMRegressor(**WAYS["exact"]).fit(X, np.column_stack([Y[:, 0], np.full(len(X), 7.0)])).predict(X)
    np.testing.assert_allclose(found[:, 1], 7.0)


def test_intervals_of_several_targets_are_for_rows_in_memory(rows):
    import dask.array as da

    X, Y = rows
    model = ODMRegressor(**WAYS["exact"], loo=True).fit(X, Y)
    with pytest.raises(InputError, match="intervals of several targets are for rows in memory"):
        model.predict_interval(da.from_array(X, chunks=(100, 4)))
