"""Priority sampling: unbiased, and the same whoever draws which part."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_odm.linalg.rows import uniforms_of
from dask_odm.methods.landmark.sketch import PrioritySample

ROWS = np.arange(200.0)[:, None]
CODES = np.arange(200) % 2


def draw(weight: np.ndarray, start: int, stop: int, size: int, seed: int = 0) -> PrioritySample:
    return PrioritySample.draw(
        weight[start:stop], CODES[start:stop], start, lambda index: ROWS[start:stop][index], size, seed
    )


@given(st.lists(st.integers(0, 200), max_size=6), st.integers(1, 60), st.integers(0, 2**32))
def test_parts_merge_into_the_sample_of_all(cuts, size, seed):
    weight = np.where(np.arange(200) % 3 == 0, 0.0, 1.0 + np.arange(200) % 7)
    bounds = [0, *sorted(cuts), 200]
    parts = [draw(weight, a, b, size, seed) for a, b in pairwise(bounds)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged + part
    whole = draw(weight, 0, 200, size, seed)
    for name in ("rows", "y", "weight", "priority", "numbers"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    np.testing.assert_array_equal(whole.numbers, whole.rows[:, 0])
    np.testing.assert_array_equal(whole.rows[:, 0] % 3 > 0, True)


@pytest.mark.parametrize("size", [1, 10, 100])
def test_sums_are_unbiased(size):
    weight = np.random.default_rng(0).exponential(size=200) ** 2
    found = [sum(draw(weight, 0, 200, size, seed).weighted()[2]) for seed in range(400)]
    assert abs(np.mean(found) - weight.sum()) < 4 * np.std(found) / 20 + 1e-9


def test_fewer_rows_than_asked_for_are_all_taken():
    weight = np.zeros(200)
    weight[[3, 50, 199]] = 1.0, 2.0, 3.0
    rows, codes, weights = draw(weight, 0, 200, 3).weighted()
    np.testing.assert_array_equal(codes, rows[:, 0] % 2)
    np.testing.assert_array_equal(sorted(zip(rows[:, 0], weights, strict=True)), [(3, 1), (50, 2), (199, 3)])


def test_uniforms_are_uniform_and_by_number_and_seed():
    u = uniforms_of(np.arange(100_000), 5)
    assert ((u >= 0) & (u < 1)).all()
    counts = np.histogram(u, 50, (0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 100  # chi squared, 49 degrees of freedom: p < 1e-5 above
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.02
    np.testing.assert_array_equal(u[[7, 90_000]], uniforms_of(np.array([7, 90_000]), 5))
    assert not np.array_equal(u[:10], uniforms_of(np.arange(10), 6))
