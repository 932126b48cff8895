"""Nyström features of float32 rows: in float32, and in float64 if landmarks are nearly dependent."""

import numpy as np
import pytest

from dask_odm.kernels import RBF
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.problem.nystrom_features import coordinates, rounding
from dask_odm.linalg.rows import ArrayRows


@pytest.mark.parametrize(("gamma", "precision"), [(0.8, np.float32), (0.01, np.float64)])
def test_features_are_in_float32_if_that_is_exact_enough(gamma, precision):
    X = np.random.default_rng(0).normal(size=(2000, 4)).astype(np.float32)
    landmarks = Landmarks.of(RBF(1.0, gamma), X[:150])
    (chosen, errors), *others = rounding(landmarks, ArrayRows(X), np.dtype(np.float32))
    assert chosen == precision
    assert [each for each, _ in others] == [np.float64] * (precision == np.float32)
    found = coordinates(landmarks, ArrayRows(X), np.float32, 2, precision)
    exact = landmarks.features(X)
    assert found.dtype == np.float32
    assert np.array_equal(found, exact.astype(np.float32)) == (precision == np.float64)
    off = np.linalg.norm(found - exact, axis=1).max()
    assert 0 < off <= 2 * np.linalg.norm(errors, axis=1).max() <= 4e-4 * np.linalg.norm(exact, axis=1).max()


def test_features_of_float64_rows_have_no_errors():
    X = np.random.default_rng(0).normal(size=(300, 4))
    landmarks = Landmarks.of(RBF(1.0, 0.8), X[:50])
    ((precision, errors),) = rounding(landmarks, ArrayRows(X), X.dtype)
    assert precision == np.float64
    assert errors.shape == (0, len(landmarks))
