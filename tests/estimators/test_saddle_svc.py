"""SaddleSVC: the ν-SVM of scikit-learn, weights, sources, and what cannot be learned from."""

import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC, NuSVC

from dask_odm import InputError, MemoryLimitError, SaddleSVC
from dask_odm.data.rows.scaling import Scaling
from dask_odm.papers.saddle.recipes import HULL_RECIPES
from dask_odm.solvers import Gilbert, Saddle
from small_problems import blobs
from small_stores import store_of

FORMS = pytest.mark.parametrize("form", [np.asarray, csr_array], ids=["dense", "csr"])


def cosine(a, b):
    a, b = np.ravel(a), np.ravel(b)
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def offset(model):
    return float(model.intercept_[0]) / np.linalg.norm(model.coef_)


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return (X - X.min(axis=0)) / np.ptp(X, axis=0), y


@pytest.fixture
def rows():
    X, y = blobs(90, 3, seed=4)
    return X + y[:, None], y


@pytest.mark.parametrize("alpha", [0.6, 0.7, 0.85, 0.92, 0.98])
def test_it_is_the_nu_svm(cancer, alpha):
    X, y = cancer
    loose, tight = (SaddleSVC(alpha, tol=tol).fit(X, y) for tol in (1e-3, 1e-9))
    other = NuSVC(kernel="linear", nu=loose.nu_, tol=1e-8).fit(X, y)
    assert cosine(tight.coef_, other.coef_) == pytest.approx(1, abs=1e-12)
    assert cosine(loose.coef_, other.coef_) == pytest.approx(1, abs=1e-8)
    assert offset(tight) == pytest.approx(offset(other), rel=1e-7)
    assert offset(loose) == pytest.approx(offset(other), rel=1e-5)
    assert loose.dual_gap_ <= 1e-3
    assert loose.score(X, y) == pytest.approx(other.score(X, y), abs=0.01)
    assert set(other.support_) <= set(tight.support_)


def test_midpoint_is_half_way_between_the_nearest_points(cancer):
    X, y = cancer
    model = SaddleSVC(0.85, offset="midpoint", tol=1e-9).fit(X, y)
    kkt = SaddleSVC(0.85, tol=1e-9).fit(X, y)
    np.testing.assert_array_equal(model.coef_, kkt.coef_)
    assert abs(offset(model) - offset(kkt)) > 0.1  # the paper's offset is that of the hard margin only


@FORMS
@pytest.mark.parametrize("offset_", ["kkt", "midpoint"])
def test_the_hard_margin_is_that_of_a_large_c(form, offset_):
    X, y = load_iris(return_X_y=True)
    model = SaddleSVC(None, tol=1e-10, offset=offset_).fit(form(X), y == 0)
    other = SVC(kernel="linear", C=1e8, tol=1e-8).fit(X, y == 0)
    np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-4)
    np.testing.assert_allclose(model.intercept_, other.intercept_, atol=1e-3)
    assert model.margin_ == pytest.approx(2 / np.linalg.norm(model.coef_), rel=1e-9)
    assert set(model.support_) == set(other.support_)
    assert model.nu_ == pytest.approx(2 / 150)


@FORMS
@pytest.mark.parametrize("scale", ["minmax", "standard"])
def test_scaling_is_kept_in_the_model(rows, form, scale):
    X, y = rows[0] * [1.0, 1e3, 1e-3] + [5.0, 0.0, 1.0], rows[1]
    model = SaddleSVC(scale=scale, tol=1e-9).fit(form(X), y)
    low, wide = (X.min(axis=0), np.ptp(X, axis=0)) if scale == "minmax" else (X.mean(axis=0), X.std(axis=0))
    by_hand = SaddleSVC(tol=1e-9).fit(Scaling(low, 1 / wide)(X), y)
    np.testing.assert_allclose(
        model.decision_function(form(X)), by_hand.decision_function(Scaling(low, 1 / wide)(X)), atol=1e-5
    )
    assert model.margin_ == pytest.approx(by_hand.margin_, rel=1e-6)


def test_class_weight_is_a_weight_of_rows(rows):
    X, y = rows[0][20:], np.where(np.arange(70) < 15, 1.0, rows[1][20:])
    X = X + 2 * y[:, None]
    share = np.where(y > 0, 35 / (y > 0).sum(), 35 / (y < 0).sum())
    balanced = SaddleSVC(tol=1e-10, class_weight="balanced").fit(X, y)
    by_row = SaddleSVC(tol=1e-10).fit(X, y, share)
    np.testing.assert_allclose(balanced.coef_, by_row.coef_, rtol=1e-6)
    assert balanced.nu_ == pytest.approx(0.85)


def test_labels_the_other_way_round_turn_the_model_round(rows):
    X, y = rows
    one, other = SaddleSVC(tol=1e-10).fit(X, y), SaddleSVC(tol=1e-10).fit(X, -y)
    np.testing.assert_allclose(one.decision_function(X), -other.decision_function(X), atol=1e-6)


# Hulls that overlap, and other rows that cannot be learned from ----------------------------------------------------


@pytest.mark.parametrize("alpha", [None, 0.3])
@pytest.mark.parametrize("solver", sorted(HULL_RECIPES))
def test_hulls_that_overlap_are_told_at_once_with_an_alpha_that_does(alpha, solver):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 5))
    y = X[:, 0] + rng.standard_normal(500) > 0.5
    model = SaddleSVC(alpha, solver=solver)
    with pytest.warns(ConvergenceWarning, match=r"overlap: .* They are apart for alpha=0\.\d\d\."):
        model.fit(X, y)
    assert model.margin_ == 0
    assert model.dual_gap_ == 1
    assert np.isfinite(model.coef_).all()
    assert model.score(X, y) > 0.7
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(X, y)
    named = float(str(caught[0].message).rpartition("=")[2].rstrip("."))
    assert SaddleSVC(named).fit(X, y).margin_ > 0
    assert model.n_iter_ <= (16 if solver == "saddle" else 8)


@pytest.mark.parametrize("X", [np.zeros((40, 3)), np.repeat(np.random.default_rng(0).standard_normal((20, 3)), 2, axis=0)])  # fmt: skip  # noqa: E501
def test_classes_that_are_the_same_are_told(X):
    with pytest.warns(ConvergenceWarning, match="the class means are equal"):
        model = SaddleSVC().fit(X, np.arange(40) % 2)
    assert np.isfinite(model.decision_function(X)).all()


@pytest.mark.parametrize("solver", sorted(HULL_RECIPES))
def test_too_few_iterations_are_told(cancer, solver):
    with pytest.warns(ConvergenceWarning, match=r"stopped at a relative gap of .* Increase max_iter \(1\)"):
        SaddleSVC(0.85, solver=solver, max_iter=1).fit(*cancer)


# Sources, files, checkpoints ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("over_passes")
def test_all_solvers_take_a_store(tmp_path):
    X, y = blobs(400, 3, seed=2)
    path = tmp_path / "a.zarr"
    store_of(path, X, y, chunk_rows=90)
    one, *others = (SaddleSVC(solver=solver, tol=1e-4).fit(str(path)) for solver in ("mnp", "gilbert", "saddle"))
    for other in others:
        assert cosine(one.coef_, other.coef_) == pytest.approx(1, abs=1e-4)
        assert other.dual_gap_ <= 1e-4
    assert others[1].history_[-1]["communication"] > 20  # the saddle point's rows are with clients


@pytest.mark.parametrize("solver", sorted(HULL_RECIPES))
@pytest.mark.parametrize("alpha", [None, 0.01, 0.85, 1.0])
def test_a_row_of_each_class_is_enough(solver, alpha):
    model = SaddleSVC(alpha, solver=solver).fit([[0.0, 1.0], [0.0, 3.0]], ["a", "b"])
    np.testing.assert_allclose(model.coef_, [[0.0, 1.0]], atol=1e-12)
    np.testing.assert_allclose(model.intercept_, [-2.0], atol=1e-12)


# Clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [Saddle, Gilbert])
@pytest.mark.parametrize("scale", [None, "minmax"])
def test_clients_come_to_the_model_of_one_process(rows, solver, scale):
    X, y = rows[0] + 5.0, rows[1]
    weight = np.random.default_rng(0).integers(0, 3, 90).astype(float)
    settings = {"tol": 1e-5, "scale": scale, "random_state": 0}
    alone = SaddleSVC(0.8, solver=solver(), **settings).fit(X, y, weight)
    # Gilbert's steps are the same; those of "saddle" are as long to a few per cent, and the gap bounds how far ends are
    off, from_gap = (1e-9, 1e-9) if solver is Gilbert else (1e-2, 1e-5)
    for n_clients in (1, 20):
        found = SaddleSVC(0.8, solver=solver(n_clients=n_clients), **settings).fit(X, y, weight)
        np.testing.assert_allclose(found.coef_, alone.coef_, rtol=off)
        np.testing.assert_allclose(found.intercept_, alone.intercept_, rtol=off)
        last = found.history_[-1]
        assert last["communication"] == last["floats"] / (n_clients * 3)
        assert last["objective"] == pytest.approx(alone.history_[-1]["objective"], rel=from_gap)


@pytest.mark.parametrize(
    "way", [{}, {"scale": "standard"}, {"solver": Saddle(2, n_clients=4)}, {"solver": Gilbert(n_clients=4)}], ids=str
)
def test_clients_take_sparse_rows(rows, way):
    X = np.where(np.abs(rows[0]) < 0.3, 0.0, rows[0])
    settings = {"solver": Saddle(n_clients=4), "max_iter": 16, "random_state": 0} | way
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        dense, sparse = (SaddleSVC(0.8, **settings).fit(form(X), rows[1]) for form in (np.asarray, csr_array))
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-9)
    assert sparse.history_[-1]["floats"] == dense.history_[-1]["floats"]


def test_clients_that_cannot_be_are_refused(rows):
    X, y = rows
    with pytest.raises(InputError, match=r"n_clients must be at most the number of rows, 90\. Got 91"):
        SaddleSVC(solver=Saddle(n_clients=91)).fit(X, y)
    many, labels = np.tile(X, (200, 27)), np.tile(y, 200)
    with pytest.raises(MemoryLimitError, match=r"Holding 18000 rows as 3 clients .* solver='mnp', which holds no rows"):
        SaddleSVC(solver=Saddle(n_clients=3), memory_limit="45MB").fit(many, labels)
