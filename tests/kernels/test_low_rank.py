"""The linear Gram operator by its factors, against the matrix."""

from __future__ import annotations

import numpy as np
import pytest

from dask_odm.kernels import RBF, Linear, Polynomial
from dask_odm.kernels.blocks import TILE_ROWS, ArrayRows
from dask_odm.kernels.low_rank import LowRankGram, is_low_rank

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def assert_close(values: np.ndarray, expected: np.ndarray, dtype: str, scale: np.ndarray | float) -> None:
    assert np.abs(values - expected).max() <= TOLERANCE[dtype] * np.max(scale)


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 513, 1300])
def test_low_rank_gram_is_the_matrix_it_never_forms(n, dtype, bias):
    rng = np.random.default_rng(n)
    X, v = rng.normal(size=(n, 4)).astype(dtype), rng.normal(size=n)
    gram = LowRankGram(Linear(bias), ArrayRows(X), 0)
    X64 = X.astype(np.float64)
    K = X64 @ X64.T + bias
    scale = np.abs(K) @ np.abs(v) + 1.0
    assert_close(gram.matvec(v), K @ v, dtype, scale)
    assert_close(gram.in_float64().matvec(v), K @ v, "float64", scale)
    assert_close(gram.weights(v), np.append(X64.T @ v, np.sqrt(bias) * v.sum()), dtype, n)


@pytest.mark.parametrize(
    ("kernel", "d", "expected"),
    [(Linear(), TILE_ROWS, True), (Linear(), TILE_ROWS + 1, False), (RBF(), 2, False), (Polynomial(), 2, False)],
)
def test_is_low_rank(kernel, d, expected):
    assert is_low_rank(kernel, d) is expected
