"""LAPACK without the interpreter lock against SciPy's wrappers."""

import numpy as np
import pytest
from scipy.linalg import cho_factor, cho_solve

from dask_odm.linalg.lapack import lapack


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_systems_are_solved_as_by_scipy(dtype):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((7, 7)).astype(dtype)
    A = A @ A.T + np.eye(7, dtype=dtype)
    b = rng.standard_normal(7).astype(dtype)
    factor = A.copy(order="F")
    x = b.copy()
    assert lapack("potrf", "L", 7, factor, 7) == 0
    assert lapack("potrs", "L", 7, 1, factor, 7, x, 7) == 0
    expected = cho_factor(A, lower=True)
    np.testing.assert_array_equal(np.tril(factor), np.tril(expected[0]))
    np.testing.assert_array_equal(x, cho_solve(expected, b))


def test_the_column_is_returned_at_which_a_matrix_is_not_definite():
    assert lapack("potrf", "L", 3, np.diag([1.0, -1.0, 1.0]), 3) == 2
