"""The MDD fixed point of a few systems against one dense solve, and the radius against NumPy's eigenvalues."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.linalg import block_diag

from dask_odm.methods.ridge.fixed_point import ExchangeState, solve_exchange, spectral_radius
from dask_odm.methods.ridge.shard_systems import Answer, LinearSystem, State, begin, move, tell

M, D, PULL = 3, 4, -0.2


def system_of(A: np.ndarray, b: np.ndarray, i: int) -> LinearSystem:
    return LinearSystem(np.linalg.cholesky(A), b, PULL, M - 1.0, i * D, 1.0, 10.0, 0.0, 1.0)


@dataclass
class Here:
    """The exchange of systems in a list."""

    systems: list[LinearSystem]
    states: list[State] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.states = self.states or [begin(system) for system in self.systems]

    def tell(self) -> list[Answer]:
        return [tell(*pair) for pair in zip(self.systems, self.states, strict=True)]

    def move(self, solutions: np.ndarray) -> list[Answer]:
        total = solutions.reshape(M, D, -1).sum(axis=0)
        moved = [move(system, state, total) for system, state in zip(self.systems, self.states, strict=True)]
        self.states = [state for state, _ in moved]
        return [answer for _, answer in moved]


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    A = [np.eye(D) + np.cov(rng.normal(size=(D, 30))) for _ in range(M)]
    b = [rng.normal(size=(D, 2)) for _ in range(M)]
    coupling = np.kron(np.ones((M, M)) - np.eye(M), np.eye(D)) / (M - 1)
    return A, b, coupling


def test_the_rounds_end_in_the_fixed_point_within_the_gap(problem):
    A, b, coupling = problem
    whole = block_diag(*A)
    expected = np.linalg.solve(whole - PULL * coupling, np.concatenate(b))
    q = abs(PULL) * np.abs(np.linalg.eigvals(np.linalg.solve(whole, coupling))).max()
    systems = [system_of(*each, i) for i, each in enumerate(zip(A, b, strict=True))]
    for tol in (1e-2, 1e-8):
        found = solve_exchange(Here(systems), q, 30.0, tol=tol, max_iter=100)
        far = np.concatenate(found.parts) - expected
        size = np.concatenate(found.parts)
        assert found.converged
        assert np.sqrt((far * (whole @ far)).sum() / (size * (whole @ size)).sum()) <= found.gap <= tol


def test_a_run_goes_on_where_it_stopped(problem):
    A, b, _ = problem
    systems = [system_of(*each, i) for i, each in enumerate(zip(A, b, strict=True))]
    kept: list[ExchangeState] = []
    whole = solve_exchange(Here(systems), 0.3, 30.0, tol=1e-9, max_iter=50, on_state=kept.append)
    state = kept[4]
    states = [{"w": state.solutions[i : i + D], "side": state.sides[i : i + D]} for i in range(0, M * D, D)]
    again = solve_exchange(Here(systems, states), 0.3, 30.0, tol=1e-9, max_iter=50, resumed=state.history)
    np.testing.assert_array_equal(np.concatenate(again.parts), np.concatenate(whole.parts))
    assert [record["gap"] for record in again.history] == [record["gap"] for record in whole.history]


def test_the_radius_is_the_largest_eigenvalue(problem):
    A, _, coupling = problem
    whole = block_diag(*A)
    start = np.random.default_rng(1).normal(size=(M * D, 1))
    found = spectral_radius(lambda v, side: coupling @ v, lambda v: np.linalg.solve(whole, v), start)
    assert found == pytest.approx(np.abs(np.linalg.eigvals(np.linalg.solve(whole, coupling))).max(), rel=1e-9)
