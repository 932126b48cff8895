"""Few rows of many features are solved by their products: with the weights, gap and P of the rows themselves."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_odm import ODMClassifier
from dask_odm.data.rows.scaling import Scaling
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.methods.linear.routes import FewRows, _gram


@pytest.mark.parametrize(("sparse", "scaled"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_products_are_those_of_the_features(sparse, scaled, bias):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, 40)) * (rng.random((9, 40)) < 0.5)
    scaling = Scaling(rng.normal(size=40), rng.uniform(0.5, 2.0, 40)) if scaled else None
    features = FeatureMap(40, bias, scaling)
    plain = X if scaling is None else (X - scaling.shift) * scaling.factor
    products = _gram(features, features.block(csr_array(X) if sparse else X))
    np.testing.assert_allclose(products, plain @ plain.T + bias, atol=1e-10)


@pytest.mark.parametrize("rows", [20, 500])  # from 400 on a quarter of them is solved first
def test_few_steps_over_products_find_the_optimum_for_any_lam(rows, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 1200)).astype(np.float32)
    X[7] = X[2]  # of lower rank than rows
    y = X[:, :9].sum(axis=1) + rng.normal(size=rows) > 0
    y[7] = y[2]

    def fitted(lam: float) -> ODMClassifier:
        return ODMClassifier("linear", solver="newton", lam=lam * rows, tol=1e-5, random_state=0).fit(X, y)

    few = [fitted(lam) for lam in (1.0, 1e4)]
    assert all(model.dual_gap_ <= 1e-5 for model in few)
    assert all(model.n_iter_ <= 20 for model in few)  # a large λ once took hundreds of passes
    monkeypatch.setattr(FewRows, "of", lambda *_: None)
    np.testing.assert_allclose(few[0].coef_, fitted(1.0).coef_, atol=1e-3 * np.abs(few[0].coef_).max())
