"""The command line: the README's commands from a file to predictions, one object with --json, one line on errors."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import dask_odm
from cli.running import refused, run, run_json
from dask_odm import InputError, ODMClassifier, Store
from dask_odm.cli import main
from dask_odm.cli.shell import load_libraries
from dask_odm.data.store.records import read_record
from dask_odm.data.store.writer import StoreWriter
from dask_odm.events import IterationFinished, LevelFinished

COMMANDS = (
    "ingest", "info", "verify", "fit", "search", "update", "predict", "evaluate", "calibrate", "curve", "importance",
    "report", "plan", "cluster", "retire", "warmup", "demo",
)  # fmt: skip
DASK_ODM = (sys.executable, "-c", "from dask_odm.cli import main; main()")
PARTS = ("--solver", "sodm", "--n-partitions")


@pytest.fixture(scope="module")
def source(tmp_path_factory, make_rings) -> Path:
    """A CSV file with a header and labels that are words."""
    path = tmp_path_factory.mktemp("source") / "rings.csv"
    X, y = make_rings(n=400)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["first", "kind", "second"])
        writer.writerows([a, "inside" if label > 0 else "outside", b] for (a, b), label in zip(X, y, strict=True))
    return path


@pytest.fixture(scope="module")
def made(source) -> Path:
    """The folder of ``train.zarr``, ``train-test.zarr`` and ``model.zarr``."""
    folder = source.parent
    run("ingest", source, folder / "train.zarr", "--label", "kind", "--test-size", 0.25, "--seed", 3)
    run("fit", folder / "train.zarr", folder / "model.zarr", "--scale", "minmax", "--random-state", 0)
    return folder


# Commands ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_fit_learns_a_metric_that_predict_applies(made, tmp_path, metric):
    run("fit", made / "train.zarr", tmp_path / "m.zarr", "--metric", metric, "--gamma", 0.5, "--random-state", 0)
    assert dask_odm.load_model(tmp_path / "m.zarr").metric == metric
    assert run_json("evaluate", tmp_path / "m.zarr", made / "train-test.zarr")["accuracy"] > 0.8


def test_ingest_splits(source, tmp_path):
    result = run_json("ingest", source, tmp_path / "a.zarr", "--label", "kind", "--test-size", 0.25, "--seed", 3)
    assert (result["store"]["rows"], result["test_store"]["rows"]) == (300, 100)
    assert result["store"]["feature_names"] == ["first", "second"]
    assert result["test_store"]["path"] == str(tmp_path / "a-test.zarr")
    assert [each["label"] for each in result["store"]["classes"]] == ["inside", "outside"]
    assert Store.open(tmp_path / "a.zarr").class_counts == tuple(c["rows"] for c in result["store"]["classes"])
    assert "inside (" in run("ingest", source, tmp_path / "a.zarr", "--label", "kind", "--overwrite").stdout


def test_ingest_passes_every_option_on(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 2, size=(40, 4)).astype(float))
    options = ("--label", "1", "--weight", "-1", "--dtype", "float64", "--chunk-rows", 16, "--compression", "zstd")
    store = run_json("ingest", tmp_path / "x.npy", tmp_path / "a.zarr", "--format", "numpy", *options)["store"]
    assert (store["features"], store["dtype"], store["weights"], store["compression"]) == (2, "float64", True, "zstd")
    assert store["chunks"] == {"count": 3, "rows": 16, "bytes": 16 * 2 * 8}
    (tmp_path / "a.txt").write_text("1 1:0.5\n-1 2:3\n")
    (tmp_path / "b.txt").write_text("1 1:0.25\n")
    files = (tmp_path / "a.txt", tmp_path / "b.txt")
    store = run_json("ingest", *files, tmp_path / "b.zarr", "--n-features", 5, "--no-label")["store"]
    assert (store["rows"], store["features"], store["classes"]) == (3, 5, None)
    (tmp_path / "c.csv").write_text("1,2\n3,4\n")
    store = run_json("ingest", tmp_path / "c.csv", tmp_path / "c.zarr", "--header", "--label", "2")["store"]
    assert (store["rows"], store["feature_names"]) == (1, ["1"])


def test_info_and_verify(made):
    store = run_json("info", made / "train.zarr")
    assert (store["kind"], store["rows"], store["features"], store["unlabelled_rows"]) == ("store", 300, 2, 0)
    model = run_json("info", made / "model.zarr")
    assert (model["kind"], model["kernel"], model["classes"]) == ("model", "rbf", ["inside", "outside"])
    assert (model["parameters"]["lam"], model["lam"], model["scale"]) == ("auto", 600.0, "minmax")
    assert model["support_rows"] == len(dask_odm.load_model(made / "model.zarr").support_)
    assert model["solver"] == "exact: 300 rows of 2 features are few enough for their whole kernel matrix"
    assert "objective" in run("info", made / "model.zarr").stdout
    assert "inside (" in run("info", made / "train.zarr").stdout
    for name in ("train.zarr", "model.zarr"):
        found = run_json("verify", made / name)
        assert (found["sound"], found["path"]) == (True, str(made / name))
        assert found["bytes"] > 1000
        assert "sound" in run("verify", made / name).stdout


@pytest.mark.parametrize(("command", "options"), [("fit", ("--n-landmarks", 9)), ("search", ("--gammas", "0.5,1"))])
def test_the_seed_that_is_said_makes_the_fit_again(made, tmp_path, command, options):
    if command == "fit":
        options = ("--solver", "landmark", *options)
    said = run(command, made / "train.zarr", tmp_path / "a.zarr", *options).stdout
    (seed,) = re.findall(r"^seed (\d+); --random-state \1 repeats this fit$", said, re.MULTILINE)
    given = ("--random-state", seed)
    assert "repeats" not in run(command, made / "train.zarr", tmp_path / "b.zarr", *options, *given).stdout
    first, again = (run_json("info", tmp_path / name) for name in ("a.zarr", "b.zarr"))
    assert first["parameters"]["random_state"] == int(seed)
    assert first["history"][-1]["objective"] == again["history"][-1]["objective"]
    found = run_json(command, made / "train.zarr", tmp_path / "c.zarr", *options)["parameters"]["random_state"]
    assert isinstance(found, int)


def test_fit_says_which_solver_was_taken(made, tmp_path):
    result = run("fit", made / "train.zarr", tmp_path / "m.zarr", "--json")
    why = "300 rows of 2 features are few enough for their whole kernel matrix"
    assert result.stderr == f"dask-odm: --solver auto took exact: {why}\n"
    result = run("fit", made / "train.zarr", tmp_path / "m.zarr", "--json", "--solver", "exact", "--overwrite")
    assert result.stderr == ""


def test_the_gap_of_landmarks_is_unknown_without_a_certificate(made, tmp_path, monkeypatch):
    monkeypatch.setattr("dask_odm.methods.landmark.recipe.is_cheap", lambda *_: False)
    options = ("--solver", "landmark", "--n-landmarks", 10)
    assert "\ngap unknown without --certify, " in run("fit", made / "train.zarr", tmp_path / "m.zarr", *options).stdout


def test_fit_shows_the_levels(made, tmp_path):
    model = tmp_path / "m.zarr"
    lines = run("fit", made / "train.zarr", model, *PARTS, 4, "--fan-in", 2, "--stop-at", 2).stdout.splitlines()
    assert lines[0].split()[:2] == ["level", "partitions"]
    assert [line.split()[1] for line in lines[1:3]] == ["4", "2"]
    assert lines[-1].startswith("gap unknown, as the tree ended above one partition, ")
    assert run_json("info", model)["dual_gap"] is None


@pytest.mark.usefixtures("quick_workers")
def test_fit_on_workers_started_for_it(made, tmp_path):
    options = (*PARTS, 4, "--random-state", 0, "--scale", "minmax")
    run("fit", made / "train.zarr", tmp_path / "here.zarr", *options)
    workers = ("--workers", 1, "--threads", 2, "--worker-memory", "2GB")
    result = run_json("fit", made / "train.zarr", tmp_path / "there.zarr", *options, *workers)
    assert [level["partitions"] for level in result["history"]] == [4, 1]
    here, there = (dask_odm.load_model(tmp_path / f"{name}.zarr") for name in ("here", "there"))
    np.testing.assert_array_equal(here.dual_coef_, there.dual_coef_)


def test_fit_on_a_scheduler(made, tmp_path, start_workers):
    with start_workers(1) as client:
        options = (*PARTS, 4, "--scheduler", client.scheduler.address)
        run("fit", made / "train.zarr", tmp_path / "m.zarr", *options)
    assert len(run_json("info", tmp_path / "m.zarr")["history"]) == 2


def test_checkpoint_and_resume(made, tmp_path, caplog):
    options = (*PARTS, 4, "--random-state", 0, "--checkpoint", tmp_path / "c.zarr")
    run("fit", made / "train.zarr", tmp_path / "a.zarr", *options)
    held = f"checkpoint '{tmp_path / 'c.zarr'}' holds 2 steps of "
    line = refused("fit", made / "train.zarr", tmp_path / "b.zarr", *options)
    assert held + "a fit; pass --resume to go on from there, or --no-resume to begin anew" in line
    with caplog.at_level("INFO", logger="dask_odm"):
        run("fit", made / "train.zarr", tmp_path / "b.zarr", *options, "--resume")
        assert "c.zarr', after 2 steps" in caplog.text
        said = run("fit", made / "train.zarr", tmp_path / "anew.zarr", *options, "--no-resume").stderr
    assert said.startswith(f"dask-odm: {held}this fit, which begins anew and replaces them; pass --resume to go on ")
    found = run_json("info", tmp_path / "c.zarr")
    assert [found[name] for name in ("kind", "steps")] == ["checkpoint", 2]
    assert "partitions" in run("info", tmp_path / "c.zarr").stdout
    assert "(fit with --resume reads it)" in refused("fit", tmp_path / "c.zarr", tmp_path / "d.zarr")
    a, b = (read_record(tmp_path / f"{name}.zarr", "model").array("coefficients") for name in "ab")
    np.testing.assert_array_equal(a, b)
    line = refused("fit", made / "train.zarr", tmp_path / "d.zarr", *options, "--resume", "--lam", 7)
    assert "c.zarr' is of another fit" in line


# What cannot work -------------------------------------------------------------------------------------------


def test_other_errors_of_the_system_are_one_line(made, monkeypatch):
    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied", "secret.csv")

    monkeypatch.setattr(dask_odm, "ingest", denied)
    assert refused("ingest", "secret.csv", "x.zarr") == "dask-odm: secret.csv: Permission denied"


@pytest.mark.parametrize("arguments", [
    ("fit", "a", "b", "--threads", 2),
    ("fit", "a", "b", "--scheduler", "tcp://a:1", "--workers", 2),
    ("fit", "a", "b", "--workers", 0), ("fit", "a", "b", "--theta", "x"),
    ("ingest", "a", "b", "--label", "x", "--no-label"),
    ("ingest", "a"), ("nonsense",),
])  # fmt: skip
def test_wrong_usage(arguments):
    assert refused(*arguments)


@pytest.mark.parametrize(("arguments", "said"), [
    (("score", "m.zarr", "a.csv"), "No such command 'score'. Did you mean 'evaluate'? Usage: "),
    (("train", "a.zarr"), "Did you mean 'fit'?"),
    (("test",), "Did you mean 'evaluate'?"),
    (("convert",), "Did you mean 'ingest'?"),
    (("import",), "Did you mean 'ingest'?"),
    (("ingest", "a.csv"), "Missing argument 'STORE', the folder to write."),
    (("fit", "a", "b", "--label", "y"), "No option --label: it is one of 'dask-odm ingest', which writes the ST"),
    (("fit", "a", "b", "--seed", 1), "No option --seed: --random-state is the seed."),
])  # fmt: skip
def test_wrong_usage_is_led_on(arguments, said):
    assert said in refused(*arguments)


def test_labels_of_cubes_are_for_cubes(source, made, tmp_path):
    for where in (source, made / "train.zarr"):
        assert f"'{where}' is not a cube" in refused("fit", where, tmp_path / "m.zarr", "--labels", "kind")
    assert "which --labels is for" in refused("ingest", source, tmp_path / "a.zarr", "--labels", "kind")


def test_a_warning_is_one_line_on_stderr(made, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        options = ("--max-iter", 1, *PARTS, 2, "--lam", 1e8)
        result = run("fit", made / "train.zarr", tmp_path / "m.zarr", *options, "--json")
    json.loads(result.stdout)
    assert all(line.startswith("dask-odm: ") for line in result.stderr.splitlines())


def test_a_warning_is_shown_once(monkeypatch):
    """A model may be asked several times by one command."""

    def warn(*_, **__):
        for _ in range(2):
            warnings.warn("said twice", stacklevel=1)
        raise InputError("the end")

    monkeypatch.setattr(dask_odm, "ingest", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        stderr = run("ingest", "a.csv", "a.zarr", status=2).stderr
    assert stderr.splitlines() == ["dask-odm: said twice", "dask-odm: the end"]


@pytest.mark.parametrize("left", [True, False])
def test_an_interrupted_fit_says_how_to_go_on(monkeypatch, made, tmp_path, left):
    def interrupt(self, path):
        if left:
            (tmp_path / "c.zarr").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(ODMClassifier, "fit", interrupt)
    result = run("fit", made / "train.zarr", tmp_path / "m.zarr", "--checkpoint", tmp_path / "c.zarr", status=130)
    said = "dask-odm: interrupted; run again with --resume to go on\n" if left else "dask-odm: interrupted\n"
    assert (result.stdout, result.stderr) == ("", said)


def test_a_terminal_is_told_of_the_seconds_that_imports_take(monkeypatch):
    for is_terminal, told in ((True, "loading …\r\033[K"), (False, "")):
        stream = StringIO()
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            load_libraries()
        assert stream.getvalue() == told


# Help -------------------------------------------------------------------------------------------------------


def test_every_command_has_help():
    assert set(main.commands) == set(COMMANDS)
    for command in COMMANDS:
        text = run(command, "--help").stdout
        assert "--json" in text
        assert text.startswith("Usage: ")
    assert run("--version").stdout.strip().endswith(dask_odm.__version__)


def test_more_rows_are_learned_from_the_model_of_the_first(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 3))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    target = X @ [1.0, 2.0, 3.0]
    for name, labels, rows in (("some", y, 700), ("all", y, 800), ("first", target, 512), ("whole", target, 800)):
        dask_odm.ingest((X[:rows], labels[:rows]), tmp_path / f"{name}.zarr", chunk_rows=256)
    dask_odm.ingest((X[512:], target[512:]), tmp_path / "later.zarr", chunk_rows=256)

    options = ("--solver", "landmark", "--n-landmarks", 50, "--gamma", 0.5, "--random-state", 0)
    run("fit", tmp_path / "some.zarr", tmp_path / "a.zarr", *options)
    run("fit", tmp_path / "all.zarr", tmp_path / "b.zarr", "--start", tmp_path / "a.zarr", *options)
    first, second = (dask_odm.load_model(tmp_path / f"{name}.zarr") for name in "ab")
    assert len(np.intersect1d(second.support_, first.support_)) > 30, "landmarks stay, but for those of later rows"
    assert second.score(X, y) > 0.95

    for name in ("first", "whole"):
        run("fit", tmp_path / f"{name}.zarr", tmp_path / f"{name}-model.zarr", "--estimator", "mdd-ridge")
    run("update", tmp_path / "first-model.zarr", tmp_path / "later.zarr", tmp_path / "updated.zarr")
    updated, whole = (dask_odm.load_model(tmp_path / f"{name}.zarr") for name in ("updated", "whole-model"))
    np.testing.assert_array_equal(updated.coef_, whole.coef_)

    refused = run("fit", tmp_path / "all.zarr", tmp_path / "c.zarr", "--start", tmp_path / "updated.zarr", status=2)
    assert "is of MDDRidge, and ODMClassifier does not start from it" in refused.stderr
    refused = run("update", tmp_path / "a.zarr", tmp_path / "all.zarr", tmp_path / "c.zarr", status=2)
    assert "is of ODMClassifier, which learns more rows by fit --start" in refused.stderr


def test_groups_are_left_out_and_a_curve_is_told(tmp_path):
    rng = np.random.default_rng(0)
    field = np.repeat(np.arange(40), 8)
    centres = rng.normal(size=(40, 2))
    X, y = centres[field] + 0.01 * rng.normal(size=(320, 2)), rng.integers(0, 2, 40)[field]
    store = tmp_path / "rows.zarr"
    dask_odm.ingest((X, y), store)
    np.save(tmp_path / "groups.npy", field)
    options = ("--loo", "--gamma", 5, "--lam", 100, "--random-state", 0, "--solver", "exact")
    run("fit", store, tmp_path / "a.zarr", *options)
    run("fit", store, tmp_path / "b.zarr", *options, "--groups", tmp_path / "groups.npy")
    rows, fields = (dask_odm.load_model(tmp_path / f"{name}.zarr") for name in "ab")
    expected = ODMClassifier(gamma=5, lam=100, loo=True, solver="exact", random_state=0).fit(
        X.astype(np.float32), y, groups=field
    )
    assert fields.loo_score_ == expected.loo_score_ < rows.loo_score_ - 0.2
    assert run_json("info", tmp_path / "b.zarr")["loo_score"] == fields.loo_score_
    told = run_json("curve", tmp_path / "a.zarr", store)
    assert [count for count, _ in told["points"]] == [40, 80, 160, 320]
    assert told["points"][-1][1] == pytest.approx(rows.loo_score_, abs=1e-12)
    (tmp_path / "broken.npy").write_bytes(b"no")
    refused = run("fit", store, tmp_path / "c.zarr", *options, "--groups", tmp_path / "broken.npy", status=2)
    assert "is not a NumPy file of one entry for each row" in refused.stderr
    refused = run("fit", store, tmp_path / "c.zarr", "--estimator", "mdd-ridge", "--groups", "g.npy", status=2)
    assert "leaves out no groups" in refused.stderr


def test_help_loads_nothing_heavy():
    code = "import sys\nfrom dask_odm.cli import main\ntry: main(['ingest', '--help'])\nexcept SystemExit: pass\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"numpy", "dask", "sklearn", "zarr", "tqdm", "numba"} & set(done.stderr.split()) == set()
    assert "--drop-missing" in done.stdout


# As a process -----------------------------------------------------------------------------------------------


def read_all(terminal: int) -> str:
    parts = []
    with os.fdopen(terminal, "rb", buffering=0) as file, suppress(OSError):  # how Linux tells the end
        while parts[-1:] != [b""]:
            parts.append(file.read(1 << 16))
    return b"".join(parts).decode()


def on_a_terminal(*arguments: object) -> tuple[str, str]:
    """What a command writes to stdout, a pipe, and shows on stderr, a terminal of a hundred columns."""
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    done = subprocess.run((*DASK_ODM, *arguments), stdout=subprocess.PIPE, stderr=theirs, text=True, check=True)
    os.close(theirs)
    return done.stdout, read_all(ours)


@pytest.mark.slow
def test_a_true_process(made, tmp_path):
    """Progress on a terminal, which stderr is here, and one object on stdout, which is a pipe."""
    ingest = ("ingest", made / "rings.csv", tmp_path / "a.zarr", "--label", "kind", "--json")
    stdout, shown = on_a_terminal(*ingest)
    assert json.loads(stdout)["store"]["rows"] == 400
    assert len(set(re.findall(r"ingest: +(\d+)%", shown)) - {"100"}) > 0  # it was seen to move
    assert "ingest: 100%" in shown
    _, shown = on_a_terminal("fit", tmp_path / "a.zarr", tmp_path / "m.zarr", *PARTS, "4")
    assert re.search(r"shuffle: +0%.*shuffle: 100%", shown, re.DOTALL)
    rows = re.findall(r"(?<=[\r\n]) +(\d+) +(\d+) +\d+ ", shown)  # a bar is wiped away before a row, up to \r
    assert rows == [("1", "4"), ("0", "1")]  # a row for each level, whatever bars a busy machine draws besides


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs signals to a group of processes")
@pytest.mark.parametrize(("workers", "number"), [(("--workers", "1"), signal.SIGINT), ((), signal.SIGTERM)])
def test_ctrl_c_and_sigterm_end_a_fit_with_one_line(tmp_path_factory, tmp_path, workers, number):
    rng = np.random.default_rng(0)
    with StoreWriter(tmp_path_factory.mktemp("large") / "a.zarr") as writer:
        writer.append(rng.normal(size=(6000, 5)), rng.integers(0, 2, 6000))
        store = writer.finish()
    # with such a lam a quick machine, too, is at work for long
    endless = "--solver sodm --n-partitions 2 --tol 1e-300 --max-iter 1000000000 --lam 1e8 --scale none --scratch"
    process = subprocess.Popen(
        (*DASK_ODM, "fit", store.path, str(tmp_path / "m.zarr"), *endless.split(), str(tmp_path), *workers),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    try:
        while not os.listdir(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.05)  # until it has made its folder for scratch: the fit has begun
        time.sleep(1.0)  # to where it solves, and writes no more
        os.killpg(process.pid, number)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    *before, said = stderr.splitlines()
    assert (process.returncode, stdout, said) == (130, "", "dask-odm: interrupted"), stderr
    # Dask's own, where a worker's heartbeat finds the scheduler closing
    assert not before or "Failed to communicate with scheduler during heartbeat" in before[0], stderr
    assert os.listdir(tmp_path) == []


# Sources of ingest ----------------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path) -> Path:
    """A folder of CSV files and what a Hadoop job leaves beside them."""
    folder = tmp_path / "parts"
    folder.mkdir()
    for i in range(3):
        (folder / f"part-{i}.csv").write_text(f"age,kind,pay\n{i},a,1\n{i},b,\n")
    (folder / "_SUCCESS").write_text("")
    return folder


@pytest.mark.parametrize("pattern", ["", "*.csv", "part-[0-2].csv"])
def test_ingest_a_folder_or_a_pattern(parts, tmp_path, pattern):
    options = ("--label", "kind", "--drop-missing")
    result = run_json("ingest", parts / pattern, tmp_path / "a.zarr", *options)
    assert (result["store"]["rows"], result["dropped"], result["labels_from"]) == (3, 3, "column 'kind'")
    assert result["store"]["feature_names"] == ["age", "pay"]
    shown = run("ingest", parts / pattern, tmp_path / "b.zarr", *options).stdout.splitlines()
    assert shown[-2:] == ["labels from   column 'kind'", "rows dropped  3"]
    filled = run_json("ingest", parts / pattern, tmp_path / "c.zarr", "--label", "kind")["store"]
    assert (filled["rows"], filled["feature_names"]) == (6, ["age", "pay", "pay (missing)"])
    assert [each["gaps"] for each in filled["columns"]] == [0, 3]


@pytest.mark.parametrize(
    ("text", "options"), [("1 1:5 4:2\n-1 2:1\n", ("--n-features", 4)), ("1,0,0,2,a\n0,1,0,0,b\n", ())]
)
def test_ingest_standard_input(tmp_path, text, options):
    store = json.loads(run("ingest", "-", tmp_path / "a.zarr", *options, "--json", text=text).stdout)["store"]
    assert (store["rows"], store["features"], store["source"]) == (2, 4, "standard input")
    assert Store.open(tmp_path / "a.zarr").class_counts == (1, 1)


def test_ingest_says_what_labels_became(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},{i}.5\n" for i in range(150)))
    for options, kind in (((), "real"), (("--target", "classes"), "classes")):
        result = run_json("ingest", tmp_path / "a.csv", tmp_path / f"{kind}.zarr", *options)
        assert (result["target"], result["store"]["y"]) == (kind, kind)
    assert refused("fit", tmp_path / "real.zarr", tmp_path / "m.zarr").endswith("with --target classes.")


@pytest.mark.parametrize("options", [("--solver", "landmark", "--n-landmarks", 20), (*PARTS, 4), ()])
def test_a_finished_fit_that_is_to_go_on_is_done(made, tmp_path, options):
    """Also one that leaves no checkpoint, small as it is; another fit at the same target is refused before it works."""
    target = tmp_path / "m.zarr"
    command = ("fit", made / "train.zarr", target, "--checkpoint", tmp_path / "c.zarr", *options)
    run(*command)
    before = (target / "manifest.json").read_bytes()
    assert run(*command, "--resume").stdout == f"{target} is done: this very fit made it. --overwrite makes it anew.\n"
    assert (target / "manifest.json").read_bytes() == before
    assert run_json(*command, "--resume")["dual_gap"] == run_json("info", target)["dual_gap"]
    assert refused(*command).endswith("exists; pass --overwrite to replace it.")
    other = ("fit", made / "train.zarr", target, "--checkpoint", tmp_path / "other.zarr", *options, "--lam", 7)
    assert refused(*other, "--resume").endswith("exists; pass --overwrite to replace it.")


@pytest.mark.parametrize("options", [(*PARTS, 4), ("--solver", "landmark"), ("--kernel", "linear")])
def test_what_is_shown_is_saved(made, tmp_path, options, monkeypatch):
    """Ctrl-C right after a line of the table: the checkpoint has that line, and the first one too."""
    checkpoint, shown = tmp_path / "c.zarr", []

    def note(event):
        if isinstance(event, (LevelFinished, IterationFinished)):
            shown.append(event)
            assert len(read_record(checkpoint, "checkpoint").attributes["history"]) >= len(shown)

    monkeypatch.setattr("dask_odm.progress.LOG_SECONDS", 0.0)
    monkeypatch.setattr("dask_odm.progress.ProgressBars.__call__", lambda self, event: note(event))
    run("fit", made / "train.zarr", tmp_path / "m.zarr", "--checkpoint", checkpoint, *options)
    assert len(shown) > 1


def test_the_package_runs_as_a_module(tmp_path) -> None:
    command = [sys.executable, "-m", "dask_odm", "info", tmp_path / "no.zarr"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dask-odm: ")
    assert done.stderr.count("\n") == 1


HOSTILE = "\x1b]0;pwned\x07\nrows  5"


def write_hostile(path: Path) -> None:
    """Write rows with terminal escapes in a label and in a column's name, as JSON lines."""
    rng = np.random.default_rng(0)
    rows = [{f"f{HOSTILE}": rng.normal(), "b": i % 2 + rng.normal(), "label": ("A", HOSTILE)[i % 2]} for i in range(60)]
    path.write_text("\n".join(map(json.dumps, rows)))


def test_terminal_escapes_are_never_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, store, model = (f"{name}{HOSTILE}" for name in ("a", "s", "m"))
    write_hostile(Path(source))
    done = [
        run("ingest", source, store, "--label", "label", "--format", "jsonl"),
        run("info", store), run("fit", store, model),
        run("info", model), run("evaluate", model, store), run("importance", model, store, "--repeats", "1"),
        run("verify", store), run("report", model, store, "r.html", "--no-importance"),
        run("fit", store, model, status=2), run("info", f"none{HOSTILE}", status=2),
        run("info", store, model, status=2),
        run("evaluate", model, source, "--format", "jsonl", "--label", HOSTILE, status=2),
    ]  # fmt: skip
    for result in done:
        shown = result.output.replace("\n", "")
        assert shown.isprintable(), repr(shown)
        assert not re.search(r"^rows  5", result.output, re.MULTILINE), "a label or a name makes no line of its own"
    assert r"\x1b]0;pwned\x07\nrows" in done[1].stdout
    assert run_json("info", store)["classes"][0]["label"] == HOSTILE, "programs get it whole"
    assert "\x1b" not in Path("r.html").read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are text")
def test_paths_need_not_be_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_hostile(Path("a.jsonl"))
    store, model, page, found = (os.fsdecode(b) for b in (b"a\xff.zarr", b"m\xff.zarr", b"r\xff.html", b"p\xff.csv"))
    run("ingest", "a.jsonl", store)
    run("fit", store, model, "--solver", "newton", "--kernel", "linear")
    for arguments in (("info", store), ("predict", model, store, found), ("evaluate", model, store)):
        run(*arguments)
    run("report", model, store, page, "--no-importance")
    assert r"a\udcff.zarr" in Path(page).read_text(encoding="utf-8")
    assert r"a\udcff.zarr" in run("info", store).stdout
