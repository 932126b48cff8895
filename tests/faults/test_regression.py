"""Targets, shards and parameters that cannot be regressed on."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dask_odm import MDDKernelRidge, MDDRidge, ODMRegressor, Store, load_model
from dask_odm.diagnostics.evaluation import evaluate
from dask_odm.diagnostics.predictions import write_predictions
from faults.table import Fault, check_fault, each_way, raises
from small_stores import store_of

ROWS = 40
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = X @ [1.0, -2.0, 0.5] + np.random.default_rng(1).normal(size=ROWS)
LABELS = np.arange(ROWS) % 2


def write(folder: Path, y: np.ndarray = Y) -> None:
    store_of(folder / "s.zarr", X, y, real=y is Y)


def anew(folder: Path) -> None:
    shutil.rmtree(folder / "s.zarr")
    write(folder)


def of_call(cause: Callable[[Path], Any], bad: dict[str, Any], good: dict[str, Any]) -> dict[str, Any]:
    """`fit` with parameters that are wrong, then with others."""
    chosen = [bad]

    def cure(folder: Path) -> None:
        chosen.append(good)

    def words(parameters: dict[str, Any]) -> list[object]:
        return [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()]

    def command(folder: Path) -> list[object]:
        return ["fit", folder / "s.zarr", folder / "m.zarr", "--estimator", "mdd-ridge", *words(chosen[-1])]

    return {
        "cause": lambda folder: (chosen.__setitem__(slice(None), [bad]), cause(folder)),
        "cure": cure,
        "python": lambda folder: MDDRidge(**chosen[-1]).fit(str(folder / "s.zarr")),
        "command": command,
    }


SHARDED = {"n_partitions": 3, "random_state": 0}
FAULTS = [
    Fault(
        "Labels in place of targets",
        cause=lambda folder: write(folder, LABELS),
        cure=anew,
        python=lambda folder: MDDRidge().fit(str(folder / "s.zarr")),
        command=lambda folder: ["fit", folder / "s.zarr", folder / "m.zarr", "--estimator", "mdd-ridge"],
    ),
    Fault("Discrepancy without shards", **of_call(write, {"discrepancy": 0.5}, {"discrepancy": 0.5, **SHARDED})),
    Fault(
        "Discrepancy beyond its threshold",
        **of_call(write, {"discrepancy": 1e9, **SHARDED}, {"discrepancy": 0.9, **SHARDED}),
    ),
]


@each_way(FAULTS)
def test_a_regression_that_cannot_be(fault, way, tmp_path):
    check_fault(fault, tmp_path, way)


UNEVEN = ODMRegressor(noise="uneven", loo=True)
WEIGHT = (np.arange(ROWS) < 4).astype(float)


@pytest.mark.parametrize(("row", "call"), [
    ("Labels in memory in place of targets", lambda: MDDRidge().fit(X, np.where(LABELS, "yes", "no"))),
    ("Invalid lam", lambda: MDDRidge([0.1, -1.0]).fit(X, Y)),
    ("Shard without targets", lambda: MDDRidge(n_partitions=4, random_state=2).fit(X, Y, WEIGHT)),
    ("Uneven noise of several targets", lambda: UNEVEN.fit(X, np.stack([Y, Y], axis=1))),
    ("Uneven noise of several targets", lambda: clone(UNEVEN).set_params(solver="cells").fit(X, Y)),
    ("Leaving one out without landmarks", lambda: MDDKernelRidge(lam="loo").fit(X, Y)),
    ("Kernel matrix that is not positive definite", lambda: MDDKernelRidge("linear", lam=1e-25).fit(X, Y)),
])  # fmt: skip
def test_rows_in_memory_that_cannot_be_regressed_on(row, call):
    raises(row, call)


def without_moments() -> MDDRidge:
    model = MDDRidge().fit(X, Y)
    del model.moments_
    return model


def with_other_moments() -> MDDRidge:
    model = MDDRidge().fit(X, Y)
    model.moments_ = model.moments_[:, 1:]
    return model


@pytest.mark.parametrize(("row", "fitted", "parameters", "targets"), [
    ("More rows for several shards", lambda: MDDRidge().fit(X, Y), {"n_partitions": 3}, Y),
    ("More rows, and leaving one out", lambda: MDDRidge().fit(X, Y), {"lam": "loo"}, Y),
    ("More rows, and leaving one out", lambda: MDDRidge().fit(X, Y), {"loo": True}, Y),
    ("More rows, and a scaling", lambda: MDDRidge().fit(X, Y), {"scale": "minmax"}, Y),
    ("More rows of other targets", lambda: MDDRidge().fit(X, Y), {}, np.stack([Y, Y], axis=1)),
    ("More rows for a model without moments", without_moments, {}, Y),
    ("Moments that were changed", with_other_moments, {}, Y),
])  # fmt: skip
def test_rows_that_cannot_be_added(row, fitted, parameters, targets):
    model = fitted()
    before = model.coef_.copy()
    raises(row, lambda: model.set_params(**parameters).update(X, targets))
    np.testing.assert_array_equal(model.coef_, before)


def test_what_a_regressor_does_not_have(tmp_path):
    write(tmp_path)
    MDDRidge().fit(X, Y).save(tmp_path / "m.zarr")
    model, store = load_model(tmp_path / "m.zarr"), Store.open(tmp_path / "s.zarr")
    for what in ("scores", "probabilities"):
        asked = partial(write_predictions, model, store, tmp_path / "p.csv", what=what)
        raises("Scores of a regressor", asked)
    anew_labels = store_of(tmp_path / "labels.zarr", X, LABELS)
    raises("Labels in place of targets", lambda: evaluate(model, anew_labels))
