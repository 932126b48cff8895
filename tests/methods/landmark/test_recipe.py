"""solver="landmark": with every row a landmark it is the whole problem; with few it is close, saved and refused."""

import numpy as np
import pytest

from dask_odm import InputError, MemoryLimitError, ODMClassifier
from dask_odm.kernels import RBF
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import RACES
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.methods.landmark import recipe as landmark
from dask_odm.methods.landmark.memory import LandmarkMemory
from dask_odm.methods.landmark.problem import SpanProblem
from dask_odm.methods.landmark.query import TILE_BYTES, SpanQuery
from dask_odm.methods.landmark.solver import carried_over, rough_solution, solve_landmark, start_rows
from dask_odm.solvers import Landmark
from traced import traced

SETTINGS = {"gamma": 0.5, "lam": 1e3, "random_state": 0, "scale": None}


def rings(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).normal(size=(n, 3))
    return X, np.where((X**2).sum(axis=1) > 2.4, "out", "in")


def test_few_landmarks_predict_nearly_as_well_and_are_the_support():
    X, y = rings(3000)
    model = ODMClassifier(solver=Landmark(60), **SETTINGS).fit(X[:2000], y[:2000])
    exact = ODMClassifier(**SETTINGS).fit(X[:2000], y[:2000])
    assert len(model.support_) <= 60
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_])
    assert model.score(X[2000:], y[2000:]) > exact.score(X[2000:], y[2000:]) - 0.02
    assert model.n_iter_ == len(model.history_) - 1


def test_refused():
    X, y = rings(60)
    with pytest.raises(InputError, match="needs rows, not kernel='precomputed'"):
        ODMClassifier("precomputed", solver="landmark").fit(X @ X.T, y)
    with pytest.raises(MemoryLimitError, match=r"Newton over 60 landmarks needs .* free for it"):
        ODMClassifier(solver="landmark", memory_limit="100kB").fit(X, y)
    ODMClassifier(solver="landmark", memory_limit="1MB").fit(X, y)
    with pytest.raises(MemoryLimitError, match=r"Choosing 60 landmarks needs .* free for it. Use a smaller"):
        ODMClassifier(solver=Landmark(choice="rp"), memory_limit="1MB").fit(X, y)


def test_more_landmarks_than_rows_are_told_of(caplog):
    caplog.set_level("INFO", logger="dask_odm")
    ODMClassifier(solver=Landmark(500), **SETTINGS).fit(*rings(60))
    assert "n_landmarks=500 is more than the 60 different rows: each may be one" in caplog.messages


@pytest.mark.parametrize("choice", ["support", *RACES])
def test_merged_rows_are_the_same_problem(choice):
    """Repeated rows are one of their weight; which rows become landmarks is all that may differ."""
    X, y = rings(150)
    options = SETTINGS | {"solver": Landmark(600, choice=choice), "tol": 1e-12}
    once = ODMClassifier(**options).fit(X, y, sample_weight=np.full(150, 3.0))
    thrice = ODMClassifier(**options).fit(np.vstack([X, X, X]), np.tile(y, 3))
    np.testing.assert_allclose(thrice.decision_function(X), once.decision_function(X), rtol=0, atol=1e-4)
    assert thrice.support_.max() < 150


@pytest.mark.parametrize("solver", [Landmark(50, certify=True), "exact", "sodm"], ids=str)
@pytest.mark.parametrize("n", [200, 1500])
def test_a_weight_of_next_to_nothing_is_none(solver, n):
    X, y = rings(n)
    weight = np.ones(n)
    weight[7] = 1e-310
    options = SETTINGS | {"solver": solver}
    model = ODMClassifier(**options).fit(X, y, sample_weight=weight)
    weight[7] = 0.0
    same = ODMClassifier(**options).fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(model.decision_function(X), same.decision_function(X))
    assert model.dual_gap_ < 1


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d", "r"), [(20_000, 100, 120), (4000, 3000, 30)])
def test_peak_memory_of_newton_is_projected(n, d, r, monkeypatch):
    """Of the start by a sample, and of what follows."""
    monkeypatch.setattr(landmark, "CPU_COUNT", 2)
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    landmarks, settings = Landmarks(RBF(1.0, 1e-2), X[:r], np.arange(r)), ODMSettings(1e6, 0.3, 0.2)
    few = Landmarks(landmarks.kernel, X[: r : landmark.FIRST_STRIDE], np.arange(0, r, landmark.FIRST_STRIDE))
    loss, codes = BandLoss(settings, float(n)), (X[:, 0] > 0).astype(np.int8)

    def spanned(some: Landmarks) -> SpanProblem:
        return SpanProblem.over_rows(SpanQuery(some.kernel, some.rows, loss), X, codes, np.empty(0), 0, 2)

    def fit() -> None:
        a = rough_solution(spanned(few), few, n, start_rows(n, r), 0, 0, 2)
        solve_landmark(
            spanned(landmarks), landmarks, carried_over(few, a, landmarks), tol=1e-2, max_iter=3, seed=0, threads=2
        )

    fit()  # compiles
    _, peak = traced(fit)
    projected = LandmarkMemory(r, n, d, 4).solve() + 4 * 8 * n
    assert projected / 4 < peak <= projected + 2 * TILE_BYTES, "a buffer of tiles a thread is not filled by few rows"
