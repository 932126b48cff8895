"""Weighted quantiles of scores: the least of a linear function over capped probability vectors."""

import numpy as np
import pytest
from scipy.optimize import linprog

from dask_odm.papers.saddle.weighted_quantile import cut_scores


@pytest.mark.parametrize("weighted", [False, True])
def test_a_cut_is_the_least_of_a_linear_function(weighted):
    rng = np.random.default_rng(5)
    for _ in range(100):
        n = int(rng.integers(1, 12))
        scores = rng.integers(-3, 4, n).astype(float)
        weight = rng.integers(1, 4, n).astype(float) if weighted else None
        mass = float(rng.uniform(0, 1) * (n if weight is None else weight.sum()))
        e = cut_scores(scores, weight, mass).entries(scores, weight)
        caps = (np.ones(n) if weight is None else weight) / mass
        least = linprog(scores, A_eq=np.ones((1, n)), b_eq=[1.0], bounds=[(0, cap) for cap in caps]).fun
        assert e.sum() == pytest.approx(1.0, abs=1e-12)
        assert (e <= caps + 1e-12).all()
        assert e @ scores == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize("mass", [0.0, 0.5, 2.0, 3.5, 6.0])
def test_a_weight_of_two_is_a_row_twice_to_the_last_bit(mass):
    scores, weight = np.array([0.3, 0.1, 0.1, 0.7]), np.array([2.0, 1.0, 2.0, 1.0])
    again = np.repeat(np.arange(4), weight.astype(int))
    once, twice = cut_scores(scores, weight, mass), cut_scores(scores[again], None, mass)
    assert once == twice


def test_without_a_mass_the_least_score_takes_all():
    scores = np.array([2.0, 1.0, 1.0, 3.0])
    np.testing.assert_array_equal(cut_scores(scores, None, 0.0).entries(scores, None), [0, 0.5, 0.5, 0])
