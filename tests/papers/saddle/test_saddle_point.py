"""Saddle-SVC and Saddle-DSVC: the fixed point of the regularised problem, bounds, states, and what clients send."""

import copy

import numpy as np
import pytest

from dask_odm.papers.saddle.nearest_point import find_nearest_point
from dask_odm.papers.saddle.saddle_point import SWEEPS, SaddleState, solve_saddle_point
from hull_problems import by_clients, hulls

ALPHAS = pytest.mark.parametrize("alpha", [None, 0.3, 0.9])


def apart(n=90, d=5, seed=0):
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) % 3 == 0, 1.0, -1.0)
    return rng.standard_normal((n, d)) + 1.5 * y[:, None], y


def solved(X, y, alpha, weight=None, *, count=1, block_size=None, seed=0, **settings):
    """The solution with points of the features, and the hulls it was found of."""
    parts = by_clients(X, y, alpha, weight, count=count, block_size=block_size, seed=seed)
    found = solve_saddle_point(parts, **settings)
    return found, parts.preparation.back(found.points)


@pytest.mark.parametrize(("alpha", "block_size"), [(None, None), (0.8, None), (None, 1), (0.8, 3)])
def test_it_ends_in_the_fixed_point_of_the_regularised_problem(block_size, alpha):
    """w = Aη − Bξ, and η = exp(−Aᵀw/γ) but for its sum and the caps; both to 1e-12."""
    X, y = apart(60)
    parts, states, gamma = by_clients(X, y, alpha, count=1, block_size=block_size), [], 0.02
    solve_saddle_point(parts, tol=1e-15, max_iter=800, gamma=gamma, on_state=states.append)
    state: SaddleState = states[-1]
    (logs, _), scale = parts.states()[0], np.linalg.norm(X, axis=1).max()
    positive = int((y > 0).sum())
    log_cap = -np.log(parts.by_passes.mass) if alpha else np.inf
    entries = np.exp(np.minimum(logs + np.repeat(state.shift, (positive, 60 - positive)), log_cap))
    of_class = np.split(entries, [positive])
    rows = X[y > 0] / scale, X[y < 0] / scale
    z = of_class[0] @ rows[0] - of_class[1] @ rows[1]
    assert np.linalg.norm(state.w) == pytest.approx(np.linalg.norm(z), abs=1e-12)
    for own, e, sign in zip(rows, of_class, (1.0, -1.0), strict=True):
        expected = np.exp(-sign * own @ z / gamma)
        free = e < (1 - 1e-12) * np.exp(log_cap)
        assert free.sum() > 2
        ratio = e[free] / expected[free]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-10)
        assert e.sum() == pytest.approx(1.0, abs=1e-12)
        assert (expected[~free] * ratio[0] >= e[~free] * (1 - 1e-9)).all()


@ALPHAS
@pytest.mark.parametrize(("block_size", "weighted"), [(None, True), (1, False), (3, True)])
def test_it_is_the_same_run_to_rounding_however_rows_are_dealt(alpha, block_size, weighted):
    X, y = apart()
    weight = np.random.default_rng(1).integers(1, 4, 90).astype(float) if weighted else None
    settings = {"tol": 1e-9, "max_iter": SWEEPS + 5, "block_size": block_size}
    expected, points = solved(X, y, alpha, weight, **settings)
    found, others = solved(X, y, alpha, weight, count=7, **settings)
    np.testing.assert_allclose(others, points, rtol=0, atol=1e-12)
    for name in ("objective", "lower", "sweeps"):
        figures = [[record[name] for record in each.history] for each in (found, expected)]
        np.testing.assert_allclose(*figures, rtol=1e-11)


@ALPHAS
@pytest.mark.parametrize(("block_size", "weighted"), [(None, False), (None, True), (3, True), (100, False)])
def test_bounds_enclose_the_distance_all_along(alpha, weighted, block_size):
    X, y = apart()
    weight = np.random.default_rng(1).integers(1, 4, 90).astype(float) if weighted else None
    best = find_nearest_point(hulls(X, y, alpha, weight), tol=1e-12, max_iter=500).upper
    found, points = solved(X, y, alpha, weight, tol=1e-3, max_iter=20_000, block_size=block_size, seed=3)
    assert found.converged
    assert 0.5 * np.sum((points[0] - points[1]) ** 2) == pytest.approx(found.upper, rel=1e-12)
    for record in found.history:
        assert record["lower"] <= best * (1 + 1e-12)
        assert record["objective"] >= best * (1 - 1e-12)


@ALPHAS
@pytest.mark.parametrize(("block_size", "count"), [(None, 1), (2, 3)])
def test_a_run_goes_on_from_its_state_to_the_same_bits_and_costs(alpha, block_size, count):
    X, y = apart()
    kept: list[tuple[SaddleState, list]] = []
    parts = by_clients(X, y, alpha, block_size=block_size, count=count)
    settings = {"tol": 1e-9, "max_iter": 5 * SWEEPS}
    whole = solve_saddle_point(
        parts, **settings, on_state=lambda state: kept.append((state, copy.deepcopy(parts.states())))
    )
    state, states = kept[len(kept) // 2]
    parts = by_clients(X, y, alpha, block_size=block_size, count=count, states=states)
    again = solve_saddle_point(parts, **settings, resume=state)
    np.testing.assert_array_equal(again.points, whole.points)
    for one, other in zip(again.history, whole.history, strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}


def test_hulls_that_overlap_are_found_out_by_a_run_that_goes_on_too():
    X, y = np.random.default_rng(0).standard_normal((100, 4)), apart(100)[1]
    kept: list[tuple[SaddleState, list]] = []
    parts = by_clients(X, y, 0.5)
    settings = {"tol": 1e-4, "max_iter": 2000}
    solve_saddle_point(parts, **settings, on_state=lambda state: kept.append((state, copy.deepcopy(parts.states()))))
    again = solve_saddle_point(by_clients(X, y, 0.5, states=kept[0][1]), **settings, resume=kept[0][0])
    assert again.verdict.overlap
    assert len(again.history) == len(kept) == 1


def test_a_step_of_whole_hulls_is_one_exchange_of_three_vectors():
    """Δ goes to every client, and sums of both classes come back, with a few numbers."""
    X, y = apart(d=50)
    two, three, four = (
        solved(X, y, None, count=3, tol=1e-12, max_iter=looks * SWEEPS)[0].history[-1] for looks in (2, 3, 4)
    )
    assert three["rounds"] - two["rounds"] == SWEEPS + 2  # and a look at the bounds, by z and by w
    units = (three["communication"] - two["communication"]) / SWEEPS
    assert 3.0 < units < 3.7
    # looks of a power of two also ask for six products with the rows' covariance, a vector there and back
    assert four["rounds"] - three["rounds"] == SWEEPS + 2 + 6
    more = four["communication"] - three["communication"] - SWEEPS * units
    assert more == pytest.approx(6 * (2 * 50 + 2) / 50)


def test_blocks_of_one_send_numbers_only():
    X, y = apart(d=8)
    few, many = (
        solved(X, y, None, count=3, tol=1e-12, max_iter=sweeps, block_size=1)[0].history[-1]
        for sweeps in (SWEEPS, 2 * SWEEPS)
    )
    floats = (many["floats"] - few["floats"]) / (3 * 8 * SWEEPS)
    assert floats < 20  # a step and client, the looks included


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_rows_at_the_origin_are_no_trouble(alpha):
    found, _ = solved(np.zeros((20, 3)), apart(20)[1], alpha, count=3, tol=1e-3, max_iter=100)
    assert found.overlap
    assert found.upper == 0
