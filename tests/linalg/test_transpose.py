"""Rows turned into columns, against NumPy's transpose."""

import numpy as np
import pytest

from dask_odm.linalg.jit import frozen
from dask_odm.linalg.transpose import turn_rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 8, 13, 18])
@pytest.mark.parametrize("n", [3, 8, 31])
def test_it_is_the_transpose_of_rows_less_their_origin(dtype, d, n):
    rng = np.random.default_rng(0)
    X, origin = rng.standard_normal((40, d)).astype(dtype), rng.standard_normal(d).astype(dtype)
    drawn = rng.permutation(40)
    for rows, expected in ((np.empty(0, np.int64), X[5 : 5 + n]), (drawn, X[drawn[5 : 5 + n]])):
        out = np.full((d + 2, n + 3), 7.0, dtype)
        turn_rows(frozen(X), rows, 5, n, origin, out)
        np.testing.assert_array_equal(out[:d, :n], (expected - origin).T)
        assert (out[d:] == 7.0).all()
        assert (out[:, n:] == 7.0).all()
