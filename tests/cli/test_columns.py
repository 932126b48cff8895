"""Tables with words, gaps and dates from the shell: ingest tells how columns are read, and models read files so."""

from pathlib import Path

import pytest

from cli.running import run, run_json
from dask_odm import Store, load_model
from dask_odm.data.readers.survey import MAX_LEVELS
from small_tables import made_table

TABLE = made_table()
TOLD = {
    "age": ("number", "20 to 69", 9),
    "job": ("words", "nurse, smith, cook", 8),
    "when": ("date", "2024-01-05 to 2024-10-21", 0),
    "smoker": ("yes or no", "", 0),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """``train.csv``, its store and a model of it."""
    made = tmp_path_factory.mktemp("columns")
    TABLE.to_csv(made / "train.csv", index=False)
    run("ingest", made / "train.csv", made / "train.zarr", "--label", "kind")
    run("fit", made / "train.zarr", made / "model.zarr", "--kernel", "linear")
    return made


def test_how_columns_are_read_is_told(folder, tmp_path):
    done = run("ingest", folder / "train.csv", tmp_path / "a.zarr", "--label", "kind", "--test-size", 0.3)
    assert done.stdout.count("column  read as    levels or range") == 1
    for path in ("train.zarr", "model.zarr"):
        assert "\njob     words      nurse, smith, cook        8\n" in run("info", folder / path).stdout
        facts = run_json("info", folder / path)
        assert {each["name"]: (each["read_as"], each["values"], each["gaps"]) for each in facts["columns"]} == TOLD
        assert facts["features"] == 12


def test_what_is_guessed_may_be_overruled(folder, tmp_path):
    options = ("--category", "smoker", "--number", "age", "--max-levels", 2)
    facts = run_json("ingest", folder / "train.csv", tmp_path / "a.zarr", "--label", "kind", *options)
    names = Store.open(tmp_path / "a.zarr").feature_names
    assert {"smoker=True", "smoker=False", "job (other)"} <= set(names)
    assert facts["store"]["columns"][3]["read_as"] == "words"


def test_columns_that_tell_rows_apart_are_left_out_or_refused(tmp_path):
    TABLE.assign(name=[f"n{i}" for i in range(len(TABLE))]).to_csv(tmp_path / "a.csv", index=False)
    asked = ("ingest", tmp_path / "a.csv", tmp_path / "a.zarr", "--label", "kind")
    line = run(*asked, "--ids", "error", status=2).stderr
    assert line.endswith(
        "column 'name' holds another value in nearly every row; leave it out by --drop, or take it for words by "
        "--category.\n"
    )
    assert "column 'name' holds another value in nearly every row; left out.\n" in run(*asked).stderr


def test_names_and_levels_that_a_terminal_would_obey_are_spelled(tmp_path):
    bad = "\x1b[31mred"
    TABLE.assign(job=TABLE["job"].replace("cook", bad)).rename(columns={"smoker": bad}).to_csv(tmp_path / "a.csv")
    done = run("ingest", tmp_path / "a.csv", tmp_path / "a.zarr", "--label", "kind", "--drop", "0")
    assert "\x1b" not in done.output
    assert done.stdout.count("\\x1b[31mred") >= 2


def test_labels_are_the_column_that_is_none_of_the_model(folder, tmp_path):
    model, test = load_model(folder / "model.zarr"), made_table(40, seed=2)
    test.rename(columns={"kind": "answer"}).to_csv(tmp_path / "test.csv", index=False)
    found = run_json("evaluate", folder / "model.zarr", tmp_path / "test.csv")
    assert found["accuracy"] == model.score(test.drop(columns="kind"), test["kind"])
    run("calibrate", folder / "model.zarr", tmp_path / "test.csv", tmp_path / "calibrated.zarr")
    assert load_model(tmp_path / "calibrated.zarr").column_recipe_ == model.column_recipe_


@pytest.mark.parametrize("like", ["train.zarr", "model.zarr"])
def test_other_files_are_read_like_a_store_or_a_model(folder, tmp_path, like):
    test = made_table(40, seed=2)
    test.loc[0, "job"] = "astronaut"
    text = test.iloc[:, ::-1].assign(extra="x").to_csv(index=False)
    done = run("ingest", "-", tmp_path / "a.zarr", "--like", folder / like, "--label", "kind", text=text)
    what = "store" if like == "train.zarr" else "model"
    assert f"column 'extra' is left out: the {what} knows no such feature." in done.stderr
    store, model = Store.open(tmp_path / "a.zarr"), load_model(folder / "model.zarr")
    assert store.column_recipe == model.column_recipe_
    assert (model.predict(store).compute() == model.predict(test.drop(columns="kind"))).all()
    assert store.classes == ("no", "yes")


def test_only_files_are_read_like_what_has_a_recipe(folder, tmp_path):
    TABLE[["age", "kind"]].dropna().to_csv(tmp_path / "plain.csv", index=False)
    run("ingest", tmp_path / "plain.csv", tmp_path / "plain.zarr", "--label", "kind")
    asked = ("ingest", tmp_path / "plain.csv", tmp_path / "a.zarr", "--like")
    assert "has no recipe, as its rows are numbers" in run(*asked, tmp_path / "plain.zarr", status=2).stderr
    asked = ("ingest", folder / "train.zarr", tmp_path / "a.zarr", "--like", folder / "train.zarr")
    assert "--like is for files." in run(*asked, status=2).stderr


def test_the_help_names_the_default_of_levels():
    assert f"[default: {MAX_LEVELS}]" in run("ingest", "--help").stdout.replace("\n", " ")
