"""Everything in examples/ runs, without a warning and without leaving a file."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from notebooks import run_notebook, shown

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
FILES = sorted(path.name for path in EXAMPLES.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
NEEDS = {"from_parquet.py": "pyarrow"} | dict.fromkeys(
    (
        "cells.py",
        "compare_mdd.py",
        "compare_svrg.py",
        "land_cover.py",
        "mixing_tables.py",
        "robust_odm.py",
        "saddle_dsvc.py",
        "saddle_svc.py",
    ),
    "matplotlib",
)


DRAWS = ["--output", "a.png"]
ARGUMENTS = {
    "compare_svrg.py": ["--rows", "3000", *DRAWS],
    "mixing_tables.py": ["--epochs", "2", "--rows", "1000", *DRAWS],
    "saddle_dsvc.py": DRAWS,
    "saddle_svc.py": DRAWS,
    "which_score.py": ["--rows", "800"],
}  # smaller than by default, and files that are written


def of_kind(suffix: str) -> list[str]:
    return [name for name in FILES if name.endswith(suffix)]


@pytest.fixture
def work_folder(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in, and another for temporary files."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path


def left_behind(work_folder: Path) -> list[str]:
    """What is in the folder of work or that of temporary files."""
    return sorted(str(p.relative_to(work_folder)) for each in ("work", "tmp") for p in (work_folder / each).rglob("*"))


def test_every_file_of_the_folder_is_of_a_kind_that_is_run() -> None:
    assert sorted(of_kind(".py") + of_kind(".sh") + of_kind(".ipynb")) == sorted({*FILES} - {"GALLERY_HEADER.rst"})
    assert len(FILES) >= 10


@pytest.mark.parametrize("name", of_kind(".py"))
def test_script(name, work_folder, capsys, monkeypatch) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    before, arguments = set(FILES), ARGUMENTS.get(name, [])
    monkeypatch.setattr("sys.argv", [name, *arguments])
    monkeypatch.syspath_prepend(EXAMPLES)  # as Python does
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    said = capsys.readouterr()
    assert said.out.strip()
    assert said.err == ""
    if "a.png" in arguments:
        assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert left_behind(work_folder) == ["work/a.png"] * ("a.png" in arguments)
    assert {path.name for path in EXAMPLES.iterdir()} - {"__pycache__"} == before


@pytest.mark.parametrize("name", of_kind(".sh"))
def test_shell_script(name, work_folder) -> None:
    if shutil.which("sh") is None or shutil.which("awk") is None:
        pytest.skip("this machine has no sh or no awk")
    command = Path(sys.executable).with_name("dask-odm")
    if not command.exists():
        pytest.skip(f"there is no {command}")
    path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", str(EXAMPLES / name)],
        env={**os.environ, "PATH": path, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    assert left_behind(work_folder) == []


@pytest.mark.parametrize("name", of_kind(".ipynb"))
def test_notebook(name, work_folder) -> None:
    notebook = run_notebook(EXAMPLES / name, work_folder / "work")
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert "100%" in shown(notebook, "stderr")
    assert "Warning" not in shown(notebook, "stderr")


@pytest.mark.parametrize("name", of_kind(".ipynb"))
def test_notebooks_are_stored_without_outputs(name) -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(EXAMPLES / name, 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)
