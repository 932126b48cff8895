"""Everything in examples/ runs, without a warning and without leaving a file, and tutorials say what is so."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from notebooks import run_notebook, shown

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
TUTORIALS = ROOT / "tutorials"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


FILES = files(EXAMPLES)
SHOWN = 120  # characters of a line that a page of the site shows on a desk
NEEDS = {"from_parquet.py": "pyarrow"}


SMALLER = {
    "compare_svrg.py": ["--rows", "3000"],
    "mixing_tables.py": ["--epochs", "2", "--rows", "1000"],
    "which_score.py": ["--rows", "400"],
}


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
    assert {*of_kind(".py"), *of_kind(".sh"), *of_kind(".ipynb")} == {*FILES} - {"GALLERY_HEADER.rst", "ruff.toml"}
    assert len(FILES) >= 10


def run_script(path: Path, work_folder: Path, capsys, monkeypatch, *arguments: str) -> SimpleNamespace:
    """Run a script, which may say something and leaves only a picture that it is asked for; return its names."""
    before = files(path.parent)
    monkeypatch.setattr("sys.argv", [path.name, *arguments])
    monkeypatch.syspath_prepend(path.parent)  # as Python does
    names = runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr()
    assert said.out.strip()
    assert max(map(len, said.out.splitlines())) <= SHOWN or path.parent != EXAMPLES  # the shell has lines of its own
    assert bool(said.err) == ("ProgressBars()" in path.read_text("utf-8"))  # which show steps without a terminal, too
    assert "Warning" not in said.err
    if "a.png" in arguments:
        assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert left_behind(work_folder) == ["work/a.png"] * ("a.png" in arguments)
    assert files(path.parent) == before
    return SimpleNamespace(**names)


@pytest.mark.parametrize("name", of_kind(".py"))
def test_script(name, work_folder, capsys, monkeypatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    writes = '"--output"' in (EXAMPLES / name).read_text("utf-8")
    arguments = [*SMALLER.get(name, []), *(["--output", "a.png"] if writes else [])]
    run_script(EXAMPLES / name, work_folder, capsys, monkeypatch, *arguments)
    assert writes or pyplot.get_fignums() or name == "saddle_data.py", "the site has no thumbnail of it"
    pyplot.close("all")


# What the sentences of a tutorial say of its figures, by what it leaves in its names.


def land_cover(of: SimpleNamespace) -> None:
    right, best = (float((image == of.truth).where(of.clear).mean()) for image in (of.found, of.best))
    assert of.apart < of.single < of.apart + 0.03
    assert of.apart == pytest.approx(right, abs=0.03)
    assert right == pytest.approx(best, abs=0.03)
    for least in (0.5, 0.7, 0.9):
        kept = of.clear & (of.sure >= least)
        correct = (of.found == of.truth).where(kept).mean()
        assert float(correct) > float(of.sure.where(kept).mean())


def biomass(of: SimpleNamespace) -> None:
    assert of.model.loo_score_ > 0.8
    assert float(of.inside.mean()) == pytest.approx(0.8, abs=0.05)
    dense, light = (of.width.where(here).mean() for here in (of.biomass > 200, of.biomass < 100))
    assert float(dense) > 1.5 * float(light)
    assert float(of.low.sum()) < float(of.biomass.sum())


def hospitals(of: SimpleNamespace) -> None:
    assert 0.3 < of.ill.min() < of.ill.max() < 0.7
    assert of.plain.loo_score_ < 0.75
    assert of.robust.suspects_ == of.liars.tolist()
    best, mixed, final = (each.score(of.new_blood, of.new_truth) for each in (of.plain, of.robust, of.final))
    assert best < mixed - 0.02
    assert final == pytest.approx(of.final.loo_score_, abs=0.02)


def costs(of: SimpleNamespace) -> None:
    single, whole = (of.searches[way] for way in ("single visits", "whole patients"))
    assert single.best_params_["gamma"] > 2 * whole.best_params_["gamma"]
    assert single.loo_score_ > single.score(of.X_new, of.y_new) + 0.05
    assert -of.cost(of.clf, of.X_new, of.y_new) < of.before
    assert all(of.holds[of.y_new == label].mean() > 0.85 for label in (0, 1))


def events(of: SimpleNamespace) -> None:
    linear, kernel = (each.score(of.X_new, of.y_new) for each in (of.linear, of.kernel))
    assert linear + 0.002 < kernel < 0.8
    assert kernel == pytest.approx(of.kernel.loo_score_, abs=0.01)
    assert of.kernel.dual_gap_ < 0.01
    assert (of.values[~of.is_signal] > of.cut).mean() == pytest.approx(0.01, abs=0.004)
    for values in (of.values, of.linear.decision_function(of.X_new)):  # the two curves at 1 %
        passes = (values[of.is_signal] > np.quantile(values[~of.is_signal], 0.99)).mean()
        assert passes == pytest.approx(0.22, abs=0.02)


def text_collection(of: SimpleNamespace) -> None:
    assert of.known > 0.5
    assert of.held.mean() == pytest.approx(0.95, abs=0.04)


def kubernetes(of: SimpleNamespace) -> None:
    np.testing.assert_array_equal(of.one.dual_coef_, of.two.dual_coef_)


CLAIMS = {each.__name__: each for each in (land_cover, biomass, text_collection, hospitals, events, kubernetes, costs)}


def test_every_tutorial_is_on_the_first_page() -> None:
    listed = re.findall(r"^   (\w+)$", (TUTORIALS / "index.rst").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in TUTORIALS.glob("*.py"))
    assert listed == list(CLAIMS)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_tutorial(name, work_folder, capsys, monkeypatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    names = run_script(TUTORIALS / f"{name}.py", work_folder, capsys, monkeypatch)
    assert pyplot.get_fignums()
    pyplot.close("all")
    CLAIMS[name](names)


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
    told = [line for line in done.stderr.splitlines() if not line.startswith("dask-odm: --solver auto took ")]
    assert (done.returncode, told) == (0, [])
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
