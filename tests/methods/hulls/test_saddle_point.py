"""Saddle-SVC: the fixed point of its regularised problem, its bounds, its rotation; Gilbert's algorithm beside it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import hadamard as hadamard_matrix

from dask_odm.methods.hulls.gilbert import GilbertState, solve_gilbert
from dask_odm.methods.hulls.nearest_point import find_nearest_point
from dask_odm.methods.hulls.saddle_point import SaddleState, hadamard, solve_saddle_point
from hull_problems import hulls

SOLVERS = pytest.mark.parametrize("solve", [solve_saddle_point, solve_gilbert])


def apart(n=60, d=5, seed=0):
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    return rng.standard_normal((n, d)) + 1.5 * y[:, None], y


@pytest.mark.parametrize("block_size", [None, 1, 2, 3])
@pytest.mark.parametrize("alpha", [None, 0.8])
def test_it_ends_in_the_fixed_point_of_the_regularised_problem(block_size, alpha):
    """w = Aη − Bξ, and η = exp(−Aᵀw/γ) but for its sum and the caps; both to 1e-12."""
    X, y = apart()
    problem, states, gamma = hulls(X, y, alpha), [], 0.02
    solve_saddle_point(problem, tol=1e-15, max_iter=4000, gamma=gamma, block_size=block_size, on_state=states.append)
    state: SaddleState = states[-1]
    entries, scale = np.zeros(60), np.linalg.norm(X, axis=1).max()
    entries[np.concatenate(problem.members)] = state.e
    z = np.array([entries[y > 0] @ X[y > 0], entries[y < 0] @ X[y < 0]]) / scale
    z = z[0] - z[1]
    assert np.linalg.norm(state.w) == pytest.approx(np.linalg.norm(z), abs=1e-12)
    for own, sign in ((y > 0, 1.0), (y < 0, -1.0)):
        expected = np.exp(-sign * (X[own] / scale) @ z / gamma)
        free = entries[own] < (1 - 1e-12) / problem.mass if problem.mass else np.ones(30, bool)
        assert free.sum() > 2
        ratio = entries[own][free] / expected[free]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-10)
        assert entries[own].sum() == pytest.approx(1.0, abs=1e-12)
        if problem.mass:
            assert (expected[~free] * ratio[0] >= entries[own][~free] * (1 - 1e-9)).all()


@SOLVERS
@pytest.mark.parametrize("alpha", [None, 0.5, 0.9])
@pytest.mark.parametrize("weighted", [False, True])
def test_bounds_enclose_the_distance_all_along(solve, alpha, weighted):
    X, y = apart()
    weight = np.random.default_rng(1).integers(1, 4, 60).astype(float) if weighted else None
    best = find_nearest_point(hulls(X, y, alpha, weight), tol=1e-12, max_iter=500).upper
    found = solve(hulls(X, y, alpha, weight), tol=1e-3, max_iter=20_000)
    assert found.converged
    for record in found.history:
        assert record["lower"] <= best * (1 + 1e-12)
        assert record["objective"] >= best * (1 - 1e-12)


def test_blocks_of_any_size_come_to_the_same():
    X, y = apart(d=6)
    best = find_nearest_point(hulls(X, y, 0.8), tol=1e-12, max_iter=500).upper
    for block_size in (1, 3, 8, 100):
        found = solve_saddle_point(hulls(X, y, 0.8), tol=1e-3, max_iter=20_000, block_size=block_size, seed=3)
        assert found.upper == pytest.approx(best, rel=1e-3)
        np.testing.assert_allclose(found.entries[y > 0] @ X[y > 0], found.points[0], atol=1e-12)


@pytest.mark.parametrize("alpha", [None, 0.8])
def test_long_steps_take_fewer_sweeps_to_the_same_points(alpha):
    rng = np.random.default_rng(0)
    y = np.where(np.arange(400) % 2, 1.0, -1.0)
    X = rng.standard_normal((400, 30)) + (1.5 if alpha is None else 0.5) * y[:, None]
    short, long = (
        solve_saddle_point(hulls(X, y, alpha, step=100), tol=1e-3, max_iter=20_000, long_steps=each)
        for each in (False, True)
    )
    assert long.converged
    assert short.converged
    assert long.upper == pytest.approx(short.upper, rel=2e-3)
    assert long.history[-1]["sweeps"] < 0.6 * short.history[-1]["sweeps"]


@pytest.mark.parametrize("kind", [SaddleState, GilbertState])
def test_a_run_goes_on_from_its_state_to_the_same_bits(kind):
    solve = solve_saddle_point if kind is SaddleState else solve_gilbert
    X, y = apart(n=200)
    states: list = []
    whole = solve(hulls(X, y, 0.5), tol=1e-4, max_iter=2000, on_state=states.append)
    again = solve(hulls(X, y, 0.5), tol=1e-4, max_iter=2000, resume=states[len(states) // 2])
    np.testing.assert_array_equal(again.points, whole.points)
    assert [r["passes"] for r in again.history] == [r["passes"] for r in whole.history]


@SOLVERS
def test_hulls_that_overlap_are_found_out_by_a_run_that_goes_on_too(solve):
    X, y = np.random.default_rng(0).standard_normal((100, 4)), apart(100)[1]
    states: list = []
    whole = solve(hulls(X, y, 0.5), tol=1e-4, max_iter=2000, on_state=states.append)
    again = solve(hulls(X, y, 0.5), tol=1e-4, max_iter=2000, resume=states[-1])  # of the look that the proof followed
    assert whole.verdict.overlap
    assert again.verdict.overlap
    figures = ("iteration", "gap", "passes")
    assert [[r[k] for k in figures] for r in again.history] == [[r[k] for k in figures] for r in whole.history]


def test_the_transform_is_that_of_hadamard_and_a_rotation():
    columns = np.random.default_rng(0).standard_normal((8, 5))
    signs = np.array([1.0, -1, -1, 1, 1, 1, -1, 1])
    found = columns.copy()
    hadamard(found, signs)
    np.testing.assert_allclose(found, hadamard_matrix(8) @ (signs[:, None] * columns) / np.sqrt(8), atol=1e-14)
    np.testing.assert_allclose(found.T @ found, columns.T @ columns, atol=1e-13)


def test_rows_at_the_origin_are_no_trouble():
    found = solve_saddle_point(hulls(np.zeros((20, 3)), apart(20)[1], 0.5), tol=1e-3, max_iter=100)
    assert found.overlap
    assert found.upper == 0
