"""SaddleSVC of kernels, over the span of landmarks: NuSVC where every row is one, bounds, stores, what is refused."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import NuSVC

from dask_odm import SaddleSVC
from dask_odm.solvers import MNP
from small_problems import blobs


@pytest.fixture(scope="module")
def rows():
    X, _ = blobs(160, 3, seed=4)
    return X, np.where((X**2).sum(axis=1) > np.median((X**2).sum(axis=1)), 1, -1)  # no plane tells them apart


@pytest.mark.parametrize("form", [np.asarray, csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("kernel", ["rbf", "poly"])
def test_with_every_row_a_landmark_it_is_the_nu_svm(rows, form, kernel):
    X, y = rows
    settings = {"kernel": kernel, "gamma": 0.3, "degree": 2, "coef0": 1.0}
    model = SaddleSVC(0.5, tol=1e-8, solver=MNP(160), **settings).fit(form(X), y)
    other = NuSVC(nu=model.nu_, tol=1e-9, **settings).fit(X, y)
    scores, expected = model.decision_function(form(X)), other.decision_function(X)
    np.testing.assert_allclose(scores / np.abs(scores).max(), expected / np.abs(expected).max(), atol=2e-4)
    assert model.score(form(X), y) == other.score(X, y)
    assert not hasattr(model, "coef_")


def test_few_landmarks_bound_the_margin_from_below(rows):
    X, y = rows
    margins = [SaddleSVC(0.6, kernel="rbf", tol=1e-6, solver=MNP(r)).fit(X, y).margin_ for r in (10, 30, 160)]
    assert 0 < margins[0] < margins[1] < margins[2]
    model = SaddleSVC(0.6, kernel="rbf", solver=MNP(30, choice="uniform")).fit(X, y)
    assert len(model.support_) == model.dual_coef_.shape[1] == 30
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_])


def test_hulls_that_overlap_in_the_span_are_told(rows):
    X, y = rows
    with pytest.warns(ConvergenceWarning, match="overlap"):
        model = SaddleSVC(0.05, kernel="rbf", solver=MNP(3)).fit(X, y)
    assert np.isfinite(model.decision_function(X)).all()
    assert model.margin_ == 0
