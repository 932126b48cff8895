"""Probabilities: they agree with `predict` on any kind of rows, come back from a file, and say how to have them."""

import pickle

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from dask.array import Array as DaskArray
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import TunedThresholdClassifierCV

from dask_odm import InputError, ODMClassifier, SaddleSVC
from dask_odm.diagnostics.evaluation import evaluate
from dask_odm.models.probabilities import coupled
from small_problems import blobs
from small_stores import store_of

X, Y = blobs(600, 3, seed=4)
LABELS = np.where(Y > 0, "yes", "no")


@pytest.fixture(scope="module")
def model():
    return ODMClassifier(gamma=0.5, lam=100.0, loo=True, random_state=0).fit(X, LABELS)


def test_the_most_probable_class_is_predicted(model):
    Z, labels = blobs(2000, 3, seed=5)
    found = model.predict_proba(Z)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(model.classes_[found.argmax(axis=1)], model.predict(Z))
    order = np.argsort(model.decision_function(Z))
    assert (np.diff(found[order, 1]) > 0).all()
    np.testing.assert_allclose(model.predict_log_proba(Z), np.log(found), rtol=1e-9)
    values = model.decision_function(Z)[:, None]
    hindsight = LogisticRegression(C=np.inf).fit(values, labels).predict_proba(values)
    assert log_loss(labels, found) < log_loss(labels, hindsight) + 0.01


def test_scikit_learn_knows_them_for_probabilities(model):
    """Its scorers take the column of the positive class of what is named `predict_proba`."""
    tuned = TunedThresholdClassifierCV(
        model, cv="prefit", refit=False, response_method="predict_proba", scoring="accuracy"
    ).fit(X, LABELS)
    assert tuned.best_score_ >= model.score(X, LABELS)
    for name in ("predict_proba", "predict_log_proba"):
        again = pickle.loads(pickle.dumps(getattr(model, name)))
        np.testing.assert_array_equal(again(X), getattr(model, name)(X))


def test_every_kind_of_rows_has_the_same(model, tmp_path):
    expected = model.predict_proba(X)
    store = store_of(tmp_path / "rows.zarr", X, LABELS, chunk_rows=250)
    lazy = model.predict_proba(store)
    assert isinstance(lazy, DaskArray)
    assert lazy.chunks == ((250, 250, 100), (2,))
    np.testing.assert_array_equal(lazy.compute(), expected)
    labelled = model.predict_proba(xr.DataArray(X, dims=("sample", "feature"), coords={"sample": np.arange(600) + 7}))
    assert labelled.dims == ("sample", "class")
    assert labelled.name == "probability"
    assert labelled.coords["class"].values.tolist() == ["no", "yes"]
    assert labelled.sample.values[0] == 7
    np.testing.assert_array_equal(labelled.values, expected)
    np.testing.assert_array_equal(model.predict_log_proba(pd.DataFrame(X)), model.predict_log_proba(X))


def test_without_leave_one_out_the_error_says_how():
    plain = ODMClassifier(gamma=0.5, loo=False)
    assert not hasattr(plain, "predict_proba")
    plain.fit(X, LABELS)
    assert not hasattr(plain, "predict_log_proba")
    with pytest.raises(InputError, match=r"predict_proba needs leave-one-out scores.*fit it with loo=True"):
        plain.predict_proba(X)
    assert not hasattr(SaddleSVC(), "predict_proba")


def test_balanced_classes_have_probabilities_of_balanced_rows():
    """Four in five rows are of one class, but ½ is where rows weighed equal again are as probable."""
    some = np.concatenate([np.flatnonzero(Y > 0), np.flatnonzero(Y < 0)[:75]])
    model = ODMClassifier(gamma=0.5, lam=100.0, loo=True, class_weight="balanced").fit(X[some], Y[some])
    found = model.predict_proba(X)[:, 1]  # the clouds are of one size here
    assert abs(found.mean() - 0.5) < 0.03


def test_many_classes(tmp_path):
    Z, y = blobs(900, 2, seed=3)
    third = np.arange(900) % 3 == 0
    labels = np.where(third, "c", np.where(y > 0, "b", "a"))
    Z = Z + 2.0 * third[:, None] * [1.0, -1.0]
    model = ODMClassifier(gamma=0.5, lam=300.0, loo=True, multi_class="ovr").fit(Z[:600], labels[:600])
    found = model.predict_proba(Z[600:])
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.classes_[found.argmax(axis=1)], model.predict(Z[600:]))
    np.testing.assert_allclose(np.exp(model.predict_log_proba(Z[600:])), found)
    assert model.loo_decision_function_.shape == (600, 3)
    assert model.loo_score_ == (model.classes_[model.loo_decision_function_.argmax(axis=1)] == labels[:600]).mean()
    hindsight = LogisticRegression(C=np.inf).fit(model.decision_function(Z[600:]), labels[600:])
    ideal = hindsight.predict_proba(model.decision_function(Z[600:]))
    assert log_loss(labels[600:], found) < log_loss(labels[600:], ideal) + 0.05
    pairs = ODMClassifier(gamma=0.5, lam=300.0, loo=True).fit(Z[:600], labels[:600])
    assert pairs._model.pairs == 3, "by default, of that many rows"
    assert np.mean(pairs.predict_set(Z[600:])[np.arange(300), np.unique(labels, return_inverse=True)[1][600:]]) > 0.85
    of_pairs = pairs.predict_proba(Z[600:])
    assert (pairs.classes_[of_pairs.argmax(axis=1)] == pairs.predict(Z[600:])).mean() > 0.98
    assert log_loss(labels[600:], of_pairs) < log_loss(labels[600:], found) + 0.01
    store = store_of(tmp_path / "rows.zarr", Z[600:], labels[600:], chunk_rows=200)
    np.testing.assert_allclose(pairs.predict_proba(store).compute(), of_pairs, rtol=1e-6)
    counts = evaluate(pairs, store).probabilities
    assert counts is not None
    assert counts.facts()["log_loss"] == pytest.approx(log_loss(labels[600:], of_pairs), rel=1e-6)


def test_coupling():
    """What machines agree on comes out; else the least of the sum of squares, by a slow minimiser."""
    link = np.array([[-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]])  # log-odds are scores
    p = np.random.default_rng(0).dirichlet(np.ones(4), 5)
    low, high = np.triu_indices(4, 1)
    np.testing.assert_allclose(coupled(np.log(p[:, high] / p[:, low]), link, 4), p, rtol=1e-8)
    scores = np.random.default_rng(1).normal(size=(1, 6))
    r = 1.0 / (1.0 + np.exp(-scores[0]))  # of the second class of each pair

    def squares(q):
        return ((r * q[low] - (1.0 - r) * q[high]) ** 2).sum()

    whole = {"type": "eq", "fun": lambda q: q.sum() - 1}
    least = minimize(squares, np.full(4, 0.25), bounds=[(0, 1)] * 4, constraints=whole, tol=1e-14)
    np.testing.assert_allclose(coupled(scores, link, 4)[0], least.x, atol=1e-5)
