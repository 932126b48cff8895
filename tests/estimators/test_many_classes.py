"""Many classes, by machines of two: against scikit-learn's wrappers around the same estimator, and over stores."""

from itertools import combinations

import dask
import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier

from dask_odm import InputError, ODMClassifier, ODMClassifierCV, SaddleSVC, Store, load_model
from dask_odm.diagnostics.evaluation import evaluate, scores_of
from dask_odm.kernels.sparse_tiles import SkippingTiles, tiles_of
from dask_odm.learning.machines import require_few
from dask_odm.methods.auto_limits import AutoLimits
from dask_odm.methods.exact.systems import ExactLimits
from dask_odm.methods.pairs import recipe as pairs_recipe
from dask_odm.solvers import SODM, Landmark
from small_stores import store_of
from stopping import StoppedError, stop_at

LABELS = np.array(["ant", "bee", "cat", "dog"])
EXACT = {"gamma": 0.5, "lam": 100.0, "solver": "exact", "tol": 1e-10, "scale": None}
LANDMARK = {"gamma": 0.5, "lam": 100.0, "solver": Landmark(60), "tol": 1e-9, "random_state": 0, "scale": None}
LINEAR = {"kernel": "linear", "lam": 100.0, "tol": 1e-10, "scale": None}
SETTINGS = [EXACT, LANDMARK, LINEAR]
WRAPPERS = {"ovr": OneVsRestClassifier, "ovo": OneVsOneClassifier}


@pytest.fixture(scope="module")
def rows():
    """Four classes, sorted, the last of them one row."""
    rng = np.random.default_rng(3)
    code = np.sort(np.append(rng.integers(0, 3, 119), 3))
    return rng.normal(size=(120, 3)) + np.array([[0, 0, 0], [2, 0, 0], [0, 2, 0], [3, 3, 3]])[code], LABELS[code]


def stored(settings, path, **changes):
    """A fit over passes of a store, that is not read into memory."""
    with dask.config.set({"dask_odm.read-into-memory": "0B"}):
        return ODMClassifier(**settings, **changes).fit(path)


@pytest.mark.parametrize("scheme", WRAPPERS)
@pytest.mark.parametrize("settings", SETTINGS, ids=["exact", "landmark", "linear"])
def test_machines_are_those_of_scikit_learns_wrappers(rows, settings, scheme):
    X, y = rows
    settings = settings | ({"solver": Landmark(120)} if settings is LANDMARK else {})  # all: two draws span the same
    wrapped = WRAPPERS[scheme](ODMClassifier(**settings)).fit(X, y)
    model = ODMClassifier(**settings, multi_class=scheme).fit(X, y)
    assert model.classes_.tolist() == LABELS.tolist()
    np.testing.assert_allclose(model.decision_function(X), wrapped.decision_function(X), atol=2e-4)
    np.testing.assert_array_equal(model.predict(X), wrapped.predict(X))
    assert len(model.intercept_) == len(wrapped.estimators_)


@pytest.mark.parametrize("scheme", WRAPPERS)
@pytest.mark.parametrize("settings", [LANDMARK, LINEAR, EXACT], ids=["landmark", "linear", "exact"])
def test_a_store_is_learned_from_as_rows_in_memory(rows, settings, scheme, tmp_path):
    X, y = rows
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    given = np.where(np.arange(len(y)) % 17 == 5, None, y.astype(object))  # rows without a label
    known = np.array([label is not None for label in given])
    path = store_of(tmp_path / "a.zarr", X, given, weight=weight, chunk_rows=25).path
    more = {"multi_class": scheme, "class_weight": {"bee": 3.0}, "scale": "minmax"}
    more |= {"solver": Landmark(120)} if settings is LANDMARK else {}
    plain = ODMClassifier(**settings | more).fit(X[known], y[known], weight[known])
    model = stored(settings | more, path)
    expected = plain.decision_function(X)
    if settings is EXACT:
        np.testing.assert_allclose(model.decision_function(X), expected, atol=1e-4)
    assert (model.predict(X) == plain.predict(X)).mean() > 0.98
    np.testing.assert_allclose(np.asarray(model.decision_function(path)), model.decision_function(X), atol=1e-5)


@pytest.mark.parametrize("scheme", [*WRAPPERS, None])
@pytest.mark.parametrize("zero", [("ant",), ("bee", "cat")], ids=" ".join)
def test_classes_without_weight_in_every_form(rows, tmp_path, scheme, zero):
    """Their rows are as if they were not there; probabilities, sets and left-out scores included."""
    X, y = rows[0], LABELS[np.arange(120) % 4]
    kept = ~np.isin(y, zero)
    settings = EXACT | {"lam": 10.0, "loo": True, "multi_class": scheme}
    alone = ODMClassifier(**settings).fit(X[kept], y[kept])
    learned = np.isin(LABELS, y[kept])
    weighted = store_of(tmp_path / "a.zarr", X, y, weight=kept.astype(float)).path
    unweighted = store_of(tmp_path / "b.zarr", X, y).path
    for model in (
        ODMClassifier(**settings).fit(X, y, kept.astype(float)),
        ODMClassifier(**settings, class_weight=dict.fromkeys(zero, 0)).fit(X, y),
        ODMClassifier(**settings).fit(weighted),
        stored(settings, unweighted, class_weight=dict.fromkeys(zero, 0)),
    ):
        np.testing.assert_array_equal(model.predict(X), alone.predict(X))
        shares = model.predict_proba(X)
        np.testing.assert_allclose(shares[:, learned], alone.predict_proba(X), atol=1e-5)
        np.testing.assert_array_equal(shares[:, ~learned], 0.0)
        np.testing.assert_array_equal(model.predict_log_proba(X)[:, ~learned], -np.inf)
        lazy = da.from_array(X, chunks=(50, -1))
        np.testing.assert_allclose(model.predict_proba(lazy), shares, atol=1e-9)
        assert model.loo_score_ == pytest.approx(alone.loo_score_, abs=1e-9)
        np.testing.assert_array_equal(model.predict_set(X)[:, learned], alone.predict_set(X))
        assert not model.predict_set(X, by_class=True)[:, ~learned].any()
        for score in ("accuracy", "neg_log_loss"):
            assert model.loo_score(score) == pytest.approx(alone.loo_score(score), abs=1e-5)
        assert not model.calibrate(X, y).predict_set(X)[:, ~learned].any()
        if scheme != "ovo":
            expected = -log_loss(y, shares)
            assert scores_of(model, Store.open(unweighted), "neg_log_loss") == {"neg_log_loss": pytest.approx(expected)}
        facts = evaluate(model, weighted).facts()
        assert facts["weighted_accuracy"] == pytest.approx(model.score(X, y, kept.astype(float)))
    searched = ODMClassifierCV(gammas=[0.5], lams=[100.0], upsilons=[0.2], thetas=[0.2], random_state=0)
    searched.fit(X, y, kept.astype(float))
    assert searched.classes_.tolist() == LABELS.tolist()
    assert set(searched.predict(X)) <= set(y[kept])


@pytest.mark.parametrize("settings", [LINEAR, EXACT], ids=["linear", "exact"])
def test_balanced_classes_do_not_count_one_without_weight(rows, settings):
    X, y = rows[0], LABELS[np.arange(120) % 4]
    kept = y != "ant"
    model = ODMClassifier(**settings, class_weight="balanced").fit(X, y, kept.astype(float))
    alone = ODMClassifier(**settings, class_weight="balanced").fit(X[kept], y[kept])
    np.testing.assert_array_equal(model.predict(X), alone.predict(X))


def test_descent_over_wide_sparse_rows_agrees_with_newton(rows):
    """Columns of zeros make them wide; dense, the same rows go another way."""
    X, y = rows
    wide = csr_array((X.ravel(), np.tile([0, 7, 2999], len(X)), np.arange(0, X.size + 1, 3)), shape=(len(X), 3000))
    settings = {
        "kernel": "linear",
        "lam": 50.0,
        "theta": 0.1,
        "upsilon": 0.3,
        "scale": None,
        "tol": 1e-9,
        "max_iter": 5000,
    }
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    model = ODMClassifier(**settings, class_weight={"bee": 2.0}).fit(wide, y, weight)
    plain = ODMClassifier(**settings, class_weight={"bee": 2.0}).fit(X, y, weight)
    np.testing.assert_allclose(model.coef_[:, [0, 7, 2999]], plain.coef_, atol=1e-4)
    np.testing.assert_allclose(model.intercept_, plain.intercept_, atol=1e-4)
    assert model.dual_gap_ <= 1e-9
    assert model.history_[-1]["objective"] == pytest.approx(plain.history_[-1]["objective"])


def test_auto_learns_pairs_exactly_where_all_rows_are_too_many(rows, monkeypatch):
    X, y = rows
    monkeypatch.setattr("dask_odm.methods.recipes.AUTO", AutoLimits(exact_work=0))
    for settings, labels, solver in (
        ({}, y, "exact"),
        ({}, y == "ant", "landmark"),
        ({"solver": Landmark(9)}, y, "landmark"),
    ):
        assert ODMClassifier(**settings).fit(X, labels).history_[0]["solver"] == solver
    monkeypatch.setattr("dask_odm.methods.pairs.recipe.AUTO", AutoLimits(pairs_work=0))
    assert ODMClassifier().fit(X, y).history_[0]["solver"] != "exact"


def test_polynomials_of_float32_rows_are_learned_in_float64(rows, monkeypatch):
    monkeypatch.setattr(pairs_recipe, "LIMITS", ExactLimits(rounding_rows=0))  # descent may end it
    X, y = rows[0].astype(np.float32), rows[1]
    settings = {"kernel": "poly", "gamma": 1.0, "solver": "exact", "lam": 10.0, "scale": None, "random_state": 0}
    narrow, wide = ODMClassifier(**settings).fit(X, y), ODMClassifier(**settings).fit(X.astype(np.float64), y)
    np.testing.assert_array_equal(narrow.dual_coef_, wide.dual_coef_)
    assert narrow.dual_gap_ == wide.dual_gap_


def test_images_on_white_paper_are_learned_by_their_ink():
    """Pairs compute kernel values from what differs from the paper; machine by machine they are computed in full."""
    X, y = load_digits(n_class=5, return_X_y=True)
    X, y = np.where(X < 7.0, 16.0, 16.0 - X)[:300], y[:300]
    settings = {"gamma": 0.003, "solver": "exact", "lam": 1e4, "tol": 1e-9, "scale": None}
    together = ODMClassifier(**settings).fit(X, y)
    model = together._model
    assert isinstance(tiles_of(model.kernel, model.scaling(model.support)), SkippingTiles)
    wrapped = OneVsOneClassifier(ODMClassifier(**settings)).fit(X, y)
    np.testing.assert_allclose(together.decision_function(X), wrapped.decision_function(X), atol=1e-5)


def test_pairs_that_leave_rows_out_are_the_model_of_those_that_do_not(rows, tmp_path):
    X, y = rows[0], LABELS[np.arange(120) % 4]
    given = np.where(np.arange(120) % 17 == 5, None, y.astype(object))  # rows without a label
    known = np.array([label is not None for label in given])
    weight = np.where(np.arange(120) % 7 == 2, 0.0, 1.0)
    path = store_of(tmp_path / "a.zarr", X, given, weight=weight, chunk_rows=25).path
    weight *= known
    settings = EXACT | {"multi_class": "ovo", "lam": 10.0}
    plain = ODMClassifier(**settings).fit(X, y, weight)
    model = ODMClassifier(**settings, loo=True).fit(X, y, weight)
    wide = np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(axis=2))
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        of_store = ODMClassifier(**settings, loo=True).fit(path)
    for found in (model, of_store, ODMClassifier(**settings, loo=True).fit(csr_array(X), y, weight)):
        assert sorted(found.support_) == sorted(plain.support_)
        assert np.all(np.diff(np.searchsorted(LABELS, y[found.support_])) >= 0)
        order, expected = np.argsort(found.support_), np.argsort(plain.support_)
        np.testing.assert_allclose(found.dual_coef_[:, order], plain.dual_coef_[:, expected], atol=1e-5)
        np.testing.assert_allclose(found.decision_function(X), plain.decision_function(X), atol=1e-4)
        assert found.dual_gap_ <= 1e-10
        found.save(tmp_path / "m.zarr", overwrite=True)
        read = load_model(tmp_path / "m.zarr")
        np.testing.assert_array_equal(read.predict_proba(X), found.predict_proba(X))
    known_kernel = ODMClassifier(**settings | {"kernel": "precomputed"}, loo=True).fit(wide, y, weight)
    np.testing.assert_allclose(known_kernel.predict_proba(wide), model.predict_proba(X), atol=1e-4)
    assert model.set_params(warm_start=True).fit(X, y, weight).n_iter_ == 1, "nothing is left to do"


def test_pairs_of_many_rows_are_learned_one_by_one(rows, monkeypatch):
    X, y = rows
    at_once = ODMClassifier(**EXACT, multi_class="ovo").fit(X, y)
    monkeypatch.setattr("dask_odm.methods.pairs.recipe.AUTO", AutoLimits(pair_rows=50))
    one_by_one = ODMClassifier(**EXACT, multi_class="ovo").fit(X, y)
    np.testing.assert_allclose(at_once.decision_function(X), one_by_one.decision_function(X), atol=1e-6)
    assert sorted(at_once.support_) == sorted(one_by_one.support_)
    column = {row: i for i, row in enumerate(one_by_one.support_)}
    codes = np.searchsorted(at_once.classes_, y)
    for i, row in enumerate(at_once.support_):  # as LIBSVM has them: of each other class in turn
        machines = [m for m, pair in enumerate(combinations(range(4), 2)) if codes[row] in pair]
        expected = one_by_one.dual_coef_[machines, column[row]]
        np.testing.assert_allclose(at_once.dual_coef_[:, i], expected, atol=1e-6)
    assert np.all(np.diff(codes[at_once.support_]) >= 0)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_a_tree_of_a_store_for_every_pair(rows, kernel, tmp_path):
    X, y = rows
    path = store_of(tmp_path / "a.zarr", X, y, chunk_rows=25).path
    settings = {"kernel": kernel, "gamma": 0.5, "multi_class": "ovo", "tol": 1e-8, "lam": 10.0}
    model = stored(settings, path, solver=SODM(2))
    plain = ODMClassifier(**settings, solver="sodm").fit(X, y)
    np.testing.assert_allclose(model.decision_function(X), plain.decision_function(X), atol=1e-3)


def test_a_fit_that_begins_anew_forgets_the_later_machines_of_the_one_before(rows, tmp_path):
    path = str(tmp_path / "c.zarr")

    def fit(**more):
        return ODMClassifier(**LINEAR, multi_class="ovo", checkpoint=path, **more).fit(*rows)

    fit(random_state=1)
    with pytest.raises(StoppedError):
        fit(callbacks=[stop_at(9, object)], random_state=2)
    model = fit(resume=True, random_state=2)
    np.testing.assert_array_equal(model.coef_, ODMClassifier(**LINEAR, multi_class="ovo").fit(*rows).coef_)


def test_a_path_of_lams_and_a_warm_start(rows):
    X, y = rows
    path = ODMClassifier(**LINEAR).lam_path(X, y, lams=[10.0, 100.0])
    np.testing.assert_allclose(path[1].coef_, ODMClassifier(**LINEAR).fit(X, y).coef_, atol=1e-5)
    warm = ODMClassifier(**LINEAR, warm_start=True).fit(X, y)
    first = len(warm.history_)
    assert len(warm.fit(X, y).history_) < first
    with pytest.raises(InputError, match="the fitted model has 4 machines"):
        warm.fit(X, y != "ant")


@pytest.mark.parametrize("model", [ODMClassifier(), ODMClassifierCV(), SaddleSVC()])
def test_more_pairs_than_can_be_learned_are_refused_before_anything_is(model, tmp_path):
    X, y = np.zeros((2000, 1)), np.arange(2000) % 1000
    way_out = r"1,000 classes make 499,500 pairs, and at most 262,144 are learned: take multi_class='ovr'"
    with pytest.raises(InputError, match=way_out):
        model.fit(X, y)
    with pytest.raises(InputError, match=way_out):
        model.fit(store_of(tmp_path / "a.zarr", X, y))


def test_more_classes_than_a_store_holds_are_refused():
    with pytest.raises(InputError, match="y has 40,000 different labels; a classifier learns at most 32,767"):
        ODMClassifier("linear").fit(np.zeros((80_000, 1)), np.arange(80_000) % 40_000)


def test_many_classes_are_announced(caplog):
    require_few(501, "ovr")
    assert "501 classes are learned by 501 machines, one for each class" in caplog.text
    caplog.clear()
    require_few(500, "ovo")
    assert not caplog.text
