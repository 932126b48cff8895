"""The command line: a model's boundary and sets from labelled rows, sets as predictions, further scores."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score, get_scorer, log_loss, roc_auc_score

import dask_odm
from cli.running import run, run_json
from dask_odm import ODMClassifier, SaddleSVC, load_model
from small_problems import blobs
from small_stores import store_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of two uneven classes, one without left-out rows, and a store of other rows."""
    made = tmp_path_factory.mktemp("calibrate")
    X, y = blobs(300, 3, seed=2, distance=1.2)
    rows = np.flatnonzero((y < 0) | (np.arange(300) % 4 == 0))
    labels = np.where(y > 0, "well", "ill")[rows]
    model = ODMClassifier(gamma=0.3, lam=300.0, loo=True, random_state=0).fit(X[rows][::2], labels[::2])
    model.save(made / "loo.zarr")
    model.set_params(loo=False).fit(X[rows][::2], labels[::2]).save(made / "plain.zarr")
    store_of(made / "rows.zarr", X[rows][1::2], labels[1::2], chunk_rows=30)
    return made, X[rows][1::2], labels[1::2]


def test_a_boundary_and_sets_from_labelled_rows(folder, tmp_path):
    made, X, y = folder
    out = tmp_path / "m.zarr"
    done = run("calibrate", made / "loo.zarr", made / "rows.zarr", out, "--threshold", "balanced_accuracy", "--json")
    told = json.loads(done.stdout)
    moved = load_model(out)
    expected = load_model(made / "loo.zarr").tune_threshold("balanced_accuracy", X, y)
    assert told["threshold"] == moved.threshold_ == pytest.approx(expected.threshold_)
    before = balanced_accuracy_score(y, load_model(made / "loo.zarr").predict(X))
    assert balanced_accuracy_score(y, moved.predict(X)) > before
    run("predict", out, made / "rows.zarr", tmp_path / "s.csv", "--sets", "0.8")
    table = pd.read_csv(tmp_path / "s.csv")
    assert table.columns.tolist() == ["label", "set ill", "set well"]
    assert table["label"].tolist() == moved.predict(X).tolist()
    np.testing.assert_array_equal(table.to_numpy()[:, 1:].astype(bool), moved.predict_set(X, 0.8))
    own = np.where(y == "ill", table["set ill"], table["set well"])
    assert own.mean() == pytest.approx(0.8, abs=0.02)  # of the rows that it was calibrated by
    assert "sets of classes" in run("predict", out, made / "rows.zarr", tmp_path / "s.zarr", "--sets", "0.8").stdout
    run("calibrate", made / "loo.zarr", made / "rows.zarr", out, "--threshold", "0.3", "--overwrite")
    assert np.mean(load_model(out).predict(X) == "well") == pytest.approx(0.3, abs=0.01)


def test_a_model_without_left_out_rows_has_sets_once_it_is_calibrated(folder, tmp_path):
    made, _, _ = folder
    few = ("predict", made / "plain.zarr", made / "rows.zarr", "-", "--sets", "0.9")
    assert "calibrate" in run(*few, status=2).stderr
    assert "calibrated" in run("calibrate", made / "plain.zarr", made / "rows.zarr", tmp_path / "m.zarr").stdout
    lines = run("predict", tmp_path / "m.zarr", *few[2:]).stdout.splitlines()
    assert set(",".join(lines[1:]).split(",")) == {"ill", "well", "0", "1"}


def test_further_scores(folder):
    made, X, y = folder
    names = "roc_auc,neg_log_loss,matthews_corrcoef"
    found = run_json("evaluate", made / "loo.zarr", made / "rows.zarr", "--scoring", names)["scores"]
    model = load_model(made / "loo.zarr")
    assert found["roc_auc"] == pytest.approx(roc_auc_score(y == "well", model.decision_function(X)))
    assert found["neg_log_loss"] == pytest.approx(-log_loss(y, model.predict_proba(X)), rel=1e-5)
    assert found["matthews_corrcoef"] == pytest.approx(get_scorer("matthews_corrcoef")(model, X, y))
    done = run("evaluate", made / "plain.zarr", made / "rows.zarr", "--scoring", "neg_log_loss", status=2)
    assert "--loo" in done.stderr
    odd = ("evaluate", made / "loo.zarr", made / "rows.zarr", "--scoring", "nonsense")
    assert "nonsense" in run(*odd, status=2).stderr


def test_results_print_as_the_shell_shows_them(folder):
    made, _, _ = folder
    shown = run("evaluate", made / "loo.zarr", made / "rows.zarr").stdout.splitlines()
    printed = str(dask_odm.evaluate(load_model(made / "loo.zarr"), made / "rows.zarr")).splitlines()
    assert [*printed, ""] == [line if line[:7] != "seconds" else "" for line in shown]
    assert sum("sets for 90%" in line for line in printed) == 1


def test_what_cannot_be_calibrated(folder, tmp_path):
    made, X, y = folder
    SaddleSVC(alpha=1.0).fit(X, y).save(tmp_path / "s.zarr")
    out = tmp_path / "m.zarr"
    assert "SaddleSVC has no sets" in run("calibrate", tmp_path / "s.zarr", made / "rows.zarr", out, status=2).stderr
    both = ("predict", made / "loo.zarr", made / "rows.zarr", "-", "--sets", "0.9", "--proba")
    assert "exclude each other" in run(*both, status=2).stderr
    taken = run("calibrate", made / "loo.zarr", made / "rows.zarr", made / "plain.zarr", status=2).stderr
    assert "exists" in taken
    assert not out.exists()
