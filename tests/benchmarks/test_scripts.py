"""The benchmarks run, on small sizes, so that they cannot rot."""

import json
import lzma
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import busy
import cells
import cells_store
import choices
import csv_tables
import dask
import defaults
import first_fits
import flat
import kernel_tiles
import landmarks
import left_out
import linear_rivals
import many_classes
import mdd_rivals
import mixing_shards
import numba
import numbers_store
import pytest
import real_data
import saddle_rivals
import small_data
import texts
import trust
import versions
from numba.core import event
from sklearn.datasets import load_iris

import benchmarks.weight.__main__ as weight


@pytest.fixture(scope="module")
def few_rows(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an eighth of a data set, in files of the same names."""
    folder = tmp_path_factory.mktemp("few")
    for path in data_dir.glob("svmguide1.*.svm.xz"):
        lines = lzma.decompress(path.read_bytes()).splitlines(keepends=True)
        (folder / path.name).write_bytes(lzma.compress(b"".join(lines[::8])))
    return folder


def test_real_data_measures_both_classifiers(few_rows: Path, tmp_path: Path) -> None:
    row = real_data.measure("svmguide1", tmp_path, few_rows, repeat=1, splits=1)
    assert row["gap"] <= 1e-3
    assert row["accuracy"] > 0.9
    assert row["svc_accuracy"] > 0.9
    assert row["fit"] > 0


def test_texts_are_measured_beside_scikit_learn(capsys: pytest.CaptureFixture[str]) -> None:
    texts.main(["--megabytes", ".2", "--words", "500", "--hash", "4096"])
    *ways, last = capsys.readouterr().out.splitlines()
    assert [float(line.split()[-2]) > 0 for line in ways] == [True] * 5
    assert float(last.split("difference ")[1].split(";")[0]) < 1e-6


def test_tables_with_words_are_measured_beside_pandas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv_tables.write_table(tmp_path / "a.csv", 300)
    for way in csv_tables.WAYS:
        csv_tables.run(way, str(tmp_path / "a.csv"))
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(each) for each in figures] == [3] * 4
    csv_tables.encode_frames(300, 1)
    assert len(capsys.readouterr().out.splitlines()) == 8
    assert csv_tables.with_gaps(500, 0).isna().any().sum() == 4


def test_defaults_are_measured_by_scaling_and_lam(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.delenv("DASK_ODM_DATA", raising=False)
    defaults.main(["iris", "breast_cancer, stretched", "--rows", "150", "--lams", "2,4", "--scales", "standard"])
    cells = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    means = [float(each) for each in cells[4][1:]]
    assert cells[4][0].strip() == "mean"
    assert min(means[1:]) > 0.9  # SVC of scaled rows, boosting, and ours of scaled rows
    assert [float(each) for each in cells[7][1:]] == pytest.approx(means[3:], abs=6e-4)


def test_many_classes_are_measured_beside_scikit_learn(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    X, y = load_iris(return_X_y=True)
    monkeypatch.setattr(many_classes, "load", lambda name: (X[::2], y[::2], X[1::2], y[1::2]))
    many_classes.main(["satimage", "news20", "--repeat", "1"])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 6
    assert all(float(line[42:].split()[0]) > 0.5 for line in lines)


@pytest.mark.slow  # starts workers
def test_many_classes_are_learned_over_a_store(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setitem(many_classes.GENERATED, "eight", (1500, 500))
    many_classes.main(["eight", "--workers", "1", "--limit", "2GB"])
    line = capsys.readouterr().out.splitlines()[1]
    assert float(line.split()[-2]) > 0.9


def test_linear_rivals_learn_the_same_rows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASK_ODM_DATA", raising=False)
    linear_rivals.main(["--rows", "3000", "--repeat", "1", "--json"])
    found = {row["rival"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"dask_odm", "LinearSVC"} <= set(found)
    assert abs(found["dask_odm"]["accuracy"] - found["LinearSVC"]["accuracy"]) < 0.02


def test_landmarks_of_every_kind_are_measured(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--sizes", "60", "--splits", "2", "--json"]
    assert landmarks.main(["svmguide1", "--data", str(data_dir), *size]) == 0
    found = {row["method"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert set(found) == set(landmarks.METHODS)
    assert found["rp"]["share"] < found["uniform"]["share"]
    assert all(row["gap"] <= 1e-3 and row["accuracy"] > 0.95 for row in found.values())


def test_hard_margins_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    saddle_rivals.main(["--separable", "300", "4", "--solvers", "mnp", "saddle", "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["rival"] for row in found] == ["SaddleSVC mnp", "SaddleSVC saddle"]
    assert all(row["gap"] <= 1e-3 and row["accuracy"] == 1 for row in found)


def test_saddle_rivals_solve_the_same_problem(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["svmguide1", "--data", str(data_dir), "--alphas", "0.85", "--json"]
    saddle_rivals.main(options)
    found = {row["rival"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert set(found) == {"LinearSVC", "SaddleSVC mnp", "NuSVC"}
    assert found["SaddleSVC mnp"]["gap"] <= 1e-3
    assert abs(found["SaddleSVC mnp"]["accuracy"] - found["NuSVC"]["accuracy"]) < 0.005
    saddle_rivals.main([*options[:-1], "--limit", "0"])
    assert "over 0 s" in capsys.readouterr().out


def test_mdd_rivals_solve_the_same_problem(capsys: pytest.CaptureFixture[str]) -> None:
    mdd_rivals.main(["--rows", "3000", "--kernel-rows", "300", "--repeats", "1", "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["model"] for row in found] == ["MDDRidge", "MDDKernelRidge"]
    for row in found:
        assert row["coefficients_apart"] < 1e-8
        assert row["rmse"] == pytest.approx(row["rival_rmse"], rel=1e-8)


def test_kernel_tiles_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--rows", "256", "--columns", "256", "--repeat", "1"]
    size = [*few, "--features", "3", "--threads", "1", "--dtypes", "float32"]
    kernel_tiles.main([*size, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [row["kernel"] for row in found] == ["rbf", "laplacian"]
    assert all(row[what]["ours"] > 0 for row in found for what in kernel_tiles.WHAT)
    kernel_tiles.main([*size, "--kernels", "linear", "poly", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [set(row["stored"]) for row in found] == [{"ours", "numpy"}, {"ours"}]  # whose formula it has
    kernel_tiles.main([*size, "--kernels", "rbf", "--density", "0.1"])
    assert "rbf" in capsys.readouterr().out


def test_parameter_mixing_is_measured_beside_its_rival(capsys):
    mixing_shards.main(["memory", "--rows", "5000", "--epochs", "2", "--repeat", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["fits"]) == {"MixingClassifier", "scikit-learn, shuffled", "scikit-learn, in order"}
    assert found["fits"]["MixingClassifier"]["accuracy"] > 0.7


@pytest.mark.parametrize("what", ["folds", "probabilities", "search"])
def test_left_out_measures(capsys: pytest.CaptureFixture[str], data_dir: Path, what: str) -> None:
    assert left_out.main([what, "svmguide1", "--rows", "400", "--data", str(data_dir)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 400
    assert abs(found.get("loo", 0.0) - found.get("folds", 0.0)) < 0.02


def test_trust_measures_beside_refits_and_rivals(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    trust.main(["--names", "svmguide1", "--rows", "200", "--data", str(data_dir)])
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[-1].split()[2]) < 0.05, "intervals hold as many targets as they should"
    rows = [line.split(" | ") for line in lines if line.startswith("| svmguide1")]
    found = ([float(each.strip(" |–") or 0) for each in row[1:]] for row in rows)
    scores, groups, thresholds, sets, importance, outliers = found
    assert all(abs(scores[i] - scores[i + 1]) < 0.06 for i in range(0, 8, 2)), "left-out scores are those of refits"
    assert importance[2] < 0.1, "features count for as much as by scikit-learn"
    assert groups[0] < groups[1], "groups left out whole are nearer to refits without them"
    assert min(thresholds[:3]) > 0.8
    assert sets[0] > 0.8
    assert abs(outliers[1] - 0.1) < 0.1


def test_small_data_beside_its_rivals(capsys) -> None:
    small_data.main(["--rows", "60", "--repeats", "1", "--scale", "0.01", "--text", "0.02"])
    lines = capsys.readouterr().out.splitlines()
    assert "GF/s" in lines[0]
    assert len(lines) == 4 + 4 * (1 + bool(find_spec("sklearnex"))) + 5 + 2
    assert all(line.count("|") == 8 for line in lines[2:])


def test_first_fits_tell_what_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    first_fits.main(["--here", "--rows", "60", "--cases", "float32"])
    assert "| float32, 60 × 20 |" in capsys.readouterr().out
    loop = numba.njit(lambda x: x + 1)
    with event.install_listener("numba:compile", first_fits.Compilations()) as seen:
        loop(1.0)
    ((seconds, name, types),) = seen.found
    assert [seconds > 0, name.endswith("<lambda>"), types] == [True, True, "float64"]


def test_busy_measures_in_turns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "SHORT_SECONDS", 0.0)
    busy.main(["MDDRidge", "--rows", "500", "--repeats", "1", "--load", "1"])
    head, _, row = capsys.readouterr().out.splitlines()
    assert head.split(" | ")[2:] == ["quiet, s", "busy, s", "ratio |"]
    assert [row.split(" | ")[1], float(row.split(" | ")[2]) > 0] == ["made up, 500 × 18", True]


def test_a_version_is_as_fast_as_itself(capsys: pytest.CaptureFixture[str]) -> None:
    versions.main([str(Path(versions.__file__).parents[1]), "--rows", "100 × 20, float32", "--turns", "1"])
    row = capsys.readouterr().out.splitlines()[-1].split(" | ")
    assert 0.1 < float(row[3].split()[0]) < 10


def test_special_routes_are_measured_with_and_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    weight.main(["--scale", "0.02", "--repeats", "1", "--only", "Gram"])
    row = capsys.readouterr().out.splitlines()[-1].split("|")
    assert row[1].strip() == "Gram reduction"
    assert float(row[5]) == pytest.approx(float(row[3]) / float(row[4]), rel=0.05, abs=0.006)


def here(main: Callable[[list[str]], None]) -> Callable[[list[str], float], cells.Row]:
    """Return what stands for `cells.own_process`: a row measured in this process."""

    def run(arguments: list[str], limit: float) -> cells.Row:
        with redirect_stdout(StringIO()) as out:
            main(arguments[1:])
        return json.loads(out.getvalue())

    return run


def test_cells_are_measured_beside_their_rivals(
    few_rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    variants = ["cells:200", "cells:200:0.3", "landmarks:100", "SVC", "intelex"]
    monkeypatch.setattr(cells, "own_process", here(cells.main))
    cells.main(["svmguide1", "--data", str(few_rows), "--variants", *variants])
    head, _, *lines = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines())
    assert [line[2] for line in lines] == variants
    assert all(len(line) == len(head) for line in lines)
    if "not installed" in lines[-1][3]:
        lines.pop()
    for line in lines:
        assert float(line[3]) > 0.9
        assert min(map(float, line[5:10])) > 0
    assert float(lines[0][-1]) <= 1e-2
    assert lines[3][-1] == cells.NONE


def test_fits_are_measured_over_lam_and_gamma(
    few_rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    solvers = ["exact", "landmarks:50", "dc:2", "newton", "mnp", "ridge"]
    figure = ["--figure", str(tmp_path / "flat.png")] if find_spec("matplotlib") else []
    monkeypatch.setattr(flat, "own_process", here(flat.main))
    size = ["--rows", "300", "--lams", "1", "100", "--gammas", "1", "4"]
    flat.main(["svmguide1", "--data", str(few_rows), "--solvers", *solvers, *size, *figure])
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    head, *rows = (line for line in lines if len(line) == len(flat.HEAD))
    assert [row[2] for row in rows] == [solver for solver in solvers for _ in range(4)]
    for row in (dict(zip(head, each, strict=True)) for each in rows):
        assert min(float(row["accuracy"]), float(row["SVC, accuracy"])) > 0.5
        assert row["solver"] in ("mnp", "ridge") or float(row["gap"]) <= 1e-3
    _, *even = (line for line in lines if len(line) == len(flat.EVEN_HEAD))
    assert all(float(line[4]) >= 1.0 for line in even)
    assert len(even) == 12


def test_what_auto_takes_is_judged_beside_its_rival(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "ROWS", 1000)
    choices.main(["shells", "three", "--rows", "300", "--lams", "1", "--gammas", "1"])
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    head, *rows = (line for line in lines if len(line) == len(choices.HEAD))
    assert [row[0] for row in rows] == ["shells", "three"]
    for row in (dict(zip(head, each, strict=True)) for each in rows):
        assert row["auto"] == row["rival"], "few rows are learned exactly"
        assert float(row["lost"]) >= 0.0
    assert lines[-1][0].startswith("at most ")


def test_a_row_is_made_in_a_process_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("import sys, time; print('{}'); time.sleep(float(sys.argv[1]))")
    assert cells.own_process([str(script), "0"], 60) == {}
    assert cells.own_process([str(script), "60"], 0.1) == {"failed": "not done after 0.1 s"}
    assert cells.own_process([str(script), "x"], 60)["failed"].startswith("ValueError: ")


@pytest.mark.usefixtures("quick_workers")
def test_cells_over_a_store_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(dask.config.config, "dask_odm", {})  # put back afterwards
    monkeypatch.setattr(cells_store, "own_process", here(cells_store.main))
    monkeypatch.setattr(cells_store, "FEW_ROWS", 1000)
    monkeypatch.setitem(cells_store.BOARD, "n_squares", 4)
    size = ["--rows", "3000", "--test-rows", "500", "--variants", "cells:500", "--workers", "1"]
    cells_store.main([*size, "--folder", str(tmp_path)])
    head, _, line = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines())
    row = dict(zip(head, line, strict=True))
    assert float(row["accuracy"]) > 0.6
    assert len(row["digest"]) == 12


@pytest.mark.usefixtures("quick_workers")
def test_numbers_of_a_cube_are_mapped_with_intervals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(dask.config.config, "dask_odm", {})  # put back afterwards
    monkeypatch.setitem(dask.config.config, "temporary-directory", None)
    monkeypatch.setattr(numbers_store, "own_process", here(numbers_store.main))
    size = ["--rows", "3000", "--width", "40", "--landmarks", "30", "--workers", "1", "--ways", "intervals", "plain"]
    numbers_store.main([*size, "--folder", str(tmp_path)])
    head, _, *lines = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines())
    for line in lines:
        row = dict(zip(numbers_store.HEAD, line, strict=True))
        assert row["killed"] == "False"
        assert len(row["digest"]) == 12
    assert head == list(numbers_store.HEAD)
    first = lines[0]
    error, best, inside = (float(first[head.index(name)]) for name in ("error", "error of the best", "inside"))
    assert 0.9 * best < error < 1.5 * best
    assert 0.8 < inside < 0.98
