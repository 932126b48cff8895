"""Pairs of classes over landmarks: the machines of the kernel's projection on their span, whatever the route."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from dask_odm import MemoryLimitError, ODMClassifier
from dask_odm.methods.pairs import at_landmarks
from dask_odm.solvers import Landmark

GAMMA = 0.3


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Rows of five classes, the last of which has three, many of them twice."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), [60, 50, 50, 40, 3])
    X = rng.normal(size=(len(y), 4)) + 1.5 * rng.normal(size=(5, 4))[y]
    return np.concatenate([X, X[:40]]), np.concatenate([y, y[:40]])


def model(count: int = 80, **parameters: object) -> ODMClassifier:
    settings = {"gamma": GAMMA, "lam": 50.0, "tol": 1e-8, "multi_class": "ovo", "random_state": 0, "dtype": "float64"}
    return ODMClassifier(**settings | {"solver": Landmark(count)} | parameters)


def projected(A: np.ndarray, B: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
    """Return kernel values, with the constant of an intercept, of the projections on the span of landmarks."""
    inner = np.linalg.pinv(rbf_kernel(landmarks, gamma=GAMMA) + 1.0, rcond=1e-13, hermitian=True)
    left, right = (rbf_kernel(each, landmarks, gamma=GAMMA) + 1.0 for each in (A, B))
    return left @ inner @ right.T


def test_they_are_exact_pairs_of_the_projected_kernel(rows):
    X, y = rows
    found = model().fit(X, y)
    landmarks = found.support_vectors_
    assert len(landmarks) == 80
    np.testing.assert_array_equal(landmarks, X[found.support_])
    K = projected(X, X, landmarks)
    exact = model(kernel="precomputed", solver="exact", fit_intercept=False).fit(K, y)
    np.testing.assert_allclose(found.decision_function(X), exact.decision_function(K), atol=1e-4)
    assert np.isnan(found.dual_gap_)
    assert {record["machine"] for record in found.history_} == set(range(10))
    last = {record["machine"]: record["gap"] for record in found.history_}
    assert max(last.values()) <= 1e-8


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_newton_over_the_landmarks_finds_the_same(rows, dtype, weighted, monkeypatch):
    X, y = rows
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y)) if weighted else None
    settings = {"dtype": dtype, "tol": 1e-5, "class_weight": "balanced"}
    together = model(**settings).fit(X, y, weight)
    monkeypatch.setattr(at_landmarks, "ROWS_A_LANDMARK", 0)
    apart = model(**settings).fit(X, y, weight)
    np.testing.assert_array_equal(together.support_, apart.support_)
    np.testing.assert_allclose(together.decision_function(X), apart.decision_function(X), atol=0.03)
    assert (together.predict(X) == apart.predict(X)).mean() > 0.99


def test_what_is_claimed_of_float32_is_true_in_float64(rows):
    """A wide kernel and a large λ: float32 alone would claim gaps that are not there."""
    X, y = rows
    found = model(gamma=0.003, lam=1e5, dtype="float32", tol=1e-3).fit(X, y)
    landmarks = found.support_vectors_.astype(np.float64)
    F = rbf_kernel(X, landmarks, gamma=0.003) + 1.0
    G = rbf_kernel(landmarks, gamma=0.003) + 1.0
    for machine, (a, b) in enumerate(combinations(range(5), 2)):
        records = [record for record in found.history_ if record["machine"] == machine]
        of_pair = (y == a) | (y == b)
        sign = np.where(y[of_pair] == b, 1.0, -1.0)
        coefficients = found.dual_coef_[machine]
        margins = sign * (F[of_pair] @ coefficients)
        c = 1e5 / of_pair.sum() / 0.8**2
        loss = 0.5 * c * (np.maximum(0.8 - margins, 0) ** 2 + 0.2 * np.maximum(margins - 1.2, 0) ** 2).sum()
        objective = 0.5 * coefficients @ G @ coefficients + loss
        assert abs(objective - records[-1]["objective"]) <= 1e-2 * objective


def test_what_does_not_fit_in_memory_goes_another_way_or_is_refused(rows):
    X, y = rows
    with pytest.raises(MemoryLimitError):
        model(memory_limit="300 kB").fit(X, y)
