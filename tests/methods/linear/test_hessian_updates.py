"""Hessians that are brought up to date, beside those summed anew."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.methods.linear.solver import UpdatedProblem

N, D = 2300, 7
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, D)) * (RNG.random((N, D)) < 0.5)
Y = (X[:, 0] + 0.5 * RNG.standard_normal(N) > 0).astype(np.int8)
WEIGHT = RNG.integers(0, 3, N).astype(np.float64)


def loss_of(lam, upsilon, theta):
    return BandLoss(ODMSettings(lam, upsilon, theta), WEIGHT.sum(), 1.0, 2.0)


@pytest.mark.parametrize("sparse", [False, True])
def test_sums_are_those_summed_anew(sparse):
    features, rows = FeatureMap(D, 1.0), csr_array(X) if sparse else X
    losses = [loss_of(100.0, 0.2, 0.3), loss_of(250.0, 0.2, 0.3), loss_of(50.0, 0.8, 0.3), loss_of(50.0, 0.8, 0.6)]
    updated = UpdatedProblem.of_rows(features, losses[0], rows, Y, WEIGHT)
    for i, loss in enumerate(losses):
        updated.weigh(loss)
        for step in (0.0, 0.3, 0.31, 0.31):
            w = (step + i) * np.arange(1.0, D + 2) / 10.0
            found = updated.sums(w, "full", double_precision=True)
            fresh = PrimalProblem.over_rows(features, loss, rows, Y, WEIGHT).sums(w, "full")
            assert found.loss == pytest.approx(fresh.loss)
            np.testing.assert_allclose(found.dual_image, fresh.dual_image, atol=1e-9 * np.abs(fresh.dual_image).max())
            np.testing.assert_allclose(found.curvature, fresh.curvature, atol=1e-9 * np.abs(fresh.curvature).max())


def test_only_decisive_rows_change_sides_without_themselves():
    """Leverages of all rows, and of decisive ones alone, leave the same rows on either side."""
    loss, features = loss_of(100.0, 0.2, 0.3), FeatureMap(D, 1.0)
    problem = PrimalProblem.over_rows(features, loss, X, Y, WEIGHT)
    w = np.linspace(-0.5, 1.0, D + 1)
    hessian = problem.sums(w, "full").curvature + np.eye(D + 1)
    inverse = np.linalg.inv(np.linalg.cholesky(hessian)) * 20.0  # large leverages, so that rows do change
    every, some = problem.leverages(w, inverse), problem.leverages(w, inverse, decisive=True)
    _, dual, _ = loss.evaluate(every[0], Y, WEIGHT)
    without, told = every[0] - every[1] * dual, some[0] - some[1] * dual
    assert 0 < np.count_nonzero(some[1]) < 0.7 * np.count_nonzero(every[1])
    assert np.count_nonzero((without > 0) != (every[0] > 0)) > 10
    np.testing.assert_array_equal(told > 0, without > 0)
