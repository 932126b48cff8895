"""The benchmark: every method runs on small rows, an interrupted matrix goes on, tables and plots say what it found."""

import json
import math
from dataclasses import asdict
from functools import cache

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import bench
from benchmarks.papers import matrix as matrices
from benchmarks.papers.cell import Cell, run_cell
from benchmarks.papers.figures import write_figures
from benchmarks.papers.machine import code_digest, describe_machine, machine_line
from benchmarks.papers.matrix import Matrix, Results, run_matrix
from benchmarks.papers.methods import ALL_METHODS, INGREDIENTS, METHODS
from benchmarks.papers.papers import NAMES, REPORTED, reported
from benchmarks.papers.report import markdown
from benchmarks.papers.sets import Split
from small_problems import blobs

SETTINGS = {"weight": 4.0, "gamma": 2.0, "upsilon": 0.2, "theta": 0.2}


@cache
def small_split() -> Split:
    X, y = blobs(260, 3, seed=1)
    X = ((X - X.min(axis=0)) / np.ptp(X, axis=0)).astype(np.float32)
    y = (y > 0).astype(int)
    return Split(X[:200], y[:200], X[200:], y[200:])


@cache
def records_of(method: str, kernel: str) -> dict:
    fixed = ALL_METHODS[method].fixed
    cell, found = Cell("blobs", 0, method, kernel), {}
    for record in run_cell(cell, fixed or SETTINGS, small_split()):
        found |= record
    return {"cell": asdict(cell), **found}


EVERY = [(name, kernel) for name, method in METHODS.items() for kernel in method.kernels if method.installed]
EVERY += [(name, "rbf") for name in INGREDIENTS]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("method", "kernel"), EVERY)
def test_every_method_is_measured(method, kernel):
    record = records_of(method, kernel)
    if ALL_METHODS[method].fixed is None:
        assert record["accuracy"] > 0.8
    elif kernel == "rbf":  # it has no intercept, without which a linear classifier of features in [0, 1] guesses
        assert record["accuracy"] > 0.7
    assert record["fit"] == pytest.approx(record["prepare"] + record["solve"])
    assert record["peak_bytes"] is None or record["peak_bytes"] > 50 << 20
    levels = [level["partitions"] for level in record["levels"]]
    if ALL_METHODS[method].levels:
        assert levels == sorted(levels, reverse=True)
        assert len(record["level_accuracy"]) == len(levels) > 1
        assert record["level_accuracy"][-1] == record["accuracy"]
        ends = [level["ended"] for level in record["levels"]]
        assert ends == sorted(ends)
        assert ends[-1] <= record["fit"] + 0.05
    if method in ("sodm", "exact", "newton", "dc") or method in INGREDIENTS:
        assert record["gap"] <= 1e-3, "those that should reach the optimum do"
    if method in ("cascade", "dip"):
        assert record["levels"][-1]["gap"] <= 1e-3 < 1.0


# The matrix --------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch):
    """No processes: cells that are asked for, and a record each; the fourth is interrupted once."""
    asked: list = []

    def run_process(cell, settings, matrix, folder):
        asked.append(cell)
        if len(asked) == 4:
            raise KeyboardInterrupt
        if cell.method == "tune":
            return {"settings": SETTINGS}
        return {k: v for k, v in records_of(cell.method, "rbf").items() if k != "cell"}

    monkeypatch.setattr(matrices, "run_process", run_process)
    monkeypatch.setattr(matrices, "describe_machine", lambda: {"made": "up"})
    return asked


MATRIX = Matrix(["shells:100"], ["sodm", "cascade", "SVC"], ["rbf"], seeds=2)


def test_an_interrupted_bench_goes_on_where_it_stopped(tmp_path, counted):
    with pytest.raises(KeyboardInterrupt):
        run_matrix(MATRIX, tmp_path, lambda line: None)
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write('{"cell": {"data": "shel')  # what a killed process had begun to write
    said: list[str] = []
    results = run_matrix(MATRIX, tmp_path, said.append)
    cells = list(MATRIX.cells())
    assert len(cells) == 2 * 5
    assert counted == [*cells[:4], *cells[3:]], "those that were done are not run again"
    assert len(said) == 7
    assert [Cell(**r["cell"]) for r in Results.read(tmp_path).records.values()] == cells
    assert len(results.done) == 6
    assert {r["code"] for r in results.records.values()} == {code_digest()}
    run_matrix(MATRIX, tmp_path, said.append)
    assert len(said) == 7, "nothing is left to do"


def test_tables_and_plots_of_records(tmp_path):
    pytest.importorskip("matplotlib")
    results = Results(tmp_path / "results.jsonl", describe_machine())
    for name, kernel in [("sodm", "rbf"), ("SVC", "rbf"), ("strata, cold", "rbf"), ("newton", "linear")]:
        results.add(records_of(name, kernel))
    for cores, seconds in ((1, 3.0), (2, 2.0)):
        record = records_of("sodm", "rbf")
        results.add({**record, "cell": {**record["cell"], "cores": cores}, "fit": seconds})
    text = markdown(Results.read(tmp_path), "python -m benchmarks")
    for title in ("Methods, rbf", "Levels, rbf", "ingredients, rbf", "Methods, linear", "Speed-up"):
        assert f"## {title}" in text or f"## SODM's {title}" in text
    assert "| blobs | rbf | 2 | 2.00 | 1.50 |" in text
    assert "made by different code" not in text
    results.add({**records_of("SVC", "rbf"), "code": "0a1b"})
    assert "made by different code**, by its digest (and how many): not known (5), 0a1b (1)" in markdown(results, "")
    assert f"{records_of('SVC', 'rbf')['accuracy']:.4f}" in text
    assert all(path.stat().st_size > 5000 for path in write_figures(results, tmp_path))
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    assert drawn == {"levels-rbf", "gaps-rbf", "gaps-linear", "speed-up"}


def test_the_machine_is_named():
    machine = describe_machine()
    assert machine["copy_gb_per_second"] > 0.1
    assert machine["gemm_gflops"]["float64"] > 0.1
    assert str(machine["cores"]) in machine_line(machine)
    forced = machine_line({**machine, "forced_blas_kernel": "Haswell"})
    assert "OPENBLAS_CORETYPE=Haswell" in forced


def test_the_paper_s_figures_have_a_place_each():
    for methods in REPORTED.values():
        assert all(len(row) == len(NAMES) for row in methods.values())
    assert reported("ijcnn1", "sodm", "rbf") == (0.927, 40.32)
    assert reported("skin-nonskin", "dc", "linear") == (0.922, 340.30)
    assert reported("shells:100", "sodm", "rbf") is None
    assert reported("ijcnn1", "SVC", "rbf") is None


def test_a_smoke_run_of_the_command(tmp_path):
    """In processes of their own, into a folder; then again, for nothing."""
    command = ["shells:160", "--folder", str(tmp_path), "--kernels", "linear", "--methods", "sodm", "--json"]
    found = CliRunner().invoke(bench, command, catch_exceptions=False)
    assert found.exit_code == 0, found.stderr
    printed = json.loads(found.stdout)
    tuned, record = printed["records"]
    assert tuned["settings"]["weight"] > 0
    assert record["gap"] <= 1e-3
    assert not math.isnan(record["accuracy"])
    assert (tmp_path / "report.md").read_text().count("## ") >= 3
    again = CliRunner().invoke(bench, command, catch_exceptions=False)
    assert json.loads(again.stdout)["records"] == printed["records"]
    assert "[1/" not in again.stderr
