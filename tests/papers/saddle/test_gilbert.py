"""Gilbert's algorithm: its bounds, states and the proof of overlap, over rows in memory and with clients."""

from functools import partial

import numpy as np
import pytest

from dask_odm.papers.saddle.nearest_point import CorralState, find_nearest_point
from hull_problems import by_clients, hulls

solve_gilbert = partial(find_nearest_point, forgetful=True)
ALPHAS = pytest.mark.parametrize("alpha", [None, 0.5, 0.9])


def apart(n=60, d=5, seed=0):
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    return rng.standard_normal((n, d)) + 1.5 * y[:, None], y


@ALPHAS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("problem_of", [hulls, by_clients])
def test_bounds_enclose_the_distance_all_along(problem_of, alpha, weighted):
    X, y = apart()
    weight = np.random.default_rng(1).integers(1, 4, 60).astype(float) if weighted else None
    best = find_nearest_point(hulls(X, y, alpha, weight), tol=1e-12, max_iter=500).upper
    found = solve_gilbert(problem_of(X, y, alpha, weight), tol=1e-3, max_iter=20_000)
    assert found.converged
    for record in found.history:
        assert record["lower"] <= best * (1 + 1e-12)
        assert record["objective"] >= best * (1 - 1e-12)


def test_hulls_that_overlap_are_found_out_by_a_run_that_goes_on_too():
    X, y = np.random.default_rng(0).standard_normal((100, 4)), apart(100)[1]
    states: list[CorralState] = []
    whole = solve_gilbert(hulls(X, y, 0.5), tol=1e-4, max_iter=2000, on_state=states.append)
    again = solve_gilbert(hulls(X, y, 0.5), tol=1e-4, max_iter=2000, resume=states[-1])  # the proof followed this step
    assert whole.verdict.overlap
    assert again.verdict.overlap
    figures = ("iteration", "gap", "passes")
    assert [[r[k] for k in figures] for r in again.history] == [[r[k] for k in figures] for r in whole.history]


@ALPHAS
def test_a_run_of_clients_goes_on_to_the_same_steps_and_costs(alpha):
    X, y = apart(90)
    states: list[CorralState] = []
    whole = solve_gilbert(by_clients(X, y, alpha), tol=1e-9, max_iter=20, on_state=states.append)
    again = solve_gilbert(by_clients(X, y, alpha), tol=1e-9, max_iter=20, resume=states[len(states) // 2])
    assert [r | {"seconds": 0} for r in again.history] == [r | {"seconds": 0} for r in whole.history]
