"""The linear kernel by Newton: the model of the tree, at any tolerance, from dense and sparse rows; what it tells."""

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array
from sklearn.preprocessing import StandardScaler

from dask_odm import ODMClassifier
from dask_odm.learning.problem.linear import EXACT_FEATURES
from small_problems import blobs

ODM = {"lam": 100.0, "upsilon": 0.3, "theta": 0.1, "scale": None}
FORMS = pytest.mark.parametrize("form", [np.asarray, csr_array], ids=["dense", "csr"])


@FORMS
def test_narrow_rows_reach_any_tolerance(form):
    X, y = blobs(3000, 5, seed=3)
    X = X.astype(np.float32)
    narrow = ODMClassifier("linear", lam=1e4, tol=1e-11).fit(form(X), y)
    wide = ODMClassifier("linear", lam=1e4, tol=1e-11).fit(form(X.astype(np.float64)), y)
    assert narrow.dual_gap_ <= 1e-11
    np.testing.assert_allclose(narrow.coef_, wide.coef_, rtol=1e-4)


@FORMS
def test_more_features_than_are_solved_exactly(form):
    """By conjugate gradients then; features that say nothing change no weight."""
    X, y = blobs(200, 30, seed=3)
    exact = ODMClassifier("linear", **ODM, tol=1e-11).fit(form(X), y)
    wide = np.hstack([X, np.zeros((200, EXACT_FEATURES))])
    inexact = ODMClassifier("linear", **ODM, tol=1e-11).fit(form(wide), y)
    np.testing.assert_allclose(inexact.coef_[:, :30], exact.coef_, atol=1e-4)
    assert inexact.dual_gap_ <= 1e-11
    assert inexact.history_[-1]["passes"] > exact.history_[-1]["passes"]


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_few_rows_of_many_features_are_solved_in_their_span(form):
    """To the optimum that dual coordinates find, certified in the weights; a path, many classes and weights as well."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 700)) * (rng.random((60, 700)) < 0.3)
    y, weight = np.sign(X[:, 0] + X[:, 1] + 0.1), rng.uniform(0.5, 2.0, 60)
    settings = {"kernel": "linear", "lam": 1e3, "scale": "standard", "tol": 1e-8}
    found = ODMClassifier(**settings).fit(form(X), y, weight)
    assert found.dual_gap_ <= 1e-8
    assert found.coef_.shape == (1, 700)
    iterations = [record["iteration"] for record in found.history_]
    assert iterations == list(range(len(iterations)))
    dual = ODMClassifier(**settings, solver="sodm").fit(form(X), y, weight)
    np.testing.assert_allclose(found.coef_, dual.coef_, atol=1e-6)
    first, second = ODMClassifier(**settings).lam_path(form(X), y, lams=[1.0, 1e3], sample_weight=weight)
    np.testing.assert_allclose(second.coef_, found.coef_, atol=1e-5)
    assert first.dual_gap_ <= 1e-8


@pytest.mark.parametrize("scale", [None, "minmax"])
@pytest.mark.parametrize("shape", [(600, 80), (600, 500), (100, 900)], ids=["Hessian", "products", "descent"])
def test_rows_of_zeros_mostly_dense_or_sparse(shape, scale):
    """Both are one model to the last bit, near the one of a smaller gap; in float32 as well."""
    rng = np.random.default_rng(5)
    X = np.where(rng.random(shape) < 0.08, rng.random(shape), 0.0)
    told = X[:, : shape[1] // 8].sum(axis=1)
    y = told > np.median(told)
    settings = {"kernel": "linear", "lam": 300.0, "scale": scale, "random_state": 0}
    dense, sparse = (ODMClassifier(**settings).fit(form(X), y) for form in (np.asarray, csr_array))
    np.testing.assert_array_equal(dense.coef_, sparse.coef_)
    assert dense.dual_gap_ <= 1e-3
    best = ODMClassifier(**settings, tol=1e-9).fit(csr_array(X), y)
    assert best.dual_gap_ <= 1e-9
    size = np.abs(best.coef_).max()
    np.testing.assert_allclose(dense.coef_, best.coef_, atol=0.1 * size)
    narrow = ODMClassifier(**settings, tol=1e-9).fit(X.astype(np.float32), y)
    np.testing.assert_allclose(narrow.coef_, best.coef_, atol=1e-4 * size)
    iterations = [record["iteration"] for record in best.history_]
    assert iterations == list(range(len(iterations)))


def test_a_path_over_thin_rows_and_many_classes():
    rng = np.random.default_rng(6)
    X = np.where(rng.random((400, 300)) < 0.1, rng.random((400, 300)), 0.0)
    y = X[:, :60].sum(axis=1) // 1.2
    settings = {"kernel": "linear", "tol": 1e-6}
    *_, last = ODMClassifier(**settings).lam_path(X, y > 2, lams=[1.0, 30.0, 100.0])
    found = ODMClassifier(**settings, lam=100.0).fit(X, y > 2)
    np.testing.assert_allclose(last.coef_, found.coef_, atol=1e-2 * np.abs(found.coef_).max())
    many = ODMClassifier(**settings, lam=100.0).fit(X, y)
    assert many.dual_gap_ <= 1e-6
    one = ODMClassifier(**settings, lam=100.0).fit(X, y == many.classes_[1])
    np.testing.assert_allclose(many.coef_[1], one.coef_[0], atol=1e-2 * np.abs(one.coef_).max())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["newton", "sodm", "svrg", "dsvrg"])
def test_sparse_rows_are_made_standard_without_a_shift(rows, solver):
    """As by `StandardScaler(with_mean=False)`, whatever solves: their zeros stay zeros."""
    X, y = rows
    factor = StandardScaler(with_mean=False).fit(X).scale_
    settings = {**ODM, "solver": solver, "tol": 1e-8, "max_iter": 4000, "random_state": 0}
    sparse = ODMClassifier("linear", **settings | {"scale": "standard"}).fit(csr_array(X), y)
    plain = ODMClassifier("linear", **settings).fit(X / factor, y)
    np.testing.assert_allclose(sparse.coef_ * factor, plain.coef_, atol=1e-3 * np.abs(plain.coef_).max())
    np.testing.assert_allclose(sparse.decision_function(X), plain.decision_function(X / factor), atol=1e-2)


@pytest.mark.parametrize("scale", [None, "minmax"])
@pytest.mark.parametrize(("n", "d"), [(4000, 2200), (900, 1000)], ids=["Newton", "descent"])
def test_products_of_sparse_rows_hardly_grow_with_lam(n, d, scale):
    """Of noisy rows, scaled or not, from zero or along a path."""
    rng = np.random.default_rng(0)
    X = csr_array(random_array((n, d), density=0.01, random_state=0))
    y = X @ rng.standard_normal(d) + 0.3 * rng.standard_normal(n) > 0
    model = ODMClassifier("linear", scale=scale, lam=1000 * n, random_state=0)
    most = 200 if n > d else 600
    for found in (model.fit(X, y), *model.lam_path(X, y, lams=[10 * n, 1000 * n])):
        assert found.dual_gap_ <= 1e-3
        assert found.history_[-1]["passes"] < most
