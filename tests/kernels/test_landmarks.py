"""Landmarks: the greedy ones are the pivoted Cholesky's pivots; strata, factor and residual are those of NumPy."""

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_array

import reference
from dask_odm.data.rows.memory import SparseRows
from dask_odm.engine.partitioners import StratifiedPartitioner
from dask_odm.kernels import RBF, Laplacian, Linear, Polynomial
from dask_odm.kernels.groups import Groups
from dask_odm.kernels.landmarks import Landmarks, greedy_landmarks
from small_problems import matrix

KERNELS = [RBF(gamma=0.8), RBF(1.0, 0.8), Laplacian(1.0, 0.5), Linear(1.0), Polynomial(1.0, 0.3, 1.0, 2)]
EVERY_KERNEL = pytest.mark.parametrize("kernel", KERNELS, ids=str)


def rows(n: int, d: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


@EVERY_KERNEL
@pytest.mark.parametrize("count", [1, 6, 12])
def test_greedy_landmarks_are_the_pivots_of_the_slow_algorithm(kernel, count):
    X = rows(70).astype(np.float32)
    landmarks = greedy_landmarks(kernel, X, count)
    pivots = reference.greedy_pivots(matrix(kernel, X), count)
    np.testing.assert_array_equal(landmarks.rows, X[pivots])
    np.testing.assert_array_equal(landmarks.index, pivots)
    assert landmarks.rows.dtype == np.float32


@EVERY_KERNEL
def test_strata_are_the_nearest_landmarks(kernel):
    X, Z = rows(200, seed=1), rows(9, seed=2)
    K = matrix(kernel, np.vstack([X, Z]))
    squares = K.diagonal()[:200, None] - 2.0 * K[:200, 200:] + K.diagonal()[200:]
    strata = Groups(kernel, Z, kernel.diagonal(Z))(X)
    assert strata.dtype == np.int32
    np.testing.assert_array_equal(strata, squares.argmin(axis=1))


@pytest.mark.parametrize("kernel", [RBF(), Linear(), Linear(1.0)], ids=str)
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_constant_rows_make_one_stratum(kernel, value):
    X = np.full((20, 2), value)
    landmarks = greedy_landmarks(kernel, X, 5)
    assert landmarks.rows.shape == (1, 2)


def test_duplicates_are_chosen_once():
    X = np.repeat(rows(5), 10, axis=0)
    landmarks = greedy_landmarks(RBF(gamma=0.5), X, 20)
    assert len(landmarks.rows) == len(np.unique(landmarks.rows, axis=0)) == 5
    strata = StratifiedPartitioner(RBF(gamma=0.5), 20, 1, 0).groups(X)
    assert np.bincount(strata(X)).tolist() == [10] * 5


@EVERY_KERNEL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 3])
def test_residual_is_the_schur_complement(kernel, dtype, threads):
    X = rows(1300).astype(dtype)
    landmarks = Landmarks.of(kernel, X[::130], np.arange(0, 1300, 130))
    K = matrix(kernel, X)
    chosen = landmarks.index
    expected = K.diagonal() - np.einsum("ij,ji->i", K[:, chosen], np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen]))
    residual = landmarks.residual(X, threads)
    assert residual.dtype == np.float64
    np.testing.assert_allclose(residual, expected, atol=1e-9 * K.diagonal().max())
    assert residual.min() >= 0.0
    assert residual[chosen].max() < 1e-9 * K.diagonal().max()
    assert len(landmarks.residual(X[:0])) == 0


def test_residual_of_sparse_rows_is_that_of_dense():
    X = np.where(rows(700) > 0.8, rows(700), 0.0)
    landmarks = Landmarks.of(RBF(gamma=0.5), X[:40])
    np.testing.assert_array_equal(landmarks.residual(SparseRows(csr_array(X))), landmarks.residual(X))


@EVERY_KERNEL
def test_factor_and_gram_are_those_of_independent_candidates(kernel):
    Z = rows(30, seed=4).astype(np.float32)
    landmarks = Landmarks.of(kernel, Z[[0, 0, *range(30), 7]], np.array([5, 6, *range(10, 40), 50]))
    rank = np.linalg.matrix_rank(matrix(kernel, Z), tol=1e-6)
    assert len(landmarks) == rank
    assert (np.diff(landmarks.index) > 0).all()
    assert landmarks.rows.dtype == np.float32
    np.testing.assert_allclose(landmarks.gram, matrix(kernel, landmarks.rows), rtol=1e-10)
    np.testing.assert_array_equal(landmarks.gram, landmarks.gram.T)
    np.testing.assert_allclose(landmarks.factor @ landmarks.factor.T, landmarks.gram, atol=1e-10)
    np.testing.assert_array_equal(landmarks.factor, np.tril(landmarks.factor))


def test_numbers_of_candidates_follow_them():
    Z = np.array([[0.0], [0.0], [1.0], [1.0], [2.0]])
    landmarks = Landmarks.of(RBF(gamma=1.0), Z, np.array([3, 5, 8, 13, 21]))
    assert {3, 5} & set(landmarks.index.tolist())
    assert {8, 13} & set(landmarks.index.tolist())
    assert len(landmarks) == 3
    np.testing.assert_array_equal(np.sort(landmarks.rows[:, 0]), [0.0, 1.0, 2.0])
    assert Landmarks.of(RBF(gamma=1.0), Z[::2]).index.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rank_is_cut_where_the_dtype_cannot_tell(dtype):
    """Rows on a fine grid with a wide kernel: the rank by eigenvalues, of which float64 sees more."""
    X = np.random.default_rng(0).uniform(size=(300, 2)).astype(dtype)
    landmarks = Landmarks.of(RBF(gamma=0.5), X)
    eigenvalues = np.linalg.eigvalsh(matrix(RBF(gamma=0.5), X))[::-1]
    floor = {"float32": 1e-9, "float64": 1e-13}[dtype]
    assert (eigenvalues > 300 * 100 * floor).sum() <= len(landmarks) <= (eigenvalues > floor).sum()
    assert landmarks.residual(X).max() <= 301 * floor


@pytest.mark.parametrize("trace", [0.1, 1e-3])
def test_no_more_landmarks_than_leave_a_share_of_the_trace(trace):
    """What the others are left with, by NumPy; fewer landmarks, in the order of choice, leave more."""
    X, kernel = rows(60), RBF(1.0, 0.5)
    landmarks = Landmarks.of(kernel, X, trace=trace)
    pivots = reference.greedy_pivots(matrix(kernel, X), len(landmarks))
    assert set(landmarks.index) == set(pivots)
    K = matrix(kernel, X)

    def left(chosen):
        return np.trace(K - K[:, chosen] @ np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen])) / np.trace(K)

    assert left(pivots) <= trace < left(pivots[:-1])


def test_pickles_as_rows_only_and_computes_the_same_factor():
    landmarks = Landmarks.of(RBF(gamma=0.5), rows(400))
    before = landmarks.factor.tobytes()
    data = pickle.dumps(landmarks)
    assert len(data) < landmarks.rows.nbytes + landmarks.index.nbytes + 1000
    again = pickle.loads(data)
    assert again.factor.tobytes() == before
    assert again.residual(rows(20, seed=3)).tobytes() == landmarks.residual(rows(20, seed=3)).tobytes()
