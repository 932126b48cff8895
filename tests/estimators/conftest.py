"""Rows that the tests of the estimators share."""

from __future__ import annotations

import numpy as np
import pytest

from small_problems import blobs


@pytest.fixture(scope="session")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Ninety rows of three features and labels ±1, read-only."""
    X, y = blobs(90, 3, seed=5)
    X.flags.writeable = y.flags.writeable = False
    return X, y
