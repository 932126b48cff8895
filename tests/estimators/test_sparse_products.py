"""Sparse rows whose kernel values are sparse products: models are those of dense rows, and no row is made dense."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_odm import ODMClassifier, solvers
from dask_odm.data.rows.memory import SparseRows
from dask_odm.kernels.pivots import RACES
from dask_odm.linalg.csr_rows import CSRRows

SETTINGS = {"lam": 100.0, "random_state": 0, "tol": 1e-8, "scale": None}
SOLVERS = {
    "exact": "exact",
    "support": solvers.Landmark(40, choice="support"),
    **{word: solvers.Landmark(40, choice=word, certify=True) for word in RACES},
    "cells": solvers.Cells(60),
    "sodm": solvers.SODM(n_partitions=4),
}
CASES = [(solver, "rbf", "standard", 2) for solver in SOLVERS]
CASES += [("exact", "poly", "standard", 2), ("uniform", "poly", "minmax", 2)]
CASES += [("exact", "rbf", None, 3), ("exact", "poly", "minmax", 3), ("uniform", "rbf", "minmax", 3)]


def thin(n: int, d: int = 90, seed: int = 0) -> np.ndarray:
    """Rows of which one entry in eleven is not zero, and of one row none; one feature is below zero."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, d)) * (rng.random((n, d)) < 1 / 11)
    X[:, 3] *= -1.0
    X[17] = 0.0
    return X


def labels(X: np.ndarray, classes: int) -> np.ndarray:
    score = X[:, :30].sum(axis=1) - X[:, 30:60].sum(axis=1)
    return np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


@pytest.fixture
def no_dense_rows(monkeypatch):
    def refused(*arguments: object, **options: object) -> None:
        raise AssertionError("rows were made dense")

    monkeypatch.setattr(CSRRows, "__array__", refused)
    monkeypatch.setattr(SparseRows, "__getitem__", refused)


@pytest.mark.parametrize(("solver", "kernel", "scale", "classes"), CASES)
def test_models_and_predictions_are_those_of_dense_rows(solver, kernel, scale, classes, no_dense_rows):
    X, new = thin(240), thin(70, seed=1)
    y = labels(X, classes)
    model = ODMClassifier(kernel, solver=SOLVERS[solver], **SETTINGS | {"scale": scale})
    expected = model.fit(X, y).decision_function(new)
    support = model.support_
    model.fit(csr_array(X), y)
    np.testing.assert_array_equal(model.support_, support)
    tolerance = 2e-5 * np.abs(expected).max()
    np.testing.assert_allclose(model.decision_function(csr_array(new)), expected, atol=tolerance)


def test_a_feature_far_from_zero_costs_no_digits():
    """It is stored in every row, so that a product of rows that are not shifted would cancel."""
    X = thin(240)
    X[:, 7] = 1e5 + np.random.default_rng(0).random(240)
    y = (X[:, 7] > 1e5 + 0.5).astype(int)
    dense, sparse = (ODMClassifier(gamma=1.0, **SETTINGS).fit(given, y) for given in (X, csr_array(X)))
    np.testing.assert_allclose(sparse.decision_function(csr_array(X)), dense.decision_function(X), atol=1e-6)
