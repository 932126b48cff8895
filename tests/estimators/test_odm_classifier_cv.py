"""The search: what it finds and records, resuming, folds, stores, many classes, and the command."""

from dataclasses import replace

import dask
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GroupKFold, StratifiedKFold

from cli.running import run
from dask_odm import InputError, MemoryLimitError, ODMClassifier, ODMClassifierCV, StoreError, load_model
from dask_odm.data.rows.targets import drawn_rows, folds_of
from dask_odm.datasets import make_chessboard
from dask_odm.estimators.search import recipe as search_recipe
from dask_odm.estimators.search.search_fit import splits_of
from dask_odm.events import Progress
from dask_odm.learning.training.recipe import Choice
from dask_odm.methods import recipes
from dask_odm.methods.search import samples as search_samples
from dask_odm.methods.search import trials
from dask_odm.methods.search.trials import Splits, TrialRows
from dask_odm.solvers import Cells, Landmark
from small_stores import store_of
from stopping import StoppedError, stop_at

GRID = {"gammas": [0.1, 1.0, 10.0], "lams": [100.0, 1e3], "upsilons": [0.2], "thetas": [0.1, 0.3]}


def rings(n=300, seed=0):
    """Two noisy rings: γ matters."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    angle, radius = rng.uniform(0, 2 * np.pi, n), 1.0 + y + 0.25 * rng.standard_normal(n)
    return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)]), y


X, Y = rings()
NOISY = np.hstack([X, np.random.default_rng(5).standard_normal((300, 3))]), Y


def search_of(**settings):
    return ODMClassifierCV(**{"kernel": "rbf", "scale": "minmax", "random_state": 0, **GRID, **settings})


def without_clock(results):
    return {name: value for name, value in results.items() if not name.endswith("time")}


@pytest.fixture(scope="module")
def model():
    return search_of().fit(X, Y)


def test_the_model_is_that_of_the_settings_found(model):
    plain = ODMClassifier(scale="minmax", random_state=0, **model.best_params_).fit(X, Y)
    np.testing.assert_array_equal(model.decision_function(X), plain.decision_function(X))
    assert model.score(*rings(2000, seed=1)) > 0.95
    assert model.search_seconds_["taken"] > model.cv_results_["mean_fit_time"].sum()
    assert model.search_seconds_["expected"] > 0.0


@pytest.mark.slow  # of too many rows for the whole kernel matrix
def test_a_search_goes_on_in_cells_where_landmarks_find_nothing():
    rows, y = make_chessboard(24_000, 5, n_squares=30)
    view = {"kernel": "rbf", "scale": "minmax", "random_state": 0}
    found = ODMClassifierCV(**view).fit(rows, y)
    assert found.history_[0]["solver"] == "cells"
    assert found.history_[0]["why"].endswith("and landmarks find next to nothing")
    asked = ODMClassifierCV(solver="cells", **view).fit(rows, y)
    assert found.best_params_ == {"kernel": "rbf", "scale": "minmax", **asked.best_params_}
    fresh, labels = make_chessboard(2000, 5, n_squares=30, start=24_000)
    np.testing.assert_array_equal(found.decision_function(fresh), asked.decision_function(fresh))
    assert found.score(fresh, labels) > 0.75


def test_results_are_as_scikit_learn_has_them(model):
    results = model.cv_results_
    count = len(results["params"])
    assert {len(column) for column in results.values()} == {count}
    assert sorted(results["rank_test_score"]) == list(range(1, count + 1))
    assert results["rank_test_score"][model.best_index_] == 1
    assert results["params"][model.best_index_] == model.best_params_
    assert results["mean_test_score"][model.best_index_] == model.best_score_
    assert set(results["iter"]) == {0, 1, 3}
    assert set(results["param_gamma"]) <= {0.1, 1.0, 10.0}
    np.testing.assert_allclose(results["param_lam"][:2], [100.0, 1e3])
    with pytest.raises(AttributeError, match="the search itself is the fitted model"):
        _ = model.best_estimator_


@pytest.mark.parametrize("scale", ["minmax", "standard"])
def test_folds_of_a_linear_kernel_see_scaled_rows(scale):
    """A scaling undoes the units and the origin of features."""
    Z, z = NOISY[0], NOISY[0][:, 2] > 0.3
    scores = [
        search_of(kernel="linear", cv=3, scale=scale).fit(rows, z).cv_results_["mean_test_score"]
        for rows in (Z, 50.0 * Z + 1e3)
    ]
    assert min(scores[0]) > 0.9
    np.testing.assert_allclose(scores[1], scores[0], atol=0.01)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_a_trial_says_what_a_fit_says(kernel):
    """With all rows, and each a landmark, trial and fit are the same problem; solved to other gaps."""
    few = X[:100]
    labels = few[:, 0] > 0.3 if kernel == "linear" else Y[:100]
    model = search_of(kernel=kernel).fit(few, labels)
    for params, score in zip(model.cv_results_["params"], model.cv_results_["mean_test_score"], strict=True):
        fit = ODMClassifier(kernel, scale="minmax", random_state=0, loo=True, **params).fit(few, labels)
        assert score == pytest.approx(fit.loo_score_, abs=0.031)


def test_folds_are_those_of_refits():
    model = search_of(cv=3, gammas=[1.0], lams=[100.0], thetas=[0.3]).fit(X[:100], Y[:100])
    folds = folds_of(np.arange(100), 3, np.random.RandomState(0).randint(2**31 - 1))
    for k in range(3):
        inside = folds == k
        plain = ODMClassifier(gamma=1.0, lam=100.0 * (~inside).mean(), theta=0.3, scale=None)
        low, high = X[:100].min(axis=0), X[:100].max(axis=0)
        scaled = (X[:100] - low) / (high - low)
        expected = plain.fit(scaled[~inside], Y[:100][~inside]).score(scaled[inside], Y[:100][inside])
        assert model.cv_results_[f"split{k}_test_score"][0] == pytest.approx(expected, abs=0.031)
    part = search_of(cv=0.3).fit(X, Y)
    assert "split0_test_score" in part.cv_results_
    assert "split1_test_score" not in part.cv_results_


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_share_is_that_share_of_every_sample(share):
    numbers = np.arange(40_000)
    for count in (2000, 8000, 40_000):
        inside, outside = Splits(share, 3).parts(numbers[drawn_rows(numbers, count, 3)], 0)
        assert (inside ^ outside).all()
        assert outside.mean() == pytest.approx(share, abs=0.04)


def test_splits_may_be_masks():
    inside = np.arange(9) % 3 > 0
    expected = ((1, 2, 4, 5, 7, 8), (0, 3, 6))
    assert splits_of([(inside, ~inside)], None) == (expected,)
    assert splits_of([tuple(map(np.flatnonzero, (inside, ~inside)))], None) == (expected,)


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_splits_may_be_made_by_a_splitter(stored, tmp_path):
    few, labels, weight = X[:90], np.array(["a", "b", "c"])[np.arange(90) % 3], np.arange(90) % 10 + 0.0
    splitter, settings = StratifiedKFold(3, shuffle=True, random_state=1), {"gammas": [1.0, 10.0], "lams": [100.0]}
    if stored:
        rows, taking_part = (store_of(tmp_path / "rows.zarr", few, labels),), np.arange(90)
        weight = None
    else:
        rows, taking_part = (few, labels), np.flatnonzero(weight)  # rows of weight 0 take no part
    pairs = [
        (taking_part[inside], taking_part[outside])
        for inside, outside in splitter.split(taking_part, labels[taking_part])
    ]
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        made = search_of(cv=splitter, **settings).fit(*rows, sample_weight=weight)
    given = search_of(cv=pairs, **settings).fit(*rows, sample_weight=weight)
    np.testing.assert_array_equal(made.cv_results_["mean_test_score"], given.cv_results_["mean_test_score"])
    made.save(tmp_path / "model.zarr")
    assert load_model(tmp_path / "model.zarr").best_params_ == given.best_params_
    with pytest.raises(InputError, match="'groups' parameter should not be None"):
        search_of(cv=GroupKFold(3), **settings).fit(*rows)


def octaves(n=300, seed=0):
    """Classes by turns, each interval half as wide as the one before: a kernel without a corner is too smooth."""
    octave = np.random.default_rng(seed).uniform(0, 8, n)
    return 2.0 ** -octave[:, None], octave.astype(int) % 2


SEVERAL = {"lams": [1e3, 1e5], "upsilons": [0.2], "thetas": [0.3], "gammas": [10.0, 100.0], "scale": "minmax"}
SEVERAL["random_state"] = 0


@pytest.mark.slow
def test_the_kernel_that_suits_the_data_is_found(tmp_path):
    Z, z = octaves()
    found = ODMClassifierCV(["rbf", "linear", "laplacian"], **SEVERAL).fit(Z, z)
    alone = [ODMClassifierCV(kernel, **SEVERAL).fit(Z, z) for kernel in ("rbf", "linear", "laplacian")]
    assert found.best_params_ == {"kernel": "laplacian", **alone[2].best_params_}
    assert found.best_score_ == max(each.best_score_ for each in alone) > 0.2 + alone[0].best_score_
    plain = ODMClassifier(scale="minmax", random_state=0, **found.best_params_).fit(Z, z)
    np.testing.assert_array_equal(found.decision_function(Z), plain.decision_function(Z))
    found.save(tmp_path / "model.zarr")
    read = load_model(tmp_path / "model.zarr")
    assert (read.kernel, read.best_params_) == (["rbf", "linear", "laplacian"], found.best_params_)
    np.testing.assert_array_equal(read.predict(Z), found.predict(Z))
    results = found.cv_results_
    linear = results["param_kernel"] == "linear"
    np.testing.assert_array_equal(results["param_gamma"].mask, linear)  # which it has none of
    assert 0 < np.count_nonzero(linear) < len(linear)
    assert {"gamma" in each for each, is_linear in zip(results["params"], linear, strict=True) if is_linear} == {False}
    assert "param_kernel" not in alone[0].cv_results_


def test_kernel_and_scaling_are_chosen_unless_they_are_named():
    few = {"random_state": 0, **GRID, "lams": [100.0], "thetas": [0.3]}
    tried = {
        budget: ODMClassifierCV(budget=budget, **few).fit(X, Y).cv_results_
        for budget in ("fast", "default", "thorough")
    }
    assert [len(each["params"]) for each in tried.values()] == sorted({len(each["params"]) for each in tried.values()})
    views = {(each["kernel"], each["scale"]) for each in tried["default"]["params"]}
    assert views == {
        ("rbf", "minmax"), ("rbf", "standard"), ("rbf", "ranks"), ("laplacian", "standard"), ("laplacian", "ranks"),
    }  # fmt: skip
    found = ODMClassifierCV(**few).fit(X, Y)
    plain = ODMClassifier(random_state=0, **found.best_params_).fit(X, Y)
    np.testing.assert_array_equal(found.decision_function(X), plain.decision_function(X))
    named = ODMClassifierCV("laplacian", scale="minmax", **few).fit(X, Y)
    assert (named._model.kernel.name, named.scale_) == ("laplacian", "minmax")
    assert not {"param_kernel", "param_scale"} & set(named.cv_results_)
    assert ODMClassifierCV(scale=None, **few).fit(X, Y).scale_ is None


def test_folds_judge_the_best_settings_of_few_rows():
    one = {"gammas": [1.0], "lams": [100.0], "thetas": [0.3]}
    found, folds = search_of(**one).fit(*NOISY), search_of(**one, cv=5).fit(*NOISY)
    sizes = np.bincount(folds_of(np.arange(300), 5, np.random.RandomState(0).randint(2**31 - 1)))
    expected = sum(folds.cv_results_[f"split{k}_test_score"][-1] * sizes[k] for k in range(5)) / 300
    assert found.cv_results_["iter"][found.best_index_] == 3
    assert found.best_score_ == pytest.approx(expected, abs=1e-9)


def test_the_best_score_on_noise_is_chance():
    """The best of many accuracies would be .05 above."""
    rng = np.random.default_rng(0)
    Z, noise = rng.standard_normal((4, 200, 5)), rng.integers(0, 2, (4, 200))
    found = [ODMClassifierCV("rbf", scale="standard", random_state=0).fit(*each) for each in zip(Z, noise, strict=True)]
    assert np.mean([each.best_score_ for each in found]) < 0.5 + 0.5 / np.sqrt(800)


def test_the_margin_of_one_of_two_classes_is_their_value():
    values, codes = np.array([0.7, -0.2, 1.4]), np.array([1, 1, 0])
    both = trials.accuracy(np.stack([-values, values], axis=1), codes, np.ones(3))
    np.testing.assert_allclose(both, trials.accuracy(values, codes, np.ones(3)))
    np.testing.assert_allclose(both, [1 / 3, -np.mean(np.log1p(np.exp(4.0 * np.array([-0.7, 0.2, 1.4]))))])


def test_the_number_of_landmarks_that_suits_the_data_is_found():
    alone = {count: search_of(solver=Landmark(count)).fit(X, Y).best_score_ for count in (3, 60)}
    found = search_of(solver=[Landmark(3), Landmark(60)]).fit(X, Y)
    assert found.best_score_ >= alone[60] > alone[3] + 0.02
    assert found.best_params_["solver"].n_landmarks == 60
    assert {solver.n_landmarks for solver in found.cv_results_["param_solver"]} == {3, 60}
    plain = ODMClassifier(scale="minmax", random_state=0, **found.best_params_).fit(X, Y)
    np.testing.assert_array_equal(found.decision_function(X), plain.decision_function(X))
    few = search_of(kernel=["linear", "rbf"], solver=(Landmark(3), Landmark(60)), lams=[1e3]).fit(X, Y).cv_results_
    np.testing.assert_array_equal(few["param_solver"].mask, few["param_kernel"] == "linear")


@pytest.mark.parametrize("more", [{}, {"kernel": ["linear", "rbf"], "solver": [Landmark(20), Landmark(60)]}], ids=str)
def test_goes_on_after_a_kill(more, model, tmp_path):
    model = search_of(**more).fit(X, Y) if more else model
    path, heard = tmp_path / "search.zarr", []
    stop = stop_at(1, lambda event: isinstance(event, Progress) and event.phase == "search" and event.done >= 6)
    with pytest.raises(StoppedError):
        search_of(checkpoint=path, callbacks=[heard.append, stop], **more).fit(X, Y)
    assert max(event.total for event in heard if isinstance(event, Progress)) > 6
    again = search_of(checkpoint=path, resume=True, **more).fit(X, Y)
    expected = without_clock(model.cv_results_)
    for name, column in without_clock(again.cv_results_).items():
        np.testing.assert_array_equal(column, expected[name], err_msg=name)
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))
    with pytest.raises(StoreError, match="is of another fit"):
        search_of(checkpoint=path, resume=True, **{**more, "thetas": [0.5]}).fit(X, Y)
    with pytest.raises(StoreError, match="is of another fit"):
        search_of(checkpoint=path, resume=True, **{**more, "kernel": ["laplacian"]}).fit(X, Y)


PRODUCT = {"gammas": [0.01, 0.03, 0.1], "lams": [4e3, 4e4], "upsilons": [0.2], "thetas": [0.3], "scale": "standard"}


def product(n, d=10, seed=0):
    """Labels of the product of two columns, among others."""
    Z = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    return Z, (Z[:, 0] * Z[:, 1] > 0).astype(int)


@pytest.fixture(scope="module")
def by_a_metric():
    return search_of(**PRODUCT).fit(*product(1000))


def test_a_metric_is_learned_where_columns_do_not_matter_alike(by_a_metric, tmp_path):
    rows, fresh = product(1000), product(2000, seed=1)
    plain = search_of(**PRODUCT, metric=None).fit(*rows)
    assert "metric" not in plain.best_params_
    assert not hasattr(plain, "feature_importances_")
    assert by_a_metric.score(*fresh) > plain.score(*fresh) + 0.05
    assert by_a_metric.feature_importances_[:2].min() > 0.3
    again = ODMClassifier(**by_a_metric.best_params_, scale="standard", random_state=0).fit(*rows)
    np.testing.assert_array_equal(again.decision_function(fresh[0]), by_a_metric.decision_function(fresh[0]))
    by_a_metric.save(tmp_path / "model.zarr")
    read = load_model(tmp_path / "model.zarr")
    assert (read.best_params_, read.metric) == (by_a_metric.best_params_, "auto")
    np.testing.assert_array_equal(read.feature_importances_, by_a_metric.feature_importances_)
    np.testing.assert_array_equal(read.decision_function(fresh[0]), by_a_metric.decision_function(fresh[0]))


def test_a_search_with_a_metric_is_the_same_over_a_store_and_after_a_kill(by_a_metric, tmp_path):
    rows, y = product(1000)
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        stored = search_of(**PRODUCT).fit(store_of(tmp_path / "rows.zarr", rows, y))
    (metric, others), (expected, of_memory) = (
        (each.pop("metric"), each) for each in (dict(stored.best_params_), dict(by_a_metric.best_params_))
    )
    np.testing.assert_allclose(metric.values, expected.values, rtol=1e-9)
    assert others == of_memory
    path, tried = tmp_path / "search.zarr", len(by_a_metric.cv_results_["params"])
    stop = stop_at(1, lambda event: isinstance(event, Progress) and event.phase == "search" and event.done > tried - 4)
    with pytest.raises(StoppedError):
        search_of(**PRODUCT, checkpoint=path, callbacks=[stop]).fit(rows, y)
    again = search_of(**PRODUCT, checkpoint=path, resume=True).fit(rows, y)
    assert again.best_params_ == by_a_metric.best_params_
    np.testing.assert_array_equal(again.decision_function(rows), by_a_metric.decision_function(rows))


@pytest.mark.parametrize("more", [{}, {"cv": 3}, {"groups": np.arange(1000)}], ids=["rows", "folds", "groups"])
def test_a_metric_is_judged_by_rows_whose_labels_it_does_not_know(more):
    """The half that learns it has a rule, the other one noise."""
    rows, y = product(1000, 4)
    seed = np.random.RandomState(0).randint(2**31 - 1)
    known = Splits(0.5, seed + 1).parts(np.arange(1000), 0)[0]
    y = np.where(known, y, np.random.default_rng(2).integers(0, 2, 1000))
    settings = {**PRODUCT, "gammas": [1.0], "lams": [4e3], "cv": more.get("cv")}
    plain, found = (search_of(**settings, metric=kind) for kind in (None, "diagonal"))
    assert plain.fit(rows, y, groups=more.get("groups")).best_score_ > 0.6
    assert found.fit(rows, y, groups=more.get("groups")).best_score_ == pytest.approx(0.5, abs=0.04)
    assert found.nested_score_ == pytest.approx(0.5, abs=0.04)


def test_columns_of_noise_do_not_fool_the_search():
    Z = np.random.default_rng(0).normal(size=(22_000, 100)).astype(np.float32)
    y = (Z[:, 0] + Z[:, 1] > 0) ^ (np.random.default_rng(1).random(22_000) < 0.2)
    found = search_of(**{**PRODUCT, "gammas": [0.003, 0.01], "lams": [800.0, 8e3]}).fit(Z[:2000], y[:2000])
    told = found.score(Z[2000:], y[2000:])
    assert "metric" in found.best_params_
    assert (found.best_score_, found.nested_score_) == pytest.approx((told, told), abs=0.015)


def test_no_metric_is_learned_of_few_rows_nor_where_it_does_not_fit_into_memory(monkeypatch):
    rows, y = product(1000)
    assert not hasattr(search_of(**PRODUCT).fit(rows[:900], y[:900]), "feature_importances_")
    assert not hasattr(search_of(**PRODUCT, budget="fast").fit(rows, y), "feature_importances_")

    def refused(*_, **__):
        raise MemoryLimitError("too little")

    monkeypatch.setattr(search_recipe, "learn_metric", refused)
    assert "metric" not in search_of(**PRODUCT).fit(rows, y).best_params_
    with pytest.raises(MemoryLimitError):
        search_of(**PRODUCT, metric="full").fit(rows, y)


def test_groups_that_fall_into_one_half_cannot_both_learn_a_metric_and_judge_it():
    with pytest.raises(InputError, match="give more groups"):
        search_of(metric="diagonal", random_state=1).fit(X, Y, groups=np.arange(300) % 3)


@pytest.mark.parametrize("rows", [(2000, 8000), (100, 140)], ids=["sample", "whole"])
@pytest.mark.parametrize("scale", [2.0**-20, 2.0**10])
def test_what_is_found_does_not_depend_on_the_scale_of_weights(scale, rows, monkeypatch):
    monkeypatch.setattr(search_samples, "TUNING", replace(search_samples.TUNING, rows=rows))
    weight = np.random.default_rng(0).uniform(0.5, 1.5, 300)
    search = search_of(lams=None)
    found = clone(search).fit(*NOISY, weight)
    scaled = search.fit(*NOISY, scale * weight)
    assert scaled.best_params_ == found.best_params_
    assert scaled.nested_score_ == found.nested_score_
    np.testing.assert_array_equal(scaled.cv_results_["iter"], found.cv_results_["iter"])


def test_large_data_are_tried_whole(monkeypatch):
    monkeypatch.setattr(search_samples, "TUNING", replace(search_samples.TUNING, rows=(100, 140)))
    found = search_of().fit(*rings(600))
    assert set(found.cv_results_["iter"]) == {0, 1, 2}
    assert set(found.cv_results_["n_resources"]) == {100, 140, 600}
    assert not hasattr(found, "loo_score_")  # which the last fit was not asked for


def test_accuracy_decides_among_settings_that_all_rows_are_tried_with(monkeypatch):
    monkeypatch.setattr(search_samples, "TUNING", replace(search_samples.TUNING, rows=(100, 140)))
    for seed in range(5):
        results = (found := search_of(gammas=None).fit(*rings(600, seed))).cv_results_
        assert found.best_score_ == results["mean_test_score"][results["iter"] == 2].max()


def test_cells_are_tried_with_every_view_where_auto_learns_all_rows_in_cells(monkeypatch):
    monkeypatch.setattr(recipes, "AUTO", replace(recipes.AUTO, exact_work=0))
    monkeypatch.setattr(search_recipe, "suits_narrow_cells", lambda *given: "")
    cells = Choice("cells", "", recipes.RECIPES["cells"])
    monkeypatch.setattr(search_recipe, "choose_by_trials", lambda choice, data, fit: (cells, fit))
    found = search_of(kernel="auto", scale="auto").fit(*NOISY)
    results = found.cv_results_
    tried = results["iter"] == 4
    views = set(zip(results["param_kernel"], results["param_scale"], strict=True))
    assert views == set(zip(results["param_kernel"][tried], results["param_scale"][tried], strict=True))
    assert len(views) == 5
    assert len(set(results["param_lam"][tried])) == 1
    assert tried[found.best_index_]
    assert found.best_score_ == results["mean_test_score"][tried].max()
    assert set(search_of(solver="landmark").fit(*NOISY).cv_results_["iter"]) <= {0, 1, 2, 3}


@pytest.mark.parametrize("way", ["exact", "trial of cells", "in cells"])
def test_rows_count_by_their_own_weights_in_every_stage(way, monkeypatch):
    """One row of twelve is of a class that balanced weights make half of all, so that many others are taken for it."""
    rng = np.random.default_rng(0)
    y = (rng.random(5000) < 0.08).astype(int)
    rows = np.where(y[:, None] == 1, rng.uniform(-0.9, 0.9, (5000, 2)), rng.uniform(-2.0, 2.0, (5000, 2)))
    monkeypatch.setattr(search_recipe, "MANY", 600)
    if way == "trial of cells":
        monkeypatch.setattr(recipes, "AUTO", replace(recipes.AUTO, exact_work=0))
        monkeypatch.setattr(search_recipe, "suits_narrow_cells", lambda *given: "")
        cells = Choice("cells", "", recipes.RECIPES["cells"])
        monkeypatch.setattr(search_recipe, "choose_by_trials", lambda choice, data, fit: (cells, fit))
    settings = GRID | {"gammas": [1.0, 3.0], "lams": [1e4], "class_weight": "balanced", "metric": None}
    found = search_of(**settings, solver=Cells(400) if way == "in cells" else "auto").fit(rows[:1200], y[:1200])
    results = found.cv_results_
    assert set(results["iter"]) == ({0, 1, 3} if way == "in cells" else {0, 1, 3, 4})
    predicted = found.predict(rows[1200:])
    plain, balanced = np.mean(predicted == y[1200:]), balanced_accuracy_score(y[1200:], predicted)
    assert balanced > plain + 0.05, "else the test could not fail"
    for stage in set(results["iter"]) - {0}:
        assert results["mean_test_score"][results["iter"] == stage].max() == pytest.approx(plain, abs=0.025)
    assert (found.best_score_, found.nested_score_) == pytest.approx((plain, plain), abs=0.025)


def test_the_exact_solver_tries_what_few_landmarks_cannot_follow(monkeypatch, tmp_path):
    monkeypatch.setattr(search_recipe, "MANY", 600)
    tuning = replace(search_samples.TUNING, landmarks=(8, 8, 8), more_landmarks=8, folded=0)
    monkeypatch.setattr(search_samples, "TUNING", tuning)
    rng = np.random.default_rng(0)
    centres, cloud = rng.random((60, 5)), rng.integers(60, size=1100)
    rows, codes = centres[cloud] + 0.1 * rng.standard_normal((1100, 5)), cloud % 2
    settings = GRID | {"gammas": [1.0, 4.0, 16.0, 64.0, 256.0]}
    found, before = (search_of(solver=each, **settings).fit(rows[:600], codes[:600]) for each in ("auto", "exact"))
    assert found.best_params_["gamma"] > before.best_params_["gamma"]
    assert found.score(rows[600:], codes[600:]) > before.score(rows[600:], codes[600:]) + 0.1
    results = found.cv_results_
    assert set(results["iter"]) == {0, 1, 4}
    assert set(results["n_resources"][results["iter"] == 4]) == {400}
    assert found.best_score_ == results["mean_test_score"][found.best_index_]
    late = np.argmax(results["iter"] == 4) + 2
    stop = stop_at(1, lambda event: isinstance(event, Progress) and event.phase == "search" and event.done >= late)
    with pytest.raises(StoppedError):
        search_of(checkpoint=tmp_path / "state", callbacks=[stop], **settings).fit(rows[:600], codes[:600])
    again = search_of(checkpoint=tmp_path / "state", resume=True, **settings).fit(rows[:600], codes[:600])
    for name, column in without_clock(again.cv_results_).items():
        np.testing.assert_array_equal(column, results[name], err_msg=name)


def test_what_was_found_stays_unless_another_setting_gains_a_standard_error(monkeypatch):
    monkeypatch.setattr(search_recipe, "MANY", 300)
    noise = np.random.default_rng(1).standard_normal((300, 2)), np.arange(300) % 2
    before, found = (search_of(solver=solver).fit(*noise) for solver in ("exact", "auto"))
    assert max(found.cv_results_["iter"]) == 4
    assert found.best_params_ == before.best_params_


def test_few_rows_are_tried_over_more_landmarks_where_all_of_some_are_needed(monkeypatch):
    tuning = replace(search_samples.TUNING, landmarks=(8, 8, 500), folded=0)
    monkeypatch.setattr(search_samples, "TUNING", tuning)
    assert set(search_of().fit(*NOISY).cv_results_["iter"]) == {0, 1, 2}
    assert set(search_of(solver=Landmark(8)).fit(*NOISY).cv_results_["iter"]) == {0, 1}  # the last fit has no more


@pytest.mark.parametrize("lowest", [0.0, -1.0])
@pytest.mark.parametrize("scale", [None, "minmax", "standard"])
def test_trials_of_wide_sparse_rows_have_the_columns_of_their_rows(scale, lowest, monkeypatch):
    rng = np.random.default_rng(0)
    few = np.where(rng.random((200, 40)) < 0.2, rng.uniform(lowest, 1.0, (200, 40)), 0.0)
    labels = (few @ rng.normal(size=40) > 0).astype(int)
    wide = csr_array((few[few != 0], np.nonzero(few)[1] * 100, np.cumsum([0, *(few != 0).sum(axis=1)])), (200, 5000))
    seen = []
    monkeypatch.setattr(trials, "TrialRows", lambda f, *rest: seen.append(f.d) or TrialRows(f, *rest))
    found = search_of(kernel="linear", cv=3, scale=scale).fit(wide, labels)
    assert set(seen) == {40}
    narrow = search_of(kernel="linear", cv=3, scale=scale).fit(csr_array(few), labels)
    for name in ("mean_test_score", "param_lam"):
        np.testing.assert_allclose(found.cv_results_[name], narrow.cv_results_[name], atol=0.01)


def test_numbers_are_scaled_to_a_range_and_tables_with_words_standardised():
    frame = pd.DataFrame(X).add_prefix("x").assign(word=np.where(X[:, 0] > 0, "a", "b"))
    assert search_of().fit(X, Y).scale_ == "minmax"
    found, standard = (search_of(scale=scale).fit(frame, Y) for scale in ("auto", "standard"))
    assert (found.scale_, found.lam_) == ("standard", found.best_params_["lam"])
    np.testing.assert_array_equal(found.decision_function(frame), standard.decision_function(frame))


def test_what_few_errors_cannot_tell_is_not_tried():
    easy = X + 8.0 * Y[:, None]
    results = search_of().fit(easy, Y).cv_results_
    assert results["mean_test_score"].max() > 0.995
    assert set(results["iter"]) == {0, 1}
    assert len(set(results["param_theta"])) == 1
    assert np.count_nonzero(results["iter"] == 1) <= len(GRID["gammas"])


def test_the_kernel_found_says_how_many_classes_are_learned():
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((200, 2))
    z = (Z**2).sum(axis=1).astype(int).clip(max=2)  # rings
    settings = {"lams": [1e3], "upsilons": [0.2], "thetas": [0.2], "gammas": [1.0]}
    found = search_of(kernel=["linear", "rbf"], **settings).fit(Z, z)
    assert found.best_params_["kernel"] == "rbf"
    plain = ODMClassifier(scale="minmax", random_state=0, **found.best_params_).fit(Z, z)  # pairs, as "linear" has not
    np.testing.assert_array_equal(found.decision_function(Z), plain.decision_function(Z))


@pytest.mark.parametrize(("settings", "message"), [
    ({"gammas": [0.0]}, "'gamma' parameter"),
    ({"thetas": [1.0]}, "'theta' parameter"),
    ({"lams": []}, "lams must be a sequence"),
    ({"cv": 1}, "'cv' parameter of ODMClassifierCV"),
    ({"cv": 1e-9}, "cv leaves no row"),
    ({"cv": [(range(200), range(200, 301))]}, "cv names row 300, but rows are numbered from 0 to 299"),
    ({"cv": [(range(200), range(-100, 0))]}, "cv names row -100"),
    ({"cv": [([0.5, 1.0], [2.0, 3.0])]}, "cv must be a number, a splitter, or pairs of rows' numbers"),
    ({"kernel": ["rbf", "cosine"]}, "'kernel' parameter of ODMClassifierCV must be a str among .* Got 'cosine'"),
    ({"kernel": []}, "kernel must be one value, or a sequence"),
    ({"kernel": ["linear", "rbf"], "solver": "newton"}, "solver='newton' is for kernel='linear'. Got kernel='rbf'"),
    ({"solver": [Landmark(20), Landmark(0)]}, "'n_landmarks' parameter of Landmark must be an int .* Got 0"),
    ({"solver": [None, Landmark(20)]}, "solver must be one solver, or a sequence of .*Landmark.* Got None"),
    ({"solver": []}, "solver must be one value, or a sequence of one or more"),
    ({"solver": [Landmark(20), "exact"]}, "solver must be one solver, or a sequence of .*Landmark.* Got 'exact'"),
    ({"solver": [Landmark(20), Landmark(30, choice="rp")]}, "may differ in n_landmarks only"),
])  # fmt: skip
def test_refuses(settings, message):
    with pytest.raises(InputError, match=message):
        search_of(**settings).fit(X, Y)


def test_from_the_shell(tmp_path):
    store_of(tmp_path / "rows.zarr", X, Y, chunk_rows=70)
    grid = [f"--{name}={','.join(map(str, values))}" for name, values in GRID.items()]
    grid += ["--kernel=linear,rbf", "--solver=landmark", "--n-landmarks=20,60"]
    grid += ["--scoring=roc_auc,f1_macro", "--refit=f1_macro"]
    grid += ["--scale=minmax"]
    asked = ["search", str(tmp_path / "rows.zarr"), str(tmp_path / "model.zarr"), "--random-state=0", "--cv=3", *grid]
    result = run(*asked)
    assert "by left-out rows, the best of" in result.stdout
    assert "kernel=rbf, gamma=" in result.stdout
    model = load_model(tmp_path / "model.zarr")
    assert model.best_params_["gamma"] in GRID["gammas"]
    assert (model.kernel, str(model.solver)) == (["linear", "rbf"], str([Landmark(20), Landmark(60)]))
    assert (model.scoring, model.refit) == (["roc_auc", "f1_macro"], "f1_macro")
    assert "'cosine' is not one of" in run(*asked, "--overwrite", "--kernel=rbf,cosine", status=2).stderr
