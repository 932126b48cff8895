"""What solver="auto" takes of two classes beyond "exact": cells where they tell rows apart that landmarks do not."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import dask
import numpy as np
import pytest

from dask_odm import ODMClassifier
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.datasets import make_chessboard
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.recipe import Choice
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.cells import choosing
from dask_odm.methods.cells.choosing import are_possible, gain_of_cells
from dask_odm.methods.recipes import RECIPES, choose_by_regions, suits_narrow_cells
from dask_odm.solvers import Cells, Landmark
from small_stores import store_of

LANDMARK = Choice("landmark", "too many rows", RECIPES["landmark"])


def chosen(model: ODMClassifier, X: np.ndarray, y: np.ndarray, path: object = None) -> tuple[str, str, object]:
    """Return the solver, the reason and the solver object for rows in memory, or for a store at ``path``."""
    run = FitRun.of(model)
    data: MemoryData | StoredData = MemoryData.of(run, X, np.where(y == 1, 1.0, -1.0), np.ones(len(y)), (1.0, 1.0))
    if path is not None:
        data = StoredData(run, store_of(path, X, y, chunk_rows=700), TwoClasses())
    choice, fit = choose_by_regions(LANDMARK, data, model._settings(run).for_data(data))
    return choice.solver, choice.why, fit.own


def board(n: int, d: int = 3, n_squares: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Rows on a board of ``n_squares``² squares."""
    return make_chessboard(n, d, n_squares=n_squares, noise=0.0)


def narrow(**parameters: object) -> ODMClassifier:
    return ODMClassifier(**{"gamma": 5.0, "lam": 1e4, "random_state": 0} | parameters)


def with_landmarks(count: int, model: ODMClassifier) -> ODMClassifier:
    """Return the model whose fit has fewer landmarks than "auto" has."""
    return model.set_params(solver=Landmark(count))


def test_cells_for_a_board_with_more_squares_than_landmarks(tmp_path, caplog, monkeypatch):
    X, y = board(6000)
    model = with_landmarks(200, narrow())
    with caplog.at_level(logging.INFO, "dask_odm"):
        name, why, own = chosen(model, X, y)
    assert (name, own) == ("cells", Cells())
    told = r"too many rows; in some regions, cells get [\d.]+% ± [\d.]+% of all rows {} right than landmarks, and are "
    assert re.match(told.format("more"), why)
    monkeypatch.setattr("dask_odm.methods.recipes.gain_of_cells", lambda *_: (-0.0006, 0.002))
    other, fewer, _ = chosen(model, X, y)
    assert other == "landmark"
    assert re.match(told.format("fewer"), fewer)
    assert fewer.endswith("are taken from +0.40% on")
    monkeypatch.undo()
    assert f"solver='cells': {why}" in caplog.text
    assert chosen(model, X, y, tmp_path / "board.zarr") == (name, why, own)


@pytest.mark.parametrize("pairs", [True, False])
def test_many_classes_are_compared_by_a_machine_for_each(pairs):
    def solver(X: np.ndarray, y: np.ndarray, model: ODMClassifier) -> str:
        model.set_params(multi_class="ovo" if pairs else "ovr")
        run = FitRun.of(model)
        data = MemoryData.of(run, X, y.astype(np.float64), np.ones(len(y)), (1.0,) * len(np.unique(y)))
        choice, fit = choose_by_regions(LANDMARK, data, model._settings(run).for_data(data))
        assert fit.odm == model._settings(run).for_data(data).odm
        return choice.solver

    X, y = board(12_000)
    assert solver(X, (y == 1) + 2 * (X[:, 2] > np.median(X[:, 2])), with_landmarks(200, narrow())) == "cells"
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 10))
    y = np.digitize(X[:, 0] + rng.normal(size=3000), [-0.7, 0.7])
    assert solver(X[:, :3], y, with_landmarks(60, narrow(gamma=0.01))) == "cells", "as often right, and quicker"
    assert solver(X, y, with_landmarks(60, narrow(gamma=0.1))) == "landmark"


def test_all_rows_as_landmarks_leave_nothing_to_gain():
    X, y = board(1200)
    model = with_landmarks(1200, narrow())
    run = FitRun.of(model)
    data = MemoryData.of(run, X, np.where(y == 1, 1.0, -1.0), np.ones(len(y)), (1.0, 1.0))
    assert gain_of_cells(data, model._settings(run).for_data(data)) == (0.0, 0.0)


def test_landmarks_for_smooth_classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    y = (X[:, 0] + rng.normal(size=3000) > 0).astype(int)
    assert chosen(with_landmarks(60, narrow(gamma=0.1)), X, y)[0] == "landmark"


def test_groups_that_are_left_out_do_not_change_the_choice():
    X, y = board(1200)
    model = with_landmarks(60, narrow(loo=True))
    run = FitRun.of(model)
    data = MemoryData.of(run, X, np.where(y == 1, 1.0, -1.0), np.ones(len(y)), (1.0, 1.0))
    fit = model._settings(run).for_data(data)
    assert gain_of_cells(data, replace(fit, groups=np.arange(1200) // 10)) == gain_of_cells(data, fit)


@pytest.mark.parametrize(
    "limit", [{"memory_limit": "20 MB"}, {"kernel": lambda A, B: np.exp(A @ B.T)}], ids=["memory", "kernel"]
)
def test_landmarks_where_cells_cannot_be(limit):
    X, y = board(1000)
    name, why, _ = chosen(with_landmarks(60, narrow(**limit)), X, y)
    assert (name, why) == ("landmark", "too many rows"), "nothing was tried"


def test_landmarks_where_regions_take_more_memory_than_cells(monkeypatch):
    X, y = board(1000)
    model = with_landmarks(60, narrow(memory_limit=28_000_000))
    run = replace(FitRun.of(model), threads=1)
    data = MemoryData.of(run, X, np.where(y == 1, 1.0, -1.0), np.ones(len(y)), (1.0, 1.0))
    assert are_possible(data, model._settings(run).for_data(data))
    monkeypatch.setattr(choosing, "AUTO", replace(AUTO, region_work=1e-3))
    assert not are_possible(data, model._settings(run).for_data(data)), "a region has all rows"


@pytest.mark.slow
def test_a_fit_takes_what_was_chosen_and_never_overrides_a_solver(tmp_path):
    X, y = board(8200, 120, 36)  # too many for "exact"
    model = narrow(tol=0.1)
    first = model.fit(X, y).history_[0]
    assert first["solver"] == "cells"
    assert "of all rows more right than landmarks" in first["why"]
    store = store_of(tmp_path / "board.zarr", X, y, chunk_rows=1000)
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        assert model.fit(store).history_[0]["why"] == first["why"]
    asked = narrow(solver=Landmark(50)).fit(X, y).history_[0]
    assert (asked["solver"], asked["why"]) == ("landmark", "asked for")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "narrow"),
    [
        ("covtype", {"gamma": 0.55, "lam": 6.25, "upsilon": 0.8, "theta": 0.3}, True),
        ("susy_sub30k", {"gamma": 0.23, "lam": 100.0, "upsilon": 0.0125, "theta": 0.6}, False),
    ],
)
def test_cells_for_a_narrower_kernel_where_landmarks_hide_what_it_gains(load_svm, name, settings, narrow):
    """With settings that a search over landmarks chooses: covtype needs a narrower kernel, susy does not."""
    X, y = load_svm(name)
    rows = np.random.default_rng(0).permutation(len(y))[:32_000]
    X, y = X[rows], np.where(y[rows] > 0, 1.0, -1.0)
    model = ODMClassifier(**settings | {"lam": settings["lam"] * len(y)}, scale="minmax", random_state=0)
    run = FitRun.of(model)
    data = MemoryData.of(run, X, y, np.ones(len(y)), (1.0, 1.0))
    why = suits_narrow_cells(LANDMARK, data, model._settings(run).for_data(data), found=0.6)
    assert bool(why) == narrow
    assert "with 8 times the γ, cells get" in why or not narrow
    assert suits_narrow_cells(LANDMARK, data, model._settings(run).for_data(data), found=0.01).endswith(
        "landmarks find next to nothing"
    )
