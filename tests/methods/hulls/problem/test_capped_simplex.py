"""Capped probability vectors: the least of a linear function, and the projection, against sorting and bisection."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq, linprog

from dask_odm.methods.hulls.problem.capped_simplex import cap_factor, cut_scores


def by_sorting(logs: np.ndarray, caps: np.ndarray) -> np.ndarray:
    """The projection of exp(logs): the rows of largest ratio to their cap are capped, as many as it takes."""
    order = np.argsort(np.log(caps) - logs)
    for k in range(len(logs)):
        capped, free = order[:k], order[k:]
        c = (1.0 - caps[capped].sum()) / np.exp(logs[free]).sum()
        if c >= 0 and (c * np.exp(logs[free]) <= caps[free] * (1 + 1e-14)).all():
            break
    else:
        capped, free, c = order, order[:0], 0.0
    e = np.exp(logs) * c
    e[capped] = caps[capped]
    return e


@pytest.mark.parametrize("seed", range(4))
def test_the_projection_is_that_of_sorting_and_of_bisection(seed):
    rng = np.random.default_rng(seed)
    start = 0.0
    for _ in range(1000):
        n = int(rng.integers(1, 40))
        logs = rng.standard_normal(n) * rng.choice([0.1, 1.0, 10.0, 30.0])
        caps = np.full(n, 1.0) if rng.random() < 0.7 else rng.integers(1, 5, n).astype(float)
        caps /= caps.sum() * rng.uniform(0.01, 1.0)
        start = cap_factor(logs, np.log(caps), start)
        found = np.minimum(caps, np.exp(logs + start))
        assert found.sum() == pytest.approx(1.0, abs=1e-12)
        np.testing.assert_allclose(found, by_sorting(logs, caps), atol=1e-12)
        if caps.sum() > 1 + 1e-9:
            root = brentq(lambda c, p=logs, of=caps: np.minimum(of, np.exp(p + c)).sum() - 1.0, -500, 500, xtol=1e-13)
            np.testing.assert_allclose(found, np.minimum(caps, np.exp(logs + root)), atol=1e-11)


@pytest.mark.parametrize("start", [-1e3, 0.0, 1e3])
def test_the_projection_needs_no_floats_of_the_weights_themselves(start):
    logs = np.array([0.0, -2000.0, -2001.0])
    log_c = cap_factor(logs, np.log(np.full(3, 0.5)), start)
    expected = 0.5 * np.array([1.0, 1 / (1 + np.exp(-1)), 1 / (1 + np.e)])
    np.testing.assert_allclose(np.exp(np.minimum(np.log(0.5), logs + log_c)), expected, rtol=1e-9)


def test_the_projection_where_all_rows_are_capped():
    caps = np.full(4, 0.25)
    assert np.minimum(caps, np.exp(np.zeros(4) + cap_factor(np.zeros(4), np.log(caps), 0.0))).sum() == 1.0


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
