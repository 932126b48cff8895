"""Machines of many classes: each is the machine of the kernel's projection on the landmarks' span."""

import time
from itertools import combinations

import dask
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel

from dask_odm import ODMClassifier
from dask_odm.kernels.pivots import RACES, UniformRace
from dask_odm.methods.auto_limits import AutoLimits
from dask_odm.methods.landmark import many_classes
from dask_odm.methods.landmark.descent import FeatureDescent
from dask_odm.solvers import Landmark
from small_stores import store_of

GAMMA = 0.3


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Rows of five classes, the last of which has three, many of them twice."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), [60, 50, 50, 40, 3])
    X = rng.normal(size=(len(y), 4)) + 1.5 * rng.normal(size=(5, 4))[y]
    return np.concatenate([X, X[:40]]), np.concatenate([y, y[:40]])


def model(count: int = 80, **parameters: object) -> ODMClassifier:
    settings = {"gamma": GAMMA, "lam": 50.0, "tol": 1e-11, "multi_class": "ovo", "random_state": 0, "dtype": "float64"}
    return ODMClassifier(**settings | {"solver": Landmark(count), "scale": None} | parameters)


def stored(path: str, **parameters: object) -> ODMClassifier:
    """A fit over passes of a store, that is not read into memory."""
    with dask.config.set({"dask_odm.read-into-memory": "0B"}):
        return model(**parameters).fit(path)


def projected(A: np.ndarray, B: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
    """Return kernel values, with the constant of an intercept, of the projections on the span of landmarks."""
    inner = np.linalg.pinv(rbf_kernel(landmarks, gamma=GAMMA) + 1.0, rcond=1e-13, hermitian=True)
    left, right = (rbf_kernel(each, landmarks, gamma=GAMMA) + 1.0 for each in (A, B))
    return left @ inner @ right.T


@pytest.mark.parametrize("scheme", ["ovo", "ovr"])
@pytest.mark.parametrize("upsilon", [0.0, 0.3])
def test_they_are_exact_machines_of_the_projected_kernel(rows, scheme, upsilon):
    X, y = rows
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    settings = {"multi_class": scheme, "class_weight": {3: 2.5}, "upsilon": upsilon}
    found = model(**settings).fit(X, y, weight)
    landmarks = found.support_vectors_
    assert len(landmarks) == 80
    np.testing.assert_array_equal(landmarks, X[found.support_])
    K = projected(X, X, landmarks)
    exact = model(kernel="precomputed", solver="exact", fit_intercept=False, tol=1e-10, **settings).fit(K, y, weight)
    np.testing.assert_allclose(found.decision_function(X), exact.decision_function(K), atol=1e-4)
    assert np.isnan(found.dual_gap_)
    assert found.history_[-1]["gap"] <= 1e-11
    assert found.history_[-1]["machines"] == 0


@pytest.mark.parametrize("count", [2, 80])
def test_landmarks_are_of_every_class(rows, count, tmp_path):
    X, y = rows
    found = model(count).fit(X, y)
    assert len(found.support_) == count
    if count >= 20 * 3:
        assert set(y[found.support_]) == set(range(5))
        assert (y[found.support_] == 4).sum() == 3
    path = store_of(tmp_path / "a.zarr", X[:203], y[:203], chunk_rows=25).path
    np.testing.assert_array_equal(
        stored(path, solver=Landmark(count)).support_, model(count).fit(X[:203], y[:203]).support_
    )


def test_a_way_of_drawing_landmarks_of_one_s_own_is_not_taken_for_the_uniform_one(rows, monkeypatch):
    class AboveTheMean(UniformRace):
        reads_rows = True

        def weights(self, X: np.ndarray, threads: int) -> np.ndarray:
            return (X[:, 0] > 0.0).astype(float)  # rows are centred

    X, y = rows
    monkeypatch.setitem(RACES, "above", AboveTheMean)
    monkeypatch.setattr(Landmark, "_parameter_constraints", {})
    found = model(solver=Landmark(20, choice="above")).fit(X, y)
    assert (found.support_vectors_[:, 0] > X[:, 0].mean() - 0.2).all()


@pytest.mark.parametrize("scheme", ["ovo", "ovr"])
def test_groups_of_machines_make_the_same_model(rows, scheme, monkeypatch):
    X, y = rows
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    expected = model(multi_class=scheme).fit(X, y, weight).decision_function(X)
    monkeypatch.setattr(many_classes, "AUTO", AutoLimits(machine_bytes=8 * 80 * 3))  # three machines at a time
    found = model(multi_class=scheme).fit(X, y, weight)
    np.testing.assert_allclose(found.decision_function(X), expected, atol=1e-4)


@pytest.mark.parametrize("scheme", ["ovo", "ovr"])
def test_means_of_classes_save_products_and_change_nothing_else(scheme, monkeypatch):
    rng = np.random.default_rng(0)
    y = np.arange(1200) % 3
    X = rng.normal(size=(len(y), 4)) + 0.7 * rng.normal(size=(3, 4))[y]
    settings = {"multi_class": scheme, "lam": 1e4, "tol": 1e-6}
    monkeypatch.setattr(many_classes, "AUTO", AutoLimits(descent_values=0))
    found = model(**settings).fit(X, y)
    monkeypatch.setattr(many_classes, "AUTO", AutoLimits(means_bytes=0))
    without = model(**settings).fit(X, y)
    np.testing.assert_allclose(found.decision_function(X), without.decision_function(X), atol=1e-2)
    assert 2 * found.history_[-1]["passes"] <= without.history_[-1]["passes"]


def test_memory_changes_no_bit(rows, monkeypatch):
    X, y = rows
    kept = model().fit(X, y).dual_coef_
    made = many_classes._problem
    monkeypatch.setattr(many_classes, "_problem", lambda seen, query, budget: made(seen, query, 0))
    np.testing.assert_array_equal(model().fit(X, y).dual_coef_, kept)


@pytest.mark.parametrize("scheme", ["ovo", "ovr"])
def test_threads_change_no_bit(rows, scheme, monkeypatch):
    settings = {"multi_class": scheme, "dtype": "float32", "tol": 1e-3}
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(many_classes, "CPU_COUNT", threads)
        found.append(model(**settings).fit(*rows).dual_coef_)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_descent_takes_fewer_sweeps_with_a_fixed_component(dtype, monkeypatch):
    """Its objective is within the gap of the least one, from which it does not differ without that component."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=1500)
    X = rng.normal(size=(len(y), 4)) + rng.normal(size=(3, 4))[y]
    settings = {"lam": 5e3, "dtype": dtype, "count": 100}
    found = model(tol=1e-2, **settings).fit(X, y)
    with monkeypatch.context() as newton:
        newton.setattr(many_classes, "AUTO", AutoLimits(descent_values=0))
        least = model(tol=1e-6, **settings).fit(X, y).history_[-1]["objective"]
    monkeypatch.setattr(FeatureDescent, "_axis", lambda self: np.zeros(self.features.shape[1]))
    slower = model(tol=1e-2, **settings).fit(X, y)
    for each in (found, slower):
        assert len(each.history_) == 1  # Newton's method had nothing to do
        assert least * (1 - 1e-6) <= each.history_[0]["objective"] <= least / (1 - 1e-2)
    assert 1.5 * found.n_iter_ <= slower.n_iter_


@pytest.mark.parametrize("descends", [True, False])
def test_what_is_claimed_of_float32_is_true_in_float64(rows, descends, monkeypatch):
    """A wide kernel and a large λ: float32 alone would claim gaps that are not there."""
    X, y = rows
    if not descends:
        monkeypatch.setattr(many_classes, "AUTO", AutoLimits(descent_values=0))
    found = model(gamma=0.003, lam=1e5, dtype="float32", tol=1e-3).fit(X, y)
    landmarks = found.support_vectors_.astype(np.float64)
    F = rbf_kernel(X.astype(np.float32).astype(np.float64), landmarks, gamma=0.003) + 1.0
    G = rbf_kernel(landmarks, gamma=0.003) + 1.0
    total = 0.0
    for machine, (a, b) in enumerate(combinations(range(5), 2)):
        of_pair = (y == a) | (y == b)
        sign = np.where(y[of_pair] == b, 1.0, -1.0)
        coefficients = found.dual_coef_[machine]
        margins = sign * (F[of_pair] @ coefficients)
        c = 1e5 / of_pair.sum() / 0.8**2
        loss = 0.5 * c * (np.maximum(0.8 - margins, 0) ** 2 + 0.2 * np.maximum(margins - 1.2, 0) ** 2).sum()
        total += 0.5 * coefficients @ G @ coefficients + loss
    assert found.history_[-1]["gap"] <= 1e-3
    assert found.history_[-1]["objective"] == pytest.approx(total, rel=1e-2)


def test_seconds_are_of_the_whole_fit_and_count_nothing_twice():
    """Descent comes first here, and Newton's steps in lockstep begin from what its few sweeps found."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 6))
    y = np.argmax(X[:, :3] + rng.normal(size=(3000, 3)), axis=1)
    began = time.perf_counter()
    with pytest.warns(ConvergenceWarning):
        found = ODMClassifier(solver=Landmark(50), lam=1e6, max_iter=3, random_state=0).fit(X, y).history_
    wall = time.perf_counter() - began
    seconds = [record["seconds"] for record in found]
    assert len(seconds) > 1
    assert seconds == sorted(seconds)
    assert seconds[-1] <= wall


@pytest.mark.parametrize("scheme", ["ovo", "ovr"])
def test_rows_are_left_out_as_by_exact_machines(rows, scheme, tmp_path):
    """Over as many landmarks as rows; the closed form is the same."""
    X, y = (each[:203] for each in rows)
    exact = model(solver="exact", tol=1e-10, loo=True, multi_class=scheme).fit(X, y)
    path = store_of(tmp_path / "a.zarr", X, y, chunk_rows=25).path
    for found in (
        model(203, loo=True, multi_class=scheme).fit(X, y),
        stored(path, solver=Landmark(203), loo=True, multi_class=scheme),
    ):
        np.testing.assert_allclose(found.loo_decision_function_, exact.loo_decision_function_, atol=1e-2)
        assert found.loo_score_ == pytest.approx(exact.loo_score_, abs=0.01)
        assert np.abs(found.predict_proba(X) - exact.predict_proba(X)).max() < 0.05


def test_an_early_end_is_a_warning(rows):
    with pytest.warns(UserWarning, match="5 of 5 machines stopped short"):
        model(max_iter=1, multi_class="ovr").fit(*rows)
