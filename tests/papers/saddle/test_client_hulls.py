"""Hulls whose rows clients have: thresholds and vertices are those of the rows together, and no row travels."""

import numpy as np
import pytest

from dask_odm.papers.saddle.client_rows import floats_of
from hull_problems import by_clients, hulls


def random_rows(seed):
    """Rows with ties or without, as many clients as they please, weights perhaps."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(8, 400)), int(rng.integers(1, 5))
    X = rng.standard_normal((n, d))
    if seed % 3 == 0:
        X = np.round(X)
    y = np.where(rng.random(n) < rng.uniform(0.2, 0.8), 1.0, -1.0)
    y[:2] = 1.0, -1.0
    weight = rng.integers(1, 4, n).astype(float) if seed % 2 else None
    alpha = None if seed % 5 == 0 else float(rng.choice([1.0, rng.uniform(0.01, 1.0)]))
    return rng, X, y, weight, alpha


@pytest.mark.parametrize("start", [0, pytest.param(100, marks=pytest.mark.slow)])
def test_a_vertex_is_that_of_all_rows_together(start):
    for seed in range(start, start + 100):
        rng, X, y, weight, alpha = random_rows(seed)
        whole = hulls(X, y, alpha, weight)
        parts = by_clients(X, y, alpha, weight, count=int(rng.integers(1, min(8, len(y)) + 1)))
        w = rng.standard_normal(X.shape[1]) * 10.0 ** rng.integers(-6, 6)
        for _ in range(3):  # the later ones are looked for near the first
            expected, found, least = whole.vertex(w), parts.vertex(w), parts.least(w)
            np.testing.assert_allclose(found.points, expected.points, rtol=0, atol=1e-12 * (1 + np.abs(X).max()))
            np.testing.assert_allclose(found.thresholds, expected.thresholds, rtol=1e-12, atol=1e-300)
            assert least == pytest.approx(w @ expected.difference, rel=1e-9, abs=1e-12 * np.linalg.norm(w))
            w = w + 0.01 * np.linalg.norm(w) * rng.standard_normal(X.shape[1])


@pytest.mark.parametrize(
    ("scores", "times"),
    [((0.0, 1.0, 1.0 + 1e-13, 5.0), 3000), *(((0.0, small, -1.0, 3.0), 20) for small in (0.0, 1e-310, 1e-120))],
)
def test_scores_of_thousands_of_rows_and_nearly_so_are_one(scores, times):
    X, y = np.repeat(np.array(scores)[:, None], times, axis=0), np.tile([1.0, -1.0], 2 * times)
    for alpha in (0.3, 0.5, 0.9):
        expected, found = hulls(X, y, alpha).vertex(np.ones(1)), by_clients(X, y, alpha, count=5).vertex(np.ones(1))
        np.testing.assert_allclose(found.points, expected.points, rtol=1e-12, atol=1e-100)


def test_nothing_longer_than_a_vector_travels_and_all_is_counted():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((4000, 50)), np.where(np.arange(4000) % 2, 1.0, -1.0)
    parts = by_clients(X, y, 0.5, count=4)
    told: list[int] = []
    ask = parts.ask

    def listened(question, *message):
        answers = ask(question, *message)
        told.extend([floats_of(message), *map(floats_of, answers)])
        return answers

    parts.ask = listened  # type: ignore[method-assign]
    parts.vertex(rng.standard_normal(50))
    assert max(told) <= 4 * 50
    questions = np.array(told).reshape(-1, 5)
    assert parts.costs["floats"] == (4 * questions[:, 0] + questions[:, 1:].sum(axis=1)).sum()
    assert parts.costs["communication"] == parts.costs["floats"] / (4 * 50)
    assert parts.costs["rounds"] == len(questions)


def test_memory_brings_back_the_search_and_the_costs():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((500, 3)), np.where(np.arange(500) % 2, 1.0, -1.0)
    one, other = (by_clients(X, y, 0.5) for _ in range(2))
    w = rng.standard_normal(3)
    one.vertex(w)
    other.memory = one.memory
    for parts in (one, other):
        parts.vertex(1.001 * w)
    assert one.costs == other.costs
    fresh = by_clients(X, y, 0.5)
    fresh.memory = fresh.memory
    assert fresh.costs["rounds"] == 0
