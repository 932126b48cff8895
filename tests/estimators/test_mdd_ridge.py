"""MDDRidge: closed-form fixed points, the threshold, scikit-learn at one shard, leaving one out, bad input."""

import dask
import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.linear_model import Ridge, RidgeCV

from dask_odm import InputError, MDDRidge, MemoryLimitError, ingest
from estimators.mdd_problems import linear_fixed_point, linear_systems, linear_threshold, shards_of

N, D = 300, 5


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) * [1.0, 2.0, 3.0, 0.5, 5.0] + [1.0, 2.0, 0.0, 100.0, 0.0]
    return X, X @ rng.normal(size=(D, 2)) + rng.normal(size=(N, 2)) + [3.0, -50.0]


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("targets", [1, 2])
def test_one_shard_is_ridge_regression(rows, intercept, weighted, targets):
    X, y = rows[0], rows[1] if targets == 2 else rows[1][:, 0]
    weight = np.random.default_rng(1).integers(0, 3, N) * 0.7 if weighted else np.ones(N)
    ours = MDDRidge(0.02, fit_intercept=intercept).fit(X, y, weight)
    alpha = 0.02 * weight.sum()
    expected = Ridge(alpha=alpha, fit_intercept=intercept, solver="svd").fit(X, y, weight)
    np.testing.assert_allclose(ours.coef_, expected.coef_, rtol=1e-9)
    np.testing.assert_allclose(ours.intercept_, expected.intercept_, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.predict(X), expected.predict(X), rtol=1e-9, atol=1e-9)
    assert np.shape(ours.coef_) == np.shape(expected.coef_)
    assert np.shape(ours.intercept_) == (np.shape(expected.intercept_) if intercept else () if targets == 1 else (2,))
    assert ours.score(X, y, weight) == pytest.approx(expected.score(X, y, weight), rel=1e-9)
    assert (ours.gap_, ours.n_iter_, len(ours.history_)) == (0.0, 1, 1)


def test_float32_rows_far_from_zero_lose_no_more_than_their_own_digits(rows):
    X = (rows[0] + 1000.0).astype(np.float32)
    ours = MDDRidge(1e-3).fit(X, rows[1][:, 0])
    expected = Ridge(alpha=1e-3 * N, solver="svd").fit(X.astype(np.float64), rows[1][:, 0])
    np.testing.assert_allclose(ours.coef_, expected.coef_, rtol=2e-5)


def test_wide_rows_go_by_blas():
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(400, 90)), rng.normal(size=400)
    expected = Ridge(alpha=4.0).fit(X, y)
    np.testing.assert_allclose(MDDRidge(0.01).fit(X, y).coef_, expected.coef_, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(MDDRidge(0.01).fit(csr_array(X), y).coef_, expected.coef_, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("discrepancy", [0.0, 0.4, 1.2])
def test_discrepancy_ends_in_the_fixed_point(rows, discrepancy):
    X, y = rows
    model = MDDRidge(0.05, discrepancy=discrepancy, n_partitions=4, random_state=0, tol=1e-13).fit(X, y)
    A, b = linear_systems(X, y, shards_of(model, N), 0.05)
    expected = linear_fixed_point(A, b, 0.05 * discrepancy).mean(axis=0).T
    np.testing.assert_allclose(model.coef_, expected, rtol=1e-10, atol=1e-12)
    assert model.gap_ <= 1e-13
    assert (model.n_iter_ == 1) == (discrepancy == 0)


@pytest.mark.parametrize("m", [2, 3, 5])
def test_the_threshold_parts_what_converges_from_what_is_refused(rows, m):
    X, y = rows
    start = MDDRidge(0.05, n_partitions=m, random_state=0)
    A, b = linear_systems(X, y, shards_of(start, N), 0.05)
    most = linear_threshold(A) / 0.05
    assert most > 1.0, "below 1 it always converges"
    model = start.set_params(discrepancy=0.95 * most).fit(X, y)
    assert model.contraction_ == pytest.approx(0.95, rel=1e-8)
    np.testing.assert_allclose(
        model.coef_, linear_fixed_point(A, b, 0.95 * most * 0.05).mean(axis=0).T, rtol=1e-6, atol=1e-8
    )
    with pytest.raises(InputError, match=rf"beyond the threshold of these shards, {most:.4g}"[:-1]):
        start.set_params(discrepancy=1.05 * most).fit(X, y)


def test_consensus_ends_in_its_fixed_point(rows):
    X, y = rows
    model = MDDRidge(0.05, discrepancy=4.0, mode="consensus", n_partitions=3, random_state=0, tol=1e-13).fit(X, y)
    A, b = linear_systems(X, y, shards_of(model, N), 0.05 + 0.2)
    np.testing.assert_allclose(model.coef_, linear_fixed_point(A, b, -0.2).mean(axis=0).T, rtol=1e-10, atol=1e-12)


def test_workers_chunks_and_weights_of_zero_do_not_move_a_row_to_another_shard(rows, tmp_path):
    X, y = rows[0], rows[1][:, 0]
    weight = (np.arange(N) % 7 > 0).astype(float)
    settings = {"lam": 0.05, "discrepancy": 0.5, "n_partitions": 3, "random_state": 0}
    here = MDDRidge(**settings).fit(X, y, weight)
    ingest((X, y), tmp_path / "a.zarr", dtype="float64", chunk_rows=41, target="real")
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        lazy = [da.from_array(part, chunks=(50, *part.shape[1:])) for part in (X, y, weight)]
        there = MDDRidge(**settings).fit(*lazy)
        stored = MDDRidge(**settings).fit(tmp_path / "a.zarr")
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-10)
    np.testing.assert_allclose(stored.coef_, MDDRidge(**settings).fit(X, y).coef_, rtol=1e-10)


@pytest.mark.parametrize("intercept", [True, False])
def test_leaving_one_out_is_that_of_ridge_cv(rows, intercept):
    X, y = rows[0], rows[1][:, 0]
    lams = np.logspace(-4, 2, 7)
    ours = MDDRidge(lams, fit_intercept=intercept).fit(X, y)
    theirs = RidgeCV(alphas=N * lams, fit_intercept=intercept, store_cv_results=True).fit(X, y)
    np.testing.assert_allclose(ours.loo_errors_**2, theirs.cv_results_.mean(axis=0), rtol=1e-8)
    assert ours.lam_ * N == pytest.approx(theirs.alpha_)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8)


def test_leaving_one_out_is_what_it_says(rows):
    X, y = rows[0][:40], rows[1][:40]
    weight = np.random.default_rng(3).uniform(0.1, 1.0, 40)
    model = MDDRidge(0.1, loo=True, scale="standard").fit(X, y, weight)
    errors = []
    for i in range(40):
        left = np.arange(40) != i
        mean = weight @ X / weight.sum()
        size = np.sqrt(weight @ (X - mean) ** 2 / weight.sum())
        ridge = Ridge(alpha=0.1 * weight.sum()).fit((X / size)[left], y[left], weight[left])
        errors.append((ridge.predict((X / size)[[i]])[0] - y[i]) ** 2)
    squares = weight @ np.array(errors) / weight.sum()
    assert model.loo_errors_[0] == pytest.approx(np.sqrt(squares.mean()), rel=1e-8)
    spread = weight @ (y - weight @ y / weight.sum()) ** 2 / weight.sum()
    assert model.loo_score_ == pytest.approx((1 - squares / spread).mean(), rel=1e-8)
    assert not hasattr(MDDRidge().fit(X, y), "loo_score_")


def test_few_rows_are_told_that_leaving_one_out_is_too_hopeful():
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="too hopeful here: .* effective parameters"):
        MDDRidge(1e-6, loo=True).fit(rng.normal(size=(12, 10)), rng.normal(size=12))


def test_a_column_of_targets_is_one_target(rows):
    X, y = rows[0], rows[1][:, :1]
    with pytest.warns(DataConversionWarning):
        model = MDDRidge().fit(X, y)
    assert model.coef_.shape == (D,)


class TestBadInput:
    def test_fewer_rows_than_shards(self, rows):
        with pytest.raises(InputError, match=r"n_partitions must be at most the number of rows, 300\. Got 301"):
            MDDRidge(n_partitions=301).fit(*rows)

    def test_a_constant_target(self, rows):
        with pytest.warns(UserWarning, match="y is constant"):
            model = MDDRidge().fit(rows[0], np.full(N, 0.1))
        np.testing.assert_allclose(model.predict(rows[0]), 0.1, rtol=1e-12)

    @pytest.mark.parametrize("lam", [[], [0.1, -1.0], ["a", "b"], [[1.0]]])
    def test_no_lams(self, rows, lam):
        with pytest.raises(InputError, match="lam"):
            MDDRidge(lam).fit(*rows)

    def test_too_many_shards_for_the_memory(self, rows):
        with pytest.raises(MemoryLimitError, match=r"Moments of 100 shards of 5 features needs"):
            MDDRidge(n_partitions=100, memory_limit="1MB").fit(*rows)

    def test_no_targets_to_score(self, rows):
        with pytest.raises(InputError, match="score needs targets"):
            MDDRidge().fit(*rows).score(rows[0])

    def test_rounds_that_are_too_few(self, rows):
        with pytest.warns(ConvergenceWarning, match="relative distance of at most .* Increase max_iter"):
            MDDRidge(0.05, discrepancy=0.9, n_partitions=3, max_iter=2, random_state=0).fit(*rows)

    def test_rows_too_large_to_be_squared(self, rows):
        with pytest.raises(InputError, match=r"not finite|too large"):
            MDDRidge().fit(rows[0] * 1e200, rows[1])
