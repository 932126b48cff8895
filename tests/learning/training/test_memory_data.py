"""Rows in memory as a kernel sees them: sparse ones that are few as dense ones are copied once."""

import numpy as np
import pytest
from scipy.sparse import random_array

from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from traced import traced


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", ["minmax", "standard"])
def test_sparse_rows_are_made_dense_once_in_the_memory_that_is_told(dtype, scale):
    X = random_array((2000, 300), density=0.2, format="csr", random_state=np.random.default_rng(0), dtype=dtype)
    y = np.where(np.arange(2000) % 2, 1.0, -1.0)
    choice = KernelChoice("rbf", 1.0, scale=scale)
    data, dense = (MemoryData.of(FitRun(0), rows, y, np.ones(2000), (1.0, 1.0)) for rows in (X, X.toarray()))
    expected = dense.seen_by(choice).scaled
    scaling = data.seen_by(choice).scaling  # statistics are known from here on
    found, peak = traced(lambda: data.seen_by(choice, scaling).scaled)
    assert isinstance(found, np.ndarray)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert peak <= data.held_bytes()
