"""The rivals' benchmark runs, on small sizes, and goes on after a cut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import rivals
import rivals_shown
from sklearn.datasets import load_digits
from sklearn.dummy import DummyClassifier


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List what children did, which run in this process, on digits."""
    found = []

    def prepare(name: str, folder: Path, source: Path, seed: int) -> Path:
        X, y = load_digits(n_class=2, return_X_y=True)
        np.savez(
            folder / "a.npz", X=X[:250].astype(np.float32), y=y[:250], test=X[250:].astype(np.float32), y_test=y[250:]
        )
        return folder / "a.npz"

    def own_process(arguments: list[str], limit: float) -> rivals.Row:
        work, given = arguments[2], json.loads(arguments[3])
        found.append(f"{work} {given[1]}")
        if given[1] == "LinearSVC" and work == "measure":
            return {"failed": "not done | 1 s"}
        return json.loads(json.dumps({"tune": rivals.tune, "measure": rivals.measure}[work](*given)))

    monkeypatch.setattr(rivals, "prepare", prepare)
    monkeypatch.setattr(rivals, "own_process", own_process)
    return found


@pytest.mark.filterwarnings("ignore")
def test_every_method_is_tuned_and_measured_once(
    ran: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rivals.jsonl"
    methods = [name for name in rivals.METHODS if "intelex" not in name]
    given = ["a7a", "--data", str(tmp_path), "--out", str(out), "--seeds", "2", "--tries", "1", "--rows", "200"]
    rivals.main(["table", *given, "--methods", *methods])
    head, _, *lines = capsys.readouterr().out.split("\n\n")[1].splitlines()
    rows = [dict(zip(head.split(" | "), line.split(" | "), strict=True)) for line in lines]
    assert [row["method"].split(", 1,")[0].split(", 300")[0].split(", 100")[0] for row in rows] == methods
    for row in rows:
        if row["method"] == "LinearSVC":
            assert row["accuracy"] == "not done / 1 s"
        else:
            assert float(row["accuracy"].split()[0]) > 0.9
            assert row["rows"] == "200"
    assert sorted(each for each in ran if "ODM" in each) == [
        *(f"measure {name}" for name in ("ODM", "ODM cells", "ODM exact", "ODM landmarks")),
        "tune ODM",
    ]
    ran.clear()
    rivals.main(["table", *given, "--methods", *methods])
    assert ran == []
    curves = ["--methods", "ODM landmarks", "--image", str(tmp_path / "a.svg")]
    rivals.main(["curves", *given, *curves])
    assert ran == ["measure ODM landmarks"] * 3
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_samples_take_at_most_the_time_given() -> None:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    found = [len(rivals._fit_in_time(DummyClassifier(), X, y, order, budget)[1]) for budget in (0.0, np.inf)]
    assert found == [rivals.WARM_ROWS, len(y)]


def test_the_strongest_rivals_are_named() -> None:
    figures = {
        "ODM": (0.9, 1.0),
        "ODM exact": (0.99, 0.1),
        "SVC": (0.92, 8.0),
        "LinearSVC": (0.8990, 2.0),
        "LogisticRegression": (0.8970, 0.5),
    }
    rows = [
        {"data": "a7a", "method": method, "size": 0, "accuracy": accuracy + shift, "fit": fit, "predict": 2 * fit}
        for method, (accuracy, fit) in figures.items()
        for shift in (-0.003, 0.003)
    ]
    last = rivals_shown.strongest(rows).splitlines()[-1]
    assert last == "| a7a | 0.9000, 1 s, 2 s | SVC 0.9200, × 8, × 8 | LinearSVC 0.8990, × 2, × 2 |"
    assert "| a7a | SVC | – | 0.9200 ± 0.0030 |" in rivals_shown.table(rows)
