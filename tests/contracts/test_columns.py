"""Tables with words, gaps and dates: the same recipe, rows and predictions, whichever way they come."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_tables import TABLES

from cli.running import run
from dask_odm import ODMClassifier, Store, ingest, load_model
from data.doors import through

LEARNED, NEW = 200, 60  # rows


DOORS = ("frame", "csv", "parquet", "dask", "polars")


def rows_of(store: Store) -> np.ndarray:
    return np.concatenate([block.X for block in store.blocks()])


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> Callable[[str], tuple[Any, np.ndarray, Store]]:
    """``learned(name)``: of a table's frame, the model, its decision values of new rows, and the store of its rows."""
    kept: dict[str, Any] = {}

    def fit(name: str) -> Any:
        if name not in kept:
            model = ODMClassifier(random_state=0).fit(TABLES[name](LEARNED), "label")
            values = model.decision_function(TABLES[name](NEW, seed=1).drop(columns="label"))
            folder = tmp_path_factory.mktemp(name)
            kept[name] = model, values, ingest(TABLES[name](LEARNED), folder / "a.zarr", label="label")
        return kept[name]

    return fit


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("door", DOORS)
def test_each_door_gives_the_same_recipe_rows_and_predictions(learned, door, name, tmp_path):
    model, values, expected = learned(name)
    source = through(door, TABLES[name](LEARNED), tmp_path)
    found = ingest(source, tmp_path / "a.zarr", label="label", block_bytes=4000)
    assert found.column_recipe == expected.column_recipe == model.column_recipe_
    np.testing.assert_array_equal(rows_of(found), rows_of(expected), strict=True)
    new = through(door, TABLES[name](NEW, seed=1).drop(columns="label"), tmp_path)
    if isinstance(new, Path):
        labelled = through(door, TABLES[name](NEW, seed=1), tmp_path)
        new = ingest(labelled, tmp_path / "b.zarr", label="label", columns=found.column_recipe)
    if door == "dask":  # sums over hundreds of features have the digits of their block
        blocks = [new.get_partition(i).compute() for i in range(new.npartitions)]
        values = np.concatenate([model.decision_function(block) for block in blocks])
    np.testing.assert_array_equal(np.asarray(model.decision_function(new)), values)


@pytest.mark.parametrize("name", TABLES)
def test_the_shell_predicts_the_same(learned, name, tmp_path):
    _, values, _ = learned(name)
    rows = through("csv", TABLES[name](LEARNED), tmp_path)
    run("ingest", rows, tmp_path / "a.zarr", "--label", "label")
    run("fit", tmp_path / "a.zarr", tmp_path / "m.zarr", "--random-state", 0)
    new = TABLES[name](NEW, seed=1).drop(columns="label")
    run("predict", tmp_path / "m.zarr", through("csv", new, tmp_path), tmp_path / "out.csv")
    model = load_model(tmp_path / "m.zarr")
    np.testing.assert_array_equal(model.decision_function(new), values)
    assert pd.read_csv(tmp_path / "out.csv").iloc[:, -1].tolist() == model.predict(new).tolist()
