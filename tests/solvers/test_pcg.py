"""Face steps: the preconditioner by its formula, no step down."""

from __future__ import annotations

import numpy as np
import pytest

from dask_odm.kernels import RBF, Linear
from dask_odm.solvers.dual_cd import sweep
from dask_odm.solvers.pcg import LandmarkPreconditioner, face_step
from small_problems import SETTINGS, SmallProblem, any_dual, small_problem

EVERY_SETTING = pytest.mark.parametrize("setting", SETTINGS, ids=str)


def preconditioner(p: SmallProblem, r: int = 20) -> LandmarkPreconditioner:
    rows = np.sort(np.random.default_rng(9).choice(len(p.y), r, replace=False))
    return LandmarkPreconditioner.from_rows(p.problem().gram, rows)


@pytest.mark.parametrize("kernel", [RBF(1.0, 0.5), Linear(1.0)], ids=lambda k: k.name)
def test_coordinates_are_the_nystrom_approximation(kernel):
    p = small_problem(120, kernel=kernel)
    rows = np.arange(0, 120, 5)
    L = LandmarkPreconditioner.from_rows(p.problem().gram, rows).coordinates
    K = p.K
    nystrom = K[:, rows] @ np.linalg.pinv(K[np.ix_(rows, rows)], 1e-6, hermitian=True) @ K[rows]
    np.testing.assert_allclose(L.T @ L, nystrom, atol=1e-8 * np.abs(K).max())
    if kernel.name == "linear":
        np.testing.assert_allclose(L.T @ L, K, atol=1e-8 * np.abs(K).max())
        assert len(L) == 4, "cut at the rank"


@EVERY_SETTING
def test_preconditioner_is_the_inverse_by_woodbury(setting):
    p = small_problem(100, setting, weighted=True)
    face = np.arange(3, 100, 2)
    stiffness = p.losses.stiffness_low[face]
    made = preconditioner(p)
    L = made.coordinates[:, face]
    direct = np.linalg.inv(L.T @ L + np.diag(1.0 / stiffness))
    v = np.random.default_rng(1).normal(size=len(face))
    assert made.stale
    np.testing.assert_allclose(made.on(face, stiffness)(v), direct @ v, atol=1e-9 * np.abs(direct @ v).max())
    assert not made.stale


@EVERY_SETTING
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
def test_a_face_step_never_lowers_the_dual(setting, weighted):
    p = small_problem(150, setting, weighted=weighted)
    problem = p.problem()
    best, _ = p.optimum()
    for start in (any_dual(p, 1, 1e-3), any_dual(p, 2, 10.0), 0.7 * best, np.abs(any_dual(p, 3)), best):
        u, made = problem.function(p.y * start), preconditioner(p)
        for _ in range(3):
            new = face_step(problem, u, made)
            before, after = p.dual(p.y * u[0]), p.dual(p.y * new[0])
            assert after >= before - 1e-9 * max(1.0, abs(before))
            np.testing.assert_allclose(new[1], p.K @ new[0], atol=1e-8 * (1 + np.abs(new[1]).max()))
            assert (new[0][u[0] == 0] == 0).all(), "zeros are left alone"
            u = new


@EVERY_SETTING
def test_with_every_row_a_landmark_one_step_on_the_right_face_is_enough(setting):
    p = small_problem(150, setting)
    problem = p.problem()
    best, objective = p.optimum()
    u = face_step(problem, problem.function(p.y * 0.7 * best), preconditioner(p, 150))
    assert p.dual(p.y * u[0]) == pytest.approx(objective, rel=1e-6)


def test_an_empty_face_stays():
    p = small_problem(30)
    u = np.zeros((2, 30))
    assert face_step(p.problem(), u, preconditioner(p)) is u


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lam", [1e4, 1e7])
def test_descent_and_face_steps_reach_in_turns_what_descent_alone_does_not(lam, dtype):
    p = small_problem(700, (lam, 0.3, 0.1), dtype=dtype)
    problem, rng = p.problem(), np.random.default_rng(5)
    both, alone = np.zeros((2, 2, 700))
    made = preconditioner(p, 150)
    for _ in range(12):
        sweep(problem, alone, rng)
        sweep(problem, both, rng)
        both = face_step(problem, both, made)
    assert p.gap(p.y * both[0]) < 0.1 * p.gap(p.y * alone[0])
