"""Saddle-DSVC: the run of one process to rounding, however rows are dealt; its bounds, states and costs."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from dask_odm.methods.hulls.clients.solver import PRODUCTS, ServerState, solve_by_clients
from dask_odm.methods.hulls.gilbert import solve_gilbert
from dask_odm.methods.hulls.nearest_point import find_nearest_point, settle_overlap
from dask_odm.methods.hulls.saddle_point import SWEEPS, solve_saddle_point
from hull_problems import by_clients, hulls

ALPHAS = pytest.mark.parametrize("alpha", [None, 0.3, 0.9])


def apart(n=90, d=5, seed=0):
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) % 3 == 0, 1.0, -1.0)
    return rng.standard_normal((n, d)) + 1.5 * y[:, None], y


def solved(X, y, alpha, weight=None, *, count=3, block_size=None, **settings):
    hulls, preparation = by_clients(X, y, alpha, weight, count=count, block_size=block_size)
    found = solve_by_clients(hulls, block_size=block_size, within=preparation.within, **settings)
    return found, preparation.back(found.points)


@ALPHAS
@pytest.mark.parametrize(("block_size", "long_steps"), [(None, False), (None, True), (1, True), (3, True)])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_run_of_one_process_to_rounding(alpha, block_size, long_steps, weighted):
    """Of so few features, the eigenvalue that makes steps long is exact."""
    X, y = apart()
    weight = np.random.default_rng(1).integers(1, 4, 90).astype(float) if weighted else None
    settings = {"tol": 1e-9, "max_iter": SWEEPS + 5, "block_size": block_size, "seed": 0, "long_steps": long_steps}
    expected = solve_saddle_point(hulls(X, y, alpha, weight), **settings)
    for count in (1, 7):
        found, points = solved(X, y, alpha, weight, count=count, **settings)
        np.testing.assert_allclose(points, expected.points, rtol=0, atol=1e-12)
        for name in ("objective", "lower", "sweeps"):
            figures = [[record[name] for record in each.history] for each in (found, expected)]
            np.testing.assert_allclose(*figures, rtol=1e-11)


@ALPHAS
def test_bounds_enclose_the_distance_all_along(alpha):
    X, y = apart()
    best = find_nearest_point(hulls(X, y, alpha), tol=1e-12, max_iter=500).upper
    for found in (
        solved(X, y, alpha, tol=1e-3, max_iter=20_000)[0],
        solve_gilbert(by_clients(X, y, alpha)[0], tol=1e-3, max_iter=20_000),
    ):
        assert found.converged
        for record in found.history:
            assert record["lower"] <= best * (1 + 1e-12)
            assert record["objective"] >= best * (1 - 1e-12)


@ALPHAS
def test_gilbert_takes_the_steps_of_one_process(alpha):
    X, y = apart()
    expected = solve_gilbert(hulls(X, y, alpha), tol=1e-9, max_iter=50)
    for count in (1, 7):
        found = solve_gilbert(by_clients(X, y, alpha, count=count)[0], tol=1e-9, max_iter=50)
        np.testing.assert_allclose(found.points, expected.points, rtol=0, atol=1e-12)


@ALPHAS
@pytest.mark.parametrize("block_size", [None, 2])
def test_a_run_goes_on_from_its_state_to_the_same_bits_and_costs(alpha, block_size):
    X, y = apart()
    kept: list[tuple[ServerState, list]] = []
    parts, preparation = by_clients(X, y, alpha, block_size=block_size)
    settings = {"tol": 1e-9, "max_iter": 5 * SWEEPS, "block_size": block_size, "within": preparation.within}
    clients = parts.clients
    whole = solve_by_clients(
        parts, **settings, on_state=lambda state: kept.append((state, copy.deepcopy(clients.states)))
    )
    state, states = kept[len(kept) // 2]
    parts, _ = by_clients(X, y, alpha, block_size=block_size)
    parts.clients.states = states
    again = solve_by_clients(parts, **settings, resume=state)
    np.testing.assert_array_equal(again.points, whole.points)
    for one, other in zip(again.history, whole.history, strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}


def test_hulls_that_overlap_are_found_out_by_a_run_that_goes_on_too():
    X, y = np.random.default_rng(0).standard_normal((100, 4)), apart(100)[1]
    kept: list[tuple[ServerState, list]] = []
    parts, _ = by_clients(X, y, 0.5)
    settings = {"tol": 1e-4, "max_iter": 2000, "settle": lambda: settle_overlap(hulls(X, y, 0.5))}
    clients = parts.clients
    solve_by_clients(parts, **settings, on_state=lambda state: kept.append((state, copy.deepcopy(clients.states))))
    parts, _ = by_clients(X, y, 0.5)
    parts.clients.states = kept[0][1]
    again = solve_by_clients(parts, **settings, resume=kept[0][0])
    assert again.verdict.overlap
    assert len(again.history) == len(kept) == 1


def test_a_step_of_whole_hulls_is_one_exchange_of_three_vectors():
    """Δ goes to every client, and sums of both classes come back, with a few numbers."""
    X, y = apart(d=50)

    def last(sweeps, long_steps):
        found, _ = solved(X, y, None, tol=1e-12, max_iter=sweeps, long_steps=long_steps)
        return found.history[-1]

    few, many = last(SWEEPS, False), last(2 * SWEEPS, False)
    assert many["rounds"] - few["rounds"] == SWEEPS + 2  # and a look at the bounds, by z and by w
    units = (many["communication"] - few["communication"]) / SWEEPS
    assert 3.0 < units < 3.7
    longer = last(SWEEPS, True)
    assert longer["rounds"] - few["rounds"] == 2 * PRODUCTS  # at the start, and at the first look
    assert longer["communication"] - few["communication"] == pytest.approx(2 * PRODUCTS * (2 * 50 + 2) / 50)


def test_blocks_of_one_send_numbers_only():
    X, y = apart(d=8)
    few, many = (
        solved(X, y, None, tol=1e-12, max_iter=sweeps, block_size=1)[0].history[-1] for sweeps in (SWEEPS, 2 * SWEEPS)
    )
    floats = (many["floats"] - few["floats"]) / (3 * 8 * SWEEPS)
    assert floats < 20  # a step and client, the looks included


def test_rows_at_the_origin_are_no_trouble():
    for alpha in (None, 0.5):
        found, _ = solved(np.zeros((20, 3)), apart(20)[1], alpha, tol=1e-3, max_iter=100)
        assert found.overlap
        assert found.upper == 0
