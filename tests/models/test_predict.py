"""Prediction as tasks: chunks of stores by a model or by its file, labels of scores."""

import numpy as np
import pytest

from dask_odm import ODMClassifier, StoreError
from dask_odm.data.store.records import read_record, write_record
from dask_odm.diagnostics.evaluation import blocks, evaluate
from dask_odm.estimators import prediction
from dask_odm.models.predict import ModelFile, chunk_runs, label_block, values_of_chunks
from models.made import make, rows
from small_stores import store_of


def test_a_chunk_of_a_store(tmp_path):
    X = rows(100)
    store = store_of(tmp_path / "a.zarr", X, None, chunk_rows=30)
    for outputs in (1, 2):
        model, path = make(outputs=outputs), tmp_path / f"{outputs}.zarr"
        write_record(path, "model", model.arrays(), {"model": model.description()})
        for each in (model, ModelFile.of(read_record(path, "model"))):
            found = np.concatenate([values_of_chunks(each, store, run) for run in (range(1), range(1, 4))])
            np.testing.assert_allclose(found, model.values(X).squeeze(), atol=1e-12)


@pytest.mark.parametrize("gone", ["store", "model"])
def test_what_a_prediction_lacks_is_named(tmp_path, gone):
    """As on a worker that does not see the folder of the one who asks."""
    store, model = store_of(tmp_path / "store", rows(100), None, chunk_rows=30), make()
    write_record(tmp_path / "model", "model", model.arrays(), {"model": model.description()})
    file = ModelFile.of(read_record(tmp_path / "model", "model"))
    (tmp_path / gone).rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=rf"{gone} '.*{gone}' is not there for the process that predicts, on host"):
        values_of_chunks(file, store, range(1, 2))


def test_many_chunks_are_a_few_tasks(tmp_path, monkeypatch, client):
    """Predictions, their evaluation and the score are those of a task for every chunk."""
    X = rows(100)
    store = store_of(tmp_path / "a.zarr", X, np.arange(100) % 2, chunk_rows=9)
    model = ODMClassifier("linear", lam=1.0).fit(X, np.arange(100) % 2)
    assert [list(run) for run in chunk_runs(store, 1, 2, 256)] == [[i] for i in range(12)]
    each = model.predict(store.path).compute(), evaluate(model, store).accuracy, model.score(store.path)
    monkeypatch.setattr(prediction, "FEW_TASKS", 5)
    lazy = model.predict(store.path)
    assert lazy.chunks == ((18, 18, 18, 18, 18, 10),)
    np.testing.assert_array_equal(lazy.compute(), each[0])
    np.testing.assert_array_equal(each[0], model.predict(X))
    assert (evaluate(model, store).accuracy, model.score(store.path)) == each[1:]
    assert [len(block) for block in blocks(store, lazy, "p")] == [9] * 11 + [1]


def test_labels_of_scores():
    classes = np.array(["no", "yes"])
    assert label_block(np.array([-1.0, 0.0, 1e-300]), classes).tolist() == ["no", "no", "yes"]
    assert label_block(np.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), np.array([5, 6, 7])).tolist() == [6, 5]
