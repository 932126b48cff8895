"""svrg, csvrg and dsvrg of ODMClassifier: the optimum of Newton and L-BFGS, weights, stores, checkpoints, bad input."""

import dask
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from dask_odm import InputError, ODMClassifier
from dask_odm.learning.parameters import SolverObject
from dask_odm.solvers import CSVRG, DSVRG
from small_problems import blobs
from small_stores import store_of

SETTINGS = {"kernel": "linear", "lam": 100.0, "upsilon": 0.3, "theta": 0.1, "random_state": 0, "scale": None}
ALL = pytest.mark.parametrize("solver", ["svrg", "dsvrg", "csvrg"])


@pytest.fixture(scope="module")
def rows():
    X, y = blobs(400, 3, seed=5)
    return X * [1.0, 3.0, 0.5] + [0.0, 5.0, 1.0], y


def made(solver: str | SolverObject, **options) -> ODMClassifier:
    return ODMClassifier(**{**SETTINGS, "solver": solver, "tol": 1e-9, "max_iter": 4000, **options})


def csvrg(coreset_size: int, solver: str) -> str | SolverObject:
    """The solver of that name; "csvrg" with a coreset of so many rows."""
    return CSVRG(coreset_size=coreset_size) if solver == "csvrg" else solver


def test_history(rows):
    model = made(DSVRG(n_partitions=5, stage_steps=30), scale="minmax", tol=1e-4).fit(*rows)
    assert {"solver": "dsvrg", "why": "asked for"}.items() <= model.history_[0].items()
    assert [r["hops"] for r in model.history_[:4]] == [0, 5, 10, 15]
    # a full pass, one for the step size, 5 times 30 of 400 rows
    assert [r["passes"] for r in model.history_[:3]] == pytest.approx([1.0, 3.375, 4.75])
    assert model.history_[-1]["gap"] == model.dual_gap_ <= 1e-4


def test_a_coreset_stalls_and_says_so(rows):
    with pytest.warns(ConvergenceWarning, match=r"stalled at a relative gap of .*: its \d+ of 400 rows have an opti"):
        model = made(CSVRG(coreset_size=50), scale="minmax").fit(*rows)
    assert model.dual_gap_ == model.history_[-1]["gap"] > 1e-3
    best = made("newton", scale="minmax").fit(*rows).history_[-1]["objective"]
    excess = (model.history_[-1]["objective"] - best) / model.history_[-1]["objective"]
    assert 1e-6 < excess <= model.dual_gap_


@ALL
def test_starts_from_the_last_fit(rows, solver):
    options = {"scale": "minmax", "tol": 1e-6, "warm_start": True}
    model = made(csvrg(400, solver), **options).fit(*rows)
    first, coef = len(model.history_), model.coef_
    model.fit(*rows)
    assert first > 2
    assert len(model.history_) == 1
    np.testing.assert_allclose(model.coef_, coef, rtol=1e-12)


# What is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["svrg", "csvrg"])
def test_a_store_too_large_for_memory(rows, tmp_path, monkeypatch, solver):
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": 1000})
    store = store_of(tmp_path / "a.zarr", *rows)
    with pytest.raises(InputError, match=rf"solver='{solver}' works in memory, .* Use solver='dsvrg' or 'newton'"):
        made(solver).fit(store.path)
    assert made("dsvrg", scale="minmax", tol=1e-3).fit(store.path).dual_gap_ <= 1e-3


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@ALL
def test_rows_too_large(rows, solver):
    with pytest.raises(InputError, match=r"rescale|scaled"):
        made(solver).fit(rows[0] * 1e160, rows[1])
