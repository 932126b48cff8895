"""Solvers over sparse rows: the optimum of Newton's method, gaps that the formulas confirm, rows dense or sparse."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_odm.data.rows.scaling import Scaling
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem
from dask_odm.learning.problem.losses import BandLoss, ODMSettings, RowLosses
from dask_odm.learning.problem.sparse_linear import SparsePrimal, as_sparse, is_thin
from dask_odm.learning.solution import SolverSettings
from dask_odm.methods.linear.solver import solve_newton
from dask_odm.methods.linear.sparse_solvers import descend_rows

N, D = 300, 90


def rows(n: int = N, d: int = D, share: float = 0.1, dtype=np.float64):
    rng = np.random.default_rng(0)
    X = np.where(rng.random((n, d)) < share, rng.random((n, d)), 0.0).astype(dtype)
    y = (X[:, :9].sum(axis=1) + 0.2 * rng.standard_normal(n) > 0.4).astype(np.int8)
    return X, y, rng.integers(1, 4, n).astype(float)


def problems(upsilon=0.2, lam=1e3, *, weighted=False, bias=1.0, scaled=False, X=None, y=None, weight=None, threads=1):
    if X is None:
        X, y, weight = rows()
    scaling = Scaling(X.min(axis=0) - 0.1, np.linspace(0.5, 2.0, X.shape[1])) if scaled else None
    features = FeatureMap(X.shape[1], bias, scaling)
    weight = weight if weighted else np.empty(0)
    loss = BandLoss(ODMSettings(lam, upsilon, 0.2), float(weight.sum()) if weighted else float(len(y)))
    sparse = SparsePrimal(features, loss, as_sparse(X, threads), y, weight, threads)
    return sparse, PrimalProblem.over_rows(features, loss, X, y, weight)


def assert_optimal(solution, dense: PrimalProblem, tol: float) -> None:
    best = solve_newton(dense, np.zeros(dense.k), tol=1e-12, max_iter=100, double_precision=True)
    assert solution.converged
    assert solution.gap <= tol
    assert solution.primal == pytest.approx(0.5 * solution.x @ solution.x + dense.sums(solution.x, "none").loss)
    short = (solution.primal - best.primal) / solution.primal
    assert -1e-12 <= short <= solution.gap + 1e-12  # a gap is a bound


@pytest.mark.parametrize("upsilon", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_descent_ends_at_the_optimum(upsilon, weighted):
    X, y, weight = rows(60, 800)
    sparse, dense = problems(upsilon, 30.0, weighted=weighted, X=X, y=y, weight=weight)
    settings = SolverSettings(1e-4, 200, 0)
    found, dual = descend_rows(sparse, settings)
    assert_optimal(found, dense, 1e-4)
    phi = np.column_stack([X, np.full(60, sparse.features.constant)])
    np.testing.assert_allclose(found.x, phi.T @ dual, atol=1e-10)


@pytest.mark.parametrize("upsilon", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_steps_in_faces_end_at_the_optimum_for_any_lam(upsilon, weighted):
    X, y, weight = rows(300, 500, share=0.02)
    sweeps = []
    for lam in (3e3, 3e5, 3e7):
        sparse, dense = problems(upsilon, lam, weighted=weighted, X=X, y=y, weight=weight)
        found, dual = descend_rows(sparse, SolverSettings(1e-4, 200, 0))
        assert_optimal(found, dense, 1e-4)
        np.testing.assert_allclose(found.x, np.column_stack([X, np.ones(len(y))]).T @ dual, rtol=1e-6, atol=1e-6)
        sweeps.append(found.steps)
    assert max(sweeps) <= 5 * sweeps[1], sweeps


def test_a_start_at_the_optimum_is_found_to_be_one_soon():
    sparse, dense = problems(lam=1e4)
    settings = SolverSettings(1e-4, 200, 0)
    found, dual = descend_rows(sparse, settings)
    again, _ = descend_rows(sparse, settings, start=(found.x.copy(), dual))
    assert_optimal(again, dense, 1e-4)
    assert again.steps == 5


def test_no_bit_depends_on_threads(monkeypatch):
    monkeypatch.setattr("dask_odm.learning.problem.sparse_linear.GROUP_ENTRIES", 500)
    tight = SolverSettings(1e-6, 99, 0)
    descents = [descend_rows(problems(lam=1e5, threads=threads)[0], tight)[0] for threads in (1, 3)]
    np.testing.assert_array_equal(descents[0].x, descents[1].x)


def test_gaps_of_dual_variables_are_those_of_the_formulas():
    sparse, _ = problems(weighted=True)
    rng = np.random.default_rng(1)
    scores, dual = rng.standard_normal((2, N))
    losses = RowLosses(sparse.loss.settings, np.where(sparse.y > 0, 1.0, -1.0), sparse.weight)
    expected = losses.row_gaps(losses.y * dual, losses.y * scores).sum()
    assert sparse.gap(scores, dual) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_rows_become_sparse(dtype):
    X, *_ = rows(dtype=dtype)
    X[5] = 0.0
    found, expected = as_sparse(X, 2), csr_array(X)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.toarray(), X)
    np.testing.assert_array_equal(found.indices, expected.indices)
    assert (is_thin(X), is_thin(expected), is_thin(X + 1), is_thin(csr_array(X + 1))) == (True, True, False, False)


@pytest.mark.parametrize("bias", [0.0, 2.0])
@pytest.mark.parametrize("scaled", [False, True])
def test_products_of_sparse_rows(bias, scaled):
    sparse, _ = problems(bias=bias, scaled=scaled)
    c = np.random.default_rng(2).random(N)
    phi = sparse.features.dense(sparse.X)
    if bias:
        phi = np.column_stack([phi, np.full(N, np.sqrt(bias))])
    np.testing.assert_allclose(sparse.features.products(sparse.X, c), (phi.T * c) @ phi, rtol=1e-11, atol=1e-11)
