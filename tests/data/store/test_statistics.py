"""Statistics gathered block by block against NumPy's of the whole."""

import numpy as np
import pytest

from dask_odm.data.store.statistics import StatisticsAccumulator


def test_statistics_of_numbers_far_from_zero_and_of_constants():
    rng = np.random.default_rng(1)
    X = np.column_stack([1e8 + rng.normal(size=5000), np.full(5000, 0.1), rng.normal(size=5000)])
    X[0, 2] = 1e6  # an outlier in front must not cancel the rest
    gathered, other = StatisticsAccumulator(3), StatisticsAccumulator(3)
    for start in range(0, 2000, 7):
        gathered.update(X[start : min(start + 7, 2000)])
    other.update(X[2000:])
    gathered = gathered + other
    exact = X.astype(np.longdouble)
    np.testing.assert_allclose(gathered.result().variance, exact.var(axis=0).astype(float), rtol=1e-9, atol=1e-30)
    np.testing.assert_allclose(gathered.result().mean, exact.mean(axis=0).astype(float), rtol=1e-14)
    assert gathered.result().variance[1] == 0.0
    assert gathered.result().mean[1] == 0.1


@pytest.mark.parametrize("rows", [1, 7, 200])
def test_numbers_that_overflow_are_infinite_without_a_warning(rows):
    """And those beside them are as ever; a constant has variance zero whatever its size."""
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.normal(size=200) * 1e300, np.full(200, 1.7e308), rng.normal(size=200)])
    gathered = StatisticsAccumulator(3)
    for start in range(0, 200, rows):
        gathered.update(X[start : start + rows])
    found = gathered.result()
    np.testing.assert_array_equal(found.minimum, X.min(axis=0))
    assert not np.isfinite(found.variance[0])
    assert found.variance[1] == 0.0
    np.testing.assert_allclose(found.variance[2], X[:, 2].var(), rtol=1e-12)
    assert not np.isfinite(found.total_variance)
