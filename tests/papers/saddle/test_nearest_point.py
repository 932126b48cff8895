"""Wolfe's nearest point against a general solver; its factor, its bounds, and where hulls overlap."""

import numpy as np
import pytest

from dask_odm.papers.saddle.feasibility import lower_bound
from dask_odm.papers.saddle.nearest_point import (
    find_nearest_point,
)
from hull_problems import distance_by_slsqp, hulls


def apart(n=40, d=4, seed=0, distance=1.5):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.where(np.arange(n) < n // 3, 1.0, -1.0))
    return rng.standard_normal((n, d)) + distance * y[:, None] / np.sqrt(d), y


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("alpha", [None, 0.3, 0.85, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_distance_is_that_of_a_general_solver(alpha, streamed, seed):
    X, y = apart(seed=seed, distance=4.0 if alpha is None else 1.5)
    weight = np.random.default_rng(9).integers(1, 3, 40).astype(float)
    problem = hulls(X, y, alpha, weight, streamed=streamed)
    caps = np.minimum(1.0, weight / problem.mass) if problem.mass else np.ones(40)
    best = distance_by_slsqp(X, y, caps)
    found = find_nearest_point(problem, tol=1e-10, max_iter=500)
    assert found.converged
    assert found.upper == pytest.approx(best, rel=1e-6)
    for record in found.history:
        assert record["lower"] <= best * (1 + 1e-6)
        assert record["objective"] >= best * (1 - 1e-6)
    assert found.history[-1]["passes"] == problem.passes_made


def test_the_support_is_what_optimality_says():
    """Rows on the other class's side of their threshold are at their caps, and those on the far side have nothing."""
    X, y = apart(n=200)
    found = find_nearest_point(hulls(X, y, 0.8), tol=1e-12, max_iter=500)
    assert found.converged
    support = np.isin(np.arange(200), found.support)
    for own, sign, threshold in zip([y > 0, y < 0], (1.0, -1.0), found.thresholds, strict=True):
        past = sign * (X @ found.direction - threshold)
        assert support[own & (past < -1e-6)].all()
        assert not support[own & (past > 1e-6)].any()


def test_many_vertices_of_many_features():
    """The corral grows to many points and loses others; bounds stay true to rounding."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(400) % 2, 1.0, -1.0)
    X = rng.standard_normal((400, 60)) + 0.8 * y[:, None]
    found = find_nearest_point(hulls(X, y, None, step=100), tol=1e-12, max_iter=2000)
    assert found.converged
    assert found.history[-1]["corral"] > 10
    scores = X @ found.direction
    assert scores[y > 0].min() - scores[y < 0].max() == pytest.approx(2 * found.upper, rel=1e-9)


@pytest.mark.parametrize("streamed", [False, True])
def test_hulls_that_overlap_end_at_once(streamed):
    X, y = apart(n=300, distance=0.1)
    found = find_nearest_point(hulls(X, y, 0.2, streamed=streamed, step=40), tol=1e-3, max_iter=500)
    assert found.overlap
    assert not found.converged
    assert found.lower == 0
    assert found.upper < 1e-15
    assert len(found.history) < 60


def test_no_direction_has_no_bound():
    X, y = apart()
    assert lower_bound(np.zeros(4), hulls(X, y, 0.5).vertex(np.zeros(4)).least(np.zeros(4))) == 0
