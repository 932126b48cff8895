"""Learned metrics: gradients against differences, known directions found, nothing lost where there are none."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone

from dask_odm import InputError, Metric, ODMClassifier, ODMRegressor
from dask_odm.kernels import KERNELS
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.methods.cells.choosing import gamma_of_cells
from dask_odm.methods.metric import gradients, learn_metric
from dask_odm.solvers import Cells, Landmark


@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_gradients_are_those_of_differences(kernel):
    rng = np.random.default_rng(0)
    Z, X, a = rng.normal(size=(9, 3)), rng.normal(size=(4, 3)), rng.normal(size=(2, 9))
    landmarks = Landmarks(KERNELS[kernel](bias=1.0, gamma=0.3), Z, np.arange(9))
    found = gradients(landmarks, a, X)
    for j in range(3):
        step = 1e-6 * np.eye(3)[j]
        values = [a @ landmarks.kernel.tile(Z, X + sign * step) for sign in (-1.0, 1.0)]
        np.testing.assert_allclose([each[:, j] for each in found], (values[1] - values[0]) / 2e-6, atol=1e-7)


def test_a_landmark_is_left_out_of_its_own_gradient():
    """A Laplacian kernel has a kink there, which says nothing of how labels change."""
    Z = np.array([[0.5, -1.0]])
    (found,) = gradients(Landmarks(KERNELS["laplacian"](gamma=1.0), Z, np.arange(1)), np.ones((1, 1)), Z)
    np.testing.assert_array_equal(found, 0.0)


def test_gradients_of_sparse_rows_are_those_of_dense_ones():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 30)) * (rng.random((12, 30)) < 0.1)
    shift = rng.normal(size=30)
    a = rng.normal(size=(1, 12))
    kernel = KERNELS["rbf"](gamma=0.1)
    sparse = CSRRows.of(csr_array(X), None, shift)
    (found,) = gradients(Landmarks(kernel, sparse, np.arange(12)), a, sparse)
    (expected,) = gradients(Landmarks(kernel, X - shift, np.arange(12)), a, X - shift)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def relevant(n, d, labels, seed=0, scale=1.0):
    """Rows of d columns whose labels are of the first ones, and others."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2 * n, d))
    y = labels(X)
    X[:, -1] *= scale
    return X[:n], y[:n], X[n:], y[n:]


def gain(model, rows):
    """How much better a model predicts new rows by its metric than without."""
    X, y, Xt, yt = rows
    without = clone(model).set_params(metric=None).fit(X, y)
    return model.fit(X, y).score(Xt, yt) - without.score(Xt, yt)


@pytest.mark.parametrize(("kernel", "scale", "labels"), [
    ("rbf", "standard", lambda X: X[:, 0] + X[:, 1] > 0),
    ("rbf", "standard", lambda X: X[:, 0] * X[:, 1] > 0),  # neither column says anything alone
    ("laplacian", "standard", lambda X: X[:, 0] ** 2 + X[:, 1] ** 2 > 1.4),
    ("rbf", "ranks", lambda X: np.exp(X[:, 0]) + np.exp(X[:, 1]) > 2),
    ("laplacian", "ranks", lambda X: (X[:, 0] > 0.3) | (X[:, 1] > 0.6)),
    ("rbf", "minmax", lambda X: X[:, 1] > np.sin(2.0 * X[:, 0])),
], ids=["sum", "product", "ring", "warped", "steps", "wave"])  # fmt: skip
def test_columns_that_matter_are_found_among_others(kernel, scale, labels):
    model = ODMClassifier(kernel, scale=scale, metric="diagonal", solver="exact", random_state=0)
    assert gain(model, relevant(500, 20, labels)) > 0.02
    assert set(np.argsort(-model.feature_importances_)[:2]) == {0, 1}
    assert model.feature_importances_[:2].sum() > 0.5
    np.testing.assert_allclose(model.feature_importances_.sum(), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [lambda Z: Z[:, 0] * Z[:, 1] > 0, lambda Z: (Z**2).sum(axis=1) > 1.4])
def test_a_full_metric_finds_two_turned_directions_of_many(labels):
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(10, 10)))[0][:, :2]
    model = ODMClassifier(metric="full", solver="exact", random_state=0)
    assert gain(model, relevant(800, 10, lambda X: labels(X @ turn))) > 0.03
    along = np.linalg.svd(model._model.scaling.matrix * model._model.scaling.factor)[2][:2]
    assert np.linalg.svd(along @ turn)[1].min() > 0.9


def test_two_columns_of_two_hundred_are_found():
    model = ODMClassifier(metric=Metric(rounds=2), solver="exact", random_state=0)
    assert gain(model, relevant(500, 200, lambda X: X[:, 0] + X[:, 1] > 0)) > 0.05
    assert set(np.argsort(-model.feature_importances_)[:2]) == {0, 1}


def test_a_nuisance_of_large_scale_is_shrunk_without_any_scaling():
    rows = relevant(500, 5, lambda X: X[:, 0] + X[:, 1] > 0, scale=30.0)
    assert gain(ODMClassifier(scale=None, metric="diagonal", solver="exact", random_state=0), rows) > 0.03


def test_a_full_metric_finds_a_direction_that_no_column_has():
    rng = np.random.default_rng(0)
    axis = rng.normal(size=12) / np.sqrt(12)
    rows = relevant(500, 12, lambda X: np.sin(3.0 * X @ axis) > 0)
    full, diagonal = (ODMClassifier(metric=kind, solver="exact", random_state=0) for kind in ("full", "diagonal"))
    assert gain(full, rows) > 0.15
    assert full.score(*rows[2:]) > diagonal.fit(*rows[:2]).score(*rows[2:]) + 0.1
    along = full._model.scaling.matrix * full._model.scaling.factor
    assert abs(np.linalg.svd(along)[2][0] @ axis) > 0.95 * np.linalg.norm(axis)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_labels_of_noise_lose_nothing(kind):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 6)), rng.random(600) < 0.5
    model = ODMClassifier(metric=kind, solver="exact", random_state=0).fit(X, y)
    metric = model._model.scaling.matrix if kind == "full" else model._model.scaling.factor * X.std(axis=0)
    assert metric is None or np.linalg.cond(np.diag(metric) if metric.ndim == 1 else metric) < 20


def test_real_targets_and_many_classes():
    X, _, Xt, _ = relevant(400, 20, lambda X: X[:, 0])
    one = {"metric": Metric(rounds=2), "random_state": 0}
    assert gain(ODMRegressor(**one), (X, np.sin(2 * X[:, 0]), Xt, np.sin(2 * Xt[:, 0]))) > 0.3
    classes = [np.digitize(each[:, 0], [-0.5, 0.5]) for each in (X, Xt)]
    assert gain(ODMClassifier(**one), (X, classes[0], Xt, classes[1])) > 0.05
    both = [np.column_stack([each[:, 0], np.sin(2 * each[:, 1])]) for each in (X, Xt)]
    assert gain(ODMRegressor(**one), (X, both[0], Xt, both[1])) > 0.1


@pytest.mark.parametrize("solver", ["exact", Landmark(100), Cells(150)], ids=["exact", "landmark", "cells"])
def test_every_solver_learns_by_a_full_metric(solver):
    rows = relevant(400, 6, lambda X: np.abs(X[:, 0] - X[:, 1]) > 1.0)
    assert gain(ODMClassifier(metric="full", solver=solver, random_state=0), rows) > 0.03


def test_sparse_rows_stay_sparse_and_are_learned_like_dense_ones():
    rng = np.random.default_rng(0)
    X = (rng.random((500, 60)) < 0.08) * 1.0
    y = X[:, :3].any(axis=1)
    model = ODMClassifier(scale=None, metric=Metric(rounds=2), solver="exact", tol=1e-8, random_state=0)
    sparse, dense = (clone(model).fit(rows, y) for rows in (csr_array(X), X))
    assert sparse._model.is_sparse
    np.testing.assert_allclose(sparse.feature_importances_, dense.feature_importances_, rtol=1e-6)
    np.testing.assert_allclose(sparse.decision_function(csr_array(X)), dense.decision_function(X), atol=1e-5)


def test_a_gamma_of_the_user_is_kept():
    X, y, *_ = relevant(300, 4, lambda X: X[:, 0] > 0)
    model = ODMClassifier(gamma=0.07, metric=Metric("diagonal", rounds=1), random_state=0).fit(X, y)
    assert model.gamma_ == model._model.kernel.gamma == 0.07


def test_laplacian_cells_have_the_metric_of_rbf_and_a_gamma_of_their_own():
    """Few landmarks follow a Laplacian kernel badly, and none a γ that cells can have."""
    X, y, *_ = relevant(600, 4, lambda X: np.sin(6.0 * X[:, 0]) > 0)
    one = {"metric": Metric(rounds=1), "solver": Cells(150), "random_state": 0}
    rbf, laplacian = (ODMClassifier(kernel, **one).fit(X, y) for kernel in ("rbf", "laplacian"))
    np.testing.assert_array_equal(laplacian._model.scaling.factor, rbf._model.scaling.factor)
    given = ODMClassifier("laplacian", gamma=0.07, **one).fit(X, y)
    np.testing.assert_array_equal(given._model.scaling.factor, rbf._model.scaling.factor)
    assert given.gamma_ == given._model.kernel.gamma == 0.07


@pytest.mark.parametrize("narrow", [True, False])
def test_cells_take_a_larger_gamma_where_labels_change_often(narrow):
    X, *_ = relevant(1500, 2, lambda X: X[:, 0])
    y = np.sin(12.0 * X[:, 0]) if narrow else X[:, 0] + np.random.default_rng(1).normal(size=len(X))
    model = ODMClassifier(solver=Cells(300), random_state=0)
    run = FitRun.of(model)
    data = MemoryData.of(run, X, np.where(y > 0, 1.0, -1.0), np.ones(len(y)), (1.0, 1.0))
    fit = model._settings(run).for_data(data)
    found = gamma_of_cells(data, replace(fit, kernel=replace(fit.kernel, gamma=0.5)))
    assert found >= 4.0 if narrow else found <= 1.0


def test_a_given_metric_is_taken_as_it_is():
    X, y, *_ = relevant(300, 4, lambda X: X[:, 0] > 0)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0) * [2.0, 1.0, 0.5, 0.0]
    found = ODMClassifier(gamma=0.3, metric=Metric(values=[2.0, 1.0, 0.5, 0.0]), tol=1e-8).fit(X, y)
    expected = ODMClassifier(gamma=0.3, scale=None, tol=1e-8).fit(scaled, y)
    np.testing.assert_allclose(found.decision_function(X), expected.decision_function(scaled), atol=1e-6)
    for values in ([1.0, 2.0], [1.0, 1.0, 1.0, np.nan]):
        with pytest.raises(InputError, match="must be 4 finite numbers"):
            ODMClassifier(metric=Metric(values=values)).fit(X, y)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_distances_keep_their_mean(kind):
    """So that a γ means what it meant."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 5)) @ rng.normal(size=(5, 5))
    run = FitRun(0)
    data = MemoryData.of(run, X, np.where(X[:, 0] > 0, 1.0, -1.0), np.ones(500), (1.0, 1.0))
    choice = KernelChoice("rbf", bias=1.0, scale="standard")
    found = learn_metric(data, choice, (2.0, 0.2, 0.2), Metric(kind), run)
    seen = data.seen_by(replace(choice, metric=found.metric)).scaled
    assert found.metric is not None
    np.testing.assert_allclose(seen.var(axis=0).sum(), 5.0, rtol=0.1)  # exactly so over the rows that are not held out


def test_few_rows_and_constant_columns():
    X = np.column_stack([np.arange(6.0), np.ones(6)])
    for kind in ("diagonal", "full"):
        model = ODMClassifier(metric=kind, random_state=0).fit(X[:6], X[:, 0] > 2)
        assert np.isfinite(model.decision_function(X)).all()
        assert model.feature_importances_[1] == 0.0


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_columns_of_two_values_keep_their_importance_once_the_metric_tells_them_apart(kind):
    """The kernel then has no slope left between their rows."""
    X = (np.random.default_rng(1).random((400, 6)) < 0.5) * 1.0
    model = ODMClassifier(metric=kind, random_state=0).fit(X, X[:, 0] != X[:, 1])
    assert model.feature_importances_[:2].min() > 0.4
