"""Leave-one-out in closed form against all refits, its identities, merged rows, weights, stores, refusals."""

import dask
import numpy as np
import pytest
from sklearn.metrics import log_loss

from dask_odm import InputError, ODMClassifier
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.methods.auto_limits import AutoLimits
from dask_odm.methods.search.trials import Splits, trial_rows
from dask_odm.models.model import class_scores
from dask_odm.models.probabilities import coupled
from dask_odm.solvers import Cells, Landmark
from small_problems import blobs
from small_stores import store_of

N = 60
EXACT = {"solver": "exact", "gamma": 0.5, "scale": None}
ALL_ROWS = {"solver": Landmark(N, choice="uniform"), "gamma": 0.5, "scale": None}  # no other, whoever is out
LINEAR = {"kernel": "linear", "scale": None}
WAYS = [LINEAR, EXACT, ALL_ROWS, {**LINEAR, "fit_intercept": False, "upsilon": 0.0}]


def model_of(**settings):
    return ODMClassifier(**{"lam": 100.0, "theta": 0.1, "tol": 1e-9, "random_state": 0, "loo": True, **settings})


def refits(X, y, settings, weight=None):
    """Decision values of every row by the model that was fitted without one of it, its loss of each row the same."""
    weight, found = np.ones(len(y)) if weight is None else weight, np.empty(len(y))
    for i in range(len(y)):
        left = weight.copy()
        left[i] = max(0.0, weight[i] - 1.0)  # weight 2 is a row that is there twice
        lam = 100.0 * left.sum() / weight.sum()  # the loss is divided by the sum of the weights
        model = model_of(**settings, lam=lam).set_params(loo=False)
        found[i] = model.fit(X, y, left).decision_function(X[i : i + 1])[0]
    return found


@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_decision_values_are_near_those_of_all_refits(settings):
    X, y = blobs(N, 3, seed=1)
    model = model_of(**settings).fit(X, y)
    expected = refits(X, y, settings)
    moved = np.abs(expected - model.decision_function(X)).mean()
    assert np.abs(model.loo_decision_function_ - expected).mean() < 0.2 * moved
    assert model.loo_score_ == pytest.approx(((expected > 0) == (y > 0)).mean(), abs=1.5 / N)
    assert model.loo_score_ == ((model.loo_decision_function_ > 0) == (y > 0)).mean()


def test_is_exact_where_no_row_can_change_sides():
    """Without a band and with υ = 1 the loss is quadratic: every refit is found, with weights and copies."""
    X, y = blobs(40, 3, seed=2)
    X, y = np.concatenate([X, X[:5]]), np.concatenate([y, y[:5]])
    weight = np.linspace(0.5, 2.0, len(y))
    for settings in ({**EXACT, "theta": 0.0, "upsilon": 1.0}, {**LINEAR, "theta": 0.0, "upsilon": 1.0}):
        model = model_of(**settings).fit(X, y, weight)
        np.testing.assert_allclose(model.loo_decision_function_, refits(X, y, settings, weight), atol=1e-5)
        assert len(model.loo_decision_function_) == 45
        right = (model.loo_decision_function_ > 0) == (y > 0)
        assert model.loo_score_ == pytest.approx(np.average(right, weights=weight))


@pytest.mark.parametrize("settings", [EXACT, ALL_ROWS, {"solver": Cells(60)}], ids=["exact", "landmark", "cells"])
@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
def test_a_class_weight_makes_no_copies_of_a_row(settings, stored, tmp_path):
    """Of labels that the features say nothing of, rows of a class that counts tenfold are as wrong as others."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((90, 3)), np.arange(90) % 10 % 9 % 3
    model = model_of(**{**settings, "gamma": 1.0, "lam": 300.0, "tol": 1e-3}, class_weight={0: 1.0, 1: 10.0, 2: 8.0})
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        model.fit(*((store_of(tmp_path / "rows.zarr", X, y, chunk_rows=40),) if stored else (X, y)))
    right = model.loo_decision_function_.argmax(axis=1) == y
    assert right[y > 0].mean() < 0.7


@pytest.mark.parametrize("settings", [LINEAR, EXACT, ALL_ROWS, {"solver": Cells(60)}], ids=str)
@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
@pytest.mark.parametrize("scheme", ["two", "ovr", "ovo"])
def test_the_score_is_the_share_of_the_rows_own_weights_that_is_right(settings, stored, scheme, tmp_path):
    """Class weights change what is learned, not how rows count, as in scikit-learn's ``score``."""
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((90, 3)), np.arange(90) % 10 % 9 % (2 if scheme == "two" else 3)
    X[:, 0] += y
    weight = rng.integers(0, 4, 90).astype(float)
    rows = (store_of(tmp_path / "rows.zarr", X, y, weight=weight, chunk_rows=40),) if stored else (X, y, weight)
    more = {"multi_class": None if scheme == "two" else scheme}
    for factors in (None, {0: 0.5, 1: 8.0}):
        model = model_of(**settings | {"tol": 1e-3}, **more, class_weight=factors)
        with dask.config.set({"dask_odm.read-into-memory": 0}):
            model.fit(*rows)
        values = model.loo_decision_function_
        right = (values > 0) == (y == 1) if scheme == "two" else values.argmax(axis=1) == y
        assert model.loo_score_ == pytest.approx(np.average(right, weights=weight), rel=1e-12)
        assert model.loo_score() == pytest.approx(model.loo_score_, rel=1e-12)
    of_classes = weight * np.array([0.5, 8.0, 1.0])[y]
    assert abs(np.average(right, weights=of_classes) - model.loo_score_) > 0.02, "else the test could not fail"


def test_class_weights_make_no_copies_in_trials():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((90, 3)), np.arange(90) % 10 % 9 % 3
    data = MemoryData.of(FitRun(0), X, y.astype(float), np.ones(90), (1.0, 10.0, 8.0))
    rows = trial_rows(data, KernelChoice("rbf", bias=1.0, gamma=1.0), 90, FitRun(0), leaves_one=True)
    (left,) = rows.left_out([(1.0, 0.2, 0.1)], Splits(None, 0))
    assert (left.values[0].argmax(axis=1) == y)[y > 0].mean() < 0.7


@pytest.mark.parametrize("settings", [EXACT, ALL_ROWS], ids=["exact", "landmark"])
def test_votes_of_left_out_rows_are_those_of_refits(settings):
    X, sign = blobs(N, 2, seed=3)
    y = np.where(np.arange(N) % 3 == 0, 2, sign > 0)
    X[y == 2] += [1.5, -1.5]
    weight = np.where(np.arange(N) % 10 == 3, 0.0, 1.0)
    model = model_of(**settings, multi_class="ovo").fit(X, y, weight)
    plain = model._model.machine_scores(X).T
    expected = plain.copy()  # machines of other classes stay
    for i in np.flatnonzero(weight):
        lam = 100.0 * (1.0 - 1.5 / weight.sum())  # a loss is divided by the weights of two classes of three
        refit = model_of(**settings, multi_class="ovo", lam=lam, loo=False).fit(X, y, weight * (np.arange(N) != i))
        own = [y[i] in pair for pair in ((0, 1), (0, 2), (1, 2))]
        expected[i, own] = refit._model.machine_scores(X[i : i + 1])[own, 0]
    values, counted = model._left_out_pairs, weight > 0
    assert np.isnan(values[~counted]).all()
    assert np.abs(values - expected)[counted].mean() < 0.3 * np.abs(expected - plain)[counted].mean()
    votes = class_scores(expected.T, 3).T
    scores = model.loo_decision_function_
    assert scores.shape == model.decision_function(X).shape
    assert np.isnan(scores).all(axis=1).tolist() == np.isnan(scores).any(axis=1).tolist() == (~counted).tolist()
    assert (np.abs(scores - votes)[counted].max(axis=1) < 0.1).mean() > 0.95, "else a machine's sign differs"
    assert model.loo_score_ == pytest.approx((votes.argmax(axis=1) == y)[counted].mean(), abs=1.5 / counted.sum())
    assert model.loo_score_ == (scores.argmax(axis=1) == y)[counted].mean()
    assert model.loo_score_ == model.loo_score() < model.score(X, y, weight)
    of_pairs = coupled(values[counted], model.probability_link_, 3)
    assert model.loo_score("neg_log_loss") == pytest.approx(-log_loss(y[counted], of_pairs), rel=1e-12)


def test_auto_leaves_many_rows_of_many_classes_out_of_pairs_or_landmarks(monkeypatch, caplog, tmp_path):
    """Cubes of all rows, for each class, would take minutes: who names the solver is told."""
    X, y = np.random.default_rng(0).normal(size=(90, 2)), np.arange(90) % 3
    limits = AutoLimits(grouped_rows=80, class_rows=25, leaving_work=3 * 90**3 - 1)
    monkeypatch.setattr("dask_odm.methods.recipes.AUTO", limits)

    def learned(**settings):
        model = ODMClassifier(loo=True, random_state=0, **settings).fit(X, y)
        return model.history_[0]["solver"] == "exact", model._model.pairs

    assert learned() == learned(checkpoint=tmp_path / "c") == (True, 3)
    assert learned(multi_class="ovr") == (False, 0)
    grown = ODMClassifier(loo=True, warm_start=True, random_state=0).fit(X[:60], y[:60])
    assert not grown._model.pairs, "classes have few rows"
    assert not grown.fit(X, y)._model.pairs, "as it began"
    assert "leaves 90 rows out of 3 machines" not in caplog.text
    assert learned(multi_class="ovr", solver="exact") == (True, 0)
    assert "leaves 90 rows out of 3 machines" in caplog.text
    monkeypatch.setattr("dask_odm.methods.pairs.recipe.AUTO", AutoLimits(pair_rows=50))
    assert learned() == (False, 0)


def test_parameters_are_the_trace_of_the_smoother():
    """Σ h c = tr (G + KᵀCK)⁻¹ KᵀCK: of the linear model with a quadratic loss that of ridge regression."""
    X, y = blobs(N, 3, seed=1)
    model = model_of(**LINEAR, upsilon=1.0).set_params(theta=0.0).fit(X, y)
    squares = np.linalg.svd(np.column_stack([X, np.ones(N)]), compute_uv=False) ** 2 * 100.0 / N
    assert model.loo_parameters_ == pytest.approx((squares / (1.0 + squares)).sum(), rel=1e-6)


@pytest.mark.parametrize("settings", [LINEAR, ALL_ROWS, EXACT], ids=str)
@pytest.mark.parametrize("limit", ["1GB", 0], ids=["read", "streamed"])
def test_store_gives_what_memory_gives(settings, limit, tmp_path):
    """Rows without label or weight take no part, and have no value."""
    X, y = blobs(N, 3, seed=1)
    weight = np.where(np.arange(N) % 7 == 3, 0.0, 1.0 + np.arange(N) % 2)
    labels = [None if i == 10 else label for i, label in enumerate(y.tolist())]
    store = store_of(tmp_path / "rows.zarr", X, labels, weight=weight, chunk_rows=17)
    known = np.arange(N) != 10
    with dask.config.set({"dask_odm.read-into-memory": limit}):
        stored = model_of(**settings).fit(store)
    inside = model_of(**settings).fit(X[known], y[known], weight[known])
    values = stored.loo_decision_function_
    assert np.isnan(values).tolist() == ((weight == 0) | ~known).tolist()
    if settings is not LINEAR:
        assert known[stored.support_].all()
    assert stored.loo_score_ == pytest.approx(inside.loo_score_)
    np.testing.assert_allclose(values[known], inside.loo_decision_function_, atol=1e-4)


def test_a_fit_that_does_not_ask_for_it_forgets_it():
    X, y = blobs(N, 3, seed=1)
    model = model_of().fit(X, y)
    assert hasattr(model, "loo_score_")
    assert not hasattr(model.set_params(loo=False).fit(X, y), "loo_decision_function_")


def test_every_value_of_a_path_has_its_own():
    X, y = blobs(N, 3, seed=1)
    for found in model_of(**LINEAR).lam_path(X, y, lams=[1.0, 100.0]):
        alone = model_of(**LINEAR, lam=found.lam).fit(X, y)
        np.testing.assert_allclose(found.loo_decision_function_, alone.loo_decision_function_, atol=1e-6)


def test_warns_where_it_is_too_hopeful():
    X, y = blobs(N, 3, seed=1)
    with pytest.warns(UserWarning, match="effective parameters for 60 rows"):
        model_of(solver="exact", gamma=50.0, lam=1e4).fit(X, y)
    for scheme, rows in (("ovo", 120), ("ovr", 180)):  # each row in two pairs, or in all machines
        with pytest.warns(UserWarning, match=f"effective parameters for {rows} rows") as once:
            model_of(solver="exact", gamma=50.0, lam=1e4, multi_class=scheme).fit(X, np.arange(N) % 3)
        assert len(once) == 1


def test_refuses_what_has_no_closed_form():
    X, y = blobs(N, 3, seed=1)
    with pytest.raises(InputError, match=r"loo=True .*'newton', 'landmark', 'exact' or 'cells'"):
        model_of(solver="sodm").fit(X, y)
    wide = np.random.default_rng(0).standard_normal((20, 2100))
    with pytest.raises(InputError, match="2101 are too many"):
        model_of(**LINEAR).fit(wide, y[:20])
