"""Models and checkpoints on disk: the same bits after, nothing of another fit, no damage unseen, no pickle."""

import pickle
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from dask_odm import ODMClassifier, StoreError, load_model
from dask_odm.data.store.records import read_record, write_record
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


WORDS = ["\0", "\x1b[31m", "\ud800", "other", "missing", None]
TABLE = pd.DataFrame({"😀\x1b[31m": pd.Series(WORDS * 10, dtype=object), "size": [1.0, None] * 30})


@pytest.fixture(scope="module")
def of_table(tmp_path_factory):
    model = ODMClassifier("linear").fit(TABLE, np.arange(60) % 4 > 1)
    path = tmp_path_factory.mktemp("table") / "m.zarr"
    model.save(path)
    return model, path


def test_a_model_of_hostile_words_comes_back(of_table):
    model, path = of_table
    expected = model.decision_function(TABLE)
    assert load_model(path).column_recipe_ == model.column_recipe_
    copies = load_model(path), pickle.loads(pickle.dumps(model)), clone(model).fit(TABLE, np.arange(60) % 4 > 1)
    for copy in copies:
        np.testing.assert_array_equal(copy.decision_function(TABLE), expected)


LIES = {
    "a column less": lambda columns: columns.pop(),
    "a level that is a number": lambda columns: columns[0]["levels"].append(3),
    "two of a name": lambda columns: columns[0].update(name="size"),
    "a fact too many": lambda columns: columns[0].update(size=1),
}


@pytest.mark.parametrize("which", LIES)
def test_a_recipe_of_columns_that_lies_is_refused(of_table, tmp_path, which):
    record = read_record(of_table[1], "model")
    told = deepcopy(record.attributes)
    LIES[which](told["schema"]["columns"]["columns"])
    write_record(tmp_path / "m.zarr", "model", {name: record.array(name) for name in record.arrays}, told)
    with pytest.raises(StoreError, match="is not what a model is") as error:
        load_model(tmp_path / "m.zarr")
    assert "\n" not in str(error.value)
