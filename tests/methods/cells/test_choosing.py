"""What solver="auto" takes after trials: the rival of what suits the data, if it gets more of the other rows right."""

import logging
import re
from dataclasses import replace

import dask
import numpy as np
import pytest

from dask_odm import InputError, MemoryLimitError, ODMClassifier, ODMRegressor
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.datasets import make_chessboard
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.recipe import Choice
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.methods.cells.choosing import gain_of, right_of
from dask_odm.methods.recipes import RECIPES, choose_by_trials, suits_narrow_cells
from dask_odm.solvers import Cells, Exact, Landmark
from small_stores import store_of

LANDMARK, CELLS, EXACT = (Choice(name, "too many rows", RECIPES[name]) for name in ("landmark", "cells", "exact"))


def chosen(
    model: ODMClassifier, X: np.ndarray, y: np.ndarray, path: object = None, suited: Choice = LANDMARK
) -> tuple[str, str, object]:
    """Return the solver, the reason and the solver object for rows in memory, or for a store at ``path``."""
    data, fit = problem(model, X, y)
    if path is not None:
        data = StoredData(data.run, store_of(path, X, y, chunk_rows=700), TwoClasses())
    choice, fit = choose_by_trials(suited, data, fit)
    return choice.solver, choice.why, fit.own


def problem(model: ODMClassifier, X: np.ndarray, y: np.ndarray) -> tuple[MemoryData | StoredData, object]:
    """Return the data of two or more classes in memory, and the settings of a fit."""
    run = FitRun.of(model)
    classes = len(np.unique(y))
    codes = np.where(y == 1, 1.0, -1.0) if classes == 2 else y.astype(np.float64)
    data = MemoryData.of(run, X, codes, np.ones(len(y)), (1.0,) * classes)
    return data, model._settings(run).for_data(data)


def board(n: int, d: int = 3, n_squares: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Rows on a board of ``n_squares``² squares."""
    return make_chessboard(n, d, n_squares=n_squares, noise=0.0)


def noisy(n: int, d: int = 10, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Rows that one feature tells apart but for noise, of as many of each class."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    value = X[:, 0] + rng.normal(size=n)
    return X, np.digitize(value, np.quantile(value, np.arange(1, classes) / classes))


def narrow(**parameters: object) -> ODMClassifier:
    return ODMClassifier(**{"gamma": 5.0, "lam": 1e4, "random_state": 0} | parameters)


def with_landmarks(count: int, model: ODMClassifier) -> ODMClassifier:
    """Return the model whose fit has fewer landmarks than "auto" has."""
    return model.set_params(solver=Landmark(count))


@pytest.mark.parametrize(("waves", "name"), [(8.0, "cells"), (0.2, "landmark")])
def test_numbers_are_judged_by_what_a_solver_loses_on_other_rows(waves, name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 4))
    y = np.sin(waves * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=len(X))
    fit = ODMRegressor(gamma=waves / 8, upsilon=0.5, solver=Landmark(200), random_state=0)
    data = MemoryData.of(run := FitRun.of(fit), X, y - y.mean(), np.ones(len(y)), ())
    choice, _ = choose_by_trials(LANDMARK, data, fit._settings(run).for_data(data))
    assert choice.solver == name
    more = "less" if name == "cells" else "more"
    assert re.search(rf"'cells' loses [\d.]+% ± [\d.]+% {more} on the others", choice.why)


def test_cells_for_a_board_with_more_squares_than_landmarks(tmp_path, caplog, monkeypatch):
    X, y = board(6000)
    model = with_landmarks(200, narrow())
    with caplog.at_level(logging.INFO, "dask_odm"):
        name, why, own = chosen(model, X, y)
    assert (name, own) == ("cells", Cells())
    told = (
        r"too many rows; in trials on a third of the rows, 'cells' gets [\d.]+% ± [\d.]+% of the others {} right than"
    )
    assert re.match(told.format("more"), why)
    assert f"solver='cells': {why}" in caplog.text
    assert chosen(model, X, y, tmp_path / "board.zarr") == (name, why, own)
    monkeypatch.setattr("dask_odm.methods.recipes.gain_of", lambda *_: (-0.0006, 0.002, False))
    other, fewer, _ = chosen(model, X, y)
    assert other == "landmark"
    assert re.match(told.format("fewer"), fewer)
    monkeypatch.setattr("dask_odm.methods.recipes.gain_of", lambda *_: (-0.0006, 0.002, True))
    other, fewer, _ = chosen(model, X, y)
    assert (other, fewer[-16:]) == ("cells", ", and is quicker")
    monkeypatch.setattr("dask_odm.methods.recipes.gain_of", lambda *_: (0.001, 0.002, False))
    assert chosen(model, X, y)[0] == "landmark", "what is in doubt stays with what suits the data"


@pytest.mark.parametrize(("differ", "lam", "tie"), [(1, 1e6, True), (4, 1e6, False), (1, 1.0, False)])
def test_a_tie_is_a_small_share_of_the_rarer_class_if_landmarks_take_many_passes(monkeypatch, differ, lam, tie):
    rng = np.random.default_rng(0)
    y = (rng.permutation(1500) < 60).astype(int)
    X = rng.normal(size=(1500, 3)) + 2.0 * y[:, None]
    data, fit = problem(with_landmarks(60, narrow(gamma=0.2, lam=lam)), X, y)
    codes = iter((np.arange(1000) < differ, np.zeros(1000)))
    monkeypatch.setattr("dask_odm.methods.cells.choosing.code_block", lambda _: next(codes).astype(int))
    assert gain_of(CELLS, LANDMARK, data, fit)[2] == tie


def test_landmarks_where_a_large_lam_makes_cells_learn_noise():
    X, y = noisy(2000, 3)
    assert chosen(with_landmarks(100, narrow(gamma=1.0, lam=2e6)), X, y)[0] == "landmark"


@pytest.mark.parametrize(("share", "solver"), [(2.0, "exact"), (1000.0, "landmark")])
def test_landmarks_instead_of_all_rows_where_a_large_lam_learns_noise(share, solver):
    X, y = noisy(2000, 3)
    model = with_landmarks(100, narrow(gamma=1.0, lam=2000 * share))
    name, why, _ = chosen(model, X, y, suited=EXACT)
    assert name == solver
    assert ("'landmark' gets" in why) == (solver == "landmark"), "with λ up to the default, nothing is tried"


@pytest.mark.parametrize(
    ("rows", "gain", "solver"), [(3100, 0.0, "landmark"), (3100, -1e-4, "exact"), (3000, 0.0, "exact")]
)
def test_landmarks_instead_of_more_rows_than_memory_holds_if_as_many_are_right(monkeypatch, rows, gain, solver):
    monkeypatch.setattr("dask_odm.methods.recipes.gain_of", lambda *_: (gain, 0.002, False))
    model = with_landmarks(100, narrow(gamma=1.0, lam=100.0 * rows))
    assert chosen(model, *board(rows), suited=EXACT)[0] == solver


@pytest.mark.parametrize("pairs", [True, False])
def test_many_classes_are_compared_as_they_are_learned(pairs):
    X, y = board(6000)
    scheme = "ovo" if pairs else "ovr"
    y = (y == 1) + 2 * (X[:, 2] > np.median(X[:, 2]))
    assert chosen(with_landmarks(100, narrow(multi_class=scheme)), X, y)[0] == "cells"
    X, y = noisy(3000, classes=3)
    assert chosen(with_landmarks(60, narrow(gamma=0.1, multi_class=scheme)), X, y)[0] == "landmark"


def test_classes_without_a_row_in_a_trial_are_left_out():
    X, y = board(2000, 3, 10)
    codes = (y == 1).astype(int)
    codes[-1] = 2  # which only one part of the rows can have
    gain, error, tie = gain_of(CELLS, LANDMARK, *problem(with_landmarks(40, narrow()), X, codes))
    assert gain > error
    assert not tie
    alone = problem(with_landmarks(40, narrow()), X, (codes == 2).astype(int))
    assert gain_of(CELLS, LANDMARK, *alone) == (0.0, 0.0, False)


def test_a_single_row_is_in_doubt(monkeypatch):
    X, y = board(300)
    data, fit = problem(with_landmarks(100, narrow()), X, y)
    codes = iter((np.r_[1, np.zeros(199)], np.zeros(200)))
    monkeypatch.setattr("dask_odm.methods.cells.choosing.code_block", lambda _: next(codes).astype(int))
    gain, error, _ = gain_of(CELLS, LANDMARK, data, fit)
    assert abs(gain) == error == pytest.approx(1 / 200)


def test_nothing_is_certified_in_trials_where_the_same_solver_gains_nothing(monkeypatch):
    monkeypatch.delattr("dask_odm.methods.landmark.recipe._certified")
    monkeypatch.delattr("dask_odm.methods.exact.recipe.held_as_predicted")
    data, fit = problem(with_landmarks(100, narrow(loo=True)), *board(1200))
    assert gain_of(LANDMARK, LANDMARK, data, fit)[:2] == (0.0, 0.0)
    assert gain_of(EXACT, EXACT, data, replace(fit, own=Exact()))[:2] == (0.0, 0.0)


def test_rows_that_a_metric_knows_do_not_judge_it():
    X, y = board(300)
    data, fit = problem(narrow(), X, y)
    weight = np.tile([1.0, 2.0, 1.0, 3.0], 75)
    known = np.flatnonzero(weight == 1.0)
    weighed = replace(data, weight=weight, factors=(1.0, 9.0))
    right, shares = right_of(EXACT, weighed, replace(fit, own=Exact()), known)
    assert len(right) == 100
    assert sorted(set(np.round(shares / shares.min(), 6))) == [1.0, 1.5]


def test_landmarks_for_smooth_classes():
    assert chosen(with_landmarks(200, narrow(gamma=0.1)), *noisy(4000, 7))[0] == "landmark", "right on 1.5 % more rows"


@pytest.mark.parametrize("limit", [{"memory_limit": "20 MB"}, {"kernel": lambda A, B: np.exp(A @ B.T)}])
def test_landmarks_where_cells_cannot_be(limit):
    X, y = board(1000)
    name, why, _ = chosen(with_landmarks(60, narrow(**limit)), X, y)
    assert (name, why) == ("landmark", "too many rows"), "nothing was tried"


@pytest.mark.parametrize("error", [InputError, MemoryLimitError])
def test_what_suits_the_data_where_no_trial_can_be_made(monkeypatch, error):
    def fails(*_: object) -> None:
        raise error("no cell has rows of two classes")

    monkeypatch.setattr("dask_odm.methods.recipes.gain_of", fails)
    X, y = board(1000)
    model = with_landmarks(60, narrow())
    assert chosen(model, X, y)[:2] == ("landmark", "too many rows")
    assert suits_narrow_cells(LANDMARK, *problem(model, X, y), found=0.6) == ""


@pytest.mark.slow
def test_a_fit_takes_what_was_chosen_and_never_overrides_a_solver(tmp_path):
    X, y = board(8200, 120, 36)  # too many for "exact"
    model = narrow(tol=0.1)
    first = model.fit(X, y).history_[0]
    assert first["solver"] == "cells"
    assert "of the others more right than 'landmark'" in first["why"]
    store = store_of(tmp_path / "board.zarr", X, y, chunk_rows=1000)
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        assert model.fit(store).history_[0]["why"] == first["why"]
    asked = narrow(solver=Landmark(50)).fit(X, y).history_[0]
    assert (asked["solver"], asked["why"]) == ("landmark", "asked for")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings", "narrow"), [
    ("covtype", {"gamma": 0.55, "lam": 6.25, "upsilon": 0.8, "theta": 0.3}, True),
    ("susy_sub30k", {"gamma": 0.23, "lam": 100.0, "upsilon": 0.0125, "theta": 0.6}, False),
])  # fmt: skip
def test_cells_for_a_narrower_kernel_where_landmarks_hide_what_it_gains(load_svm, name, settings, narrow):
    """With settings that a search over landmarks chooses: covtype needs a narrower kernel, susy does not."""
    X, y = load_svm(name)
    rows = np.random.default_rng(0).permutation(len(y))[:32_000]
    X, y = X[rows], np.where(y[rows] > 0, 1.0, -1.0)
    model = ODMClassifier(**settings | {"lam": settings["lam"] * len(y)}, scale="minmax", random_state=0)
    run = FitRun.of(model)
    data = MemoryData.of(run, X, y, np.ones(len(y)), (1.0, 1.0))
    fit = model._settings(run).for_data(data)
    why = suits_narrow_cells(LANDMARK, data, fit, found=0.6)
    assert bool(why) == narrow
    assert "with 8 times the γ, in trials" in why or not narrow
    assert suits_narrow_cells(LANDMARK, data, fit, found=0.6, least=0.01) == why
    assert suits_narrow_cells(LANDMARK, data, fit, found=0.6, least=0.2) == ""
    assert suits_narrow_cells(LANDMARK, data, fit, found=0.01).endswith("landmarks find next to nothing")
