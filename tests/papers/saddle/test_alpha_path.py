"""SaddleSVC.alpha_path: the models that fits give, in fewer passes."""

import dask
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning

from dask_odm import SaddleSVC
from small_problems import blobs
from small_stores import store_of

ALPHAS = [0.7, 0.95, 0.8, 0.9]


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return (X - X.min(axis=0)) / np.ptp(X, axis=0), y


def test_every_model_is_that_of_a_fit(cancer):
    X, y = cancer
    model = SaddleSVC(tol=1e-8)
    path = model.alpha_path(X, y, alphas=ALPHAS)
    assert [each.alpha for each in path] == ALPHAS
    assert not hasattr(model, "coef_")
    passes = 0
    for each in path:
        alone = SaddleSVC(each.alpha, tol=1e-8).fit(X, y)
        np.testing.assert_allclose(each.coef_, alone.coef_, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(each.intercept_, alone.intercept_, rtol=1e-4)
        assert each.margin_ == pytest.approx(alone.margin_, rel=1e-7)
        assert each.nu_ == alone.nu_
        assert set(each.support_) == set(alone.support_)
        assert each.dual_gap_ <= 1e-8
        passes += alone.history_[-1]["passes"]
    assert path[0].history_[-1]["passes"] < passes  # those of the smallest alpha, which comes last


def test_over_a_store_down_to_hulls_that_overlap(tmp_path, monkeypatch):
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": 0})
    X, y = blobs(400, 3, seed=2)
    path = str(tmp_path / "a.zarr")
    store_of(path, X, y, chunk_rows=90)
    with pytest.warns(ConvergenceWarning, match="The hulls of the two classes overlap"):
        models = SaddleSVC(tol=1e-6).alpha_path(path, alphas=[None, 0.8, 1.0])
    assert [each.margin_ > 0 for each in models] == [False, True, True]
    assert models[1].margin_ == pytest.approx(SaddleSVC(0.8, tol=1e-6).fit(path).margin_, rel=1e-5)
