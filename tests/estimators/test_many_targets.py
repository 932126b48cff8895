"""Several targets or labels of a row at once, beside one machine each."""

import dask.array as da
import dask.config
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.sparse import csr_array
from sklearn.metrics import average_precision_score, f1_score, mean_absolute_error, roc_auc_score
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor

from dask_odm import (
    InputError,
    MDDKernelRidge,
    MDDRidge,
    ODMClassifier,
    ODMClassifierCV,
    ODMRegressor,
    ODMRegressorCV,
    OneClassODM,
    ingest,
    load_model,
)
from dask_odm.diagnostics.evaluation import evaluate
from dask_odm.diagnostics.predictions import write_predictions
from dask_odm.solvers import Landmark
from faults.table import raises
from small_stores import store_of

TIGHT = {"tol": 1e-13, "random_state": 0}
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
    return X, np.sin(X @ rng.normal(size=(4, 3))) * [1, 10, 1e3] + [5, 0, -3] + 0.2 * rng.normal(size=(400, 3))


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
    X, Y = rows
    model = ODMRegressor(**WAYS["exact"], loo=True).fit(X, Y)
    with pytest.raises(InputError, match="intervals of several targets are for rows in memory"):
        model.predict_interval(da.from_array(X, chunks=(100, 4)))


def in_ways(way, **more):
    """A classifier that learns in one of the ways."""
    found = {name: value for name, value in WAYS[way].items() if name not in ("theta", "upsilon")}
    return ODMClassifier(**found, **TIGHT, **more)


@pytest.fixture(scope="module")
def labelled(rows):
    X, Y = rows
    return X, (np.quantile(Y, [0.5, 0.8, 0.4], axis=0).diagonal() < Y).astype(int)


@each_way
@pytest.mark.parametrize("weights", [None, "balanced"])
def test_labels_are_one_machine_each(labelled, way, weights):
    X, Y = labelled
    weight = np.random.default_rng(1).integers(0, 3, len(X)).astype(float)
    model = in_ways(way, class_weight=weights, loo=True).fit(X, Y, weight)
    alone = MultiOutputClassifier(in_ways(way, class_weight=weights, loo=True)).fit(X, Y, sample_weight=weight)
    each = alone.estimators_
    values = np.column_stack([machine.decision_function(X) for machine in each])
    np.testing.assert_allclose(model.decision_function(X), values, atol=1e-6)
    np.testing.assert_array_equal(model.predict(X), alone.predict(X))
    odds = np.column_stack([machine.predict_proba(X)[:, 1] for machine in each])
    np.testing.assert_allclose(model.predict_proba(X), odds, atol=1e-5)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(model.predict_proba(X)))
    left = np.column_stack([machine.loo_decision_function_ for machine in each])
    np.testing.assert_allclose(model.loo_decision_function_, left, atol=1e-5)
    for values, share in ((left, model.loo_score_), (model.decision_function(X), model.score(X, Y, weight))):
        assert share == pytest.approx(np.average(((values > 0) == Y).all(axis=1), weights=weight))
    assert model.dual_gap_ <= 1e-10 or np.isnan([machine.dual_gap_ for machine in each]).any()


@pytest.mark.parametrize("form", [list, csr_array, lambda Y: pd.DataFrame(Y == 1, columns=["u", "v", "w"])])
def test_labels_may_come_in_any_form(labelled, form):
    X, Y = labelled
    model = in_ways("exact").fit(X, form(Y))
    np.testing.assert_array_equal(model.predict(X), in_ways("exact").fit(X, Y).predict(X))
    assert model.score(X, form(Y)) == np.mean((model.predict(X) == Y).all(axis=1))
    assert model.classes_.tolist() == [0, 1, 2]


def test_two_labels_are_not_two_classes(labelled, tmp_path):
    X, Y = labelled
    model = in_ways("exact", loo=True).fit(X, Y[:, :2], groups=np.arange(len(X)) % 7)
    assert model.loo_group_scores_.shape == (7,)
    model.save(tmp_path / "model.zarr")
    held = load_model(tmp_path / "model.zarr")
    assert held.multilabel_
    np.testing.assert_array_equal(held.predict(X), model.predict(X))
    np.testing.assert_array_equal(held.predict_proba(X), model.predict_proba(X))
    assert held.score(X, Y[:, :2]) == model.score(X, Y[:, :2])
    assert not hasattr(model.fit(X, Y[:, 0]), "multilabel_")
    assert model.predict(X).shape == (len(X),)


@pytest.mark.parametrize("weights", [None, "balanced"])
def test_a_label_of_all_rows_or_none_is_learned_beside_others(labelled, weights):
    X, Y = labelled
    Y = np.column_stack([Y[:, 0], np.zeros(len(X)), np.ones(len(X))])
    model = in_ways("exact", class_weight=weights, loo=True).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X)[:, 1:], Y[:, 1:])
    assert np.isfinite(model.predict_proba(X)).all()


def test_lazy_rows_and_cubes_have_matrices_of_labels(labelled):
    X, Y = labelled
    model = in_ways("exact", loo=True).fit(X, Y)
    lazy = da.from_array(X, chunks=(150, 4))
    np.testing.assert_array_equal(model.predict(lazy).compute(), model.predict(X))
    np.testing.assert_allclose(model.predict_proba(lazy).compute(), model.predict_proba(X))
    cube = xr.DataArray(X.reshape(20, 20, 4), dims=("y", "x", "feature"))
    found = model.predict(cube)
    assert found.dims == ("y", "x", "class")
    np.testing.assert_array_equal(found.values.reshape(-1, 3), model.predict(X))


def test_a_path_has_a_model_of_all_labels_for_each_value(labelled):
    X, Y = labelled
    found = in_ways("linear").lam_path(X, Y, lams=[1.0, 100.0])
    assert [model.lam_ for model in found] == [1.0, 100.0]
    alone = in_ways("linear").set_params(lam=1.0).fit(X, Y)
    np.testing.assert_allclose(found[0].coef_, alone.coef_, rtol=1e-6)


@pytest.mark.parametrize(("change", "y", "message"), [
    ({}, lambda Y: Y + 1, "which must be 0 or 1"),
    ({"class_weight": {0: 1.0, 1: 2.0}}, lambda Y: Y, "class_weight must be None or 'balanced'"),
    ({"solver": "cells"}, lambda Y: Y, "solver='cells' learns one target of a row, and y has 3"),
    ({"solver": "sodm"}, lambda Y: Y, "solver='sodm' learns one target of a row"),
])  # fmt: skip
def test_labels_that_cannot_be_learned_are_refused(labelled, change, y, message):
    X, Y = labelled
    with pytest.raises(InputError, match=message):
        ODMClassifier(**change).fit(X, y(Y))


def test_what_is_for_one_label_a_row_is_refused_for_several(labelled):
    X, Y = labelled
    model = in_ways("exact", loo=True).fit(X, Y)
    for ask in (lambda: model.predict_set(X), lambda: model.calibrate(X, Y)):
        with pytest.raises(InputError, match="is for one label a row"):
            ask()
    for y in (Y[:, :2], Y[:, 0]):
        with pytest.raises(InputError, match=r"y must have shape \(400, 3\)"):
            model.score(X, y)


def test_left_out_rows_are_scored_by_any_scorer(labelled, rows):
    X, Y = labelled
    weight = np.random.default_rng(1).integers(0, 3, len(X)).astype(float)
    model = in_ways("exact", loo=True).fit(X, Y, weight)
    counted = {"sample_weight": weight[weight > 0]}
    own, values = Y[weight > 0], model.loo_decision_function_[weight > 0]
    assert model.loo_score() == pytest.approx(model.loo_score_)
    assert model.loo_score(["f1_macro", "roc_auc", "average_precision"]) == pytest.approx(
        {
            "f1_macro": f1_score(own, values > 0, average="macro", **counted),
            "roc_auc": roc_auc_score(own, values, **counted),
            "average_precision": average_precision_score(own, values, **counted),
        }
    )
    two = in_ways("exact", loo=True).fit(X, Y[:, :2])
    assert two.loo_score("roc_auc") == pytest.approx(roc_auc_score(Y[:, :2], two.loo_decision_function_))
    numbers = ODMRegressor(**WAYS["exact"], loo=True).fit(*rows, weight)
    assert numbers.loo_score() == pytest.approx(numbers.loo_score_)
    expected = mean_absolute_error(rows[1][weight > 0], numbers.loo_prediction_[weight > 0], **counted)
    assert numbers.loo_score("neg_mean_absolute_error") == pytest.approx(-expected)


def test_each_label_has_a_threshold_of_its_own(labelled, tmp_path):
    X, Y = (each[::4] for each in labelled)
    Y = np.column_stack([Y, np.zeros(len(X))])
    model = in_ways("exact", loo=True).fit(X, Y)
    odds = model.predict_proba(X)
    model.tune_threshold("f1")
    for j, y in enumerate(Y.T[:3]):
        alone = in_ways("exact", loo=True).fit(X, y).tune_threshold("f1")
        assert model.threshold_[j] == pytest.approx(alone.threshold_)
        np.testing.assert_array_equal(model.predict(X)[:, j], alone.predict(X))
    assert model.threshold_[3] == 0.0, "no row has the label"
    assert model.loo_score_ == np.mean(((model.loo_decision_function_ > 0) == Y).all(axis=1))
    np.testing.assert_allclose(model.predict_proba(X), odds, atol=1e-12)
    model.save(tmp_path / "model.zarr")
    held = load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(held.threshold_, model.threshold_)
    np.testing.assert_allclose(held.predict_proba(X), odds, atol=1e-12)
    shares = held.tune_threshold(0.3, X, Y).predict(X).mean(axis=0)
    np.testing.assert_allclose(shares[:3], 0.3, atol=0.01)
    with pytest.raises(InputError, match="a threshold changes what is predicted"):
        model.tune_threshold("roc_auc")


def test_a_store_is_predicted_and_not_judged(labelled, tmp_path):
    X, Y = labelled
    model, store = in_ways("exact").fit(X, Y), store_of(tmp_path / "a.zarr", X.astype(np.float32), Y[:, 0])
    write_predictions(model, store, tmp_path / "found.csv")
    assert (tmp_path / "found.csv").read_text().splitlines()[0] == "label 0,label 1,label 2"
    with pytest.raises(InputError, match="1 labels or targets a row, but the model predicts 3"):
        evaluate(model, store)


def alone_over(store, labels):
    """The views of a store with one of its targets each."""
    return [store.of_target(i, as_label=labels) for i in range(store.targets)]


@each_way
@pytest.mark.usefixtures("over_passes")
def test_targets_of_a_store_are_one_machine_each(rows, way, tmp_path):
    X, Y = rows
    weight = np.random.default_rng(1).integers(0, 3, len(X)).astype(float)
    Y = np.where(np.arange(1200).reshape(Y.shape) % 77 == 1, np.nan, Y)  # a row without a target takes no part
    store = store_of(tmp_path / "a.zarr", X, Y, weight=weight, real=True)
    model = ODMRegressor(**WAYS[way], **TIGHT, loo=True).fit(store)
    alone = [ODMRegressor(**WAYS[way], **TIGHT, loo=True).fit(one) for one in alone_over(store, False)]
    values = np.column_stack([each.predict(X) for each in alone])
    np.testing.assert_allclose((model.predict(store).compute() - values) / np.nanstd(Y, axis=0), 0.0, atol=1e-6)
    left = np.column_stack([each.loo_prediction_ for each in alone])
    np.testing.assert_allclose(model.loo_prediction_ / np.nanstd(Y, axis=0), left / np.nanstd(Y, axis=0), atol=1e-6)
    known = ~np.isnan(Y).any(axis=1)
    assert model.score(store) == pytest.approx(model.score(X[known], Y[known], weight[known]))


@each_way
@pytest.mark.parametrize("weights", [None, "balanced"])
@pytest.mark.usefixtures("over_passes")
def test_labels_of_a_store_are_one_machine_each(labelled, way, weights, tmp_path):
    X, Y = labelled
    store = store_of(tmp_path / "a.zarr", X, Y, weight=np.arange(len(X)) % 3.0, real=True)
    model = in_ways(way, class_weight=weights).fit(store)
    alone = [in_ways(way, class_weight=weights).fit(one) for one in alone_over(store, True)]
    values = np.column_stack([each.decision_function(X) for each in alone])
    np.testing.assert_allclose(model.decision_function(store).compute(), values, atol=1e-6)
    np.testing.assert_array_equal(model.predict(store), values > 0)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(store) == pytest.approx(model.score(X, Y, np.arange(len(X)) % 3.0))


@pytest.mark.usefixtures("over_passes")
def test_ridges_and_normal_rows_take_a_store_of_several_targets(rows, tmp_path):
    X, Y = rows
    store = store_of(tmp_path / "a.zarr", X, Y, real=True)
    np.testing.assert_allclose(MDDRidge().fit(store).predict(X), MDDRidge().fit(X, Y).predict(X), rtol=1e-9)
    model = MDDKernelRidge(n_landmarks=400, random_state=0)
    np.testing.assert_allclose(model.fit(store).predict(X), model.fit(X, Y).predict(X), rtol=1e-4, atol=1e-4)
    assert OneClassODM(random_state=0).fit(store).predict(X).shape == (400,)
    with pytest.raises(InputError, match="kernel matrices of a store are for one target of a row; give n_landmarks"):
        MDDKernelRidge().fit(store)


@pytest.mark.usefixtures("over_passes")
@pytest.mark.parametrize("form", ["array", "frame", "table"])
def test_lazy_targets_of_several_columns_are_learned(rows, form):
    X, Y = rows
    names = list("abcd")
    table = pd.DataFrame(X, columns=names)
    if form == "table":
        table = table.assign(d=np.where(X[:, 3] > 0, "up", "down"))
    settings = WAYS["exact"] | TIGHT
    lazy = dd.from_pandas(table, npartitions=3), dd.from_pandas(pd.DataFrame(Y), npartitions=2)
    if form == "array":
        table, lazy = X, (da.from_array(X, chunks=(150, 2)), da.from_array(Y, chunks=(100, 2)))
    model = ODMRegressor(**settings).fit(*lazy)
    expected = ODMRegressor(**settings).fit(table, Y).predict(table)
    np.testing.assert_allclose(model.predict(table), expected, rtol=1e-3)
    assert model.predict(lazy[0]).shape[1] == 3


@pytest.mark.parametrize("limit", [100, "256MiB"])
@pytest.mark.parametrize("way", ["memory", "lazy", "turned"])
def test_a_cube_has_several_targets(rows, way, limit, tmp_path, monkeypatch):
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": limit})
    X, Y = rows[0].copy(), rows[1].copy()
    X[25, 1], Y[47, 2] = np.nan, np.nan
    kept = ~(np.isnan(X).any(axis=1) | np.isnan(Y).any(axis=1))
    cube = xr.DataArray(X.reshape(20, 20, 4), dims=("y", "x", "band"))
    targets = xr.DataArray(Y.reshape(20, 20, 3), dims=("y", "x", "target"))
    if way == "lazy":
        cube, targets = cube.chunk(y=10, x=15), targets.chunk(y=7, target=1)
    elif way == "turned":
        targets = targets.transpose("target", "x", "y")
    settings = WAYS["exact"] | TIGHT
    model, expected = ODMRegressor(**settings).fit(cube, targets), ODMRegressor(**settings).fit(X[kept], Y[kept])
    found = model.predict(cube)
    assert found.dims == ("y", "x", "target")
    np.testing.assert_allclose(np.asarray(found).reshape(-1, 3)[kept], expected.predict(X[kept]), rtol=1e-3, atol=1e-3)
    assert model.score(cube, targets) == pytest.approx(expected.score(X[kept], Y[kept]))
    held = ingest((cube, targets), tmp_path / "a.zarr")
    assert (held.rows, held.targets) == (kept.sum(), 3)
    with pytest.raises(InputError, match="per_class draws rows of each class, and y has several columns"):
        ingest((cube, targets), tmp_path / "b.zarr", per_class=3)


@pytest.mark.parametrize("limit", [100, "256MiB"])
def test_estimators_of_one_target_refuse_several(rows, limit, tmp_path, monkeypatch):
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": limit})
    X, Y = rows
    store = store_of(tmp_path / "a.zarr", X, Y, real=True)
    for estimator in (ODMRegressorCV(), ODMClassifierCV()):
        with pytest.raises(InputError, match=r"y should be a 1d array.*: learn each column by its own model"):
            estimator.fit(da.from_array(X, chunks=(100, 4)), da.from_array(Y, chunks=(100, 3)))
        raises("Several labels per row", lambda estimator=estimator: estimator.fit(store))
    with pytest.raises(InputError, match="which must be 0 or 1"):
        ODMClassifier().fit(store)


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_landmarks_of_all_machines_are_certified_for_each(rows, form):
    X, Y = rows
    solver = Landmark(200, choice="uniform", certify=True)
    model = ODMRegressor(gamma=0.3, solver=solver, scale=None, **TIGHT).fit(form(X), Y)
    alone = [ODMRegressor(gamma=0.3, solver=solver, scale=None, **TIGHT).fit(form(X), y) for y in Y.T]
    assert model.dual_gap_ == pytest.approx(max(each.dual_gap_ for each in alone), rel=1e-4)
    values = np.column_stack([each.predict(X) for each in alone])
    np.testing.assert_allclose((model.predict(X) - values) / Y.std(axis=0), 0.0, atol=1e-6)


def test_certificates_of_machines_over_landmarks_are_of_the_models_as_they_predict(labelled):
    X, Y = labelled[0].astype(np.float32), labelled[1]
    solver = Landmark(200, choice="uniform", certify=True)
    model = ODMClassifier(solver=solver, random_state=0).fit(X, Y)
    alone = [ODMClassifier(solver=solver, random_state=0).fit(X, y) for y in Y.T]
    assert model.dual_gap_ == pytest.approx(max(each.dual_gap_ for each in alone), rel=1e-2)


def test_rows_of_fewer_values_than_landmarks_are_learned(rows):
    X, Y = np.tile(rows[0][:40], (3, 1)), rows[1][:120]
    model = ODMRegressor(solver=Landmark(120), **TIGHT).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), ODMRegressor(solver="exact", **TIGHT).fit(X, Y).predict(X), rtol=1e-4)


@pytest.mark.usefixtures("over_passes")
@pytest.mark.parametrize("stored", [False, True])
def test_machines_over_landmarks_share_their_passes(rows, stored, tmp_path):
    X, Y = rows
    settings = {"gamma": 0.3, "solver": Landmark(80, choice="uniform"), "random_state": 0}
    passes = []
    for i, several in enumerate((Y, *(np.column_stack([y, y]) for y in Y.T))):
        data = (store_of(tmp_path / f"{i}.zarr", X, several, real=True),) if stored else (X, several)
        passes.append(ODMRegressor(**settings).fit(*data).history_[-1]["passes"])
    assert passes[0] <= max(passes[1:]) + 2 < sum(passes[1:])


def test_a_solution_of_landmarks_is_found_again_from_a_checkpoint_or_the_last_fit(rows, tmp_path):
    X, Y = rows
    settings = {"gamma": 0.3, "solver": Landmark(80, choice="uniform"), "random_state": 0, "tol": 1e-8}
    model = ODMRegressor(**settings, checkpoint=tmp_path / "state.zarr").fit(X, Y)
    again = ODMRegressor(**settings, checkpoint=tmp_path / "state.zarr", resume=True).fit(X, Y)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    labels = (Y > 0).astype(int)
    warm = ODMClassifier(**settings, warm_start=True).fit(X, labels)
    first = len(warm.history_)
    assert len(warm.fit(X, labels).history_) < first
