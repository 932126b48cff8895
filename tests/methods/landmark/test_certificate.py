"""What dual_gap_ says of a landmark model: never less than its distance from the optimum, however it is found."""

import math

import dask
import numpy as np
import pytest

from dask_odm import ODMClassifier, Store
from dask_odm.events import Progress
from dask_odm.methods.landmark import recipe as landmark
from dask_odm.solvers import Landmark
from small_stores import store_of

SETTINGS = {"gamma": 0.5, "random_state": 0, "scale": None}


def rings(n: int, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(n).normal(size=(n, 3)).astype(dtype)
    return X, np.where((X**2).sum(axis=1) > 2.4, 1, -1)


def distance(model: ODMClassifier, X: np.ndarray, y: np.ndarray, **settings: object) -> float:
    """(P(w) − P*)/P(w), with P* to rounding: of so few rows "exact" is Cholesky on the whole matrix in float64."""
    best = ODMClassifier(solver="exact", tol=1e-12, **SETTINGS | settings).fit(X.astype(np.float64), y)
    margins = y * model.decision_function(X.astype(np.float64))
    Z, a = model.support_vectors_.astype(np.float64), model.dual_coef_[0]
    K = np.exp(-0.5 * ((Z[:, None] - Z) ** 2).sum(axis=2)) + 1.0
    lam, theta, upsilon = model.lam, model.theta, model.upsilon
    below, above = np.maximum(1 - theta - margins, 0), np.maximum(margins - 1 - theta, 0)
    primal = 0.5 * a @ K @ a + lam / (2 * len(y) * (1 - theta) ** 2) * (below**2 + upsilon * above**2).sum()
    return (primal - best.history_[-1]["objective"]) / primal


@pytest.mark.parametrize("lam", [10.0, 1e3, 1e5])
@pytest.mark.parametrize("upsilon", [0.0, 0.3])
@pytest.mark.parametrize(("count", "dtype"), [(10, "float64"), (60, "float32"), (400, "float32"), (400, "float64")])
def test_certificates_are_never_less_than_the_distance(lam, upsilon, count, dtype):
    X, y = rings(400, dtype)
    settings = {"lam": lam, "upsilon": upsilon}
    options = SETTINGS | settings | {"tol": 1e-4}
    solvers = Landmark(count, certify=True), Landmark(count)
    certified, bound = (ODMClassifier(solver=solver, **options).fit(X, y) for solver in solvers)
    np.testing.assert_array_equal(certified.dual_coef_, bound.dual_coef_)
    least = distance(certified, X, y, **settings) - 1e-9
    assert certified.dual_gap_ >= least
    assert certified.dual_gap_ < 1
    assert math.isnan(bound.dual_gap_) or bound.dual_gap_ >= least
    if count == 400:
        assert certified.dual_gap_ <= 1e-3, "with every row a landmark it is nearly the optimum"


def test_the_bound_means_something_where_landmarks_leave_little():
    X, y = rings(600)
    X = np.round(X, 1)[:, :1]  # few different rows
    model = ODMClassifier(solver=Landmark(600), lam=100.0, tol=1e-6, **SETTINGS).fit(X, y)
    assert 0 <= model.dual_gap_ <= 1e-3


def test_it_says_that_it_does_not_know(monkeypatch):
    X, y = rings(600)
    assert math.isnan(ODMClassifier(solver=Landmark(8), lam=1e5, **SETTINGS).fit(X, y).dual_gap_)
    monkeypatch.setattr(landmark, "is_cheap", lambda n, r: False)
    assert math.isnan(ODMClassifier(solver=Landmark(600), lam=10.0, **SETTINGS).fit(X, y).dual_gap_)


def test_of_a_store_it_is_that_of_rows_in_memory(tmp_path, monkeypatch):
    X, y = rings(1500, "float32")
    weight = np.random.default_rng(1).uniform(0.0, 2.0, 1500).round(1)
    labels = np.array([None if i % 40 == 0 else int(v) for i, v in enumerate(y)], dtype=object)
    store = store_of(tmp_path / "a.zarr", X, labels, weight=weight)
    options = SETTINGS | {"solver": Landmark(1500, certify=True), "lam": 100.0, "tol": 1e-5}
    in_memory = ODMClassifier(**options).fit(store)
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": 0})
    heard: list = []
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        by_passes = ODMClassifier(**options, callbacks=[heard.append]).fit(store.path)
    assert 0 < by_passes.dual_gap_ <= 1e-3
    assert by_passes.dual_gap_ == pytest.approx(in_memory.dual_gap_, abs=1e-4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.zarr"], "nothing is left in the scratch folder"
    assert Store.open(store.path).rows == 1500
    assert any(isinstance(event, Progress) for event in heard)
