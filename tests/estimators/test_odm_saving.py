"""Models and checkpoints on disk: the same bits after, nothing of another fit, no damage unseen, no pickle."""

from __future__ import annotations

import numpy as np
import pytest

from dask_odm import ODMClassifier, load_model
from dask_odm.errors import StoreError
from dask_odm.solvers import SODM
from estimators.odm_models import LABELS, SETTINGS


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(3)], ids=["none", "generator"])
def test_resume_without_a_fixed_seed(rows, tmp_path, random_state):
    settings = {**SETTINGS, "solver": SODM(4), "random_state": random_state, "checkpoint": str(tmp_path / "c.zarr")}
    first = ODMClassifier(**settings).fit(*rows)
    again = ODMClassifier(**settings, resume=True).fit(*rows)
    np.testing.assert_array_equal(again.dual_coef_, first.dual_coef_)
    np.testing.assert_array_equal(again.support_, first.support_)


@pytest.mark.parametrize("labels", LABELS[::2], ids=lambda a: a.dtype.str)
def test_an_average_and_types_of_labels_come_back_twice(rows, tmp_path, labels):
    X, y = rows[0], labels[(rows[1] > 0).astype(int)]
    model = ODMClassifier(solver=SODM(4, stop_at=4), random_state=1).fit(X, y)
    model.save(tmp_path / "m.zarr")
    load_model(tmp_path / "m.zarr").save(tmp_path / "again.zarr")
    again = load_model(tmp_path / "again.zarr")
    assert again.decision_function(X).tobytes() == model.decision_function(X).tobytes()
    np.testing.assert_array_equal(again.predict(X), model.predict(X), strict=True)


@pytest.mark.parametrize(
    "parameters",
    [{"class_weight": {-1.0: 2.0, 1.0: 0.5}}, {"gamma": np.float32(0.5)}, {"max_iter": np.int64(50)}],
    ids=str,
)
def test_every_parameter_survives_saving(rows, tmp_path, parameters):
    model = ODMClassifier(**parameters).fit(*rows)
    model.save(tmp_path / "m.zarr")
    assert load_model(tmp_path / "m.zarr").get_params() == model.get_params()


def test_a_foreign_folder_is_no_model(tmp_path):
    (tmp_path / "x").mkdir()
    for path in (tmp_path / "x", tmp_path / "nothing", __file__):
        with pytest.raises(StoreError):
            load_model(path)
