"""What ``predict`` and ``evaluate`` read besides stores, where they write, and in whose words they complain."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

from cli.running import run, run_json
from dask_odm.cli.shell import shell_words
from dask_odm.estimators.odm_classifier import ODMClassifier


@pytest.fixture(scope="module")
def rows(tmp_path_factory, make_rings):
    """A folder with a model, and the same forty rows in every form; the labels that the model gives them."""
    pandas = pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("rows")
    X, y = make_rings(n=40)
    X, kind = X.astype(np.float32), np.where(y > 0, "inside", "outside")
    frame = pandas.DataFrame({"first": X[:, 0], "second": X[:, 1]})
    model = ODMClassifier(scale="minmax").fit(frame, kind)
    model.save(folder / "model.zarr")
    labelled = frame.assign(kind=kind)[["first", "kind", "second"]]
    frame.to_csv(folder / "bare.csv", index=False)
    labelled.to_csv(folder / "labelled.csv", index=False)
    labelled.to_parquet(folder / "labelled.parquet")
    labelled.set_index(np.arange(40)[::-1]).to_parquet(folder / "shuffled.parquet")
    labelled.to_parquet(folder / "by_kind", partition_cols=["kind"])
    for i in range(8):  # in the order of the rows
        labelled.assign(part=i).iloc[5 * i : 5 * i + 5].to_parquet(folder / "folders", partition_cols=["part"])
    np.save(folder / "bare.npy", X)
    np.savez(folder / "labelled.npz", X=X, y=kind)
    lines = [f"{a!r} 1:{b!r} 2:{c!r}" for a, (b, c) in zip(y.astype(int).tolist(), X.tolist(), strict=True)]
    (folder / "signed.svm").write_text("\n".join(lines))
    (folder / "unlabelled.svm").write_text("\n".join(line.partition(" ")[2] for line in lines))
    run("ingest", folder / "labelled.csv", folder / "rows.zarr", "--label", "kind")
    return folder, ["label", *model.predict(frame).tolist()]


NAMELESS = pytest.mark.filterwarnings("default:X does not have valid feature names")  # as outside of tests
TABLES = ("labelled.csv", "labelled.parquet", "shuffled.parquet")
NAMES = ("bare.csv", *TABLES, "folders", "bare.npy", "labelled.npz", "signed.svm", "unlabelled.svm", "rows.zarr")


@NAMELESS
@pytest.mark.parametrize("name", NAMES)
def test_predictions_are_those_of_the_rows_whatever_holds_them(rows, name):
    folder, labels = rows
    done = run("predict", folder / "model.zarr", folder / name, "-")
    assert done.stdout.split() == labels
    assert done.stderr.count("X does not have valid feature names") == name.endswith((".npy", ".npz", ".svm"))


@NAMELESS
def test_standard_input_to_standard_output(rows):
    folder, labels = rows
    for name in ("bare.csv", "labelled.csv", "signed.svm"):
        done = run("predict", folder / "model.zarr", "-", "-", text=(folder / name).read_text())
        said = {
            "labelled.csv": "standard input: column 'kind' is left out: the model knows no such feature.",
            "signed.svm": "X does not have valid feature names, but ODMClassifier was fitted with feature names",
        }
        assert done.stdout.split() == labels
        assert done.stderr == (f"dask-odm: {said[name]}\n" if name in said else "")


@NAMELESS
@pytest.mark.parametrize("name", [*TABLES, "labelled.npz", "by_kind", "rows.zarr", "-"])
def test_evaluation_of_files(rows, name):
    folder, labels = rows
    text = (folder / "labelled.csv").read_text() if name == "-" else None
    source = name if name == "-" else folder / name
    done = run("evaluate", folder / "model.zarr", source, "--scoring", "accuracy", "--json", text=text)
    assert done.stderr.count("X does not have valid feature names") == (name == "labelled.npz"), "said once"
    found = json.loads(done.stdout)
    true = [line.split(",")[1] for line in (folder / "labelled.csv").read_text().split()[1:]]
    assert found["accuracy"] == np.mean(np.array(true) == labels[1:])
    assert found["classes"] == ["inside", "outside"]


def test_what_does_not_go_together(rows):
    folder, _ = rows
    model, csv = folder / "model.zarr", folder / "labelled.csv"
    assert "both write to stdout" in run("predict", model, csv, "-", "--json", status=2).stderr
    assert "are for files" in run("predict", model, folder / "rows.zarr", "-", "--label", "kind", status=2).stderr
    assert "exclude each other" in run("evaluate", model, csv, "--label", "a", "--no-label", status=2).stderr
    assert "has no labels" in run("evaluate", model, folder / "bare.csv", status=2).stderr


def test_errors_name_the_file_and_what_it_lacks(rows, tmp_path):
    folder, _ = rows
    model, bare = folder / "model.zarr", folder / "bare.csv"
    frame = pytest.importorskip("pandas").read_csv(bare)
    short, missing, labels = (tmp_path / name for name in ("short.csv", "missing.csv", "labels.csv"))
    frame.iloc[:, 1:].to_csv(short, index=False)
    line = run("predict", model, short, "-", "--no-label", status=2).stderr
    assert line == f"dask-odm: {short} has no column '{frame.columns[0]}', of which the model learned.\n"
    frame.rename(columns=str.upper).to_csv(short, index=False)
    missed = ", ".join(f"'{name}'" for name in frame.columns)
    assert f"has no columns {missed}, of which the model learned" in run("predict", model, short, "-", status=2).stderr
    frame.iloc[0, 0] = np.nan
    frame.to_csv(missing, index=False)
    assert run("predict", model, missing, "-", status=2).stderr.endswith("fill them in, or leave those rows out.\n")
    assert run("evaluate", model, bare, status=2).stderr == f"dask-odm: '{bare}' has no labels to compare with.\n"
    for given in (("predict", model, bare, "-", "--drop"), ("evaluate", model, folder / "labelled.csv", "--label")):
        assert "column 'first' is a feature of the model: --label" in run(*given, "first", status=2).stderr
    frame.iloc[0, 0] = 1e39
    frame.to_csv(missing, index=False)
    assert run("predict", model, missing, "-", status=2).stderr.endswith("float32; set --dtype float64.\n")
    frame.assign(word="x").to_csv(missing, index=False, header=False)  # and there is no label to choose
    line = run("predict", model, missing, "-", status=2).stderr
    assert "column 2 ('x' in line 1) holds no numbers; sparse rows, and those of a model of numbers" in line
    assert ": leave other columns out, of files by --drop" in line
    assert "--label" not in line
    line = run("predict", model, labels, "-", status=2).stderr
    assert line == f"dask-odm: '{labels}' does not exist; check the path.\n"


@pytest.mark.parametrize("end", ["csv", "parquet", "jsonl"])
def test_columns_in_another_order_are_picked_by_name(rows, tmp_path, end):
    folder, labels = rows
    model, frame = folder / "model.zarr", pd.read_csv(folder / "labelled.csv").iloc[:, ::-1]
    path = tmp_path / f"a.{end}"
    write = {
        "csv": frame.to_csv,
        "parquet": frame.to_parquet,
        "jsonl": partial(frame.to_json, orient="records", lines=True),
    }
    write[end](path, **({"index": False} if end != "jsonl" else {}))
    assert run("predict", model, path, "-").stdout.split() == labels
    expected = run("evaluate", model, folder / "labelled.csv", "--json").stdout
    assert run_json("evaluate", model, path)["confusion"] == json.loads(expected)["confusion"]


def test_columns_that_are_no_features_are_told(rows, tmp_path):
    folder, labels = rows
    model, frame = folder / "model.zarr", pytest.importorskip("pandas").read_csv(folder / "labelled.csv")
    ids, both = frame.drop(columns="kind").assign(id=[f"r{i}" for i in range(40)]), frame.assign(id=range(40))
    for name, written in (("named", frame.rename(columns={"kind": "Label"})), ("ids", ids), ("both", both)):
        written.to_csv(tmp_path / f"{name}.csv", index=False)
    both.to_parquet(tmp_path / "both.parquet")
    assert run("evaluate", model, tmp_path / "named.csv").stderr == ""
    done = run("evaluate", model, tmp_path / "ids.csv", status=2)
    assert "column 'id' is taken for the labels: the model knows no such feature; --label names an" in done.stderr
    for name in ("ids.csv", "both.csv", "both.parquet"):
        done = run("predict", model, tmp_path / name, "-")
        assert done.stdout.split() == labels
        assert "left out: the model knows no such feature.\n" in done.stderr
    line = run("evaluate", model, tmp_path / "both.csv", status=2).stderr
    assert line.endswith("no features of the model: 'kind', 'id'; name that of the labels by --label.\n")
    done = run("evaluate", model, tmp_path / "both.csv", "--label", "kind", "--json")
    assert json.loads(done.stdout)["accuracy"] == np.mean(frame["kind"] == labels[1:])
    assert "column 'id' is left out" in done.stderr


def test_probabilities_of_files(rows, tmp_path):
    folder, _ = rows
    frame = pytest.importorskip("pandas").read_csv(folder / "labelled.csv")
    model = ODMClassifier(scale="minmax", loo=True).fit(frame.drop(columns="kind"), frame["kind"])
    model.save(tmp_path / "m.zarr")
    title, *lines = run("predict", tmp_path / "m.zarr", folder / "bare.csv", "-", "--proba").stdout.splitlines()
    assert title == "probability inside,probability outside"
    said = np.array([line.split(",") for line in lines], dtype=np.float64)
    np.testing.assert_allclose(said, model.predict_proba(frame.drop(columns="kind")), rtol=1e-5)
    done = run("predict", tmp_path / "m.zarr", folder / "bare.csv", tmp_path / "p.zarr", "--proba").stdout
    assert "40 rows of probabilities" in done
    line = run("predict", folder / "model.zarr", folder / "bare.csv", "-", "--proba", status=2).stderr
    assert line.endswith("which this ODMClassifier is fitted without; fit it with --loo.\n")
    both = ("--proba", "--decision-function")
    assert "exclude each other" in run("predict", tmp_path / "m.zarr", folder / "bare.csv", "-", *both, status=2).stderr


def test_errors_speak_to_a_shell(rows, tmp_path):
    folder, _ = rows
    store, model = folder / "rows.zarr", tmp_path / "m.zarr"
    assert run("fit", store, model, "--resume", status=2).stderr == (
        "dask-odm: --resume needs the path of a checkpoint; pass --checkpoint.\n"
    )
    assert "make one with 'dask-odm ingest'" in run("fit", folder / "bare.csv", model, status=2).stderr
    own = tmp_path / "own.csv"
    own.write_bytes((folder / "bare.csv").read_bytes())
    said = run("predict", folder / "model.zarr", own, own, "--overwrite", status=2).stderr
    assert "is SRC, whose rows it would replace" in said
    assert own.read_bytes() == (folder / "bare.csv").read_bytes()
    line = run("fit", store, model, "--kernel", "linear", "--solver", "exact", status=2).stderr
    assert "--solver exact is for kernels other than 'linear', which --solver newton learns" in line


@pytest.mark.parametrize(("text", "said"), [
    ("exists; pass overwrite=True (--overwrite) to", "exists; pass --overwrite to"),
    ("classes with target='classes' (--target classes).", "classes with --target classes."),
    ("has no decision function (--decision-function)", "has no decision function (--decision-function)"),
    ("give n_features=7 (--n-features 7) or", "give --n-features 7 or"),
    ("scale='minmax', or scale=None; gamma=0.5.", "--scale minmax, or --scale none; gamma=0.5."),
    ("'a=b'", "'a=b'"),
    ("by pandas.get_dummies(f(x), scale=1), or scale=2", "by pandas.get_dummies(f(x), scale=1), or --scale 2"),
    ("as by frame.drop(scale=['x']).", "as by frame.drop(scale=['x'])."),
    ("among {'balanced'}, an instance of 'dict' or None.", "among {'balanced'}, LABEL=NUMBER or None."),
])  # fmt: skip
def test_words(text, said):
    assert shell_words(text, {"scale"}) == said


def test_an_option_of_others_is_told_by_what_takes_its_place(rows, tmp_path):
    for command, option, instead in (
        ("fit", "--C", "lam is the weight"),
        ("fit", "--c", "lam is the weight"),
        ("fit", "--probability", "--loo makes a model"),
        ("search", "--probability", "--loo makes a model"),
    ):
        line = run(command, rows[0] / "rows.zarr", tmp_path / "m.zarr", option, 1, status=2).stderr
        assert f"No option {option}: {instead}" in " ".join(line.split())


def test_what_is_logged_as_a_warning_speaks_to_a_shell_too(rows, tmp_path):
    done = run("fit", rows[0] / "rows.zarr", tmp_path / "m.zarr", "--solver", "sodm", "--stop-at", 4)
    assert done.stderr == (
        "dask-odm: --stop-at 4 changes nothing: 40 rows make one partition, and no tree. Give --solver sodm "
        "--n-partitions …, or leave --stop-at 4 out.\n"
    )
