"""Landmarks are the greedy pivoted Cholesky's pivots, strata the nearest of them in the kernel's space."""

from __future__ import annotations

import numpy as np
import pytest

import reference
from dask_odm.kernels import RBF, Laplacian, Linear, Polynomial
from dask_odm.kernels.landmarks import Landmarks, choose_landmarks, pivoted_cholesky
from small_problems import matrix

KERNELS = [RBF(gamma=0.8), RBF(1.0, 0.8), Laplacian(1.0, 0.5), Linear(1.0), Polynomial(1.0, 0.3, 1.0, 2)]
EVERY_KERNEL = pytest.mark.parametrize("kernel", KERNELS, ids=str)


def rows(n: int, d: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


@EVERY_KERNEL
@pytest.mark.parametrize("rank", [1, 3, 12])
def test_pivots_and_factor_are_those_of_the_slow_algorithm(kernel, rank):
    X = rows(70)
    K = matrix(kernel, X)
    pivots, factor, residual = pivoted_cholesky(kernel, X, rank)
    expected, L = reference.pivoted_cholesky_greedy(K, rank)
    np.testing.assert_array_equal(pivots, expected)
    np.testing.assert_allclose(factor, L, atol=1e-8)
    np.testing.assert_allclose(residual, (K - L @ L.T).diagonal(), atol=1e-8)
    assert residual.min() >= 0.0


def test_ends_at_the_rank():
    pivots, factor, residual = pivoted_cholesky(Linear(1.0), rows(40), 30)
    assert len(pivots) == 4
    assert factor.shape == (40, 4)
    assert residual.max() < 1e-9


@EVERY_KERNEL
def test_landmarks_are_chosen_rows_as_they_are(kernel):
    X = rows(50).astype(np.float32)
    landmarks = choose_landmarks(kernel, X, 6)
    pivots, _ = reference.pivoted_cholesky_greedy(matrix(kernel, X), 6)
    np.testing.assert_array_equal(landmarks.rows, X[pivots])
    assert landmarks.rows.dtype == np.float32


@EVERY_KERNEL
def test_strata_are_the_nearest_landmarks(kernel):
    X, Z = rows(200, seed=1), rows(9, seed=2)
    K = matrix(kernel, np.vstack([X, Z]))
    squares = K.diagonal()[:200, None] - 2.0 * K[:200, 200:] + K.diagonal()[200:]
    strata = Landmarks(Z).strata(kernel, X)
    assert strata.dtype == np.int32
    np.testing.assert_array_equal(strata, squares.argmin(axis=1))


@EVERY_KERNEL
def test_a_landmark_is_in_its_own_stratum(kernel):
    Z = choose_landmarks(kernel, rows(50), 4).rows
    np.testing.assert_array_equal(Landmarks(Z).strata(kernel, Z), np.arange(len(Z)))


@pytest.mark.parametrize("kernel", [RBF(), Linear(), Linear(1.0)], ids=str)
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_constant_rows_make_one_stratum(kernel, value):
    X = np.full((20, 2), value)
    landmarks = choose_landmarks(kernel, X, 5)
    assert landmarks.rows.shape == (1, 2)
    assert (landmarks.strata(kernel, X) == 0).all()


def test_duplicates_are_chosen_once():
    X = np.repeat(rows(5), 10, axis=0)
    landmarks = choose_landmarks(RBF(gamma=0.5), X, 20)
    assert len(landmarks.rows) == len(np.unique(landmarks.rows, axis=0)) == 5
    assert np.bincount(landmarks.strata(RBF(gamma=0.5), X)).tolist() == [10] * 5


def test_fewer_rows_than_landmarks():
    assert len(choose_landmarks(RBF(), rows(3), 64).rows) == 3
