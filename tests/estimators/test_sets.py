"""Prediction sets and thresholds of estimators: in memory, over stores, in maps, from files; as often as promised."""

import dask
import numpy as np
import pytest
import xarray as xr
from sklearn.base import clone
from sklearn.metrics import f1_score, log_loss, make_scorer
from sklearn.model_selection import TunedThresholdClassifierCV

from dask_odm import CostScorer, InputError, ODMClassifier, load_model
from dask_odm.diagnostics.evaluation import evaluate
from small_stores import store_of

SETTING = {"gamma": 0.3, "theta": 0.3, "loo": True, "multi_class": "ovr", "random_state": 0, "scale": None}


def overlapping(n, classes, seed, rare=1.0):
    """Rows of classes that overlap; of the last only a share is ``rare``."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    y[(y == classes - 1) & (rng.uniform(size=n) > rare)] = 0
    centres = np.random.default_rng(99).normal(size=(classes, 3))
    return centres[y] * 1.2 + rng.normal(size=(n, 3)), np.array(["a", "b", "c"])[y]


def fitted(n=300, classes=2, seed=0, rare=1.0, **more):
    X, y = overlapping(n, classes, seed, rare)
    return ODMClassifier(lam=2.0 * n, **SETTING | more).fit(X, y), X, y


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("by_class", [False, True])
def test_sets_hold_the_own_class_as_often_as_promised(classes, by_class):
    held, sizes = [], []
    for seed in range(10):
        model, _, _ = fitted(240, classes, seed)
        X, y = overlapping(2000, classes, 1000 + seed)
        found = model.predict_set(X, 0.8, by_class=by_class)
        own = found[np.arange(len(y)), np.searchsorted(model.classes_, y)]
        held.append([own[y == name].mean() for name in model.classes_] if by_class else [own.mean()])
        sizes.append(found.sum(axis=1).mean())
    assert np.mean(held, axis=0).min() > 0.77
    assert np.mean(held, axis=0).max() < 0.85
    assert np.mean(sizes) < classes - 0.5  # and are not the sets of all classes


def test_rows_that_were_held_out_calibrate_any_model():
    held = []
    for seed in range(10):
        model, _, _ = fitted(200, 3, seed, loo=False, multi_class="ovo")
        with pytest.raises(InputError, match="calibrate"):
            model.predict_set([[0.0, 0.0, 0.0]])
        model.calibrate(*overlapping(200, 3, 100 + seed))
        X, y = overlapping(2000, 3, 1000 + seed)
        held.append(model.predict_set(X, 0.9)[np.arange(len(y)), np.searchsorted(model.classes_, y)].mean())
    assert np.mean(held) == pytest.approx(0.9, abs=0.015)


def test_sets_of_a_store_a_cube_and_a_file(tmp_path):
    model, X, y = fitted(300, 3)
    path = store_of(tmp_path / "a.zarr", X, y, chunk_rows=70).path
    expected = model.predict_set(X)
    model.save(tmp_path / "m.zarr")
    for each in (model, load_model(tmp_path / "m.zarr")):
        lazy = each.predict_set(path)
        assert lazy.shape == (300, 3)
        assert lazy.dtype == bool
        np.testing.assert_array_equal(lazy.compute(), expected)
    cube = X.reshape(15, 20, 3).copy()
    cube[3, 4, 1] = np.nan
    found = model.predict_set(xr.DataArray(cube, dims=["y", "x", "band"]))
    assert (found.name, found.dims[-1]) == ("set", "class")
    assert found["class"].values.tolist() == ["a", "b", "c"]
    assert not found.values[3, 4].any()
    rest = np.delete(np.arange(300), 3 * 20 + 4)
    np.testing.assert_array_equal(found.values.reshape(300, 3)[rest], expected[rest])
    calibrated = clone(model).fit(X, y).calibrate(path)
    np.testing.assert_allclose(calibrated.conformity_, model.calibrate(X, y).conformity_)


@pytest.mark.parametrize("coverage", [0.0, 1.0, "much", np.nan])
def test_coverage_is_a_probability(coverage):
    model, X, _ = fitted(60)
    with pytest.raises(InputError, match="coverage"):
        model.predict_set(X, coverage)


def minus_cost(y, predicted):
    return -np.mean(np.where(y == predicted, 0, np.where(y == "b", 8, 1)))


def macro_f1(y, predicted):
    """A thousand of them take a hundredth of the time of scikit-learn's."""
    return np.mean([2 * np.sum((y == c) & (predicted == c)) / np.sum([y == c, predicted == c]) for c in "ab"])


@pytest.mark.parametrize("scoring", [make_scorer(macro_f1), CostScorer([[0, 1], [8, 0]])], ids=["F1", "costs"])
def test_a_threshold_is_as_good_as_one_from_refits(scoring):
    ours, theirs, before = [], [], []
    for seed in range(4):
        model, X, y = fitted(500, 2, seed, rare=0.15)
        test = overlapping(4000, 2, 1000 + seed, rare=0.15)
        score = make_scorer(minus_cost) if isinstance(scoring, CostScorer) else scoring
        before.append(score(model, *test))
        refitted = TunedThresholdClassifierCV(clone(model).set_params(loo=False), scoring=score, thresholds=200)
        theirs.append(score(refitted.fit(X, y), *test))
        ours.append(score(model.tune_threshold(scoring), *test))
    assert np.mean(ours) > np.mean(before)
    assert np.mean(ours) > np.mean(theirs) - 0.01 * abs(np.mean(theirs))


def test_everything_follows_a_threshold(tmp_path):
    model, X, y = fitted(200, 2, rare=0.2)
    path = store_of(tmp_path / "a.zarr", X, y, chunk_rows=90).path
    values, shares, left = model.decision_function(X), model.predict_proba(X), model.loo_decision_function_
    log_score, sets = model.loo_score("neg_log_loss"), model.predict_set(X, 0.8)
    assert model.tune_threshold("f1_macro") is model
    by = model.threshold_
    np.testing.assert_allclose(model.decision_function(X), values - by, atol=1e-6)
    np.testing.assert_allclose(model.loo_decision_function_, left - by)
    assert model.intercept_ == pytest.approx(-by, abs=1e-6) or model.fit_intercept
    expected = np.where(values > by, "b", "a")
    np.testing.assert_array_equal(model.predict(X), expected)
    np.testing.assert_array_equal(model.predict(path).compute(), expected)
    np.testing.assert_allclose(model.predict_proba(X), shares, atol=1e-6)
    np.testing.assert_array_equal(model.predict_set(X, 0.8), sets)
    assert model.loo_score_ == pytest.approx(np.mean((left > by) == (y == "b")))
    assert model.loo_score("f1_macro") == pytest.approx(f1_score(y, np.where(left > by, "b", "a"), average="macro"))
    assert model.loo_score("neg_log_loss") == pytest.approx(log_score)
    model.save(tmp_path / "m.zarr")
    again = load_model(tmp_path / "m.zarr")
    assert again.threshold_ == by
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    facts = evaluate(again, path).facts()
    assert facts["accuracy"] == pytest.approx(np.mean(expected == y))
    assert facts["log_loss"] == pytest.approx(log_loss(y, shares), abs=1e-5)
    twice = model.tune_threshold("f1_macro")  # of rows that it was tuned by already
    assert twice.threshold_ == pytest.approx(by, abs=0.1)
    assert not hasattr(clone(model).fit(X, y), "threshold_")
    model.fit(X, y)
    np.testing.assert_allclose(model.decision_function(X), values, atol=1e-6)
    assert not hasattr(model, "threshold_")


def test_a_share_of_rows_above_the_threshold(tmp_path):
    model, X, y = fitted(400)
    model.tune_threshold(0.1)
    assert np.mean(model.loo_decision_function_ > 0) == pytest.approx(0.1)
    fresh, labels = overlapping(501, 2, 7)
    store = store_of(tmp_path / "a.zarr", fresh, labels, chunk_rows=200).path
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        linear = ODMClassifier("linear").fit(X, y).tune_threshold(0.25, store)
    assert np.mean(linear.predict(fresh) == "b") == pytest.approx(0.25, abs=0.002)
    values = fresh @ linear.coef_[0] + linear.intercept_[0]
    np.testing.assert_allclose(values, linear.decision_function(fresh), atol=1e-5)


@pytest.mark.parametrize(("classes", "more", "scoring", "message"), [
    (3, {}, "accuracy", "between two classes"),
    (2, {"loo": False}, "accuracy", "loo=True"),
    (2, {}, ["f1", "accuracy"], "one score"),
    (2, {}, 1.5, "between 0 and 1"), (2, {}, "roc_auc", "does not judge"),
    (2, {}, "neg_log_loss", "does not judge"),
    (2, {}, "nonsense", "nonsense"),
])  # fmt: skip
def test_thresholds_that_cannot_be_tuned(classes, more, scoring, message):
    model, _, _ = fitted(60, classes, **more)
    with pytest.raises(InputError, match=message):
        model.tune_threshold(scoring)


def test_rows_that_are_given_are_checked():
    model, X, y = fitted(100)
    for arguments, message in (
        ({"y": y}, "give X"),
        ({"X": X[y == "a"], "y": y[y == "a"]}, "both classes"),
        ({"X": X, "y": y, "sample_weight": np.full(100, np.nan)}, "sample_weight"),
        ({"X": X, "y": y, "sample_weight": np.ones(99)}, "sample_weight"),
        ({"X": X, "y": y, "sample_weight": ["x"] * 100}, "could not convert"),
        ({"X": X, "y": np.full(100, "z")}, "no row"),
    ):
        with pytest.raises(InputError, match=message):
            model.tune_threshold("accuracy", **arguments)


def test_a_boundary_beyond_all_rows_where_one_class_costs_nearly_all():
    model, _, _ = fitted(200, rare=0.5)
    assert (model.tune_threshold(CostScorer([[1, 0], [1, 0]])).loo_decision_function_ > 0).all()
    assert (model.tune_threshold(CostScorer([[0, 1], [0, 1]])).loo_decision_function_ < 0).all()


def test_class_weights_are_a_population_with_other_shares_of_the_classes():
    """Weights of π'/π make probabilities those of a population with the shares π'."""
    X, y = overlapping(600, 2, 0, rare=0.2)
    share = np.mean(y == "b")
    weights = {"a": 0.5 / (1 - share), "b": 0.5 / share}
    plain = ODMClassifier(lam=1200.0, **SETTING).fit(X, y)
    moved = ODMClassifier(lam=1200.0, **SETTING, class_weight=weights).fit(X, y)
    test, labels = overlapping(4000, 2, 5)
    assert log_loss(labels, moved.predict_proba(test)) < log_loss(labels, plain.predict_proba(test)) - 0.02
