"""Equal rows are found, whatever their order, and rows that only look alike are not."""

from __future__ import annotations

import numpy as np
import pytest

from dask_odm.data.rows import memory
from dask_odm.data.rows.memory import merge_equal


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [1, 7])
def test_first_of_equal_rows_in_order(dtype, d):
    rng = np.random.default_rng(d)
    X = rng.integers(0, 3, (400, d)).astype(dtype)
    y = rng.choice([-1.0, 1.0], 400)
    first, of = merge_equal(X, y)
    seen: dict[bytes, int] = {}
    for i, row in enumerate(np.column_stack([X, y])):
        seen.setdefault(row.tobytes(), i)
    np.testing.assert_array_equal(first, sorted(seen.values()))
    np.testing.assert_array_equal(X[first][of], X)
    np.testing.assert_array_equal(y[first][of], y)


def test_swapped_features_and_other_labels_are_not_equal():
    X = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    for other in (-1.0, 2.0):  # of two classes, of many
        first, of = merge_equal(X, np.array([1.0, 1.0, other, 1.0]))
        np.testing.assert_array_equal(first, [0, 1, 2])
        np.testing.assert_array_equal(of, [0, 1, 2, 0])


def test_rows_of_one_hash_that_differ_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "_hash_rows", lambda words, odd, out: out.fill(0))
    X = np.array([[1.0], [2.0], [1.0]])
    np.testing.assert_array_equal(merge_equal(X, np.ones(3))[0], [0, 1, 2])
