"""Scores of left-out rows in a search: against refits, against scikit-learn's scorers, several at once."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import accuracy_score, get_scorer, make_scorer, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from dask_odm import InputError, ODMClassifier, ODMClassifierCV, ODMRegressor, load_model
from dask_odm.estimators.scoring import CostScorer, Scoring, scorers_of
from dask_odm.methods.landmark import recipe
from dask_odm.methods.search import samples
from dask_odm.solvers import Landmark
from small_problems import blobs

SETTING = {"gamma": 1.0, "lam": 200.0, "upsilon": 0.3, "theta": 0.3}
AXES = {f"{name}s": [value] for name, value in SETTING.items()} | {"kernel": "rbf", "scale": "minmax"}
COSTS = np.array([[0.0, 1.0], [7.0, 0.5]])


@pytest.fixture(scope="module")
def uneven():
    """Two classes that overlap, one of them a fifth of the rows."""
    X, y = blobs(180, 3, seed=2, distance=1.5)
    keep = np.flatnonzero((y < 0) | (np.arange(180) % 4 == 0))
    return X[keep], np.where(y[keep] > 0, "ill", "well")


def test_a_score_of_two_classes_says_which_one_takes_more():
    X, y = np.repeat(np.eye(3), 10, axis=0), np.repeat(["a", "b", "c"], 10)
    with pytest.raises(InputError, match=r"^multi_class must be .*; of more than two classes, take 'roc_auc_ovr'$"):
        ODMClassifier(loo=True).fit(X, y).loo_score("roc_auc")


def test_an_error_names_the_score_that_asks_for_what_there_is_not(uneven):
    X = uneven[0]
    with pytest.raises(InputError, match=r"^scoring 'roc_auc' cannot score these rows: .*, predict_proba\.$"):
        ODMRegressor(loo=True).fit(X, X[:, 0]).loo_score("roc_auc")
    with pytest.raises(InputError, match=r"^scoring 'neg_max_error' cannot score these rows: .* 'sample_weight'\.$"):
        ODMRegressor(loo=True).fit(X, X[:, 0], np.arange(len(X))).loo_score("neg_max_error")


def test_scores_in_folds_are_those_of_refits(uneven):
    X, y = uneven
    cv = StratifiedKFold(4, shuffle=True, random_state=0)
    scoring = {name: make_scorer(get_scorer(name)._score_func, pos_label="ill") for name in ("f1", "recall")}
    scoring |= {"roc_auc": "roc_auc", "balanced": "balanced_accuracy", "cost": CostScorer(COSTS)}
    search = ODMClassifierCV(**AXES, cv=cv, scoring=scoring, refit="cost", random_state=0).fit(X, y)
    results = search.cv_results_
    plain = ODMClassifier(**SETTING, solver="exact", scale="minmax")
    for split, (inside, outside) in enumerate(cv.split(X, y)):
        # λ/M is the same in every fold, and so λ is smaller there
        lam = SETTING["lam"] * len(inside) / len(X)
        model = clone(plain).set_params(lam=lam).fit(X[inside], y[inside])
        for name, scorer in scorers_of(scoring).items():
            expected = scorer(model, X[outside], y[outside])
            assert results[f"split{split}_test_{name}"][-1] == pytest.approx(expected, abs=0.06), name
    assert search.best_score_ == results["mean_test_cost"][search.best_index_]
    assert not any("test_score" in name for name in results)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_score_is_what_the_scorer_says_of_these_values(weighted):
    rng = np.random.default_rng(0)
    codes, values = rng.integers(0, 2, 60), rng.normal(size=60)
    weight = rng.integers(0, 3, 60).astype(float) if weighted else np.ones(60)

    class Known:
        classes_ = np.array([0, 1])
        _estimator_type = "classifier"

        def predict(self, rows):
            return (values[rows] > 0).astype(int)

    found = Scoring(scorers_of(["accuracy", "roc_auc", CostScorer(COSTS)]), np.array([0, 1]))(values, codes, weight)
    assert found[0] == pytest.approx(accuracy_score(codes, values > 0, sample_weight=weight))
    pairs = (values[codes == 1][:, None] > values[codes == 0]) * weight[codes == 1][:, None] * weight[codes == 0]
    assert found[1] == pytest.approx(pairs.sum() / (weight[codes == 1].sum() * weight[codes == 0].sum()))
    costs = [COSTS[a, b] for a, b in zip(codes, (values > 0).astype(int), strict=True)]
    assert found[2] == pytest.approx(-np.average(costs, weights=weight))
    assert CostScorer(COSTS)(Known(), np.arange(60), codes, weight) == pytest.approx(found[2])


def test_probabilities_are_scored_and_the_link_is_the_left_out_rows_own(uneven):
    X, y = uneven
    search = ODMClassifierCV(**AXES, scoring="neg_log_loss", random_state=0).fit(X, y)
    model = ODMClassifier(**SETTING, solver="exact", scale="minmax", loo=True).fit(X, y)
    from dask_odm.models.probabilities import probabilities

    chosen = probabilities(model.loo_decision_function_, model.probability_link_, log=True)
    expected = chosen[np.arange(len(y)), np.searchsorted(model.classes_, y)].mean()
    assert search.best_score_ == pytest.approx(expected, abs=0.02)  # a trial is solved to 1e-2


def test_many_classes(uneven):
    X, y = uneven
    y = np.where(X[:, 2] > 0.7, "cold", y)
    search = ODMClassifierCV(**AXES, scoring=["accuracy", "roc_auc_ovr", "neg_log_loss"], random_state=0).fit(X, y)
    alone = ODMClassifierCV(**AXES, random_state=0).fit(X, y)
    assert search.best_score_ == pytest.approx(alone.best_score_)
    assert 0.5 < search.cv_results_["mean_test_roc_auc_ovr"][-1] <= 1.0


@pytest.mark.parametrize("refit", [None, "accuracy"])
def test_what_decides_is_what_was_asked_for(uneven, refit):
    X, y = uneven
    axes = AXES | {"gammas": [0.01, 1.0, 30.0], "lams": [10.0, 300.0]}
    model = ODMClassifierCV(**axes, scoring=["roc_auc", "accuracy"], refit=refit, random_state=0).fit(X, y)
    name = refit or "roc_auc"
    results = model.cv_results_
    last = results["iter"] == results["iter"].max()
    assert model.best_score_ == results[f"mean_test_{name}"][last].max()
    assert results[f"rank_test_{name}"][model.best_index_] == 1


@pytest.mark.parametrize(("settings", "message"), [
    ({"scoring": "rocauc"}, "'rocauc'"), ({"scoring": []}, "one scorer or more"), ({"scoring": [3]}, "Got 3 instead"),
    ({"scoring": ["roc_auc"], "refit": "accuracy"}, r"refit must be one of the scores, \['roc_auc'\]"),
    ({"refit": "accuracy"}, "refit must be one of the scores"),
    ({"scoring": "roc_auc", "cv": [(range(50), [100])]}, "needs rows of every class"),
    ({"scoring": CostScorer(np.eye(3))}, "costs are of 3 classes, but there are 2"),
])  # fmt: skip
def test_what_cannot_be_scored(uneven, settings, message):
    X, y = uneven
    with pytest.raises(InputError, match=message):
        ODMClassifierCV(**AXES, **settings).fit(X, y)


@pytest.mark.slow
def test_scores_of_noise_are_chance():
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        model = ODMClassifierCV(random_state=0).fit(rng.normal(size=(200, 50)), np.arange(200) % 2)
        found.append((model.best_score_, model.nested_score_))
    np.testing.assert_allclose(np.mean(found, axis=0), 0.5, atol=0.04)


def test_the_nested_score_by_hand(uneven):
    """Each fold is judged by the setting that is best on the other folds."""
    X, y = uneven
    axes = AXES | {"gammas": [0.01, 1.0, 30.0], "lams": [10.0, 300.0]}
    model = ODMClassifierCV(**axes, cv=StratifiedKFold(4), scoring="roc_auc", random_state=0).fit(X, y)
    results = model.cv_results_
    fine = results["iter"] == 1
    table = np.stack([results[f"split{k}_test_score"][fine] for k in range(4)])
    expected = [table[k, np.delete(table, k, axis=0).mean(axis=0).argmax()] for k in range(4)]
    assert model.nested_score_ == pytest.approx(np.mean(expected))
    assert model.nested_score_ <= model.best_score_ + 1e-12


def test_trials_on_all_rows_need_no_certificate(uneven, monkeypatch):
    asked = []
    certified = recipe._certified

    def counted(*args, exact):
        asked.append(exact)
        return certified(*args, exact=exact)

    monkeypatch.setattr(recipe, "_certified", counted)
    monkeypatch.setattr(samples, "TUNING", replace(samples.TUNING, folded=0))
    solver = Landmark(20, certify=True)
    model = ODMClassifierCV(**AXES, scoring="roc_auc", solver=solver, random_state=0).fit(*uneven)
    assert 2 in model.cv_results_["iter"]  # the last stage, on all rows
    assert asked.count(True) == 1
    assert model.dual_gap_ < 1.0


@pytest.mark.parametrize("costs", [[1.0, 2.0], [[0.0, np.nan], [1.0, 0.0]], [["a"]]])
def test_costs_that_are_none(costs):
    with pytest.raises(InputError):
        CostScorer(costs)


def test_left_out_rows_of_a_fit_are_scored(uneven, tmp_path):
    X, y = uneven
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    model = ODMClassifier(**SETTING, scale=None, loo=True).fit(X, y, weight)
    counted = weight > 0
    own, values = y[counted] == "well", model.loo_decision_function_[counted]
    assert model.loo_score() == pytest.approx(model.loo_score_)
    expected = roc_auc_score(own, values, sample_weight=weight[counted])
    assert model.loo_score("roc_auc") == pytest.approx(expected)
    both = {"roc_auc": expected, "accuracy": model.loo_score_}
    assert model.loo_score(list(both)) == pytest.approx(both)
    many = np.where(X[:, 2] > 0.7, "cold", y)
    few = SETTING | {"lam": 20.0}
    against_rest = ODMClassifier(**few, loo=True).fit(X, many)
    assert against_rest.loo_score() == pytest.approx(against_rest.loo_score_)
    pairs = ODMClassifier(**few, loo=True, multi_class="ovo").fit(X, many)
    assert pairs.loo_score() == pytest.approx(pairs.loo_score_)
    assert pairs.loo_score("neg_log_loss") == pytest.approx(against_rest.loo_score("neg_log_loss"), abs=0.05)
    model.save(tmp_path / "m.zarr")
    for other in (
        load_model(tmp_path / "m.zarr"),
        ODMClassifier(**SETTING, scale=None).fit(X, y),
        ODMClassifier(**few, loo=True, multi_class="ovo").fit(X, many, groups=np.arange(len(X)) % 9),
    ):
        with pytest.raises(InputError, match="no left-out values of rows"):
            other.loo_score()
