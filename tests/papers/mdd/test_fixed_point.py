"""The MDD fixed point of a few systems against one dense solve."""

import numpy as np
import pytest
from scipy.linalg import block_diag

from dask_odm.papers.mdd.fixed_point import LinearSystem, State, coupling_radius, solve_exchange

M, D, PULL = 3, 4, -0.2


def system_of(A: np.ndarray, b: np.ndarray, i: int) -> LinearSystem:
    return LinearSystem(np.linalg.cholesky(A), b, PULL, M - 1.0, i * D, 1.0, 1.0, 10.0, 0.0)


class Here:
    """Rounds over the systems of a list."""

    def __init__(self, systems: list[LinearSystem], states: list[State] | None = None) -> None:
        self.systems = systems
        self.states = states or [system.begin() for system in systems]

    def read(self, question, message=None):
        return [question(system, state, message) for system, state in zip(self.systems, self.states, strict=True)]

    def ask(self, step, message):
        self.states, answers = zip(*self.read(step, message), strict=True)
        return list(answers)


def mix(solutions: np.ndarray) -> np.ndarray:
    return solutions.reshape(M, D, -1).sum(axis=0)


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
    radius = coupling_radius(Here(systems), mix, np.random.default_rng(1).normal(size=M * D))
    assert abs(PULL) * radius == pytest.approx(q, rel=1e-9)
    for tol in (1e-2, 1e-8):
        parts, history = solve_exchange(Here(systems), mix, q, 30.0, tol=tol, max_iter=100)
        far = np.concatenate(parts) - expected
        size = np.concatenate(parts)
        assert np.sqrt((far * (whole @ far)).sum() / (size * (whole @ size)).sum()) <= history[-1]["gap"] <= tol
