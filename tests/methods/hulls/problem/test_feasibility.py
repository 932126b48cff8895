"""Tilts of two reduced hulls: derivatives against differences, and the entries that they are sums of."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from dask_odm.methods.hulls.problem.feasibility import STEPS, Tilt
from hull_problems import hulls


@pytest.fixture
def tilt():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 3)), np.where(rng.random(50) < 0.4, 1.0, -1.0)
    weight = rng.integers(0, 4, 50).astype(float)
    return Tilt(hulls(X, y, 0.6, weight)), X, y, weight / (0.6 * min(weight[y > 0].sum(), weight[y < 0].sum()))


def test_derivatives_are_those_of_the_value(tilt):
    of, at, h = tilt[0], np.array([0.3, -0.2, 0.5, -1.0, 0.4]), 1e-5
    sums = of.sums(at)
    for k, move in enumerate(h * np.eye(5)):
        up, down = of.sums(at + move), of.sums(at - move)
        assert (up.value - down.value) / (2 * h) == pytest.approx(sums.gradient[k], abs=1e-8)
        np.testing.assert_allclose((up.gradient - down.gradient) / (2 * h), sums.hessian[k], atol=1e-7)


def test_the_gradient_is_the_difference_of_the_points(tilt):
    of, X, y, caps = tilt
    at = np.array([0.3, -0.2, 0.5, -1.0, 0.4])
    e = caps * expit(y * (X @ at[:3]) + np.where(y > 0, at[3], at[4]))
    expected = np.append((y * e) @ X, [e[y > 0].sum() - 1, e[y < 0].sum() - 1])
    np.testing.assert_allclose(of.sums(at).gradient, expected, atol=1e-12)
    np.testing.assert_allclose(of.sums(of.start).gradient[3:], 0, atol=1e-12)


def test_a_step_tells_its_values_and_what_it_breaks(tilt):
    of, X, y, caps = tilt
    at, step = np.array([0.3, -0.2, 0.5, -1.0, 0.4]), np.array([1.0, 3.0, -2.0, 0.5, 0.2])
    broken, values = of.reach(at, step)
    np.testing.assert_allclose(values, [of.sums(at + share * step).value for share in STEPS])
    of_row, more = (y * (X @ part[:3]) + np.where(y > 0, part[3], part[4]) for part in (at, step))
    e = caps * expit(of_row) * (1 + expit(-of_row) * more)
    assert broken == pytest.approx(np.abs(e - np.clip(e, 0, caps)).sum())
