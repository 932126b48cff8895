"""Models and checkpoints on disk: the same bits after, nothing of another fit, no damage unseen, no pickle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dask_odm import ODMClassifier, load_model
from dask_odm.errors import InputError, StoreError
from dask_odm.solvers import SODM
from estimators.odm_models import LABELS, SETTINGS


def other_rows(X, y):
    return X[::-1].copy(), y[::-1].copy()


@pytest.mark.parametrize(
    ("change", "data"),
    [
        ({"lam": 50.0}, None),
        ({"solver": SODM(16, fan_in=2)}, None),
        ({"gamma": 0.4}, None),
        ({"random_state": 1}, None),
        ({}, other_rows),
    ],
    ids=["lam", "n_partitions", "gamma", "seed", "other order"],
)
def test_a_checkpoint_of_another_fit_is_refused(rows, tmp_path, change, data):
    settings = {**SETTINGS, "solver": SODM(8, fan_in=2), "random_state": 0, "checkpoint": str(tmp_path / "c.zarr")}
    ODMClassifier(**settings).fit(*rows)
    with pytest.raises(StoreError, match="is of another fit"):
        ODMClassifier(**{**settings, **change, "resume": True}).fit(*(data(*rows) if data else rows))


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(3)], ids=["none", "generator"])
def test_resume_without_a_fixed_seed(rows, tmp_path, random_state):
    settings = {**SETTINGS, "solver": SODM(4), "random_state": random_state, "checkpoint": str(tmp_path / "c.zarr")}
    first = ODMClassifier(**settings).fit(*rows)
    again = ODMClassifier(**settings, resume=True).fit(*rows)
    np.testing.assert_array_equal(again.dual_coef_, first.dual_coef_)
    np.testing.assert_array_equal(again.support_, first.support_)


def test_resume_without_a_checkpoint_starts(rows, tmp_path):
    path = tmp_path / "c.zarr"
    ODMClassifier(**SETTINGS, solver=SODM(4), checkpoint=path, resume=True).fit(*rows)
    assert path.is_dir()


MODELS = {
    "rbf": {"gamma": 0.5, "scale": "minmax"},
    "linear": {"kernel": "linear", "scale": "standard"},
    "poly": {"kernel": "poly", "degree": 2, "coef0": 0.5},
    "averaged": {"solver": SODM(4, stop_at=4), "random_state": 1},
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("labels", LABELS[::2], ids=lambda a: a.dtype.str)
def test_save_and_load(rows, tmp_path, kind, labels):
    X, y = rows[0], labels[(rows[1] > 0).astype(int)]
    model = ODMClassifier(**MODELS[kind]).fit(X, y)
    model.save(tmp_path / "m.zarr")
    again = load_model(tmp_path / "m.zarr")
    assert type(again) is ODMClassifier
    assert again.get_params() == model.get_params()
    assert again.decision_function(X).tobytes() == model.decision_function(X).tobytes()
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.predict(X).dtype == y.dtype
    assert again.history_ == model.history_
    for name in sorted(set(vars(model)) - {"_predictor"}):
        if name.endswith("_"):
            np.testing.assert_array_equal(getattr(again, name), getattr(model, name), err_msg=name)
    files = [p for p in (tmp_path / "m.zarr").rglob("*") if p.is_file()]
    for path in files:
        assert b"sklearn" not in path.read_bytes()
        assert not path.name.endswith((".pkl", ".pickle", ".joblib"))
    again.save(tmp_path / "again.zarr")
    assert load_model(tmp_path / "again.zarr").decision_function(X).tobytes() == model.decision_function(X).tobytes()


@pytest.mark.parametrize(
    "parameters",
    [{"class_weight": {-1.0: 2.0, 1.0: 0.5}}, {"gamma": np.float32(0.5)}, {"max_iter": np.int64(50)}],
    ids=str,
)
def test_every_parameter_survives_saving(rows, tmp_path, parameters):
    model = ODMClassifier(**parameters).fit(*rows)
    model.save(tmp_path / "m.zarr")
    assert load_model(tmp_path / "m.zarr").get_params() == model.get_params()


def test_saving_replaces_only_when_asked(rows, tmp_path):
    model = ODMClassifier().fit(*rows)
    model.save(tmp_path / "m.zarr")
    with pytest.raises(InputError, match="exists"):
        model.save(tmp_path / "m.zarr")
    ODMClassifier("linear").fit(*rows).save(tmp_path / "m.zarr", overwrite=True)
    assert load_model(tmp_path / "m.zarr").kernel == "linear"
    assert [p.name for p in tmp_path.iterdir()] == ["m.zarr"]


@pytest.mark.slow
def test_a_fresh_process_loads_a_model(rows, tmp_path):
    model = ODMClassifier(random_state=0).fit(*rows)
    model.save(tmp_path / "m.zarr")
    np.save(tmp_path / "X.npy", rows[0])
    code = (
        "import dask_odm, numpy, sys; m = dask_odm.load_model(sys.argv[1]);"
        "numpy.save(sys.argv[3], m.decision_function(numpy.load(sys.argv[2])))"
    )
    paths = [str(tmp_path / name) for name in ("m.zarr", "X.npy", "f.npy")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "f.npy"), model.decision_function(rows[0]))


@pytest.fixture
def saved(rows, tmp_path) -> Path:
    ODMClassifier().fit(*rows).save(tmp_path / "m.zarr")
    return tmp_path / "m.zarr"


def test_a_truncated_or_changed_model_is_an_error(saved):
    files = [p for p in saved.rglob("*") if p.is_file()]
    assert len(files) > 5
    for path in files:
        data = path.read_bytes()
        for damaged in (data[:-1], bytes([data[0] ^ 1]) + data[1:], None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            with pytest.raises(StoreError):
                load_model(saved)
        path.write_bytes(data)
    load_model(saved)


def test_a_foreign_folder_is_no_model(tmp_path):
    (tmp_path / "x").mkdir()
    for path in (tmp_path / "x", tmp_path / "nothing", __file__):
        with pytest.raises(StoreError):
            load_model(path)


def test_a_checkpoint_is_no_model(rows, tmp_path):
    ODMClassifier(solver=SODM(2), checkpoint=tmp_path / "c.zarr").fit(*rows)
    with pytest.raises(StoreError, match="checkpoint"):
        load_model(tmp_path / "c.zarr")
