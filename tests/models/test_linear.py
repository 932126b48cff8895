"""Linear models: the product and the intercept, for one output or several, dense or sparse."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix

from dask_odm.models.linear_model import LinearModel
from models.made import rows


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("form", [np.asarray, csr_array, csr_matrix])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_the_formula(form, dtype, outputs):
    w, b, X = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])[:outputs], np.array([0.5, -1.0])[:outputs], rows(10, dtype)
    values = LinearModel(w, b).values(form(X))
    assert type(values) is np.ndarray
    assert values.dtype == dtype
    by_hand = np.array(
        [[sum(x * v for x, v in zip(row, u, strict=True)) + c for u, c in zip(w, b, strict=True)] for row in X]
    )
    np.testing.assert_allclose(values, by_hand, rtol=1e-6 if dtype == "float32" else 1e-12, atol=1e-6)
