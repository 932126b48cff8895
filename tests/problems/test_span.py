"""Kernel values of rows at landmarks as an operator: against the matrix itself."""

from __future__ import annotations

import numpy as np
import pytest

from dask_odm.kernels import RBF, Laplacian, Polynomial
from dask_odm.kernels.blocks import ArrayRows
from dask_odm.problems.span import RowSpan
from small_problems import matrix

KERNELS = [RBF(1.0, 0.4), Laplacian(1.0, 0.3), Polynomial(0.0, 0.2)]
PLENTY = 1 << 30


def rows(n: int, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, 4)).astype(dtype)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("budget", [0, PLENTY], ids=["recomputed", "kept"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("n", [3, 2500])
def test_operator_is_the_matrix(kernel, budget, dtype, tolerance, n):
    X, rng = rows(n, dtype), np.random.default_rng(1)
    span = RowSpan(kernel, ArrayRows(X), X[:3], budget)
    K, a, v = matrix(kernel, X, X[:3]), rng.normal(size=3), rng.normal(size=n)
    v[rng.random(n) < 0.5] = 0.0
    assert span.keeps == (budget > 0)
    for found, expected in (
        (span.scores(a), K @ a),
        (span.adjoint(v), K.T @ v),
        (span.product(v**2, a), K.T @ (v**2 * (K @ a))),
        (span.squares(np.arange(0, n, 2), v[::2] ** 2), K[::2].T @ (v[::2, None] ** 2 * K[::2])),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


def test_memory_and_threads_change_no_bit():
    X, rng = rows(9000, "float32"), np.random.default_rng(1)
    a, v = rng.normal(size=40), rng.normal(size=9000)
    answers = set()
    for budget in (0, PLENTY):
        for threads in (1, 2, 5):
            span = RowSpan(KERNELS[0], ArrayRows(X), X[:40], budget, threads)
            found = span.scores(a), span.adjoint(v), span.product(v**2, a), span.squares(np.arange(50), v[:50] ** 2)
            answers.add(b"".join(x.tobytes() for x in found))
    assert len(answers) == 1
