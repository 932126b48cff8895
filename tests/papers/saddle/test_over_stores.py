"""Reduced hulls of a store: the same bits whoever reads it, also where a worker dies."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest

from dask_odm import SaddleSVC
from dask_odm.events import IterationFinished
from dask_odm.papers.saddle import problem
from small_problems import blobs
from small_stores import store_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def streamed(monkeypatch):
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": 0})
    monkeypatch.setattr(problem, "LOOK_BYTES", 1 << 10)  # so that a look has few bins, and more are needed


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    X, y = blobs(6000, 10, seed=0)
    path = tmp_path_factory.mktemp("hulls") / "a.zarr"
    store_of(path, np.round(X, 2).astype(np.float32), np.where(y > 0, "b", "a").astype(object), chunk_rows=300)
    return path


def fitted(store, **more):
    return SaddleSVC(0.8, tol=1e-4, **more).fit(str(store))


def test_same_bits_by_three_workers_of_which_one_is_killed(store, start_workers, killer):
    alone = fitted(store)
    assert alone.history_[-1]["passes"] > alone.n_iter_ + 1  # some thresholds took two looks
    with start_workers(3) as client:
        kill = killer(client, lambda event: isinstance(event, IterationFinished) and event.iteration == 1)
        found = fitted(store, callbacks=[kill])
    assert kill.killed
    np.testing.assert_array_equal(found.coef_, alone.coef_)
    np.testing.assert_array_equal(found.intercept_, alone.intercept_)
    assert found.history_[-1]["passes"] == alone.history_[-1]["passes"]
