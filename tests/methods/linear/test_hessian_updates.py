"""Hessians that are brought up to date, beside those summed anew."""

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
