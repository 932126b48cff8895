"""Newton's method over Nyström features in memory: few steps, whatever λ is."""

import numpy as np
import pytest

from dask_odm import ODMClassifier
from dask_odm.learning.problem.losses import ODMSettings, RowLosses
from dask_odm.methods.landmark import many_classes
from dask_odm.methods.landmark.feature_newton import ActiveSystem, FeatureNewton
from dask_odm.solvers import Landmark


def machine(n: int, lam: float, dtype: type) -> tuple[FeatureNewton, np.ndarray]:
    """A machine over two blocks of n rows in all with 20 features, and the rows."""
    rng = np.random.default_rng(0)
    y = np.repeat([-1.0, 1.0], [n // 3, n - n // 3])
    X = (rng.normal(size=(n, 20)) + 0.5 * y[:, None]).astype(dtype)
    losses = RowLosses(ODMSettings(lam, 0.3, 0.2), y, rng.uniform(0.5, 2.0, n))
    return FeatureNewton([X[: n // 3], X[n // 3 :]], losses, np.empty((0, 20))), X.astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lam", [1.0, 1e3, 1e7])
@pytest.mark.parametrize("n", [12, 50, 200])  # fewer active rows than features, more, and ten times as many
def test_its_gradient_vanishes(n, lam, dtype):
    newton, X = machine(n, lam, dtype)
    found = newton.solve(np.zeros(20), 1e-8, 30)
    assert found.converged
    margins = newton.losses.y * (X @ found.x)
    primal = 0.5 * found.x @ found.x + newton.losses.losses(margins).sum()
    gradient = found.x - X.T @ (newton.losses.y * newton.losses.dual_candidate(margins))
    assert found.primal == pytest.approx(primal, rel=1e-9)
    assert 0.5 * gradient @ gradient <= found.gap * primal * (1 + 1e-6) + 1e-12 * primal
    assert found.gap <= 1e-8


def test_errors_of_features_enlarge_the_gap():
    newton, _ = machine(50, 1e3, np.float32)
    wrong = FeatureNewton(newton.blocks, newton.losses, np.full((1, 20), 1e-4))
    found = wrong.solve(np.zeros(20), 1e-8, 30)
    assert found.gap > 1e-6
    assert not found.converged


def test_no_row_is_active_at_first():
    newton = FeatureNewton(
        [np.ones((3, 1))], RowLosses(ODMSettings(10.0, 0.3, 0.2), np.ones(3), np.ones(3)), np.empty((0, 1))
    )
    found = newton.solve(np.ones(1), 1e-8, 30)
    assert found.converged
    assert found.x[0] < 0.8


@pytest.mark.parametrize(("stiffness", "rtol"), [(10.0, 1e-3), (1e6, 1e-6)])  # in float32, and in float64
def test_rows_that_stay_active_are_read_once(stiffness, rtol, monkeypatch):
    read = []
    features = ActiveSystem._features
    monkeypatch.setattr(ActiveSystem, "_features", lambda self, rows: read.extend(rows) or features(self, rows))
    X = np.random.default_rng(0).normal(size=(40, 20)).astype(np.float32)
    system = ActiveSystem([X[:15], X[15:]], np.full(40, stiffness))
    for first in (0, 5, 16):  # ten rows remain of fifteen, then nine of twenty, and more are known than there is room
        curvature = np.zeros(40)
        curvature[first : first + 15 + 5 * (first == 5)] = stiffness
        hessian = np.eye(20) + X.T @ (curvature[:, None] * X.astype(np.float64))
        np.testing.assert_allclose(system.solved(curvature, hessian @ np.ones(20)), 1.0, rtol)
    assert read == list(range(31))


@pytest.fixture(scope="module")
def apart() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(900) % 3
    return (rng.normal(size=(900, 5)) + 2.5 * rng.normal(size=(3, 5))[y]).astype(np.float32), y


def test_a_large_lam_takes_few_steps(apart):
    """Steps of descent alone, and hundreds of products of the machines in lockstep, would be counted as passes."""
    for lam in (1e3, 1e6):
        found = ODMClassifier(solver=Landmark(100), lam=lam * 900, random_state=0).fit(*apart)
        assert found.history_[-1]["machines"] == 0
        assert found.history_[-1]["gap"] <= 1e-3
        assert found.history_[-1]["passes"] <= 300


def test_threads_change_no_bit(apart, monkeypatch):
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(many_classes, "CPU_COUNT", threads)
        found.append(ODMClassifier(solver=Landmark(100), lam=1e6, random_state=0).fit(*apart).dual_coef_)
    np.testing.assert_array_equal(*found)
