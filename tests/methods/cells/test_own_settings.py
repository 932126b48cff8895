"""Cells that find their own settings: as a search of the rows of each cell alone, over stores, on workers, in files."""

import dask
import numpy as np
import pytest

from dask_odm import ODMClassifierCV, StoreError, load_model
from dask_odm.events import IterationFinished
from dask_odm.solvers import Cells
from small_stores import store_of
from stopping import StoppedError, stop_at

AXES = {"gammas": [1.0, 10.0, 100.0], "lams": [1e3, 1e5], "upsilons": [0.2], "thetas": [0.1, 0.4]}
SETTINGS = {**AXES, "scale": None, "tol": 1e-6, "random_state": 0}
NAMES = ("gamma", "lam", "upsilon", "theta")


def boards(n: int = 900, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a fine chess board beside a coarse one, a tenth with labels at random."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    squares = np.floor(np.where(X[:, :1] < 0.5, 10.0, 2.0) * X).astype(int)
    return X, np.where(rng.random(n) < 0.1, rng.integers(0, classes, n), squares.sum(axis=1) % classes)


@pytest.mark.parametrize(("classes", "weighed"), [(2, None), (3, None), (2, {1: 10.0}), (3, {1: 10.0, 2: 5.0})])
def test_a_cell_is_what_a_search_of_its_rows_alone_finds(classes, weighed):
    X, y = boards(600, classes)
    X[:200] = 3.0 + 0.1 * X[:200]
    y[:200] = 0
    settings = SETTINGS | {"class_weight": weighed}
    model = ODMClassifierCV(solver=Cells(150, settings="each"), **settings).fit(X, y)
    weight = np.array([(weighed or {}).get(code, 1.0) for code in y])
    cells = model._model.cells_of(X)
    found = np.array([model.cell_params_[name] for name in NAMES])
    assert len(set(map(tuple, found.T[np.isfinite(found[0])].tolist()))) > 1, "cells differ"
    assert np.isnan(found[0]).any(), "a cell has one class"
    scores = []
    for cell in range(cells.max() + 1):
        rows = cells == cell
        if len(set(y[rows].tolist())) == 1:
            assert np.isnan(found[:, cell]).all()
            scores.append(1.0)
            continue
        share = weight[rows].sum() / weight.sum()
        own = settings | {"lams": [lam * share for lam in AXES["lams"]]}
        alone = ODMClassifierCV("rbf", solver="exact", **own).fit(X[rows], y[rows])
        expected = [alone.best_params_[name] for name in NAMES]
        expected[1] /= share
        np.testing.assert_allclose(found[:, cell], expected, rtol=1e-12)
        values = model.decision_function(X[rows])
        if len(set(y[rows].tolist())) == classes:
            np.testing.assert_allclose(values, alone.decision_function(X[rows]), rtol=0, atol=1e-4)
        np.testing.assert_array_equal(model.predict(X[rows]), alone.predict(X[rows]))
        scores.append(alone.best_score_)
    # rounding, as that of shifted rows, may turn a row or two that are left out of several machines
    assert model.best_score_ == pytest.approx(np.average(scores, weights=np.bincount(cells)), abs=2.5 / len(y))


@pytest.mark.slow
def test_stores_and_workers_make_the_same_bits_and_files_hold_them(tmp_path, start_workers):
    X, y = boards(400)
    path = store_of(tmp_path / "rows.zarr", X, y, chunk_rows=250).path
    model = ODMClassifierCV(solver=Cells(60, settings="each"), **SETTINGS, loo=True)

    def bits() -> list[bytes]:
        with dask.config.set({"dask_odm.read-into-memory": 0}):
            model.fit(path)
        found = model._model.gammas, model.dual_coef_, model.support_, model.loo_decision_function_
        return [np.asarray(each).tobytes() for each in found]

    here = bits()
    with start_workers(3):
        assert bits() == here
    assert len(set(model._model.gammas.tolist())) > 1
    model.save(tmp_path / "model.zarr")
    again = load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(again.cell_params_["gamma"], model.cell_params_["gamma"])
    assert again.best_score_ == model.best_score_


def test_goes_on_from_a_checkpoint_of_the_same_values(tmp_path):
    X, y = boards(500)

    def model(**more):
        return ODMClassifierCV(solver=Cells(70, settings="each"), **SETTINGS | more)

    stop = stop_at(1, lambda event: isinstance(event, IterationFinished) and event.iteration == 2)
    more = {"checkpoint": str(tmp_path / "fit.zarr")}
    with pytest.raises(StoppedError):
        model(callbacks=[stop], **more).fit(X, y)
    heard: list[IterationFinished] = []
    again = model(resume=True, callbacks=[heard.append], **more).fit(X, y)
    told = [event.iteration for event in heard if isinstance(event, IterationFinished)]
    # A cell that another thread was at when the first fit was stopped may be in the checkpoint, too.
    assert min(told) >= 3, "what the checkpoint has is not found again"
    whole = model().fit(X, y)
    assert again.cell_params_ == whole.cell_params_
    np.testing.assert_array_equal(again.decision_function(X), whole.decision_function(X))
    with pytest.raises(StoreError, match="another fit"):
        model(resume=True, gammas=[1.0, 100.0], **more).fit(X, y)
