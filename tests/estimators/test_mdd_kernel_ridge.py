"""MDDKernelRidge: closed-form fixed points, the threshold, scikit-learn at one shard and in the span of landmarks."""

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeCV
from sklearn.metrics.pairwise import rbf_kernel

from dask_odm import InputError, MDDKernelRidge, MemoryLimitError
from estimators.mdd_problems import shards_of

N, M, GAMMA, LAM = 240, 3, 0.3, 1e-2
SHARDED = {"gamma": GAMMA, "lam": LAM, "n_partitions": M, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4))
    return X, np.stack([np.sin(X[:, 0]) + X[:, 1], X[:, 2] ** 2], axis=1) + 0.1 * rng.normal(size=(N, 2))


def parts(model, X, weight=None):
    """The kernel matrix, within shards and between them (over M − 1), and what is added to its diagonal."""
    K, of, shift = rbf_kernel(X, gamma=GAMMA), np.empty(N, int), np.empty(N)
    weight = np.ones(N) if weight is None else weight
    for i, shard in enumerate(shards_of(model, N)):
        of[shard], shift[shard] = i, LAM * weight[shard].sum() / weight[shard]
    within = of[:, None] == of
    return np.where(within, K, 0.0), np.where(within, 0.0, K) / (M - 1), np.diag(shift)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "poly", "linear", "callable"])
def test_one_shard_is_kernel_ridge(rows, kernel, weighted):
    X, y = rows
    weight = np.random.default_rng(1).uniform(0.2, 2.0, N) if weighted else np.ones(N)
    given, gamma = (rbf_kernel, None) if kernel == "callable" else (kernel, GAMMA)
    ours = MDDKernelRidge(given, gamma=GAMMA, lam=LAM).fit(X, y, weight)
    theirs = KernelRidge(kernel="rbf" if gamma is None else kernel, gamma=gamma, alpha=LAM * weight.sum())
    theirs.fit(X, y, weight)
    np.testing.assert_allclose(ours.dual_coef_, theirs.dual_coef_, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-9, atol=1e-9)
    assert MDDKernelRidge(given, gamma=GAMMA, lam=LAM).fit(X, y[:, 0]).dual_coef_.shape == (N,)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("mode", "strength"), [("discrepancy", 0.0), ("discrepancy", 0.6), ("consensus", 2.0)])
def test_shards_end_in_the_fixed_point(rows, mode, strength, weighted):
    X, y = rows
    weight = np.random.default_rng(1).uniform(0.2, 2.0, N) if weighted else None
    model = MDDKernelRidge(**SHARDED, mode=mode, discrepancy=strength, tol=1e-13).fit(X, y, weight)
    within, between, shift = parts(model, X, weight)
    A = within + shift + strength * (between if mode == "discrepancy" else within - between)
    np.testing.assert_allclose(model.dual_coef_, np.linalg.solve(A, y) / M, rtol=1e-10, atol=1e-11)
    assert model.gap_ <= 1e-13


def test_the_threshold_parts_what_converges_from_what_is_refused(rows):
    X, y = rows
    model = MDDKernelRidge(**{**SHARDED, "lam": 0.3}, tol=1e-8)
    within, between, shift = parts(model, X)
    M_ = np.linalg.solve(within + shift * (0.3 / LAM), between)
    most = 1.0 / np.abs(np.linalg.eigvals(M_)).max()
    assert 0.95 * most > 1.0
    model.set_params(discrepancy=0.95 * most).fit(X, y)
    assert model.contraction_ == pytest.approx(0.95, rel=1e-6)
    A = within + shift * (0.3 / LAM) + 0.95 * most * between
    np.testing.assert_allclose(model.dual_coef_, np.linalg.solve(A, y) / M, rtol=1e-5, atol=1e-7)
    with pytest.raises(InputError, match=rf"beyond the threshold of these shards, {most:.5g}"[:-2]):
        model.set_params(discrepancy=1.05 * most).fit(X, y)


def test_landmarks_are_ridge_in_their_span_and_lam_is_that_of_least_error(rows):
    X, y = rows[0], rows[1][:, 0]
    lams = np.logspace(-5, 0, 6)
    ours = MDDKernelRidge(gamma=GAMMA, lam=lams, n_landmarks=40, random_state=0).fit(X, y)
    Z = X[ours.support_]
    phi = np.linalg.solve(np.linalg.cholesky(rbf_kernel(Z, gamma=GAMMA)), rbf_kernel(Z, X, gamma=GAMMA)).T
    theirs = RidgeCV(alphas=N * lams, fit_intercept=False, store_cv_results=True).fit(phi, y)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(phi), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(ours.loo_errors_**2, theirs.cv_results_.mean(axis=0), rtol=1e-6)
    assert ours.lam_ * N == pytest.approx(theirs.alpha_)


def test_factors_that_do_not_fit_are_refused(rows):
    with pytest.raises(MemoryLimitError, match=r"Factors of 1 shards of 240 rows needs .* n_landmarks="):
        MDDKernelRidge(memory_limit=400_000).fit(*rows)
