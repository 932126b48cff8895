"""Linear and polynomial kernels against the slow formulas."""

from __future__ import annotations

import numpy as np
import pytest

import reference
from dask_odm.kernels.named import Linear, Polynomial


def rows(n: int, dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 5)).astype(dtype)


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-13)])
def test_linear_is_the_slow_formula(dtype, tolerance, bias):
    X, Z = rows(12, dtype, 0), rows(9, dtype, 1)
    expected = reference.linear(X, Z) + bias
    np.testing.assert_allclose(Linear(bias).tile(X, Z), expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(Linear(bias).diagonal(X), reference.linear(X, X).diagonal() + bias, rtol=tolerance)


@pytest.mark.parametrize("degree", [1, 2, 3, 7])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-12)])
def test_polynomial_is_the_slow_formula(dtype, tolerance, degree):
    kernel = Polynomial(1.0, gamma=0.25, coef0=0.5, degree=degree)
    X, Z = rows(12, dtype, 2), rows(9, dtype, 3)
    expected = (0.25 * reference.linear(X, Z) + 0.5) ** degree + 1.0
    scale = np.abs(expected).max()
    np.testing.assert_allclose(kernel.tile(X, Z), expected, rtol=0, atol=tolerance * scale)
    diagonal = (0.25 * reference.linear(X, X).diagonal() + 0.5) ** degree + 1.0
    np.testing.assert_allclose(kernel.diagonal(X), diagonal, rtol=tolerance)


def test_bias_is_a_constant_feature():
    X = rows(10, "float64", 4)
    wider = np.column_stack([X, np.ones(10)])
    np.testing.assert_allclose(Linear(1.0).tile(X, X), Linear().tile(wider, wider), rtol=1e-14, atol=1e-14)
