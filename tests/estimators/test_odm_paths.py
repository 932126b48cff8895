"""Paths over λ and checkpoints of the linear kernel by Newton, and warm starts: each against plain fits."""

from copy import deepcopy

import dask
import numpy as np
import pytest
from sklearn.base import clone

import dask_odm as odm
from dask_odm import InputError, ODMClassifier, StoreError
from dask_odm.events import IterationFinished
from dask_odm.kernels.pivots import RACES
from dask_odm.solvers import Cells, Landmark

LAMS = [10.0, 100.0, 1e3, 1e5, 1e2]


def blobs(n: int = 3000, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 6)) * [1, 2, 3, 4, 5, 6] + 2
    return X.astype(dtype), (X @ rng.normal(size=6) + 8 * rng.normal(size=n) > 2).astype(int)


@pytest.mark.parametrize("scale", [None, "minmax", "standard"])
@pytest.mark.parametrize("where", ["memory", "store"])
def test_every_model_of_a_path_is_the_plain_fit(tmp_path, scale, where):
    X, y = blobs()
    source = (X, y) if where == "memory" else (odm.ingest((X, y), tmp_path / "a.zarr", dtype="float64"),)
    model = ODMClassifier("linear", scale=scale, tol=1e-13)
    path = model.lam_path(*source, lams=LAMS)
    assert [found.lam for found in path] == LAMS
    assert not hasattr(model, "coef_")
    for found in path:
        plain = clone(model).set_params(lam=found.lam).fit(X, y)
        np.testing.assert_allclose(found.coef_, plain.coef_, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(found.intercept_, plain.intercept_, rtol=1e-6, atol=1e-8)
        assert found.dual_gap_ <= 1e-13


def test_neighbours_on_a_path_cost_few_passes():
    X, y = blobs(dtype="float32")
    path = ODMClassifier("linear", tol=1e-6, scale="standard").lam_path(X, y, lams=np.geomspace(1e2, 1e4, 9))
    plain = ODMClassifier("linear", tol=1e-6, scale="standard", lam=1e4).fit(X, y)
    assert path[-1].history_[-1]["passes"] < plain.history_[-1]["passes"]
    assert max(found.history_[-1]["passes"] for found in path[1:]) <= 4


@pytest.mark.parametrize("scale", [None, "minmax"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_warm_start_begins_where_the_last_fit_ended(scale, fit_intercept):
    X, y = blobs()
    model = ODMClassifier("linear", tol=1e-9, scale=scale, fit_intercept=fit_intercept, warm_start=True).fit(X, y)
    before = model.coef_.copy()
    model.fit(X, y)
    assert len(model.history_) == 1
    np.testing.assert_allclose(model.coef_, before, rtol=1e-9)
    model.fit(X[:, :6], y)
    with pytest.raises(InputError, match="X has 5 features, but the fitted model has 6"):
        model.fit(X[:, :5], y)


def spirals(n, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)) + 100.0
    f = np.sin(2 * (X[:, 0] - 100)) + (X[:, 1] - 100) * (X[:, 2] - 100) + 0.3 * rng.normal(size=n)
    return X, np.digitize(f, [0.0] if classes == 2 else [-0.7, 0.7])


WARM = {
    "exact": {"solver": "exact"},
    **{f"{word} landmarks": {"solver": Landmark(n_landmarks=150, choice=word)} for word in RACES},
    "cells": {"solver": Cells(cell_rows=400)},
    "cells that overlap": {"solver": Cells(cell_rows=400, overlap=0.2)},
    "three classes": {"solver": "exact", "multi_class": "ovr"},
    "three classes over landmarks": {"solver": Landmark(n_landmarks=150)},
    "three classes in cells": {"solver": Cells(cell_rows=400), "multi_class": "ovr"},
}


@pytest.mark.parametrize("name", WARM)
def test_more_rows_are_learned_from_what_the_last_fit_found(name):
    n = 1500
    X, y = spirals(n + 30, classes=3 if "three" in name else 2)
    options = {"gamma": 0.5, "tol": 1e-3, "random_state": 0, **WARM[name]}
    model = ODMClassifier(warm_start=True, lam=1e3, **options).fit(X[:n], y[:n])
    model.set_params(lam=1e3 * (n + 30) / n).fit(X, y)
    anew = ODMClassifier(lam=1e3 * (n + 30) / n, **options).fit(X, y)
    assert model.history_[-1]["gap"] <= 1e-3, "as certain as without a start"
    assert model.score(X, y) == pytest.approx(anew.score(X, y), abs=0.02)
    if "cells" not in name:  # which are those of the last fit, and others anew
        assert model.history_[-1]["objective"] == pytest.approx(anew.history_[-1]["objective"], rel=2e-2)
        assert model.n_iter_ < anew.n_iter_
    if "overlap" not in name and "landmarks" not in name:
        model.fit(X, y)
        assert model.n_iter_ == 1, "nothing is left to do"


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("first", [100, 200])
def test_later_rows_have_their_share_of_the_landmarks(classes, first):
    X, y = spirals(3000, classes)
    X[:, 0] += np.linspace(0, 10, 3000)  # so that later rows are elsewhere
    options = {"gamma": 0.5, "random_state": 0, "warm_start": True}
    model = ODMClassifier(**options, solver=Landmark(first)).fit(X[:1000], y[:1000])
    before = set(model.support_.tolist())
    model.set_params(solver=Landmark(200)).fit(X, y)
    later = np.mean(model.support_ >= 1000)
    assert 0.5 < later < 0.85, "two thirds of the rows"
    kept = before & set(model.support_.tolist())
    assert len(kept) > 30
    assert np.mean(model.support_ > 2000) > 0.25


def test_a_start_is_the_same_over_a_store_and_from_other_rows_there_is_none(tmp_path):
    n = 1500
    X, y = spirals(n + 30)
    stored = odm.ingest((X, y), tmp_path / "rows.zarr", dtype="float64", chunk_rows=256)
    for solver in (Cells(cell_rows=400), Landmark(n_landmarks=100)):
        options = {"gamma": 0.5, "tol": 1e-4, "random_state": 0, "solver": solver, "warm_start": True}
        model = ODMClassifier(**options).fit(X[:n], y[:n])
        over_store = deepcopy(model)
        with dask.config.set({"dask_odm.read-into-memory": 0}):
            over_store.fit(stored)
        found = model.fit(X, y).decision_function(X)
        if isinstance(solver, Cells):
            np.testing.assert_allclose(over_store.decision_function(X), found, rtol=1e-4, atol=1e-4)
        else:  # which draws other rows of a store
            assert np.mean((over_store.decision_function(X) > 0) == (found > 0)) > 0.97
        anew = ODMClassifier(**options).fit(X[::-1], y[::-1])
        np.testing.assert_array_equal(model.fit(X[::-1], y[::-1]).decision_function(X), anew.decision_function(X))


def test_a_checkpoint_is_of_the_fit_that_started_there(tmp_path):
    X, y = spirals(1500)
    options = {"gamma": 0.5, "random_state": 0, "solver": "exact", "checkpoint": str(tmp_path / "c"), "tol": 1e-9}

    def lose(event: object) -> None:
        if isinstance(event, IterationFinished) and event.iteration == 1:
            raise KeyboardInterrupt

    first = ODMClassifier(warm_start=True, **options | {"tol": 1e-2, "checkpoint": None}).fit(X[:1400], y[:1400])
    lost = deepcopy(first).set_params(callbacks=[lose], **options)
    with pytest.raises(KeyboardInterrupt):
        lost.fit(X, y)
    whole = deepcopy(first).set_params(**options | {"checkpoint": None}).fit(X, y)
    again = deepcopy(first).set_params(resume=True, **options).fit(X, y)
    np.testing.assert_array_equal(again.decision_function(X), whole.decision_function(X))
    with pytest.raises(KeyboardInterrupt):
        deepcopy(lost).set_params(resume=False).fit(X, y)
    with pytest.raises(StoreError, match="is of another fit"):
        ODMClassifier(resume=True, **options).fit(X, y)


def test_refused(tmp_path):
    X, y = blobs(50)
    with pytest.raises(InputError, match="lam_path takes one lam at least"):
        ODMClassifier("linear").lam_path(X, y, lams=[])
    with pytest.raises(InputError, match="lam_path takes one lam at least, and needs kernel='linear'"):
        ODMClassifier().lam_path(X, y, lams=[1.0])
    with pytest.raises(InputError, match="The 'lam' parameter"):
        ODMClassifier("linear").lam_path(X, y, lams=[1.0, -1.0])
    with pytest.raises(InputError, match=r"lams must be a sequence of numbers\. Got 3"):
        ODMClassifier("linear").lam_path(X, y, lams=3)
    with pytest.raises(InputError, match=r"lams must be a sequence of numbers\. Got \['auto'\]"):
        ODMClassifier("linear").lam_path(X, y, lams=["auto"])
    with pytest.raises(InputError, match="lam_path has no checkpoint"):
        ODMClassifier("linear", checkpoint=str(tmp_path / "c")).lam_path(X, y, lams=[1.0])
    with pytest.raises(InputError, match="warm_start is for kernels by their names"):
        ODMClassifier(warm_start=True, solver="sodm").fit(X, y)
    three = ODMClassifier(warm_start=True, solver="exact", multi_class="ovr").fit(X, np.arange(len(y)) % 3)
    with pytest.raises(InputError, match="has 3 machines, but this y makes 1"):
        three.fit(X, y)
