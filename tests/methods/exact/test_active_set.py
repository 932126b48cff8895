"""Newton to rounding: against the papers' two-variable dual, and against L-BFGS for the linear kernel."""

from __future__ import annotations

import numpy as np
import pytest

import reference
from dask_odm.kernels import RBF, Laplacian, Linear, Polynomial, blocks
from dask_odm.kernels.blocks import ArrayRows
from dask_odm.methods.exact import active_set as newton
from dask_odm.methods.exact.active_set import solve_dense, solve_features
from small_problems import SETTINGS, SmallProblem, any_dual, small_problem

KERNELS = [RBF(1.0, 0.5), Laplacian(1.0, 0.5), Linear(1.0), Polynomial(1.0, 0.2, 1.0, 3)]
EVERY_SETTING = pytest.mark.parametrize("setting", SETTINGS, ids=str)
EVERY_KERNEL = pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
TIGHT = 1e-8


def assert_optimal(p: SmallProblem, s: np.ndarray) -> None:
    """Objective and decision values are those of the papers' dual."""
    best, objective = p.optimum()
    assert p.dual(s) == pytest.approx(objective, rel=TIGHT)
    assert p.primal(s) == pytest.approx(objective, rel=TIGHT)
    expected = p.decision(best)
    np.testing.assert_allclose(p.decision(s), expected, rtol=0, atol=TIGHT * max(1.0, np.abs(expected).max()))


@EVERY_SETTING
@EVERY_KERNEL
@WEIGHTED
def test_dense_is_the_papers_dual(setting, kernel, weighted):
    p = small_problem(70, setting, kernel=kernel, weighted=weighted)
    a, steps = solve_dense(p.losses, p.K, np.zeros(70))
    assert_optimal(p, p.y * a)
    assert 1 <= steps < 40
    # nothing is left to do from there
    assert solve_dense(p.losses, p.K, a)[1] <= 2


@EVERY_SETTING
def test_dense_from_any_start(setting):
    p = small_problem(70, setting)
    for scale in (1e-3, 1.0, 1e4):
        a, _ = solve_dense(p.losses, p.K, p.y * any_dual(p, 1, scale))
        assert_optimal(p, p.y * a)


@pytest.mark.parametrize("lam", [1e-8, 1e-4, 1.0, 1e8, 1e12])
@pytest.mark.parametrize("upsilon", [0.0, 0.3])
def test_dense_at_both_ends_of_lam(lam, upsilon):
    p = small_problem(80, (lam, upsilon, 0.2))
    a, steps = solve_dense(p.losses, p.K, np.zeros(80))
    assert steps < newton.MAX_STEPS
    assert p.gap(p.y * a) < 1e-8


@EVERY_KERNEL
def test_dense_with_equal_and_contradicting_rows(kernel):
    """A singular Gram matrix, and equal rows of either label."""
    p = small_problem(20, SETTINGS[1], kernel=kernel)
    X, y = np.vstack([p.X, p.X, p.X]), np.concatenate([p.y, p.y, -p.y])
    p = SmallProblem(kernel, X, y, np.ones(60), *SETTINGS[1])
    a, _ = solve_dense(p.losses, p.K, np.zeros(60))
    assert_optimal(p, p.y * a)


@EVERY_SETTING
@WEIGHTED
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_features_solve_the_linear_problem(setting, weighted, bias):
    p = small_problem(90, setting, kernel=Linear(bias), weighted=weighted, d=4)
    s, w, steps = solve_features(p.losses, p.rows, bias, np.zeros(5))
    wide = np.column_stack([p.X, np.full(90, np.sqrt(bias))])
    expected, value = reference.solve_primal_linear(wide, p.y, *p.parameters, tol=1e-5)
    np.testing.assert_allclose(w, expected, atol=1e-5)
    assert p.dual(s) == pytest.approx(value, rel=TIGHT)
    np.testing.assert_allclose(wide.T @ (p.y * s), w, atol=TIGHT * (1 + np.abs(w).max()))
    assert steps < 40


@EVERY_SETTING
def test_features_and_dense_are_one(setting):
    p = small_problem(90, setting, kernel=Linear(1.0), weighted=True)
    s, w, _ = solve_features(p.losses, p.rows, 1.0, 100.0 * np.ones(4))
    a, _ = solve_dense(p.losses, p.K, np.zeros(90))
    np.testing.assert_allclose(p.X @ w[:-1] + w[-1], p.K @ a, atol=1e-8 * (1 + np.abs(p.K @ a).max()))
    assert p.dual(s) == pytest.approx(p.dual(p.y * a), rel=TIGHT)


def test_features_read_the_rows_block_by_block(monkeypatch):
    monkeypatch.setattr(blocks, "PANEL_BYTES", 1)
    p = small_problem(300, SETTINGS[0], kernel=Linear(1.0))
    largest = 0

    class Watched(ArrayRows):
        def read(self, start, stop, out=None):
            nonlocal largest
            largest = max(largest, stop - start)
            return super().read(start, stop, out)

    _, w, _ = solve_features(p.losses, Watched(p.X), 1.0, np.zeros(4))
    _, whole, _ = solve_features(p.losses, p.rows, 1.0, np.zeros(4))
    assert largest <= 64
    np.testing.assert_allclose(w, whole, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_features_of_narrow_rows_are_summed_in_float64(dtype):
    p = small_problem(200, SETTINGS[1], kernel=Linear(1.0), dtype=dtype)
    s, _, _ = solve_features(p.losses, p.rows, 1.0, np.zeros(4))
    assert p.gap(s) < 1e-9


def test_running_out_of_steps_gives_a_valid_iterate(monkeypatch):
    monkeypatch.setattr(newton, "MAX_STEPS", 2)
    p = small_problem(70, SETTINGS[1])
    a, steps = solve_dense(p.losses, p.K, np.zeros(70))
    assert steps == 2
    assert p.primal(p.y * a) <= p.primal(np.zeros(70))
