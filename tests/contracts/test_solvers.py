"""What every solver keeps: the optimum of a slow reference, an honest gap, told steps, states to go on from."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dask_odm.kernels import RBF, Linear
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.learning.problem.products import RowProducts
from dask_odm.learning.solution import SolverSettings
from dask_odm.methods.exact.solver import solve_exact
from dask_odm.methods.exact.systems import ExactLimits
from dask_odm.methods.landmark.problem import SpanProblem
from dask_odm.methods.landmark.query import SpanQuery
from dask_odm.methods.landmark.solver import solve_landmark
from dask_odm.methods.linear.solver import solve_newton
from dask_odm.papers.dsvrg.solver import SVRG, ArraySteps, SVRGState
from small_problems import SETTINGS, SmallProblem, small_problem

N = 60


@dataclass(frozen=True)
class Found:
    """Scores (n,), primal value, gap, whether it converged, and the history."""

    scores: np.ndarray
    primal: float
    gap: float
    converged: bool
    history: list[dict[str, Any]]


Solve = Callable[..., Found]


def loss(p: SmallProblem) -> BandLoss:
    return BandLoss(p.losses.settings, float(p.weight.sum()))


def codes(p: SmallProblem) -> np.ndarray:
    return (p.y > 0).astype(np.int8)


def newton(p: SmallProblem, tol: float, *, exact: bool, **options: Any) -> Found:
    features = FeatureMap(p.X.shape[1], p.kernel.bias)
    problem = PrimalProblem.over_rows(features, loss(p), p.X, codes(p), p.weight)
    found = solve_newton(problem, np.zeros(features.k), tol=tol, max_iter=50, exact=exact, **options)
    return Found(features.scores(p.X, found.x), found.primal, found.gap, found.converged, found.history)


def svrg(p: SmallProblem, tol: float, *, coreset: bool, resume: SVRGState | None = None, **options: Any) -> Found:
    features, given = FeatureMap(p.X.shape[1], p.kernel.bias), (p.X, codes(p), p.weight)
    steps = ArraySteps(features, loss(p), *given, seed=0)
    if coreset:  # of every row: SVRG, bit by bit
        steps = ArraySteps(features, loss(p), *given, 0, 1, (np.arange(N), np.ones(N)))
    solver = SVRG("svrg", steps, SolverSettings(tol, 4000, 0), **options)
    found = solver.run(resume)
    return Found(features.scores(p.X, found.x), found.primal, found.gap, found.converged, found.history)


def exact(p: SmallProblem, tol: float, **options: Any) -> Found:
    products, limits = RowProducts(p.kernel, p.X, 1 << 30), ExactLimits(whole_rows=0, dense_rows=0, rounding_rows=20)
    found = solve_exact(p.losses, products, SolverSettings(tol, 100, 0), limits=limits, **options)
    return Found(found.scores, found.point.primal, found.point.gap, found.converged, found.history)


def landmark(p: SmallProblem, tol: float, **options: Any) -> Found:
    landmarks = Landmarks.of(p.kernel, p.X)
    query = SpanQuery(p.kernel, landmarks.rows, loss(p))
    span = SpanProblem.over_rows(query, p.X, codes(p), p.weight, 1 << 30)
    found = solve_landmark(span, landmarks, np.zeros(N), tol=tol, max_iter=60, seed=0, **options)
    scores = p.kernel.tile(p.X, landmarks.rows) @ found.x
    return Found(scores, found.primal, found.gap, found.converged, found.history)


LINEAR, GAUSS = Linear(1.0), RBF(1.0, 0.5)
SOLVERS: dict[str, tuple[Any, Solve]] = {
    "newton": (LINEAR, lambda p, tol, **o: newton(p, tol, exact=True, **o)),
    "newton by products": (LINEAR, lambda p, tol, **o: newton(p, tol, exact=False, **o)),
    "svrg": (LINEAR, lambda p, tol, **o: svrg(p, tol, coreset=False, **o)),
    "csvrg of all rows": (LINEAR, lambda p, tol, **o: svrg(p, tol, coreset=True, **o)),
    "exact": (GAUSS, exact),
    "landmark of all rows": (GAUSS, landmark),
}
each_solver = pytest.mark.parametrize("name", SOLVERS)


@cache
def problem_of(name: str, setting: int = 0, weighted: bool = True) -> SmallProblem:
    p = small_problem(N, SETTINGS[setting], kernel=SOLVERS[name][0], weighted=weighted)
    p.X.flags.writeable = p.y.flags.writeable = p.weight.flags.writeable = False
    return p


def solve(name: str, p: SmallProblem, tol: float = 1e-8, **options: Any) -> Found:
    return SOLVERS[name][1](p, tol, **options)


@each_solver
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("setting", range(3))
def test_finds_the_optimum_of_the_reference(name, setting, weighted):
    p = problem_of(name, setting, weighted)
    dual, best = p.optimum()
    found = solve(name, p)
    assert found.converged
    assert found.primal == pytest.approx(best, rel=1e-6)
    assert p.primal(dual) <= found.primal * (1 + 1e-9)
    np.testing.assert_allclose(found.scores, p.decision(dual), atol=2e-3 * np.abs(found.scores).max())


@each_solver
@pytest.mark.parametrize("tol", [1e-1, 1e-4])
def test_the_gap_is_no_smaller_than_the_truth_and_reaches_tol(name, tol):
    p = problem_of(name)
    found = solve(name, p, tol)
    assert found.gap <= tol
    for record in found.history:
        assert (record["objective"] - p.optimum()[1]) / record["objective"] <= record["gap"] * (1 + 1e-6) + 1e-12


@each_solver
def test_steps_are_told_as_the_history_has_them(name):
    told: list[dict[str, Any]] = []
    found = solve(name, problem_of(name), on_step=lambda record: told.append(deepcopy(record)))
    assert told == found.history
    assert [record["iteration"] for record in told] == list(range(len(told)))
    assert all(a["passes"] <= b["passes"] for a, b in pairwise(told))


@each_solver
def test_goes_on_from_any_state_to_the_same_bits(name):
    p, states = problem_of(name), []
    whole = solve(name, p, on_state=lambda state: states.append(deepcopy(state)))
    assert states
    for state in (states[0], states[len(states) // 2], states[-1]):
        again = solve(name, p, resume=state)
        assert again.scores.tobytes() == whole.scores.tobytes()
        assert (again.primal, again.gap) == (whole.primal, whole.gap)
        figures = ("iteration", "gap", "objective")
        assert [[r[k] for k in figures] for r in again.history] == [[r[k] for k in figures] for r in whole.history]
