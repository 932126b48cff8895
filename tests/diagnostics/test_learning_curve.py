"""Learning curves: against refits of the same rows, of stores and groups, and what twice as many rows bring."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import dask_odm as odm
from dask_odm.diagnostics.learning_curve import LearningCurve
from dask_odm.errors import InputError
from small_problems import blobs
from small_stores import store_of

MODEL = odm.ODMClassifier(gamma=0.1, lam=100.0, theta=0.3, solver="exact", random_state=0)


@pytest.fixture(scope="module")
def rows():
    return blobs(400, 3, seed=3, distance=1.2)


def test_scores_are_those_of_rows_left_out_of_each_sample(rows):
    X, y = rows
    found = odm.learning_curve(MODEL, X, y, shares=(0.1, 1.0))
    assert found.rows.tolist() == [40, 400]
    assert found.scores[1] == clone(MODEL).set_params(loo=True).fit(X, y).loo_score_
    assert not hasattr(MODEL, "classes_")
    assert np.isnan(found.twice)
    again = odm.learning_curve(MODEL, X, y, shares=(0.1,))
    assert again.scores[0] == found.scores[0]


def test_lam_of_the_rows_is_in_proportion_to_them(rows):
    same = clone(MODEL).set_params(lam=2.0 * len(rows[1]))
    by_rows, given = (
        odm.learning_curve(m, *rows, shares=(0.25, 1.0)) for m in (clone(MODEL).set_params(lam="auto"), same)
    )
    assert by_rows.scores.tolist() == given.scores.tolist()


@pytest.mark.parametrize("label", ["label", -1])
def test_a_column_of_a_frame_may_be_the_labels(rows, label):
    frame = pd.DataFrame(rows[0], columns=["a", "b", "c"]).assign(label=rows[1])
    found = odm.learning_curve(MODEL, frame, label, shares=[0.25])
    np.testing.assert_array_equal(found.scores, odm.learning_curve(MODEL, *rows, shares=[0.25]).scores)


def test_new_rows_are_predicted_as_promised():
    """The score of n rows, and what is said of twice as many, is what models of so many get right of new rows."""
    promised, twice, real = [], [], []
    for seed in range(6):
        X, y = blobs(800, 3, seed=seed, distance=1.2)
        test = blobs(4000, 3, seed=100 + seed, distance=1.2)
        curve = odm.learning_curve(MODEL, X[:400], y[:400], random_state=seed)
        promised.append(curve.scores[-1])
        twice.append(curve.twice)
        real.append([clone(MODEL).set_params(lam=0.25 * n).fit(X[:n], y[:n]).score(*test) for n in (400, 800)])
    assert np.mean(promised) == pytest.approx(np.mean(real, axis=0)[0], abs=0.01)
    assert np.mean(twice) == pytest.approx(np.mean(real, axis=0)[1], abs=0.015)


def test_a_store_and_groups(rows, tmp_path):
    X, y = rows
    groups = np.arange(400) % 40
    store = store_of(tmp_path / "a.zarr", X, y, chunk_rows=90)
    of_store = odm.learning_curve(MODEL, store.path, max_rows=300, shares=(0.5, 1.0))
    assert of_store.rows.tolist() == [150, 300]
    assert of_store.scores[1] == pytest.approx(np.mean(of_store.scores), abs=0.2)
    together = odm.learning_curve(MODEL, X, y, groups=groups, shares=(1.0,))
    model = clone(MODEL).set_params(loo=True).fit(X, y, groups=groups)
    assert together.scores[0] == model.loo_score_
    with pytest.raises(InputError, match="rows in memory"):
        odm.learning_curve(MODEL, store, groups=groups)


@pytest.mark.parametrize("several", [False, True])
def test_numbers_and_matrices_of_labels_have_curves(rows, several):
    X, y = rows
    y = X[:, 0] * 5.0 + y
    y = np.column_stack([y, X[:, 1]]) if several else y
    model = odm.ODMRegressor(gamma=0.1, solver="exact")
    found = odm.learning_curve(model, X, y, shares=(0.1, 1.0))
    assert found.scores[1] == pytest.approx(clone(model).set_params(loo=True).fit(X, y).loo_score_)
    errors = odm.learning_curve(model, X, y, scoring="neg_root_mean_squared_error", shares=(0.1, 1.0)).scores
    assert errors[0] < errors[1] < 0.0
    if several:
        labels = (y > 0).astype(int)
        of_labels = odm.learning_curve(MODEL, X, labels, shares=(1.0,)).scores
        assert of_labels == clone(MODEL).set_params(loo=True).fit(X, labels).loo_score_


def test_a_search_has_the_curve_of_what_it_found(rows):
    X, y = rows
    for search in (
        odm.ODMClassifierCV("rbf", gammas=[0.1], lams=[100.0], upsilons=[0.2], thetas=[0.3]),
        odm.ODMRegressorCV("rbf", gammas=[0.1], lams=[100.0]),
    ):
        search.set_params(scale="minmax", random_state=0)  # fits end within tol of each other for other seeds
        with pytest.raises(InputError, match=f"of one setting: fit the {type(search).__name__} before"):
            odm.learning_curve(search, X, y)
        plain = odm.ODMClassifier(theta=0.3) if isinstance(search, odm.ODMClassifierCV) else odm.ODMRegressor()
        plain.set_params(gamma=0.1, lam=100.0, scale="minmax", loo=True, random_state=0)
        found = odm.learning_curve(search.fit(X, y), X, y, shares=(1.0,))
        assert found.scores == pytest.approx(plain.fit(X, y).loo_score_)
        search.set_params(metric="diagonal").fit(X * [1.0, 1.0, 9.0], y)
        metric = search.best_params_.get("metric")
        curve = odm.learning_curve(search, X * [1.0, 1.0, 9.0], y, shares=(1.0,)).scores
        plain.set_params(metric=metric, **{name: search.best_params_[name] for name in ("gamma", "lam")})
        assert curve == pytest.approx(plain.fit(X * [1.0, 1.0, 9.0], y).loo_score_)


def test_what_has_no_left_out_scores_has_no_curve(rows):
    with pytest.raises(InputError, match=r"are of an ODMClassifier or ODMRegressor. Got MDDRidge"):
        odm.learning_curve(odm.MDDRidge(), *rows)


def test_lam_of_a_store_is_that_of_all_its_rows(rows, tmp_path):
    X, y = rows
    store = store_of(tmp_path / "a.zarr", X, y)
    drawn = store.sample(200, np.random.RandomState(0).randint(2**31 - 1))
    few = clone(MODEL).set_params(lam=50.0, loo=True).fit(*drawn)
    assert odm.learning_curve(MODEL, store, max_rows=200, shares=(1.0,)).scores == few.loo_score_


@pytest.mark.parametrize("shares", [(), (0.0, 1.0), (0.5, 0.5), (1.0, 0.5), (0.5, 1.5)])
def test_shares_ascend(rows, shares):
    with pytest.raises(InputError, match="shares"):
        odm.learning_curve(MODEL, *rows, shares=shares)


@pytest.mark.parametrize(
    ("scores", "twice"),
    [([0.8, 0.9, 0.95], 0.975), ([0.9, 0.9, 0.9], 0.9), ([0.8, 0.9, 1.0], 1.1), ([0.9, 0.95, 0.94], 0.94)],
)
def test_twice_as_many_rows_bring_less_in_the_same_proportion(scores, twice):
    assert LearningCurve(np.array([100, 200, 400]), np.array(scores)).twice == pytest.approx(twice)


def test_a_sample_of_a_store(rows, tmp_path):
    X, y = rows
    labels = np.where(y > 0, "b", "a").astype(object)
    labels[::7] = None
    store = store_of(tmp_path / "a.zarr", X, labels, chunk_rows=33)
    few, many = store.sample(50, 1), store.sample(90, 1)
    assert few[0].shape == (50, 3)
    assert set(few[1]) == {"a", "b"}
    places = [np.flatnonzero((store.sample(400)[0] == row).all(axis=1))[0] for row in few[0]]
    assert np.all(np.diff(places) > 0)
    assert {tuple(row) for row in few[0]} < {tuple(row) for row in many[0]}
    assert len(store.sample(1000)[0]) == sum(label is not None for label in labels)
    again = odm.Store.open(store.path).sample(50, 1)
    np.testing.assert_array_equal(again[0], few[0])
    at = [np.flatnonzero(np.isclose(X, row, atol=1e-6).all(axis=1))[0] for row in few[0]]
    assert labels[at].tolist() == few[1].tolist()
