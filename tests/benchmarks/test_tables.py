"""The benchmark of tables runs, on small sizes, goes on after a cut, and ranks what it has."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import table_rivals
import tables
from table_rivals import RIVALS, SEARCH, measure
from threadpoolctl import threadpool_limits

HERE = ("xgboost", "lightgbm", "catboost", "xrfm", "sklearnex")  # libraries that the tests do without


def cells_of(text: str) -> list[list[str]]:
    """Return the cells of the lines of Markdown tables."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.filterwarnings("ignore")
def test_tables_are_measured_once_beside_rivals(tmp_path, monkeypatch, capsys):
    ran: list[str] = []

    def here(given: dict[str, Any], limit: float) -> dict[str, Any]:
        ran.append(given["name"])
        with threadpool_limits(1):  # small fits by many threads take long on busy cores
            found: dict[str, Any] = json.loads(json.dumps(measure(**given)))
        return found

    monkeypatch.setattr(tables, "own_fork", here)
    monkeypatch.setattr(table_rivals, "GRID_ROWS", 60)
    rivals = [name for name, rival in RIVALS.items() if rival.library not in HERE and "forest" not in name]
    given = ["--sets", "yearly", "diabetes", "--rivals", *rivals, "--rows", "150", "--seeds", "1"]
    given += ["--out", str(tmp_path / "tables.jsonl")]
    tables.main(given)
    lines = tables.lines_of(tmp_path / "tables.jsonl")
    assert [line for line in lines if "failed" in line] == []
    assert sorted(ran) == sorted([*rivals, *(name for name in rivals if name != "KernelRidge, grid")])
    assert min(line["accuracy"] for line in lines if line["set"] == "yearly") > 0.6
    assert min(line["R²"] for line in lines if line["set"] == "diabetes") > 0.1
    assert {line["rival"] for line in lines if "log loss" in line} >= {SEARCH, "ODM", "HistGradientBoosting"}
    shown = capsys.readouterr().out
    ran.clear()
    tables.main(given)
    assert ran == []
    assert cells_of(capsys.readouterr().out) == cells_of(shown)


def test_ranks_are_of_means_and_who_did_not_end_is_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tables.jsonl"
    figures = {"iris": (0.90, 0.94, None), "digits": (0.97, 0.94, 0.93)}
    for name, found in figures.items():
        for rival, accuracy in zip((SEARCH, "forest", "linear, grid"), found, strict=True):
            for seed in (0, 1):
                costs = {"rows": 2000, "fit": 1.0, "fit cpu": 2.0, "memory": 300.0}
                told = {"failed": "not done"} if accuracy is None else {"accuracy": accuracy + 0.01 * seed, **costs}
                tables.keep(out, {"set": name, "rival": rival, "seed": seed, "most": 2000, **told})
    tables.keep(out, {"set": "wine", "rival": SEARCH, "seed": 0, "most": 2000, "accuracy": 0.1})  # no other yet
    tables.main(["--rivals", SEARCH, "forest", "linear, grid", "--rows", "2000", "--shown", "--out", str(out)])
    cells = cells_of(capsys.readouterr().out)
    ranked = {row[0]: row[1:] for row in cells if len(row) == 7}
    assert ranked[SEARCH][:3] == ["0", "1.50 ± 0.50", "0.9400"]
    assert ranked["forest"][:3] == ["0", "1.50 ± 0.50", "0.9450"]
    assert ranked["linear, grid"][:2] == ["2", "3.00 ± 0.00"]
    assert ["iris", "2,000", "0.9050", "forest 0.9450", "0.0400"] in cells
    assert ["digits", "2,000", ".9750", ".9450", ".9350"] in cells
    assert not any(row[0] == "wine" for row in cells)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_cell_has_a_process_which_is_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    works = {
        "tells": lambda pipe, given: pipe.send(given),
        "dies": lambda pipe, given: os._exit(3),
        "sleeps": lambda pipe, given: time.sleep(600),
    }
    found = {}
    for name, work in works.items():
        monkeypatch.setattr(tables, "tell", work)
        found[name] = tables.own_fork({"name": "a"}, 60 if name != "sleeps" else 0.1)
    assert found == {
        "tells": {"name": "a"},
        "dies": {"failed": "ended with status 3"},
        "sleeps": {"failed": "not done after 0.1 s"},
    }
