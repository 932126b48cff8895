"""Every estimator: saved, pickled, cloned, written into, and at the command line."""

import pickle
import re

import numpy as np
import pytest
from sklearn.base import clone, is_regressor
from sklearn.exceptions import NotFittedError

from cli.running import run_json
from contracts.cases import Case, assert_equal, each_case, each_of, scores
from dask_odm import Store, load_model
from dask_odm.estimators.registry import by_word
from dask_odm.learning.parameters import SolverObject


@each_case
def test_is_registered(case):
    assert by_word(case.word).load() is case.kind


@each_case
def test_a_saved_model_is_the_same(case, model_of, tmp_path):
    X, model = case.rows()[0], model_of(case)
    model.save(tmp_path / "m.zarr")
    again = load_model(tmp_path / "m.zarr")
    assert type(again) is case.kind
    assert again.get_params() == model.get_params()
    assert_equal(again, model)
    assert scores(again, X).tobytes() == scores(model, X).tobytes()
    for path in (tmp_path / "m.zarr").rglob("*"):
        assert path.is_dir() or not re.match(rb"\x80[\x02-\x05]", path.read_bytes()), f"{path} is a pickle"
        assert path.suffix not in (".pkl", ".pickle", ".joblib")


@each_case
def test_pickle_and_clone(case, model_of):
    X, model = case.rows()[0], model_of(case)
    again = pickle.loads(pickle.dumps(model))
    assert again.get_params() == model.get_params()
    assert_equal(again, model)
    assert scores(again, X).tobytes() == scores(model, X).tobytes()
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)


@each_case
def test_writing_into_a_fitted_array_changes_no_prediction(case):
    X, model = case.rows()[0], case.fit()
    before = scores(model, X)
    for name, value in vars(model).items():
        if name.endswith("_") and isinstance(value, np.ndarray) and value.flags.writeable and value.dtype.kind in "if":
            value[:] = 0
    assert scores(model, X).tobytes() == before.tobytes()


def options(case: Case) -> list[str]:
    """What the command line takes for the settings of a case."""
    found, settings = [], dict(case.settings)
    if isinstance(solver := settings.get("solver"), SolverObject):
        given = {name: value for name, value in solver.get_params().items() if value is not None}
        settings |= {"solver": solver.word, **given}
    for name, given in settings.items():
        value = ",".join(map(str, given)) if isinstance(given, list) else "none" if given is None else given
        flag = name.replace("_", "-")
        found += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}={value}"]
    return found


# One of each estimator, and solvers with parameters of their own.
@each_of(
    "sodm", "search", "cells, many", "hulls over landmarks", "centroids", "discrepancy", "kernel shards",
    "kernel landmarks", "robust odm", "one class",
)  # fmt: skip
def test_the_command_line_fits_predicts_and_evaluates(case, path_of, tmp_path):
    store, model, out = Store.open(path_of(case)), tmp_path / "m.zarr", tmp_path / "p.csv"
    facts = run_json("fit", store.path, model, "--estimator", case.word, *options(case))
    assert (facts["estimator"], facts["rows"]) == (case.kind.__name__, store.rows)
    expected = case.fit(store.path)
    assert_equal(load_model(model), expected)
    assert run_json("info", model)["features"] == store.features
    assert run_json("predict", model, store.path, out)["rows"] == store.rows
    assert out.read_text().split()[1:] == [str(label) for label in expected.predict(store.path).compute()]
    evaluated = run_json("evaluate", model, store.path)
    if is_regressor(expected):
        assert evaluated["r2"] == pytest.approx(expected.score(store.path), rel=1e-6)
        return
    assert run_json("predict", model, store.path, tmp_path / "s.csv", "--decision-function")["rows"] == store.rows
    assert evaluated["accuracy"] == expected.score(store.path)
