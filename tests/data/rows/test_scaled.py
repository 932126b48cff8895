"""Rows scaled as they are read: the bits of a scaled copy, however they are read; the given rows stay as they are."""

import numpy as np
import pytest

from dask_odm import ODMClassifier
from dask_odm.data.rows.memory import taken
from dask_odm.data.rows.scaling import ScaledRows, Scaling
from dask_odm.kernels.pivots import RACES
from dask_odm.solvers import SODM, Landmark


def test_every_way_to_read_gives_the_rows_of_a_scaled_copy():
    X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    scaling, given, order = (
        Scaling(np.array([0.1, -2.0, 3.0]), np.array([0.3, 7.0, 0.0])),
        X.copy(),
        np.arange(49, 0, -3),
    )
    rows, copy = ScaledRows(X, scaling), scaling(X)
    assert (len(rows), rows.n, rows.d, rows.dtype) == (50, 50, 3, X.dtype)
    for found, expected in [
        (rows[5:20], copy[5:20]),
        (rows[::7], copy[::7]),
        (rows[order], copy[order]),
        (taken(rows, order), copy[order]),
        (rows.read(3, 9), copy[3:9]),
    ]:
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(X, given)


@pytest.mark.parametrize(
    "settings",
    [*({"solver": Landmark(30, choice=word)} for word in RACES), {"solver": "exact"}, {"solver": SODM(2)}],
    ids=str,
)
def test_a_model_of_rows_scaled_as_they_are_read_has_the_same_bits(monkeypatch, settings):
    X = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    model = ODMClassifier(lam=1e2, scale="minmax", random_state=0, max_iter=20, **settings)
    copied = model.fit(X, X[:, 0] > X[:, 1] ** 2 - 0.5).dual_coef_
    monkeypatch.setattr("dask_odm.data.rows.scaling.COPIED_BYTES", 0)
    np.testing.assert_array_equal(model.fit(X, X[:, 0] > X[:, 1] ** 2 - 0.5).dual_coef_, copied)
