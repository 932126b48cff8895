"""What solver="auto" picks, and that it says so; never by who is there to work."""

import logging

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import dask_odm as odm
from dask_odm import InputError, ODMClassifier, ODMRegressorCV
from dask_odm.learning.training.run import FitRun
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.recipes import PAPERS, RECIPES, choose_solver, recipe_of


def chosen(rows: int, features: int, groups: object = None, **parameters: object) -> str:
    model = ODMClassifier(**parameters)
    return choose_solver(model._settings(FitRun.of(model), groups=groups), rows, features).solver


def test_the_table():
    most = int(np.sqrt(AUTO.exact_work / (20 + 16)))
    assert chosen(most, 20) == "exact"
    assert chosen(most + 1, 20) == "landmark"
    assert chosen(most, 40) == "landmark"
    assert chosen(10**9, 20, kernel="linear") == "newton"
    assert chosen(60_000, 60_000, kernel="precomputed") == "exact"
    assert chosen(8000, 20, memory_limit="10 MB") == "landmark"
    assert chosen(8000, 20, memory_limit="1 GB") == chosen(8000, 20, loo=True) == "exact"
    groups = np.arange(2)
    assert chosen(AUTO.grouped_rows, 20, groups, loo=True) == "exact"
    assert chosen(AUTO.grouped_rows + 1, 20, groups, loo=True) == "landmark"
    for solver in (*RECIPES, *PAPERS):
        kernel = "linear" if recipe_of(solver).linear else "rbf"
        assert chosen(10**9, 20, solver=solver, kernel=kernel) == solver


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_history_and_log_say_what_was_picked_and_why(kernel, caplog, tmp_path):
    X = np.random.default_rng(0).normal(size=(80, 3))
    y = (X[:, 0] > 0).astype(int)
    with caplog.at_level(logging.INFO, "dask_odm"):
        model = ODMClassifier(kernel).fit(X, y)
    name = {"rbf": "exact", "linear": "newton"}[kernel]
    assert model.history_[0]["solver"] == name
    assert f"solver={name!r}: {model.history_[0]['why']}" in caplog.text
    by_store = ODMClassifier(kernel).fit(odm.ingest((X, y), tmp_path / "a.zarr"))
    assert by_store.history_[0]["why"] == model.history_[0]["why"]


def test_every_model_of_a_path_says_it():
    X = np.random.default_rng(0).normal(size=(80, 3))
    models = ODMClassifier("linear").lam_path(X, (X[:, 0] > 0).astype(int), lams=[1.0, 10.0])
    assert [model.history_[0]["solver"] for model in models] == ["newton", "newton"]


LINEAR = {"newton", "svrg", "dsvrg", "csvrg"}
KERNEL = {"exact", "landmark"}
TREES = {"sodm", "cascade", "dip", "dc"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("solver", sorted(LINEAR | KERNEL | TREES))
def test_a_small_lam_still_classifies(solver):
    X, y = load_breast_cancer(return_X_y=True)
    kernel = "linear" if solver in LINEAR else "rbf"
    model = ODMClassifier(kernel, lam=1e-4, solver=solver, scale="standard", fit_intercept=False, random_state=0)
    assert model.fit(X, y).score(X, y) > (0.9 if kernel == "linear" else 0.6)  # the optimum; zero has 0.37


EXTREMES = {
    "lam": ({"lam": 1e200}, 1.0, 1.0, "choose a lam between"),
    "weights": ({}, 1.0, 1e-310, "row weights are too small.*multiply them"),
    "features": ({}, 1e-200, 1.0, "multiply them by a power of ten"),
}


@pytest.mark.parametrize("solver", ["exact", "landmark", "sodm"])
@pytest.mark.parametrize("what", sorted(EXTREMES))
def test_numbers_without_room_in_float64_are_named(what, solver):
    parameters, size, weight, words = EXTREMES[what]
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = np.where(X[:, 0] > 0, 1, -1)
    with pytest.raises(InputError, match=words):
        ODMClassifier(solver=solver, **parameters).fit(size * X, y, np.full(60, weight))


def test_weights_without_room_in_float64_are_refused_of_any_targets():
    X = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(InputError, match=r"too small, .* sums from 3\.0e-322 to"):
        ODMRegressorCV(budget="fast").fit(X, X[:, 0], np.full(60, 5e-324))
    with pytest.raises(InputError, match=r"too uneven, with sums from 2\.0e\+01 to 2\.0e\+101"):
        ODMClassifier(class_weight={0: 1e100}).fit(X, np.arange(60) % 3)


@pytest.mark.parametrize(("solver", "rows"), [("exact", 1200), ("landmark", 40)])
@pytest.mark.parametrize("kernel", [lambda A, B: np.zeros((len(A), len(B))), "poly"], ids=["zero", "overflow"])
def test_kernels_that_say_nothing_are_an_error(solver, rows, kernel):
    X = np.random.default_rng(0).normal(size=(rows, 3)) * (1e13 if kernel == "poly" else 1.0)
    model = ODMClassifier(kernel, solver=solver, degree=30, gamma=1.0, scale=None, fit_intercept=False)
    with pytest.raises(InputError, match="rescale the rows"):
        model.fit(X, np.arange(rows) % 2)
