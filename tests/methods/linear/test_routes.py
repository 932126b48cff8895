"""Coordinates of few rows of many features: their products are the rows', and weights found there are the features'."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_odm.data.rows.scaling import Scaling
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.methods.linear.routes import RowSpan


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_products_and_weights_are_those_of_the_features(sparse, scaled, bias):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, 40)) * (rng.random((9, 40)) < 0.5)
    X[7] = X[2]  # of lower rank than rows
    scaling = Scaling(rng.normal(size=40), rng.uniform(0.5, 2.0, 40)) if scaled else None
    features = FeatureMap(40, bias, scaling)
    span = RowSpan.of(features, csr_array(X) if sparse else X)
    plain = X if scaling is None else (X - scaling.shift) * scaling.factor
    phi = np.column_stack([plain, np.ones(9)]) if bias else plain
    assert span.coordinates.shape == (9, 8)
    np.testing.assert_allclose(span.coordinates @ span.coordinates.T, phi @ phi.T, atol=1e-10)
    z = rng.normal(size=8)
    w = span.weights(z)
    np.testing.assert_allclose(phi @ w, span.coordinates @ z, atol=1e-10)
    assert np.linalg.norm(w) == pytest.approx(np.linalg.norm(z))
