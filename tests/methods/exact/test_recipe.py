"""solver="exact": the model of the tree, to a certified gap, saved, resumed, from a store, and what is refused."""

import dask
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import dask_odm as odm
from dask_odm import MemoryLimitError, ODMClassifier
from dask_odm.engine.cluster import Cluster
from dask_odm.events import IterationFinished
from dask_odm.methods.auto_limits import AutoLimits
from dask_odm.methods.exact import recipe as exact

SETTINGS = {"gamma": 0.5, "lam": 1e4, "random_state": 0, "solver": "exact", "scale": None}


def rings(n: int = 1600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).normal(size=(n, 3))
    return X, np.where((X**2).sum(axis=1) > 2.4, "out", "in")


def test_an_early_end_is_a_warning():
    X, y = rings()
    steps: list[object] = []
    with pytest.warns(ConvergenceWarning, match=r"relative gap of .* Increase max_iter \(1 steps\)"):
        model = ODMClassifier(**SETTINGS | {"lam": 1e6}, max_iter=1, callbacks=[steps.append]).fit(X, y)
    assert [step.iteration for step in steps if isinstance(step, IterationFinished)] == [0, 1]
    assert model.dual_gap_ > 1e-3


def test_a_store_whose_rows_cannot_be_predicted_by_all_of_them_has_another_way(tmp_path, monkeypatch):
    store = odm.ingest(rings(600), tmp_path / "a.zarr", chunk_rows=200)
    monkeypatch.setattr(Cluster, "current", classmethod(lambda cls, *given: Cluster(None, 1, 1, 100_000, 100_000)))
    message = r"Predicting by a model of up to 600 rows needs .* Use solver='landmark', fewer rows or more memory\.$"
    with dask.config.set({"dask_odm.read-into-memory": "1kB"}), pytest.raises(MemoryLimitError, match=message):
        ODMClassifier(**SETTINGS).fit(store)


def test_so_many_rows_that_it_takes_hours_are_warned_of(monkeypatch, caplog, tmp_path):
    X, y = rings(300)
    store = odm.ingest((X, y), tmp_path / "a.zarr")
    ODMClassifier(**SETTINGS).fit(X, y)
    assert caplog.messages == []
    monkeypatch.setattr(exact, "AUTO", AutoLimits(many_entries=300 * 301 // 2 - 1))
    ODMClassifier(**SETTINGS).fit(X[1:], y[1:])
    assert caplog.messages == []
    ODMClassifier(**SETTINGS).fit(X, y)
    ODMClassifier(**SETTINGS).fit(store)
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": 0})
    ODMClassifier(**SETTINGS).fit(store)
    assert len(caplog.messages) == 3
    assert all("exact' with 300 rows: each" in said and "computes 4.5e+04 kernel" in said for said in caplog.messages)
