"""The benchmarks run, on small sizes, so that they cannot rot."""

import lzma
from importlib.util import find_spec
from pathlib import Path

import busy
import cells
import cells_store
import choices
import csv_tables
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
def few_rows(data_dir, tmp_path_factory) -> Path:
    """A folder with an eighth of a data set, in files of the same names."""
    folder = tmp_path_factory.mktemp("few")
    for path in data_dir.glob("svmguide1.*.svm.xz"):
        lines = lzma.decompress(path.read_bytes()).splitlines(keepends=True)
        (folder / path.name).write_bytes(lzma.compress(b"".join(lines[::8])))
    return folder


@pytest.fixture
def no_folder(monkeypatch):
    monkeypatch.delenv("DASK_ODM_DATA", raising=False)


def test_real_data_measures_both_classifiers(few_rows, tmp_path):
    row = real_data.measure("svmguide1", tmp_path, few_rows, repeat=1, splits=1)
    assert row["gap"] <= 1e-3
    assert min(row["accuracy"], row["svc_accuracy"]) > 0.9
    assert row["fit"] > 0


def test_texts_are_measured_beside_scikit_learn(run):
    *ways, last = run(texts, "--megabytes .2 --words 500 --hash 4096")
    assert [float(line.split()[-2]) > 0 for line in ways] == [True] * 5
    assert float(last.split("difference ")[1].split(";")[0]) < 1e-6


def test_tables_with_words_are_measured_beside_pandas(tmp_path, capsys):
    csv_tables.write_table(tmp_path / "a.csv", 300)
    for way in csv_tables.WAYS:
        csv_tables.run(way, str(tmp_path / "a.csv"))
    assert len(capsys.readouterr().out.splitlines()) == 4
    csv_tables.encode_frames(300, 1)
    assert len(capsys.readouterr().out.splitlines()) == 8
    assert csv_tables.with_gaps(500, 0).isna().any().sum() == 4


@pytest.mark.usefixtures("no_folder")
def test_defaults_are_measured_by_scaling_and_lam(run):
    lines = run(defaults, "--rows 150 --lams 2,4 --scales standard", "iris", "breast_cancer, stretched")
    table = [line.split("|")[1:-1] for line in lines if line.startswith("|")]
    means = [float(each) for each in table[4][1:]]
    assert table[4][0].strip() == "mean"
    assert min(means[1:]) > 0.9  # SVC of scaled rows, boosting, and ours of scaled rows
    assert [float(each) for each in table[7][1:]] == pytest.approx(means[3:], abs=6e-4)


def test_many_classes_are_measured_beside_scikit_learn(run, monkeypatch):
    X, y = load_iris(return_X_y=True)
    monkeypatch.setattr(many_classes, "load", lambda name: (X[::2], y[::2], X[1::2], y[1::2]))
    lines = run(many_classes, "satimage news20 --repeat 1")[1:]
    assert len(lines) == 6
    assert all(float(line[42:].split()[0]) > 0.5 for line in lines)


def test_many_classes_are_learned_over_a_store(run, monkeypatch, quick_workers):
    monkeypatch.setitem(many_classes.GENERATED, "eight", (1500, 500))
    assert float(run(many_classes, "eight --workers 1 --limit 2GB")[1].split()[-2]) > 0.9


@pytest.mark.usefixtures("no_folder")
def test_linear_rivals_learn_the_same_rows(run_json):
    (rows,) = run_json(linear_rivals, "--rows 3000 --repeat 1")
    found = {row["rival"]: row for row in rows}
    assert abs(found["dask_odm"]["accuracy"] - found["LinearSVC"]["accuracy"]) < 0.02


def test_landmarks_of_every_kind_are_measured(data_dir, run_json):
    found = run_json(landmarks, "svmguide1 --sizes 60 --splits 2 --data", data_dir)
    share = {row["method"]: row["share"] for row in found}
    assert set(share) == set(landmarks.METHODS)
    assert share["rp"] < share["uniform"]
    assert all(row["gap"] <= 1e-3 and row["accuracy"] > 0.95 for row in found)


def test_hard_margins_are_measured(run_json):
    found = run_json(saddle_rivals, "--separable 300 4 --solvers mnp saddle")
    assert [row["rival"] for row in found] == ["SaddleSVC mnp", "SaddleSVC saddle"]
    assert all(row["gap"] <= 1e-3 and row["accuracy"] == 1 for row in found)


def test_saddle_rivals_solve_the_same_problem(data_dir, run, run_json):
    options = "svmguide1 --alphas 0.85 --data"
    found = {row["rival"]: row for row in run_json(saddle_rivals, options, data_dir)}
    assert set(found) == {"LinearSVC", "SaddleSVC mnp", "NuSVC"}
    assert found["SaddleSVC mnp"]["gap"] <= 1e-3
    assert abs(found["SaddleSVC mnp"]["accuracy"] - found["NuSVC"]["accuracy"]) < 0.005
    assert "over 0 s" in "".join(run(saddle_rivals, options, data_dir, "--limit", 0))


def test_mdd_rivals_solve_the_same_problem(run_json):
    found = run_json(mdd_rivals, "--rows 3000 --kernel-rows 300 --repeats 1")
    assert [row["model"] for row in found] == ["MDDRidge", "MDDKernelRidge"]
    for row in found:
        assert row["coefficients_apart"] < 1e-8
        assert row["rmse"] == pytest.approx(row["rival_rmse"], rel=1e-8)


def test_kernel_tiles_are_measured(run, run_json):
    size = "--rows 256 --columns 256 --repeat 1 --features 3 --threads 1 --dtypes float32"
    (found,) = run_json(kernel_tiles, size)
    assert [row["kernel"] for row in found] == ["rbf", "laplacian"]
    assert all(row[what]["ours"] > 0 for row in found for what in kernel_tiles.WHAT)
    (found,) = run_json(kernel_tiles, f"{size} --kernels linear poly")
    assert [set(row["stored"]) for row in found] == [{"ours", "numpy"}, {"ours"}]  # whose formula it has
    assert "rbf" in "".join(run(kernel_tiles, f"{size} --kernels rbf --density 0.1"))


def test_parameter_mixing_is_measured_beside_its_rival(run_json):
    (found,) = run_json(mixing_shards, "memory --rows 5000 --epochs 2 --repeat 1")
    assert set(found["fits"]) == {"MixingClassifier", "scikit-learn, shuffled", "scikit-learn, in order"}
    assert found["fits"]["MixingClassifier"]["accuracy"] > 0.7


@pytest.mark.parametrize("what", ["folds", "probabilities", "search"])
def test_left_out_measures(data_dir, run_json, what):
    (found,) = run_json(left_out, f"{what} svmguide1 --rows 400 --data", data_dir)
    assert found["rows"] == 400
    assert abs(found.get("loo", 0.0) - found.get("folds", 0.0)) < 0.02


def test_pairs_are_left_out_beside_each_against_the_rest(data_dir, run_json):
    (found,) = run_json(left_out, "pairs usps --rows 1250 --data", data_dir)
    assert found["classes"] == 10
    assert abs(found["ovo"] - found["ovr"]) < 0.1
    assert found["ovo_mb"] < 1.5 * found["ovr_mb"], "a row supports the pairs of its class alone"


def test_trust_measures_beside_refits_and_rivals(data_dir, run):
    lines = run(trust, "--names svmguide1 --rows 200 --data", data_dir)
    assert float(lines[-1].split()[2]) < 0.05, "intervals hold as many targets as they should"
    rows = [line.split(" | ") for line in lines if line.startswith("| svmguide1")]
    found = ([float(each.strip(" |–") or 0) for each in row[1:]] for row in rows)
    scores, groups, thresholds, sets, importance, outliers = found
    assert all(abs(scores[i] - scores[i + 1]) < 0.06 for i in range(0, 8, 2)), "left-out scores are those of refits"
    assert importance[2] < 0.1, "features count for as much as by scikit-learn"
    assert groups[0] < groups[1], "groups left out whole are nearer to refits without them"
    assert min(*thresholds[:3], sets[0]) > 0.8
    assert abs(outliers[1] - 0.1) < 0.1


def test_small_data_beside_its_rivals(run):
    lines = run(small_data, "--rows 60 --repeats 1 --scale 0.01 --text 0.02")
    assert "GF/s" in lines[0]
    assert len(lines) == 4 + 4 * (1 + bool(find_spec("sklearnex"))) + 5 + 2
    assert all(line.count("|") == 8 for line in lines[2:])


def test_first_fits_tell_what_is_compiled(run):
    assert "| float32, 60 × 20 |" in "".join(run(first_fits, "--here --rows 60 --cases float32"))
    loop = numba.njit(lambda x: x + 1)
    with event.install_listener("numba:compile", first_fits.Compilations()) as seen:
        loop(1.0)
    ((seconds, name, types),) = seen.found
    assert [seconds > 0, name.endswith("<lambda>"), types] == [True, True, "float64"]


def test_busy_measures_in_turns(run, monkeypatch):
    monkeypatch.setattr(busy, "SHORT_SECONDS", 0.0)
    head, _, row = run(busy, "MDDRidge --rows 500 --repeats 1 --load 1")
    assert head.split(" | ")[2:] == ["quiet, s", "busy, s", "ratio |"]
    assert [row.split(" | ")[1], float(row.split(" | ")[2]) > 0] == ["made up, 500 × 18", True]


def test_a_version_is_as_fast_as_itself(run):
    row = run(versions, "--turns 1 --rows", "100 × 20, float32", "--", Path(versions.__file__).parents[1])[-1]
    assert 0.1 < float(row.split(" | ")[3].split()[0]) < 10


def test_special_routes_are_measured_with_and_without_them(run):
    row = run(weight, "--scale 0.02 --repeats 1 --only Gram")[-1].split("|")
    assert row[1].strip() == "Gram reduction"
    assert float(row[5]) == pytest.approx(float(row[3]) / float(row[4]), rel=0.05, abs=0.006)


def test_cells_are_measured_beside_their_rivals(few_rows, run_table):
    variants = ["cells:200", "cells:200:0.3", "landmarks:100", "SVC", "intelex"]
    head, *lines = run_table(cells, "svmguide1 --data", few_rows, "--variants", *variants)
    assert [line[2] for line in lines] == variants
    assert all(len(line) == len(head) for line in lines)
    if "not installed" in lines[-1][3]:
        lines.pop()
    for line in lines:
        assert float(line[3]) > 0.9
        assert min(map(float, line[5:10])) > 0
    assert float(lines[0][-1]) <= 1e-2
    assert lines[3][-1] == cells.NONE


def test_fits_are_measured_over_lam_and_gamma(few_rows, tmp_path, run_table):
    solvers = ["exact", "landmarks:50", "dc:2", "newton", "mnp", "ridge"]
    figure = ["--figure", tmp_path / "flat.png"] if find_spec("matplotlib") else []
    size = "svmguide1 --rows 300 --lams 1 100 --gammas 1 4 --data"
    lines = run_table(flat, size, few_rows, *figure, "--solvers", *solvers)
    head, *rows = (line for line in lines if len(line) == len(flat.HEAD))
    assert [row[2] for row in rows] == [solver for solver in solvers for _ in range(4)]
    for row in (dict(zip(head, each, strict=True)) for each in rows):
        assert min(float(row["accuracy"]), float(row["SVC, accuracy"])) > 0.5
        assert row["solver"] in ("mnp", "ridge") or float(row["gap"]) <= 1e-3
    _, *even = (line for line in lines if len(line) == len(flat.EVEN_HEAD))
    assert all(float(line[4]) >= 1.0 for line in even)
    assert len(even) == 12


def test_what_auto_takes_is_judged_beside_its_rival(run, monkeypatch):
    monkeypatch.setattr(choices, "ROWS", 1000)
    lines = [line.strip("| ").split(" | ") for line in run(choices, "shells three --rows 300 --lams 1 --gammas 1")]
    head, *rows = (line for line in lines if len(line) == len(choices.HEAD))
    assert [row[0] for row in rows] == ["shells", "three"]
    for row in (dict(zip(head, each, strict=True)) for each in rows):
        assert row["auto"] == row["rival"], "few rows are learned exactly"
        assert float(row["lost"]) >= 0.0
    assert lines[-1][0].startswith("at most ")


def test_a_row_is_made_in_a_process_of_its_own(tmp_path):
    script = tmp_path / "a.py"
    script.write_text("import sys, time; print('{}'); time.sleep(float(sys.argv[1]))")
    assert cells.own_process([str(script), "0"], 60) == {}
    assert cells.own_process([str(script), "60"], 0.1) == {"failed": "not done after 0.1 s"}
    assert cells.own_process([str(script), "x"], 60)["failed"].startswith("ValueError: ")


def test_cells_over_a_store_are_measured(monkeypatch, tmp_path, run_table):
    monkeypatch.setattr(cells_store, "FEW_ROWS", 1000)
    monkeypatch.setitem(cells_store.BOARD, "n_squares", 4)
    size = "--rows 3000 --test-rows 500 --variants cells:500 --workers 1 --folder"
    row = dict(zip(*run_table(cells_store, size, tmp_path), strict=True))
    assert float(row["accuracy"]) > 0.6
    assert len(row["digest"]) == 12


def test_numbers_of_a_cube_are_mapped_with_intervals(tmp_path, run_table):
    size = "--rows 3000 --width 40 --landmarks 30 --workers 1 --ways intervals plain --folder"
    head, *lines = run_table(numbers_store, size, tmp_path)
    assert head == list(numbers_store.HEAD)
    rows = [dict(zip(head, line, strict=True)) for line in lines]
    assert [(row["killed"], len(row["digest"])) for row in rows] == [("False", 12)] * 2
    error, best, inside = (float(rows[0][name]) for name in ("error", "error of the best", "inside"))
    assert 0.9 * best < error < 1.5 * best
    assert 0.8 < inside < 0.98
