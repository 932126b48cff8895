"""Another loss through the one Newton: ridge regression in memory, weighted or not, and over a span of landmarks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from dask_odm.data.rows.scaling import Scaling
from dask_odm.kernels import RBF
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem
from dask_odm.methods.landmark.problem import SpanProblem
from dask_odm.methods.landmark.query import SpanQuery
from dask_odm.methods.landmark.solver import solve_landmark
from dask_odm.methods.linear.solver import solve_newton
from squared_loss import SquaredLoss

ALPHA = 0.5
WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])


def rows(n: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.5)
    return X, X @ rng.normal(size=d) + rng.normal(size=n), rng.uniform(0.2, 3.0, n)


@WEIGHTED
@pytest.mark.parametrize("form", [np.asarray, csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("exact", [True, False], ids=["cholesky", "conjugate gradients"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("float64", 1e-6)])
@pytest.mark.parametrize("d", [5, 90])
def test_is_ridge_regression(weighted, form, exact, dtype, tolerance, d):
    X, y, weight = rows(3000, d)
    X = X.astype(dtype)
    given = weight if weighted else np.empty(0)
    problem = PrimalProblem.over_rows(FeatureMap(d, 0.0), SquaredLoss(1.0 / ALPHA), form(X), y, given, 2)
    solution = solve_newton(problem, np.zeros(d), tol=1e-13, max_iter=20, exact=exact)
    ridge = Ridge(ALPHA, fit_intercept=False, solver="cholesky", tol=1e-12)
    expected = ridge.fit(X.astype(float), y, sample_weight=given if weighted else None).coef_
    assert solution.converged
    np.testing.assert_allclose(solution.x, expected, atol=tolerance)
    left = y - X.astype(float) @ expected
    value = 0.5 * expected @ expected + 0.5 / ALPHA * (weight if weighted else np.ones(3000)) @ left**2
    assert solution.primal == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("form", [np.asarray, csr_array], ids=["dense", "csr"])
def test_scaled_rows_and_a_constant_feature(form):
    X, y, weight = rows(500, 4)
    scaling = Scaling(X.mean(axis=0), 1.0 / X.std(axis=0))
    problem = PrimalProblem.over_rows(FeatureMap(4, 1.0, scaling), SquaredLoss(1.0 / ALPHA), form(X), y, weight)
    solution = solve_newton(problem, np.zeros(5), tol=1e-13, max_iter=20)
    wide = np.column_stack([(X - scaling.shift) * scaling.factor, np.ones(500)])
    expected = Ridge(ALPHA, fit_intercept=False).fit(wide, y, sample_weight=weight).coef_
    np.testing.assert_allclose(solution.x, expected, atol=1e-6)


@WEIGHTED
@pytest.mark.parametrize("budget", [0, 1 << 30], ids=["recomputed", "kept"])
def test_over_all_rows_as_landmarks_it_is_kernel_ridge(weighted, budget):
    X, y, weight = rows(200, 3)
    X = X + 0.1 * np.random.default_rng(1).normal(size=X.shape)  # no two rows are the same
    given = weight if weighted else np.empty(0)
    landmarks = Landmarks.of(RBF(0.0, 0.5), X)
    query = SpanQuery(landmarks.kernel, landmarks.rows, SquaredLoss(1.0 / ALPHA))
    span = SpanProblem.over_rows(query, X, y, given, budget, 2)
    solution = solve_landmark(span, landmarks, np.zeros(len(landmarks)), tol=1e-12, max_iter=30, seed=0)
    rival = KernelRidge(alpha=ALPHA, kernel="rbf", gamma=0.5).fit(X, y, sample_weight=given if weighted else None)
    assert solution.converged
    scores = landmarks.kernel.tile(X, landmarks.rows.astype(float)) @ solution.x
    np.testing.assert_allclose(scores, rival.predict(X), atol=1e-4)
