"""Cells that settings are tried on, in memory and from a store, and a search that uses them."""

from types import SimpleNamespace

import dask
import numpy as np
import pytest

from dask_odm import ODMClassifier, ODMClassifierCV, open_store
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.estimators.search.search_fit import axes_of
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.cells.choosing import chosen_cells
from dask_odm.methods.cells.recipe import sampled
from dask_odm.methods.search.axes import View
from dask_odm.methods.search.trials import LeftOut, Splits, trial_rows
from dask_odm.solvers import Cells
from small_stores import store_of

CHOICE = KernelChoice("rbf", 1.0, scale="minmax")


def mixed_on_one_side(n: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two classes, −1 and 1, that are mixed where the first feature is positive."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, np.where((X[:, 0] > 0) & (rng.random(n) < 0.4), 1.0, -1.0)


def test_cells_are_whole_and_where_labels_are_mixed(tmp_path):
    X, y = mixed_on_one_side()
    weight = np.arange(len(y)) % 3 + 1.0
    data = MemoryData.of(FitRun(3), X, y, weight, (0.5, 4.0))
    cells = chosen_cells(data, sampled(data, CHOICE, 3), CHOICE, 500)
    assert len(cells) == AUTO.trial_cells
    assert all(250 <= cell.rows <= 500 for cell in cells)
    assert all(len(set(cell.y)) == 2 for cell in cells), "cells of one label tell nothing"
    np.testing.assert_array_equal(cells[0].X, X[cells[0].kept])
    assert len(chosen_cells(data, sampled(data, CHOICE, 3), CHOICE, 250, 6)) == 6
    labels = np.array([*y.astype(int).tolist(), *[None] * 700], object)  # none in the last chunk
    weights = np.concatenate([weight, np.ones(700)])
    store = store_of(tmp_path / "rows.zarr", np.vstack([X, X[:700]]), labels, weight=weights, chunk_rows=700)
    stored = StoredData(FitRun(3), store, TwoClasses((0.5, 4.0)))
    by_store = chosen_cells(stored, sampled(stored, CHOICE, 3), CHOICE, 500)
    for one, other in zip(cells, by_store, strict=True):
        np.testing.assert_array_equal(one.kept, other.kept)
        np.testing.assert_array_equal(one.X, other.X)
        for each in (one, other):  # those of classes are for learning alone
            np.testing.assert_array_equal(each.weight, weight[each.kept])
            assert each.class_weights == (0.5, 4.0)


def test_of_many_equal_rows_some_are_tried():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (4000, 2)).astype(float)
    data = MemoryData.of(FitRun(3), X, rng.choice([-1.0, 1.0], 4000), np.ones(4000), (1.0, 1.0))
    drawn = chosen_cells(data, sampled(data, CHOICE, 3), CHOICE, 100)
    assert [cell.rows for cell in drawn] == [200] * AUTO.trial_cells, "nothing divides the 1,000 equal rows of a cell"


def test_a_group_in_several_cells_is_one_unit():
    """The nested score divides units into ten parts, and a group must not be in two of them."""
    X, y = mixed_on_one_side()
    groups = np.floor(4.0 * X[:, 0]).astype(int) + 20
    data = MemoryData.of(FitRun(3), X, y, np.ones(len(y)), (1.0, 1.0))
    cells = chosen_cells(data, sampled(data, CHOICE, 3), CHOICE, 500)
    assert len({frozenset(groups[cell.kept]) for cell in cells}) > 1, "cells have different groups"
    tried = [trial_rows(cell, CHOICE, 30, data.run, leaves_one=True, groups=groups) for cell in cells]
    found = LeftOut.joined([each.left_out([(1.0, 0.2, 0.3)], Splits(None, 3))[0] for each in tried])
    np.testing.assert_array_equal(found.units, groups[np.concatenate([cell.kept for cell in cells])])


@pytest.mark.parametrize("cv", [None, 3])
def test_a_search_finds_settings_for_cells(tmp_path, cv):
    rng = np.random.default_rng(0)
    X = rng.random((4000, 2))
    y = np.floor(8 * X).astype(int).sum(axis=1) % 2
    axes = {"gammas": [1.0, 100.0], "lams": [10.0, 4e4], "upsilons": [0.2], "thetas": [0.3], "scale": "minmax"}
    axes["kernel"] = "rbf"
    search = ODMClassifierCV(solver=Cells(500), **axes, cv=cv, random_state=0).fit(X[:3000], y[:3000])
    assert search.best_params_["gamma"] == 100.0
    assert search.best_params_["lam"] == 4e4
    assert search.score(X[3000:], y[3000:]) > 0.9
    assert search._model.tree.count >= 6
    plain = ODMClassifier(**search.best_params_, solver=Cells(500), scale="minmax", random_state=0)
    np.testing.assert_array_equal(plain.fit(X[:3000], y[:3000]).decision_function(X), search.decision_function(X))
    path = store_of(tmp_path / "rows.zarr", X[:3000], y[:3000], chunk_rows=500).path
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        stored = ODMClassifierCV(solver=Cells(500), **axes, cv=cv, random_state=0).fit(open_store(path))
    assert stored.best_params_ == search.best_params_


def test_a_search_goes_on_in_cells_with_a_metric_of_all_kernels(monkeypatch):
    """Over landmarks, it may have found another kernel, and another scaling."""
    rng = np.random.default_rng(0)
    X = rng.random((900, 6))
    y = np.floor(3 * X[:, :2]).astype(int).sum(axis=1) % 2
    monkeypatch.setattr("dask_odm.estimators.search.recipe.suits_narrow_cells", lambda *_: "as if there were many rows")
    axes = {"lams": [4e4], "upsilons": [0.05], "thetas": [0.3], "random_state": 0}
    search = ODMClassifierCV(**axes, budget="fast").fit(X[:600], y[:600])
    assert search.history_[0]["solver"] == "cells"
    assert set(search.cv_results_["param_kernel"]) == {"rbf", "laplacian"}
    assert set(search.cv_results_["param_scale"]) == {"minmax", "ranks"}
    assert search._model.scaling.factor[:2].min() > 2 * search._model.scaling.factor[2:].max(), "the metric is not used"
    again = ODMClassifier(**search.best_params_, solver=Cells(), random_state=0).fit(X[:600], y[:600])
    np.testing.assert_array_equal(again.decision_function(X), search.decision_function(X))
    plain = ODMClassifierCV(**axes, budget="fast", metric=None).fit(X[:600], y[:600])
    assert search.score(X[600:], y[600:]) > plain.score(X[600:], y[600:]) + 0.03
    assert "metric" not in plain.best_params_
    poly = ODMClassifierCV("poly", **axes, budget="fast").fit(X[:600], y[:600])
    assert set(poly.cv_results_["param_kernel"]) == {"poly"}
    assert poly._model.scaling.factor.max() < 1.1, "no metric is learned for it"


def test_cells_try_larger_gammas_than_landmarks():
    X, y = mixed_on_one_side(200)
    data = MemoryData.of(FitRun(3), X, y, np.ones(len(y)), (1.0, 1.0))
    fit = SimpleNamespace(kernel=CHOICE, **dict.fromkeys(("gammas", "lams", "upsilons", "thetas", "landmarks")))
    views = (View("rbf", "minmax"),)
    (over_landmarks,), (of_cells,) = (axes_of(fit, data, views, in_cells=in_cells).gammas for in_cells in (False, True))
    assert set(over_landmarks) < set(of_cells)
    assert max(of_cells) == 8 * max(over_landmarks)


def test_a_cell_that_a_split_does_not_divide_is_not_tried():
    rng = np.random.default_rng(0)
    X = rng.random((2000, 2))
    y = np.floor(4 * X).astype(int).sum(axis=1) % 2
    along = X[:, 0] > 0.5
    axes = {"gammas": [1e-3, 30.0], "lams": [1e4], "upsilons": [0.2], "thetas": [0.2]}
    for cut in (along, along ^ (X[:, 1] > 0.5)):
        cv = [(np.flatnonzero(~cut), np.flatnonzero(cut))]
        search = ODMClassifierCV(solver=Cells(300), **axes, cv=cv, random_state=0).fit(X, y)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
